// What peers say: hits that they served, and buckets as they have them.
#include <algorithm>
#include <array>
#include <cmath>
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
    root_hosts_ = std::sqrt(static_cast<double>(peers + 1));
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
  const Duration natural = ToDuration(std::max(3 * window_, 2 * limit.shape.depth));
  return std::clamp<Duration>(natural, 10s, 300s);
}

Limiter::DebitTerms Limiter::TermsOf(LimitIndex index) {
  const Limit& limit = rules_->limit(index);
  return {index, &limit, MaxDebt(limit), Horizon(limit), &debits_[counter_of_rule_[limit.rule]]};
}

// Calls change(entry, shard, tag, hash, slot or null, limit) for each entry that a shared limit of ours is for.
template <class Change>
void Limiter::ForEach(const Entries& entries, std::size_t first, std::size_t n, Instant now, Change&& change) {
  DT_CHECK(first + n <= entries.size());
  const Entry* const list = entries.list().data() + first;
  merge_counts_.entries += n;
  const auto tag_of = [&](std::size_t i) { return TableTag(entries.tag(list[i])); };
  table_->ForEach(n, true, tag_of, [&](std::size_t i, const Table::Probe& probe) {
    const Entry& entry = list[i];
    const Tag tag = tag_of(i);
    Table::Shard shard(*table_, probe.hash);
    Slot* const slot = shard.Find(tag, probe, now);
    const auto index = slot != nullptr ? std::optional(LimitIndex{slot->limit})
                       : tag.is_digest ? rules_->Named(entries.tag(entry).bytes.substr(tag.bytes.size()))
                                       : rules_->Find(tag.bytes);
    if (!index.has_value() || !rules_->limit(*index).shared) {
      ++merge_counts_.unmatched;
      return;
    }
    change(entry, shard, tag, probe.hash, slot, *index);
  });
}

// Peers' hits left little in a bucket, which had been `before`; it is that of the tag unless `unrecorded`.
void Limiter::NoteDrained(const Tag& tag, std::uint64_t hash, const Bucket& before, const Bucket& bucket,
                          const DebitTerms& terms, bool unrecorded, Instant now) {
  const Shape& shape = terms.limit->shape;
  const auto interval = static_cast<double>(shape.interval);
  const Ticks owed = bucket.Debt(shape, now);
  const Tokens made = static_cast<double>(std::max<Ticks>(owed - before.Debt(shape, now), 0)) / interval;
  terms.totals->overadmitted += made;
  all_debits_.overadmitted += made;
  if (unrecorded) return;
  certificate_.Drained(hash, tag, counter_of_rule_[terms.limit->rule], static_cast<double>(owed) / interval, made);
}

void Limiter::Debit(const Entries& entries, std::size_t first, std::size_t n, Instant from, Instant to, Instant now,
                    std::uint32_t peer) {
  const Duration phase = (to - from) / kPhases;
  DebitTerms terms;    // of the entry before: most entries have the same limit
  ForEach(
      entries, first, n, now,
      [&](const Entry& entry, Table::Shard& shard, const Tag& tag, std::uint64_t hash, Slot* slot, LimitIndex index) {
        if (index != terms.index) terms = TermsOf(index);
        const Limit& limit = *terms.limit;
        if (now - to > terms.horizon) {
          merge_counts_.expired += entry.value;
          return;
        }
        Instant when = std::clamp(from + phase * entry.phase, now - terms.horizon, now);
        if (Watched(limit)) {
          const double demand = static_cast<double>(entries.demand(entry).value_or(0)) / 1000;
          when = Hear({peer, static_cast<double>(entry.value), demand, when, to}, tag, hash, slot, limit, now);
        }
        if (entry.value == 0) return;
        const Bucket before = slot != nullptr ? slot->bucket : Bucket();
        Bucket bucket = before;
        Waste waste = slot != nullptr ? shard.waste(slot) : Waste();
        bucket.Debit(limit.shape, entry.value, when, terms.max_debt, now, waste, window_);
        terms.totals->hits += entry.value;
        all_debits_.hits += entry.value;
        if (slot != nullptr) {
          slot->bucket = bucket;
        } else {
          slot = shard.Insert(tag, bucket, index, Source::kPeer, now);
        }
        if (slot != nullptr) {
          shard.waste(slot) = waste;
        } else {
          ++merge_counts_.unrecorded;
        }
        if (bucket.IsNearLimit(limit.shape, now)) [[unlikely]] {
          NoteDrained(tag, hash, before, bucket, terms, slot == nullptr, now);
        }
      });
}

void Limiter::Merge(const Entries& entries, std::size_t first, std::size_t n, Instant at, Instant now) {
  ForEach(entries, first, n, now,
          [&](const Entry& entry, Table::Shard& shard, const Tag& tag, std::uint64_t, Slot* slot, LimitIndex index) {
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
              slot = shard.Insert(tag, bucket, index, Source::kPeer, now);
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

bool Limiter::AddEntry(const Tag& tag, LimitIndex limit, const Said& said, Entries& out) const {
  if (!tag.is_digest) return out.Add(tag, said.value, 0, said.demand);
  const std::size_t rule = rules_->limit(limit).rule;
  if (rule >= rules_->rules().size()) return true;
  std::string named(tag.bytes);
  named += rules_->rules()[rule].name;
  return out.Add({named, true}, said.value, 0, said.demand);
}

bool Limiter::AddHits(const Tag& tag, LimitIndex limit, const Said& said, Ticks began, Draft& out) const {
  const std::size_t before = out.entries.size();
  if (!AddEntry(tag, limit, said, out.entries)) return false;
  if (out.entries.size() > before) out.began.push_back(began);
  return true;
}

// A burst after a rest has its own beginning; hits of a tag that has been busy are spread over the interval.
bool Limiter::AddHits(const Tag& tag, const Slot& slot, const Waste& waste, Instant from, Instant to, Draft& out) {
  const Limit& limit = rules_->limit(slot.limit);
  if (!limit.shared) return true;
  Watch* watch = Watched(limit) ? watches_->Find(table_->Hash(tag)) : nullptr;
  if (watch != nullptr) return ReportHits(*watch, slot.limit, slot.unreported, &waste, from, to, out);
  const Ticks began = std::max(waste.Since(ToTicks(to)), ToTicks(from));
  return AddHits(tag, slot.limit, {slot.unreported, {}}, began, out);
}

// As its peers know it: without the hits that no report has carried yet.
bool Limiter::AddBucket(const Tag& tag, const Slot& slot, Instant now, Entries& out) const {
  const Limit& limit = rules_->limit(slot.limit);
  if (!limit.shared) return true;
  Bucket known = slot.bucket;
  known.Credit(limit.shape, slot.unreported);
  const auto left = std::chrono::ceil<std::chrono::microseconds>(known.UntilFull(now)).count();
  return left == 0 || AddEntry(tag, slot.limit, {static_cast<std::uint64_t>(left), {}}, out);
}

}    // namespace dthrottle
