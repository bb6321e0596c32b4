// What peers say: hits that they served, and buckets as they have them.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "bucket/table_lookup.h"
#include "limiter/limiter.h"

namespace dthrottle {

namespace {

// The bytes under which the table has an entry's tag. A digest has the name of its rule behind it, because nothing is
// left that a rule could be matched with.
Tag TableTag(const Tag& tag) {
  return tag.is_digest ? Tag{tag.bytes.substr(0, kDigestBytes), true} : tag;
}

}    // namespace

void Limiter::ShareWith(std::size_t peers, Duration period) {
  table_->Exclusively([&] {
    peers_ = peers;
    window_ = ToTicks(period);
  });
}

// A peer can take a bucket into debt by what it may itself have served; so much, for all of them, is the most that is
// ever owed (DESIGN section 7).
Ticks Limiter::MaxDebt(const Limit& limit) const {
  if (limit.max_debt >= 0) return limit.max_debt;
  return static_cast<Ticks>(peers_ + 1) * (limit.shape.depth + window_);
}

// Three periods, or the time in which a bucket refills twice, but from 10 s to 300 s.
Duration Limiter::Horizon(const Limit& limit) const {
  using namespace std::chrono_literals;
  if (limit.horizon != Duration::zero()) return limit.horizon;
  const Duration natural(std::max(3 * window_, 2 * limit.shape.depth) / kTicksPerNanosecond);
  return std::clamp<Duration>(natural, 10s, 300s);
}

// Calls change(entry, shard, tag, slot or null, limit) for each entry that a shared limit of ours is for. As in
// Answer(), memory is asked for some entries ahead.
template <class Change>
void Limiter::ForEach(const Entries& entries, std::size_t first, std::size_t n, Instant now, Change&& change) {
  constexpr std::size_t kAheadMax = 32, kRing = 128;
  static_assert(kRing > 2 * kAheadMax);
  DT_CHECK(first + n <= entries.size());
  struct Sought {
    Tag tag;
    Table::Probe probe;
  };
  std::array<Sought, kRing> ring;
  const Entry* const list = entries.list().data() + first;
  const std::size_t ahead = std::min(kAheadMax, n / 2);
  for (std::size_t i = 0; i < n + 2 * ahead; ++i) {
    if (i < n) {
      Sought& sought = ring[i % kRing];
      sought.tag = TableTag(entries.tag(list[i]));
      sought.probe = table_->Aim(sought.tag);
    }
    if (i >= ahead && i < n + ahead) table_->Approach(ring[(i - ahead) % kRing].probe, true);
    if (i < 2 * ahead) continue;
    const Entry& entry = list[i - 2 * ahead];
    const auto& [tag, probe] = ring[(i - 2 * ahead) % kRing];
    Table::Shard shard(*table_, probe.hash);
    Slot* slot = shard.Find(tag, probe, now);
    std::optional<LimitIndex> index;
    if (slot != nullptr) {
      index = LimitIndex{slot->limit};
    } else {
      index =
          tag.is_digest ? rules_->Named(entries.tag(entry).bytes.substr(tag.bytes.size())) : rules_->Find(tag.bytes);
    }
    ++merge_counts_.entries;
    if (!index.has_value() || !rules_->limit(*index).shared) {
      ++merge_counts_.unmatched;
      continue;
    }
    change(entry, shard, tag, slot, *index);
  }
}

void Limiter::CountDebit(const Limit& limit, std::uint64_t hits, Ticks debt_made) {
  DebitTotals& of_rule = debits_[counter_of_rule_[limit.rule]];
  of_rule.hits += hits;
  all_debits_.hits += hits;
  if (debt_made <= 0) return;
  const Tokens tokens = static_cast<double>(debt_made) / static_cast<double>(limit.shape.interval);
  of_rule.overadmitted += tokens;
  all_debits_.overadmitted += tokens;
}

void Limiter::Debit(const Entries& entries, std::size_t first, std::size_t n, Instant from, Instant to, Instant now) {
  ForEach(entries, first, n, now,
          [&](const Entry& entry, Table::Shard& shard, const Tag& tag, Slot* slot, LimitIndex index) {
            const Limit& limit = rules_->limit(index);
            const Instant when = std::min(from + (to - from) / kPhases * entry.phase, now);
            if (now - when > Horizon(limit)) {
              merge_counts_.expired += entry.value;
              return;
            }
            if (slot != nullptr) {
              const Ticks debt = slot->bucket.Debt(limit.shape, now);
              slot->bucket.Debit(limit.shape, entry.value, when, MaxDebt(limit), now, shard.waste(slot), window_);
              CountDebit(limit, entry.value, slot->bucket.Debt(limit.shape, now) - debt);
              return;
            }
            Bucket bucket;
            Waste waste;
            bucket.Debit(limit.shape, entry.value, when, MaxDebt(limit), now, waste, window_);
            CountDebit(limit, entry.value, bucket.Debt(limit.shape, now));
            slot = shard.Insert(tag, bucket, index, now);
            if (slot != nullptr) {
              shard.waste(slot) = waste;
            } else {
              ++merge_counts_.unrecorded;
            }
          });
}

void Limiter::Merge(const Entries& entries, std::size_t first, std::size_t n, Instant at, Instant now) {
  ForEach(entries, first, n, now,
          [&](const Entry& entry, Table::Shard& shard, const Tag& tag, Slot* slot, LimitIndex index) {
            const Limit& limit = rules_->limit(index);
            constexpr std::uint64_t kFarMicroseconds = std::uint64_t{1} << 50;
            const Instant full_at =
                at + std::chrono::microseconds(static_cast<std::int64_t>(std::min(entry.value, kFarMicroseconds)));
            const Bucket before = slot != nullptr ? slot->bucket : Bucket();
            Bucket bucket = before;
            bucket.Merge(limit.shape, full_at, slot != nullptr ? slot->unreported : 0, MaxDebt(limit), now);
            if (bucket.UntilFull(now) == before.UntilFull(now)) return;
            if (slot != nullptr) {
              slot->bucket = bucket;
            } else {
              slot = shard.Insert(tag, bucket, index, now);
            }
            if (slot != nullptr) {
              // It was not full lately, as far as we know, so there is no refill that late debits could be paid from.
              shard.waste(slot) = Waste::From(ToTicks(now) - 3 * window_);
            } else {
              ++merge_counts_.unrecorded;
            }
          });
}

// ---- The other way ----

bool Limiter::AddEntry(const Tag& tag, const Slot& slot, std::uint64_t value, std::uint8_t phase, Entries& out) const {
  if (!tag.is_digest) return out.Add(tag, value, phase);
  const std::size_t rule = rules_->limit(slot.limit).rule;
  if (rule >= rules_->rules().size()) return true;
  std::string named(tag.bytes);
  named += rules_->rules()[rule].name;
  return out.Add({named, true}, value, phase);
}

bool Limiter::AddHits(const Tag& tag, const Slot& slot, const Waste& waste, Instant from, Instant to,
                      Entries& out) const {
  if (!rules_->limit(slot.limit).shared) return true;
  // A burst after a rest has its own beginning; hits of a tag that has been busy are spread over the interval.
  const Ticks start = ToTicks(from), length = ToTicks(to) - start, since = waste.Since(ToTicks(to)) - start;
  Ticks phase = 0;
  if (since > 0 && length > 0) phase = std::min<Ticks>((since * kPhases + length - 1) / length, kPhases - 1);
  return AddEntry(tag, slot, slot.unreported, static_cast<std::uint8_t>(phase), out);
}

// As its peers know it: without the hits that no report has carried yet.
bool Limiter::AddBucket(const Tag& tag, const Slot& slot, Instant now, Entries& out) const {
  const Limit& limit = rules_->limit(slot.limit);
  if (!limit.shared) return true;
  Bucket known = slot.bucket;
  known.Credit(limit.shape, slot.unreported);
  const auto left = std::chrono::ceil<std::chrono::microseconds>(known.UntilFull(now)).count();
  return left == 0 || AddEntry(tag, slot, static_cast<std::uint64_t>(left), 0, out);
}

}    // namespace dthrottle
