#include "share/debit/said_buckets.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "share/said_tag.h"
#include "share/sites/site_sums.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

// An owner tells a host of a watched tag for so long after the host has named it.
constexpr Duration kUserFor = std::chrono::seconds(10);

// When the bucket of an entry of a snapshot will be full.
Instant UntilFullAt(const Entry& entry, Instant at) {
  constexpr std::uint64_t kFarMicroseconds = std::uint64_t{1} << 47;    // four years, and no overflow in ticks
  return at + std::chrono::microseconds(static_cast<std::int64_t>(std::min(entry.value, kFarMicroseconds)));
}

}    // namespace

// A donor's word takes a bucket into debt by one host's part of the floor. Deeper debt, which several hosts have made
// together, is forgiven to the host that joins, because a lie about it would last for as long. Neither hits of this
// host nor what came back here are in that word, as far as no report has told of them.
void SaidBuckets::Merge(const Entries& entries, std::size_t first, std::size_t n, Instant at, Instant now) {
  peers_.ForEach(entries, first, n, Source::kPeer, now, [&](const ToldEntry& told) { MergeOne(told, at, now); });
}

void SaidBuckets::MergeOne(const ToldEntry& told, Instant at, Instant now) {
  const Limit& limit = core_.limit(told.index);
  const Unreported untold = told.slot != nullptr ? told.slot->unreported : Unreported();
  const Instant full_at = UntilFullAt(told.entry, at) - ToDuration(TicksOf(untold.back(), limit.shape));
  const Bucket before = told.slot != nullptr ? told.slot->bucket : Bucket();
  Bucket bucket = before;
  const Ticks debt_max = std::min(peers_.MaxDebt(limit), AtOnce(limit) + core_.window);
  peers_.counts().debts_disbelieved += ToTicks(full_at) - ToTicks(now) > limit.shape.depth + debt_max;
  bucket.Merge(limit.shape, full_at, untold.hits(), debt_max, now);
  if (bucket.UntilFull(now) == before.UntilFull(now)) return;
  // This host knows of no time lately when the bucket was full, so late debits have no wasted refill to be paid from.
  peers_.Store(told, bucket, Waste::From(ToTicks(now) - 3 * core_.window), Source::kPeer, now);
}

// ---- What owners say ----

void SaidBuckets::Adopt(const Entries& entries, std::size_t first, std::size_t n, Instant at, Instant counted,
                        Instant reported, Instant now, const Speaker& owner) {
  HeardPeer& heard = peers_.Of(owner);
  peers_.ForEach(entries, first, n, Source::kPeer, now, [&](const ToldEntry& told) {
    if (beside_.HearOwner(entries, told, heard, false, at, now)) return;
    const Limit& limit = core_.limit(told.index);
    // A report may be on its way, and the answer to it as well. Where answers take longer than a period one always is, so
    // the lower level counts. A watch has foretold a part of what this level says, and waits for the answer.
    const auto until = ways_.With(limit, [&](auto& way) { return way.ReportedAt(told.hash); });
    if (until.value_or(reported) > counted) {
      if (!until) MergeOne(told, at, now);
      return;
    }
    const auto demand = static_cast<double>(entries.demand(told.entry).value_or(0)) / 1000;
    AdoptOne(told, demand, static_cast<double>(entries.back(told.entry)) / 1000, at, now);
  });
}

// The bucket that the entry states, after so many hits.
Bucket SaidBuckets::BucketOf(const ToldEntry& told, Instant at, std::uint64_t hits, Instant now) const {
  const Limit& limit = core_.limit(told.index);
  Bucket bucket;
  bucket.Merge(limit.shape, UntilFullAt(told.entry, at), hits, peers_.MaxDebt(limit), now);
  return bucket;
}

// Hits here that no report has carried yet, and what workers have been lent.
std::uint64_t SaidBuckets::UntoldOf(const ToldEntry& told) const {
  const std::uint64_t hits = told.slot != nullptr ? told.slot->unreported.hits() : 0;
  return core_.loans.any() ? hits + Loans::Out(core_.loans.Of(told.hash)) : hits;
}

// The bucket is the owner's, after what it cannot know of.
void SaidBuckets::AdoptOne(const ToldEntry& told, double demand, Tokens foretold, Instant at, Instant now) {
  const Limit& limit = core_.limit(told.index);
  const Tokens level = BucketOf(told, at, 0, now).Level(limit.shape, now);
  const Bucket bucket = BucketOf(told, at, UntoldOf(told), now);
  Slot* slot = told.slot;
  if (slot != nullptr || !bucket.IsFull(now)) {
    slot = peers_.Store(told, bucket, Waste::From(ToTicks(now) - 3 * core_.window), Source::kPeer, now);
  }
  const TagAt seen{told.tag, told.hash, limit, slot};
  ways_.With(limit, [&](auto& way) { way.OwnerSaid({demand, level - foretold}, seen, now); });
}

