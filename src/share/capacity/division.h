// share = "capacity": every host has a part of a limit's rate, and hosts move parts to where they are needed. Hits are
// not reported.
//
// A query is decided by a bucket that refills as fast as the host's part says (part_table.h). A tag that was refused is
// noted, so that it takes part in the exchange; dividing.h does the rest of this host's half.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "share/capacity/notes.h"
#include "share/capacity/owed.h"
#include "share/capacity/part_table.h"
#include "share/capacity/place_parts.h"
#include "share/share.h"

namespace dthrottle {

class Division final : public Way {
 public:
  static constexpr Share kShare = Share::kCapacity;
  static void Check(const Rule& rule, const FleetTerms& fleet, std::vector<std::string>& warnings);

  Division(LimiterCore& core, Ways&);

  bool Has(const Limit& limit) const { return limit.divided; }
  bool Decide(Asked& asked);
  void Charged(Asked& asked);
  void Prepare(Asked& asked);
  // Nobody else has this host's part before the tokens end, whatever becomes of the host.
  Tokens MayLend(const Asked& asked) {
    return BootTime(asked.now) + Loan::kLast <= parts_.lent().until ? kLendAll : 0;
  }
  void Spent(Asked& asked, Cost tokens, Instant since);
  void Refuse(Asked& asked);
  bool Would(Looked& looked);
  Shape ShapeOf(const Tag& tag, const Limit& limit, Instant now);
  std::uint32_t PlacesHere(const Tag&, std::uint64_t hash, const Limit& limit, Instant now) {
    return place_parts_->Here(hash, ReservePlaces(limit), BootTime(now));
  }
  void PlaceWanted(const Tag& tag, std::uint64_t hash, Instant now) { place_parts_->Wanted(tag, hash, BootTime(now)); }
  // A part too small for the whole depth looks like debt.
  static bool Plausible(const Bucket&, const Limit&, Instant) { return true; }
  void Inspect(const TagAt& at, Inspection& seen, Instant now);
  std::optional<Tokens> Bound(const Limit& limit, std::span<const PeerAge> peers) const;
  // Notes name limits by their old numbers, and places may be new.
  void Adopted();

  // ---- The owner's thread ----

  // Lets no query be decided while `change` runs on the parts; keep it short.
  template <class Change>
  void ChangeParts(Change&& change) {
    core_.table->Exclusively([&] { change(parts_); });
  }
  const PartTable& parts() const { return parts_; }

  // Parts end on the boot clock, since others inherit them while this host is suspended. So the first query after that
  // has to find them over, and each reads that clock by `read`, on any thread. Without it the host is never suspended.
  // To be called before queries come.
  using BootClockRead = std::function<BootInstant()>;
  void ReadBootClock(BootClockRead read) { read_boot_clock_ = std::move(read); }
  BootInstant BootTime(Instant now) const { return read_boot_clock_ ? read_boot_clock_() : OnBootClock(now); }

  // From now on the tag has this part, or kUsual; it keeps its tokens, as far as the part has room for them. Nothing
  // where the key has no entry.
  void SetPart(const Tag& tag, const CapacityKey& key, double part, Instant now);

  // A tag under a divided limit that nobody has named yet: it has no entry and was refused, or it has one. Not all are
  // noted at once.
  bool TakeNoted(NotedTag& noted);

  // Calls `over`, on this thread, for tags of which so many places have to be given back by those who hold them.
  using OnOverCall = std::function<void(const Tag& tag, std::uint64_t hash, std::uint32_t places)>;
  void OnOver(OnOverCall over) { over_ = std::move(over); }
  void Over(const Tag& tag, std::uint64_t hash, std::uint32_t places) const {
    if (over_) over_(tag, hash, places);
  }
  // Null: no rule has places.
  PlaceParts* place_parts() { return place_parts_.get(); }
  // How many this host may take whatever happens.
  std::uint32_t ReservePlaces(const Limit& limit) const {
    return PlaceParts::Of(parts_.lent().reserve, limit.in_flight);
  }
  LimiterCore& core() { return core_; }

  // The key of a tag under that limit, for all hosts. REQUIRES: the limit is divided.
  CapacityKey KeyOf(const Tag& tag, const Limit& limit) const;

  const LimiterCore& core() const { return core_; }
  const Rulebook& rules() const { return *core_.rules; }

 private:
  PartTable::Entry* EntryOf(const Tag& tag, const Limit& limit) {
    return parts_.size() > 0 ? parts_.Find(KeyOf(tag, limit)) : nullptr;
  }
  PartTable::Entry* Arrived(const Asked& asked, Cost tokens);
  void Note(const Asked& asked) {
    notes_[asked.lane]->Note(asked.query.tag, asked.hash, asked.index, asked.now);
  }
  Shape ShapeOf(const PartTable::Entry* entry, const Limit& limit, Instant now) const {
    return PartOf(limit.shape, parts_.PartNow(entry, BootTime(now)));
  }
  void Prepare(Asked& asked, const PartTable::Entry* entry);

  LimiterCore& core_;
  PartTable parts_;
  Owed owed_;
  std::vector<std::unique_ptr<Notes>> notes_;    // by lane
  std::unique_ptr<PlaceParts> place_parts_;      // as LimiterCore::in_flight
  OnOverCall over_;
  BootClockRead read_boot_clock_;
};

// The entry of a tag of which so many tokens are asked for.
inline PartTable::Entry* Division::Arrived(const Asked& asked, Cost tokens) {
  PartTable::Entry* const entry = EntryOf(asked.query.tag, asked.limit);
  if (entry != nullptr) {
    entry->CountArrivals(tokens);
    if (!entry->named) Note(asked);
  }
  return entry;
}

inline void Division::Prepare(Asked& asked, const PartTable::Entry* entry) {
  asked.shape = ShapeOf(entry, asked.limit, asked.now);
  if (asked.slot != nullptr) asked.slot->bucket = owed_.Honest(asked.hash, asked.slot->bucket, asked.shape, asked.now);
}

inline void Division::Prepare(Asked& asked) {
  Prepare(asked, EntryOf(asked.query.tag, asked.limit));
}

inline bool Division::Decide(Asked& asked) {
  PartTable::Entry* const entry = Arrived(asked, asked.query.cost);
  Prepare(asked, entry);
  const bool within = DecideAlone(asked);
  if (!within && entry == nullptr) Note(asked);
  return within;
}

inline void Division::Charged(Asked& asked) {
  if (asked.bucket().Debt(asked.shape, asked.now) > 0) owed_.Note(asked.hash, asked.bucket(), asked.now);
}

inline void Division::Spent(Asked& asked, Cost tokens, Instant) {
  Arrived(asked, tokens);
}

inline void Division::Refuse(Asked& asked) {
  if (Arrived(asked, asked.query.cost) == nullptr) Note(asked);
  asked.Refused();
}

inline bool Division::Would(Looked& looked) {
  looked.shape = ShapeOf(EntryOf(looked.query.tag, looked.limit), looked.limit, looked.now);
  looked.bucket = owed_.Honest(looked.hash, looked.bucket, looked.shape, looked.now);
  return looked.Within();
}

}    // namespace dthrottle
