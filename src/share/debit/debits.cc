// What peers say: hits that they served, and buckets as they have them.
#include "share/debit/debits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "share/accuracy/accuracy.h"
#include "share/debit/ownership.h"
#include "share/inspection.h"
#include "share/said_tag.h"
#include "share/sites/site_bound.h"
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

// The most that a bucket gives at one instant: its burst, and what queries wait for.
Ticks AtOnce(const Limit& limit) {
  return limit.shape.depth + ToTicks(limit.delay);
}

}    // namespace

void Debits::ShareWith(std::size_t peers, Duration period) {
  core_.table->Exclusively([&] {
    core_.peers = peers;
    core_.root_hosts = std::sqrt(static_cast<double>(peers + 1));
    core_.window = ToTicks(period);
    core_.waste_window = std::max(core_.window, window_abroad_);
    certificate_.SetPeriod(period);
  });
}

void Debits::ShareAbroad(Duration period) {
  window_abroad_ = ToTicks(period);
  core_.table->Exclusively([&] { core_.waste_window = std::max(core_.window, window_abroad_); });
}

// A peer can take a bucket into debt by what it may itself have served; so much, for all of them, is the most that is
// ever owed. Where a bucket takes months to fill, many hosts make more than can be counted.
Ticks Debits::MaxDebt(const Limit& limit) const {
  constexpr Ticks kMost = std::numeric_limits<Ticks>::max() / 4;
  if (limit.max_debt >= 0) return limit.max_debt;
  const auto hosts = static_cast<Ticks>(core_.peers + 1);
  return hosts * std::min(AtOnce(limit) + core_.window, kMost / hosts);
}

// Three periods, or the time in which a bucket refills twice, but from 10 s to 300 s.
Duration Debits::Horizon(const Limit& limit) const {
  using namespace std::chrono_literals;
  if (limit.horizon != Duration::zero()) return limit.horizon;
  const Duration natural = ToDuration(std::max(3 * core_.window, 2 * limit.shape.depth));
  return std::clamp<Duration>(natural, 10s, 300s);
}

// The most tokens of a tag that one host can serve in an interval, in ticks.
//
// A bucket gives away at most burst + rate x (time + delay), whatever the costs of its queries are and however often
// its host is killed: it goes on in the table, and so does the interval. Hits that shadow mode lets through beyond
// the limit are not reported. Hits that are served while the table is walked are reported too early, for which there
// is a period more, or a second. Only the horizon of a long interval counts: what the bucket cannot have given since
// then is older than any hit that counts.
//
// An honest host loses hits under a limit larger than ours, as long as a reload has not reached both; hits of a tag
// that was forgiven what it owed; and hits served before a walk in the middle of which it stood still for more than a
// period. Tokens that were given back and spent again are reported twice and count once.
Ticks Debits::ServedMax(const Limit& limit, Duration interval) const {
  const Duration within = std::clamp(interval, Duration(0), Horizon(limit));
  return AtOnce(limit) + ToTicks(within) + std::max(core_.window, ToTicks(std::chrono::seconds(1)));
}

Debits::Terms Debits::TermsOf(LimitIndex index, Duration interval) {
  const Limit& limit = core_.limit(index);
  const auto hits_max = static_cast<std::uint64_t>(ServedMax(limit, interval) / limit.shape.interval + 1);
  return {index, &limit, MaxDebt(limit), Horizon(limit), &totals_[core_.tally.counter(limit.rule)], hits_max};
}

HeardPeer& Debits::HeardPeerOf(const Speaker& speaker) {
  std::vector<HeardPeer>& heard = speaker.abroad ? heard_sites_ : heard_peers_;
  while (heard.size() <= speaker.number) {
    const auto number = static_cast<std::uint32_t>(heard.size());
    heard.push_back({number, PeerCeilings::Room(new_tags_max_), PeerCeilings::Room(penalties_max())});
  }
  return heard[speaker.number];
}