void SaidBuckets::TakeOver(const Entries& entries, std::size_t first, std::size_t n, Instant at,
                           std::vector<std::uint64_t>& taken, Instant now) {
  peers_.ForEach(entries, first, n, Source::kPeer, now, [&](const ToldEntry& told) {
    taken.push_back(told.hash);
    const Bucket bucket = BucketOf(told, at, UntoldOf(told), now);
    const Waste waste = Waste::From(ToTicks(now) - 3 * core_.window);
    const Slot* const slot = peers_.Store(told, bucket, waste, Source::kPeer, now);
    ways_.With(core_.limit(told.index),
               [&](auto& way) { way.OwnedHere({told.tag, told.hash, core_.limit(told.index), slot}, now); });
  });
}

void SaidBuckets::DebitOwn(const Entries& entries, std::size_t first, std::size_t n, Instant from, Instant to,
                           const std::vector<std::uint64_t>& taken, Instant now) {
  const Duration phase = (to - from) / kPhases;
  peers_.ForEach(entries, first, n, Source::kPeer, now, [&](const ToldEntry& told) {
    if (told.entry.value == 0) return;
    const Instant began = std::min(from + phase * told.entry.phase, now);
    if (core_.site_sums != nullptr) {
      core_.site_sums->Add(told.hash, entries.tag(told.entry), told.entry.value, ToTicks(began));
    }
    if (!std::binary_search(taken.begin(), taken.end(), told.hash)) return;
    const Limit& limit = core_.limit(told.index);
    Bucket bucket = told.slot != nullptr ? told.slot->bucket : Bucket();
    Waste waste = told.slot != nullptr ? told.shard.waste(told.slot) : Waste();
    bucket.Debit(limit.shape, told.entry.value, began, peers_.MaxDebt(limit), now, waste, core_.waste_window);
    const Slot* const slot = peers_.Store(told, bucket, waste, Source::kPeer, now);
    ways_.With(limit, [&](auto& way) { way.OwnedHere({told.tag, told.hash, limit, slot}, now); });
  });
}

void SaidBuckets::HearNear(const Entries& entries, std::size_t first, std::size_t n, Instant at, Instant now,
                           const Speaker& owner) {
  HeardPeer& heard = peers_.Of(owner);
  peers_.ForEach(entries, first, n, Source::kPeer, now, [&](const ToldEntry& told) {
    if (const auto left = entries.penalty(told.entry)) {
      return beside_.HearPenalty(told, heard, heard.number, at + std::chrono::milliseconds(*left), now);
    }
    if (beside_.HearOwner(entries, told, heard, true, at, now)) return;
    const auto named = ways_.With(core_.limit(told.index), [&](auto& way) { return way.ReportedAt(told.hash); });
    if (!named || now - *named > kUserFor) MergeOne(told, at, now);
  });
}

// The bucket as the peers know it: without the hits that no report has carried yet, and without what is lent.
Bucket SaidBuckets::KnownToPeers(const Tag& tag, const Slot& slot, Instant now) const {
  const Limit& limit = core_.limit(slot.limit);
  Bucket known = slot.bucket;
  known.Credit(limit.shape, slot.unreported.hits(), now);
  if (core_.loans.any()) known.Credit(limit.shape, Loans::Out(core_.loans.Of(core_.table->Hash(tag))), now);
  return known;
}

bool SaidBuckets::AddOwned(const Tag& tag, const Slot& slot, Instant now, Entries& out) const {
  if (!core_.limit(slot.limit).shared) return true;
  const auto left =
      std::chrono::ceil<std::chrono::microseconds>(KnownToPeers(tag, slot, now).UntilFull(now)).count();
  return left == 0 || AddSaidTag(*core_.rules, tag, slot.limit, static_cast<std::uint64_t>(left), {}, out);
}

bool SaidBuckets::AddBucket(const Tag& tag, const Slot& slot, Instant now, Entries& out) const {
  const Limit& limit = core_.limit(slot.limit);
  if (!limit.shared) return true;
  const Bucket known = KnownToPeers(tag, slot, now);
  auto left = std::chrono::ceil<std::chrono::microseconds>(known.UntilFull(now)).count();
  // What this host has made of an owner's word is nowhere else if the owner asks because it has lost it.
  if (const auto level = ways_.With(limit, [&](auto& way) { return way.LevelByOwner(core_.table->Hash(tag)); })) {
    const Tokens missing = limit.shape.burst() - *level - slot.unreported.hits();
    left = std::max<std::int64_t>(left, std::llround(1e6 * std::max(missing, 0.0) / limit.shape.rate()));
  }
  return left == 0 || AddSaidTag(*core_.rules, tag, slot.limit, static_cast<std::uint64_t>(left), {}, out);
}

}    // namespace dthrottle
