// Collects hits that no report has carried and hands them over, a slice at a time: all of them at the end of a period,
// and between two reports those of tags that cannot wait.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"
#include "share/debit/draft.h"
#include "share/debit/outlet.h"
#include "share/debit/ownership.h"
#include "share/ways.h"

namespace dthrottle {

class Collecting {
 public:
  // All must outlive it. Goes on where a life before has left off that had the same table.
  Collecting(Ways& ways, Outlet& outlet, const Ownership& ownership, Duration period, Instant now);

  // Hits until then have been reported.
  Instant from() const { return from_; }
  void GoOnFrom(Instant from) { from_ = from; }
  // Hits until then have been collected, or are being.
  Instant until() const { return running_ ? to_ : from_; }

  // Collects all hits until `now`, which takes some slices.
  void Begin(Instant now);
  bool running() const { return running_; }
  void BreakOff() { running_ = false; }
  // From now on no hit waits for another period.
  void TakeAll() { takes_all_ = true; }

  // One slice; returns whether there are more.
  bool Go(Instant now);
  bool GoUrgent(Instant now);
  Instant urgent_at() const { return std::max(urgent_from_, ways_.urgent_at()); }

  // Hands over what has been collected already; false if there is no room now.
  bool Push(Instant now) { return PushHits(now) && PushUrgent(now); }

 private:
  std::uint64_t& reported_until() const;
  bool PushDraft(Draft& draft, ToPeers::Kind kind, Instant to, Instant now);
  void Owned(const Draft& draft, Instant now);
  bool PushHits(Instant now) { return PushDraft(hits_, ToPeers::Kind::kHits, to_, now); }
  bool PushUrgent(Instant now) { return PushDraft(urgent_, ToPeers::Kind::kUrgent, urgent_to_, now); }

  Ways& ways_;
  Debits& debits_;
  Table& table_;
  Outlet& outlet_;
  const Ownership& ownership_;
  const Duration period_;
  bool running_ = false, takes_all_ = false;
  Instant from_, to_;    // hits of (from_, to_], going through the table while it is running
  Draft hits_, urgent_;
  Instant urgent_to_;
  Instant urgent_from_{};    // not before
};

}    // namespace dthrottle