void Debits::SetNewTagsMax(std::uint64_t per_second) {
  new_tags_max_ = per_second;
  for (auto* const heard : {&heard_peers_, &heard_sites_}) {
    for (HeardPeer& peer : *heard) {
      peer.new_tags = PeerCeilings::Room(new_tags_max_);
      peer.penalties = PeerCeilings::Room(penalties_max());
    }
  }
}

// Calls change(told) for each entry that a shared limit of ours is for.
template <class Change>
void Debits::ForEach(const Entries& entries, std::size_t first, std::size_t n, Instant now, Change&& change) {
  DT_CHECK(first + n <= entries.size());
  const Entry* const list = entries.list().data() + first;
  counts_.entries += n;
  const bool only_hits = entries.besides() == 0;
  const auto tag_of = [&](std::size_t i) { return TableTag(entries.tag(list[i])); };
  core_.table->ForEach(n, true, tag_of, [&](std::size_t i, const Table::Probe& probe) {
    const Entry& entry = list[i];
    const Tag tag = tag_of(i);
    Table::Shard shard(*core_.table, probe.hash);
    Slot* const slot = shard.Find(tag, probe, now);
    const auto index = LimitOfSaid(*core_.rules, slot, entries.tag(entry));
    const auto concerns = [&](const Limit& limit) {
      return only_hits ? limit.shared : BesideHits::Concerns(entries, entry, limit);
    };
    if (!index.has_value() || !concerns(core_.limit(*index))) {
      ++counts_.unmatched;
      return;
    }
    change(ToldEntry{entry, shard, tag, probe.hash, slot, *index});
  });
}

// What peers' hits made of debt in a bucket that had been `before`.
Tokens Debits::DebtMade(const Bucket& before, const Bucket& bucket, const Terms& terms, Instant now) {
  const Shape& shape = terms.limit->shape;
  const Ticks made = std::max<Ticks>(bucket.Debt(shape, now) - before.Debt(shape, now), 0);
  const Tokens tokens = static_cast<double>(made) / static_cast<double>(shape.interval);
  terms.totals->overadmitted += tokens;
  all_totals_.overadmitted += tokens;
  return tokens;
}

void Debits::Debit(const Entries& entries, std::size_t first, std::size_t n, Instant from, Instant to, Instant now,
                   const Speaker& speaker) {
  const Duration phase = (to - from) / kPhases;
  Terms terms;    // of the entry before: most entries have the same limit
  const std::uint32_t peer = speaker.number;
  HeardPeer& heard = HeardPeerOf(speaker);
  const bool only_hits = entries.besides() == 0;    // as in most frames
  ForEach(entries, first, n, now, [&](const ToldEntry& told) {
    if (!only_hits && beside_.Hear(entries, told, heard, to, now)) return;
    if (told.index != terms.index) terms = TermsOf(told.index, to - from);
    const Entry& entry = told.entry;
    if (now - to > terms.horizon) {
      counts_.expired += entry.value;
      return;
    }
    if (!only_hits) {
      if (const std::uint64_t back = entries.back(entry); back != 0) {
        HearBack(told, peer, back, terms, now);
        if (!entries.demand(entry)) return;
      }
    }
    if (told.slot == nullptr && entry.value != 0 && !heard.new_tags.Take(now)) {
      ++counts_.new_tags_cut, ++heard.counts.new_tags_cut;
      return;
    }
    const std::uint64_t hits = std::min(entry.value, terms.hits_max * speaker.hosts), beyond = entry.value - hits;
    counts_.hits_disbelieved += beyond, heard.counts.hits_disbelieved += beyond;
    const Instant began = std::clamp(from + phase * entry.phase, now - terms.horizon, now);
    const double demand = only_hits ? 0 : static_cast<double>(entries.demand(entry).value_or(0)) / 1000;
    DebitOne(told, terms,
             {peer, static_cast<double>(hits), demand, began, std::min(to, now), speaker.abroad, speaker.period}, now);
    if (core_.site_sums != nullptr && !speaker.abroad) {
      core_.site_sums->Add(told.hash, entries.tag(entry), hits, ToTicks(began));
    }
    if (terms.limit->derives && core_.among != nullptr && hits != 0) NoteAmong(told, *terms.limit, hits);
    if (only_hits) return;
    if (const std::uint64_t may = entries.returnable(entry); may != 0) {
      returnable_hits_.Told(told.hash, peer, std::min(may, hits), now);
    }
  });
  HearAmong(now);
}

