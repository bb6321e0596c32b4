// share = "capacity": every host has a part of a limit's rate, and hosts move parts to where they are needed. Hits are
// not reported.
//
// A query is decided by a bucket that refills as fast as the host's part says (part_table.h). A tag that was refused is
// noted, so that it takes part in the exchange; dividing.h does the rest of this host's half.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "share/capacity/notes.h"
#include "share/capacity/part_table.h"
#include "share/share.h"

namespace dthrottle {

class Division final : public Way {
 public:
  static constexpr Share kShare = Share::kCapacity;
  static void Check(const Rule& rule, const FleetTerms& fleet, std::vector<std::string>& warnings);

  Division(LimiterCore& core, Ways&);

  bool Has(const Limit& limit) const { return limit.divided; }
  bool Decide(Asked& asked);
  void Refuse(Asked& asked);
  bool Would(Looked& looked);
  Shape ShapeOf(const Tag& tag, const Limit& limit, Instant now);
  // A divided limit knows no debt, only parts too small for the whole depth.
  static bool Plausible(const Bucket&, const Limit&, Instant) { return true; }
  void Inspect(const TagAt& at, Inspection& seen, Instant now);
  std::optional<Tokens> Bound(const Limit& limit, std::span<const PeerAge> peers) const;
  // Notes name limits by their old numbers.
  void Adopted();

  // ---- The owner's thread ----

  // Lets no query be decided while `change` runs on the parts; keep it short.
  template <class Change>
  void ChangeParts(Change&& change) {
    core_.table->Exclusively([&] { change(parts_); });
  }
  const PartTable& parts() const { return parts_; }

  // A tag under a divided limit that nobody has named yet: it has no entry and was refused, or it has one. Not all are
  // noted at once.
  bool TakeNoted(NotedTag& noted);

  // The key of a tag under that limit, for all hosts. REQUIRES: the limit is divided.
  CapacityKey KeyOf(const Tag& tag, const Limit& limit) const;

  const LimiterCore& core() const { return core_; }
  const Rulebook& rules() const { return *core_.rules; }

 private:
  PartTable::Entry* EntryOf(const Tag& tag, const Limit& limit) {
    return parts_.size() > 0 ? parts_.Find(KeyOf(tag, limit)) : nullptr;
  }
  PartTable::Entry* Arrived(const Asked& asked);
  void Note(const Asked& asked) {
    notes_[asked.lane]->Note(asked.query.tag, asked.hash, asked.index, asked.now);
  }
  Shape ShapeOf(const PartTable::Entry* entry, const Limit& limit, Instant now) const {
    return PartOf(limit.shape, parts_.PartNow(entry, now));
  }

  LimiterCore& core_;
  PartTable parts_;
  std::vector<std::unique_ptr<Notes>> notes_;    // by lane
};

// The entry of a tag that is asked.
inline PartTable::Entry* Division::Arrived(const Asked& asked) {
  PartTable::Entry* const entry = EntryOf(asked.query.tag, asked.limit);
  if (entry != nullptr) {
    entry->CountArrivals(asked.query.cost);
    if (!entry->named) Note(asked);
  }
  return entry;
}

inline bool Division::Decide(Asked& asked) {
  PartTable::Entry* const entry = Arrived(asked);
  asked.shape = ShapeOf(entry, asked.limit, asked.now);
  // A part so small that a token took longer than the depth leaves what looks like debt.
  if (asked.slot != nullptr) asked.slot->bucket = asked.slot->bucket.WithoutDebt(asked.shape, asked.now);
  const bool within = DecideAlone(asked);
  if (!within && entry == nullptr) Note(asked);
  return within;
}

inline void Division::Refuse(Asked& asked) {
  if (Arrived(asked) == nullptr) Note(asked);
  asked.Refused();
}

inline bool Division::Would(Looked& looked) {
  looked.shape = ShapeOf(EntryOf(looked.query.tag, looked.limit), looked.limit, looked.now);
  looked.bucket = looked.bucket.WithoutDebt(looked.shape, looked.now);
  return looked.Within();
}

}    // namespace dthrottle
