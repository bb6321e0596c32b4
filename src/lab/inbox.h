// Frames that have come to a virtual host, which reads them when the daemon would (bus/gathering.h).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "base/prefetch.h"
#include "bus/exchange.h"
#include "bus/gathering.h"
#include "lab/events.h"

namespace dthrottle::lab {

class Inbox {
 public:
  // Holds so many frames. Hosts report every `period`.
  Inbox(std::size_t most, Duration period) : most_(most), period_(period) {}

  // False: it is full.
  bool Add(Parcel parcel) {
    if (waiting() >= most_) return false;
    (parcel.channel == Channel::kRequest ? requests_ : reports_).push_back(std::move(parcel));
    return true;
  }

  // Whether a frame is to be read now; others gather until `until`.
  bool IsDue(Instant now) const {
    if (!Gathers(now)) return waiting() > 0;
    return !gathering_.of_all() && !requests_.empty();
  }
  // When those that gather are due; max(): none do.
  Instant until(Instant now) const { return Gathers(now) ? gathering_.until() : Instant::max(); }

  // Calls take(parcel) for what is due, as long as the exchange has room for it.
  template <class Take>
  void Read(const Exchange& exchange, Instant now, Take&& take) {
    if (now >= look_at_) {
      gathering_.Look(exchange.links(), period_, exchange.Counts(), now);
      look_at_ = now + kLooksEvery;
    }
    if (!IsDue(now)) return;
    ReadAll(requests_, exchange, take);
    if (reports_.empty() || Gathers(now)) return;
    ReadAll(reports_, exchange, take);
    if (reports_.empty()) gathering_.Begin(now);
  }

  // Brings what Add needs from memory.
  void ExpectOne() const {
    if (!reports_.empty()) Prefetch<2>(&reports_.back());
  }

 private:
  static constexpr Duration kLooksEvery = std::chrono::milliseconds(250);    // also with many peers

  std::size_t waiting() const { return requests_.size() + reports_.size(); }
  bool Gathers(Instant now) const { return now < gathering_.until() && waiting() < most_; }

  template <class Take>
  void ReadAll(std::deque<Parcel>& from, const Exchange& exchange, Take&& take) {
    if (from.size() > 1) {
      links_.clear();
      for (const Parcel& parcel : from) links_.push_back(parcel.from);
      exchange.Expect(links_);
    }
    while (!from.empty() && !exchange.backlogged()) {
      const Parcel parcel = std::move(from.front());
      from.pop_front();
      take(parcel);
    }
  }

  const std::size_t most_;
  const Duration period_;
  std::deque<Parcel> requests_, reports_;    // what is not a request is with the reports
  std::vector<LinkId> links_;                // by which they have come
  Gathering gathering_;                      // of reports
  Instant look_at_{};                        // at how fast they come
};

}    // namespace dthrottle::lab