// ---- Tags that are charged to a divided one ----

// The peer has charged the divided tag as well, and says so in an entry of its own: this one says whose hits they were.
void Debits::NoteAmong(const ToldEntry& told, const Limit& limit, std::uint64_t hits) {
  if (told.tag.is_digest) return;
  core_.rules->ForEachDerived(told.index, {told.tag.bytes}, [&](std::string_view divided) {
    elsewhere_.push_back({core_.table->Hash({divided}), told.hash, limit.weight, hits});
  });
}

// The shard of a divided tag cannot be locked beside that of the tag which is charged to it.
void Debits::HearAmong(Instant now) {
  for (const ChargedElsewhere& its : elsewhere_) {
    const Table::Shard shard(*core_.table, its.divided);
    core_.among->Hear(its.divided, its.member, its.weight, its.hits, now);
  }
  elsewhere_.clear();
}

// ---- What comes back ----

void Debits::HearBack(const ToldEntry& told, std::uint32_t peer, std::uint64_t back, const Terms& terms, Instant now) {
  const std::uint64_t most = std::min<std::uint64_t>(back, std::numeric_limits<Cost>::max());
  const auto credited = static_cast<Cost>(returnable_hits_.TakeBack(told.hash, peer, most));
  counts_.returned += credited;
  counts_.returns_disbelieved += back - credited;
  if (core_.site_sums != nullptr) core_.site_sums->TakeBack(told.hash, credited);
  if (credited == 0 || told.slot == nullptr) return;
  told.slot->bucket.Credit(terms.limit->shape, credited);
  const TagAt its{told.tag, told.hash, *terms.limit, told.slot};
  ways_.With(*terms.limit, [&](auto& way) { way.PeerGaveBack(its, credited, now); });
}

// ---- What is told beside hits ----

void Debits::WatchTags(std::size_t, const std::function<void()>& wake) {
  wake_ = wake;
  core_.table->Exclusively([&] { beside_.WatchTags(wake); });
}

Instant Debits::urgent_at() const {
  return waiting_.any_untold() ? Instant::min() : beside_.urgent_at();
}

bool Debits::ReportUrgent(Instant from, Instant now, Draft& out) {
  return beside_.ReportUrgent(now, out) || TellWaits(from, now, out);
}

std::uint32_t Debits::PlacesHere(std::uint64_t hash, const Limit& limit, Instant now) {
  if (core_.window == 0) return limit.in_flight;
  if (!core_.gauges->HasRoom(hash)) return 0;
  return limit.in_flight - std::min(core_.gauges->Elsewhere(hash, now), limit.in_flight);
}

// Charges the bucket, and shows the certificate what came of it.
void Debits::DebitOne(const ToldEntry& told, const Terms& terms, const PeerWord& word, Instant now) {
  const Limit& limit = *terms.limit;
  const TagAt at{told.tag, told.hash, limit, told.slot};
  const Heed heed = ways_.With(limit, [&](auto& way) { return way.Hear(word, at, now); });
  if (word.hits == 0) return;
  const auto hits = static_cast<std::uint64_t>(word.hits);
  const Bucket before = told.slot != nullptr ? told.slot->bucket : Bucket();
  Bucket bucket = before;
  Waste waste = told.slot != nullptr ? told.shard.waste(told.slot) : Waste();
  if (heed.paid.has_value()) {
    bucket.DebitPaid(limit.shape, hits, *heed.paid, terms.max_debt, now, waste, core_.waste_window);
  } else {
    bucket.Debit(limit.shape, hits, word.when, terms.max_debt, now, waste, core_.waste_window);
  }
  terms.totals->hits += hits;
  all_totals_.hits += hits;
  const Slot* const slot = Store(told, bucket, waste, Source::Peer(word.abroad ? ~word.peer : word.peer), now);
  const bool drained = bucket.IsNearLimit(limit.shape, now);
  if (!drained && !certificate_.Knows(told.hash)) return;
  const Tokens made = drained ? DebtMade(before, bucket, terms, now) : 0;
  const Certificate::Hits seen{word.hits, word.when, heed.hits_from, heed.hits_to, false, heed.refused, made};
  if (certificate_.Served(told.hash, seen, now) || !drained || slot == nullptr) return;
  const TagLook look = TagLookOf(core_, limit, bucket.Level(limit.shape, now));
  certificate_.Drained(told.hash, told.tag, look, made, heed.told_at_once ? 0 : slot->unreported.hits(), now);
}

// Puts the bucket into the tag's slot, or into a new one if there is room. Returns the slot.
Slot* Debits::Store(const ToldEntry& told, const Bucket& bucket, const Waste& waste, Source source, Instant now) {
  Slot* slot = told.slot;
  if (slot != nullptr) {
    slot->bucket = bucket;
  } else {
    slot = told.shard.Insert(told.tag, bucket, told.index, source, now);
  }
  if (slot != nullptr) {
    told.shard.waste(slot) = waste;
  } else {
    ++counts_.unrecorded;
  }
  return slot;
}

// A donor's word takes a bucket into debt by one host's part of the floor. Deeper debt, which several hosts have made
// together, is forgiven to the host that joins, because a lie about it would last for as long.
void Debits::Merge(const Entries& entries, std::size_t first, std::size_t n, Instant at, Instant now) {
  ForEach(entries, first, n, now, [&](const ToldEntry& told) { MergeOne(told, at, now); });
}

void Debits::MergeOne(const ToldEntry& told, Instant at, Instant now) {
  const Limit& limit = core_.limit(told.index);
  const Instant full_at = UntilFullAt(told.entry, at);
  const Bucket before = told.slot != nullptr ? told.slot->bucket : Bucket();
  Bucket bucket = before;
  const Ticks debt_max = std::min(MaxDebt(limit), AtOnce(limit) + core_.window);
  counts_.debts_disbelieved += ToTicks(full_at) - ToTicks(now) > limit.shape.depth + debt_max;
  bucket.Merge(limit.shape, full_at, told.slot != nullptr ? told.slot->unreported.hits() : 0, debt_max, now);
  if (bucket.UntilFull(now) == before.UntilFull(now)) return;
  // As far as this host knows the bucket was not full lately, so late debits have no wasted refill to be paid from.
  Store(told, bucket, Waste::From(ToTicks(now) - 3 * core_.window), Source::kPeer, now);
}

// ---- What owners say ----

void Debits::Adopt(const Entries& entries, std::size_t first, std::size_t n, Instant at, Instant counted,
                   Instant reported, Instant now) {
  ForEach(entries, first, n, now, [&](const ToldEntry& told) {
    const Limit& limit = core_.limit(told.index);
    const auto until = ways_.With(limit, [&](auto& way) { return way.ReportedAt(told.hash); });
    if (until.value_or(reported) > counted) return;    // hits are on their way, and the answer to them as well
    const auto demand = static_cast<double>(entries.demand(told.entry).value_or(0)) / 1000;
    AdoptOne(told, demand, static_cast<double>(entries.back(told.entry)) / 1000, at, now);
  });
}

// The bucket that the entry states, after so many hits.
Bucket Debits::BucketOf(const ToldEntry& told, Instant at, std::uint64_t hits, Instant now) const {
  const Limit& limit = core_.limit(told.index);
  Bucket bucket;
  bucket.Merge(limit.shape, UntilFullAt(told.entry, at), hits, MaxDebt(limit), now);
  return bucket;
}

// Hits here that no report has carried yet, and what workers have been lent.
std::uint64_t Debits::UntoldOf(const ToldEntry& told) const {
  const std::uint64_t hits = told.slot != nullptr ? told.slot->unreported.hits() : 0;
  return core_.loans.any() ? hits + Loans::Out(core_.loans.Of(told.hash)) : hits;
}

// The bucket is the owner's, after what it cannot know of.
void Debits::AdoptOne(const ToldEntry& told, double demand, Tokens foretold, Instant at, Instant now) {
  const Limit& limit = core_.limit(told.index);
  const Tokens level = BucketOf(told, at, 0, now).Level(limit.shape, now);
  const Bucket bucket = BucketOf(told, at, UntoldOf(told), now);
  Slot* slot = told.slot;
  if (slot != nullptr || !bucket.IsFull(now)) {
    slot = Store(told, bucket, Waste::From(ToTicks(now) - 3 * core_.window), Source::kPeer, now);
  }
  const TagAt seen{told.tag, told.hash, limit, slot};
  ways_.With(limit, [&](auto& way) { way.OwnerSaid({demand, level - foretold}, seen, now); });
}

void Debits::TakeOver(const Entries& entries, std::size_t first, std::size_t n, Instant at,
                      std::vector<std::uint64_t>& taken, Instant now) {
  ForEach(entries, first, n, now, [&](const ToldEntry& told) {
    taken.push_back(told.hash);
    const Bucket bucket = BucketOf(told, at, UntoldOf(told), now);
    const Slot* const slot = Store(told, bucket, Waste::From(ToTicks(now) - 3 * core_.window), Source::kPeer, now);
    ways_.With(core_.limit(told.index),
               [&](auto& way) { way.OwnedHere({told.tag, told.hash, core_.limit(told.index), slot}, now); });
  });
}

void Debits::DebitOwn(const Entries& entries, std::size_t first, std::size_t n, Instant from, Instant to,
                      const std::vector<std::uint64_t>& taken, Instant now) {
  const Duration phase = (to - from) / kPhases;
  ForEach(entries, first, n, now, [&](const ToldEntry& told) {
    if (told.entry.value == 0) return;
    const Instant began = std::min(from + phase * told.entry.phase, now);
    if (core_.site_sums != nullptr) {
      core_.site_sums->Add(told.hash, entries.tag(told.entry), told.entry.value, ToTicks(began));
    }
    if (!std::binary_search(taken.begin(), taken.end(), told.hash)) return;
    const Limit& limit = core_.limit(told.index);
    Bucket bucket = told.slot != nullptr ? told.slot->bucket : Bucket();
    Waste waste = told.slot != nullptr ? told.shard.waste(told.slot) : Waste();
    bucket.Debit(limit.shape, told.entry.value, began, MaxDebt(limit), now, waste, core_.waste_window);
    const Slot* const slot = Store(told, bucket, waste, Source::kPeer, now);
    ways_.With(limit, [&](auto& way) { way.OwnedHere({told.tag, told.hash, limit, slot}, now); });
  });
}

void Debits::HearNear(const Entries& entries, std::size_t first, std::size_t n, Instant at, Instant now,
                      std::uint32_t owner) {
  HeardPeer& heard = HeardPeerOf(owner);
  ForEach(entries, first, n, now, [&](const ToldEntry& told) {
    if (const auto left = entries.penalty(told.entry)) {
      return beside_.HearPenalty(told, heard, at + std::chrono::milliseconds(*left), now);
    }
    const auto named = ways_.With(core_.limit(told.index), [&](auto& way) { return way.ReportedAt(told.hash); });
    if (!named || now - *named > kUserFor) MergeOne(told, at, now);
  });
}

// ---- The other way ----

bool Debits::AddSaid(const Tag& tag, LimitIndex limit, const Said& said, Ticks began, Draft& out) const {
  const std::size_t before = out.entries.size();
  const bool returnable = returnable_tags_.any() && returnable_tags_.Has(core_.table->Hash(tag));
  if (!returnable && !said.demand && said.back == 0 && !tag.is_digest) {    // as most are
    if (!out.entries.Add(tag, said.value, 0)) return false;
  } else {
    const Besides besides{.demand = said.demand, .returnable = returnable ? said.value : 0, .back = said.back};
    if (!AddSaidTag(*core_.rules, tag, limit, said.value, besides, out.entries)) return false;
    if (out.entries.size() == before) return true;
  }
  out.began.push_back(began);
  account().TookHits(said.value);
  return true;
}

// A burst after a rest has its own beginning; hits of a tag that has been busy are spread over the interval.
bool Debits::AddHits(const Tag& tag, const Slot& slot, const Waste& waste, Instant from, Instant to, Draft& out) {
  const Limit& limit = core_.limit(slot.limit);
  if (!limit.shared || !slot.unreported.any()) return true;
  const auto reported = ways_.With(limit, [&](auto& way) { return way.Report(tag, slot, waste, from, to, out); });
  if (reported.has_value()) return *reported;
  if (const std::uint32_t back = slot.unreported.back(); back != 0) {
    return AddSaid(tag, slot.limit, {0, {}, back}, ToTicks(to), out);
  }
  const Ticks began = std::max(waste.Since(ToTicks(to)), ToTicks(from));
  if (!AddSaid(tag, slot.limit, {slot.unreported.hits(), {}}, began, out)) return false;
  if (certificate_.tags() == 0) return true;
  const Instant start(ToDuration(began));
  const auto hits = static_cast<double>(slot.unreported.hits());
  const std::uint64_t hash = core_.table->Hash(tag);
  certificate_.Served(hash, {.hits = hits, .first = start, .from = start, .to = to, .here = true}, to);
  return true;
}

// The bucket as the peers know it: without the hits that no report has carried yet, and without what is lent.
Bucket Debits::KnownToPeers(const Tag& tag, const Slot& slot) const {
  const Limit& limit = core_.limit(slot.limit);
  Bucket known = slot.bucket;
  known.Credit(limit.shape, slot.unreported.hits());
  if (core_.loans.any()) known.Credit(limit.shape, Loans::Out(core_.loans.Of(core_.table->Hash(tag))));
  return known;
}

bool Debits::AddOwned(const Tag& tag, const Slot& slot, Instant now, Entries& out) const {
  if (!core_.limit(slot.limit).shared) return true;
  const auto left =
      std::chrono::ceil<std::chrono::microseconds>(KnownToPeers(tag, slot).UntilFull(now)).count();
  return left == 0 || AddSaidTag(*core_.rules, tag, slot.limit, static_cast<std::uint64_t>(left), {}, out);
}

bool Debits::AddBucket(const Tag& tag, const Slot& slot, Instant now, Entries& out) const {
  const Limit& limit = core_.limit(slot.limit);
  if (!limit.shared) return true;
  const Bucket known = KnownToPeers(tag, slot);
  auto left = std::chrono::ceil<std::chrono::microseconds>(known.UntilFull(now)).count();
  // What this host has made of an owner's word is nowhere else if the owner asks because it has lost it.
  if (const auto level = ways_.With(limit, [&](auto& way) { return way.LevelByOwner(core_.table->Hash(tag)); })) {
    const Tokens missing = limit.shape.burst() - *level - slot.unreported.hits();
    left = std::max<std::int64_t>(left, std::llround(1e6 * std::max(missing, 0.0) / limit.shape.rate()));
  }
  return left == 0 || AddSaidTag(*core_.rules, tag, slot.limit, static_cast<std::uint64_t>(left), {}, out);
}

// ---- What is known ----

void Debits::Inspect(const TagAt& at, Inspection& seen, Instant) {
  if (const TagAccuracy* accuracy = certificate_.Find(at.hash)) seen.accuracy = *accuracy;
}

void Debits::Reassigned(std::size_t counter) {
  totals_[counter] = {};
  certificate_.Reassign(counter, HeardOf(counter));
}

std::optional<Tokens> Debits::Bound(const Limit& limit, std::span<const PeerAge> peers) const {
  return ExcessBound({limit.shape.burst(), limit.shape.rate(), std::nullopt, ToDuration(core_.window)}, peers) +
         ExcessOfSites(core_, limit);
}

void Debits::Certify(Instant now) {
  dthrottle::Certify(
      core_, certificate_, [&](std::size_t counter) { return HeardOf(counter); }, now);
}

// Tokens served under the rule of a counter, by this host and others.
std::uint64_t Debits::HeardOf(std::size_t counter) const {
  return core_.tally.CounterTotals(counter).served + totals_[counter].hits;
}

}    // namespace dthrottle
