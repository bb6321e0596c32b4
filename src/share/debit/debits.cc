#include "share/debit/debits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "share/accuracy/accuracy.h"
#include "share/debit/ownership.h"
#include "share/derived_tag.h"
#include "share/inspection.h"
#include "share/said_tag.h"
#include "share/sites/site_bound.h"
#include "share/sites/site_sums.h"
#include "share/ways.h"

namespace dthrottle {

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
  return {index, &limit, peers_.MaxDebt(limit), Horizon(limit), &totals_[core_.tally.counter(limit.rule)], hits_max};
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

// Whether the entry makes something of a tag that has no bucket here: hits make a bucket, and a demand makes a watch.
bool Debits::IsNew(const ToldEntry& told, const Limit& limit, double demand) {
  if (told.slot != nullptr) return false;
  if (told.entry.value != 0) return true;
  return demand > 0 && limit.forecast &&
         !ways_.With(limit, [&](auto& way) { return way.ReportedAt(told.hash); }).has_value();
}

void Debits::Debit(const Entries& entries, std::size_t first, std::size_t n, Instant from, Instant to, Instant now,
                   const Speaker& speaker) {
  const Duration phase = (to - from) / kPhases;
  Terms terms;    // of the entry before: most entries have the same limit
  const std::uint32_t peer = speaker.number, from_whom = speaker.from_whom();
  HeardPeer& heard = peers_.Of(speaker);
  const bool rare = entries.any_rare();
  peers_.ForEach(entries, first, n, Source::Peer(from_whom), now, [&](const ToldEntry& told) {
    if (rare && beside_.Hear(entries, told, heard, speaker, to, now)) {
      if (core_.site_sums != nullptr && !speaker.abroad) core_.site_sums->Beside(told.hash, entries, told.entry);
      return;
    }
    if (told.index != terms.index) terms = TermsOf(told.index, to - from);
    const Entry& entry = told.entry;
    if (now - to > terms.horizon) {
      peers_.counts().expired += entry.value;
      return;
    }
    if (rare) {
      if (const std::uint64_t back = entries.back(entry); back != 0) {
        HearBack(told, speaker, back, terms, now);
        if (!entries.demand(entry)) return;
      }
    }
    const double demand = static_cast<double>(entries.demand(entry).value_or(0)) / 1000;
    if (IsNew(told, *terms.limit, demand) && !peers_.MayName(heard, now)) return;
    const std::uint64_t hits = std::min(entry.value, terms.hits_max * speaker.hosts), beyond = entry.value - hits;
    peers_.counts().hits_disbelieved += beyond, heard.counts.hits_disbelieved += beyond;
    const Instant began = std::clamp(from + phase * entry.phase, now - terms.horizon, now);
    const Booked booked = DebitOne(
        told, terms,
        {peer, static_cast<double>(hits), demand, began, std::min(to, now), speaker.abroad, speaker.period}, now);
    if (terms.limit->delay != Duration::zero() && hits != 0) turns_.Hear(told.hash, terms.limit->shape, now);
    if (core_.site_sums != nullptr && !speaker.abroad) {
      core_.site_sums->Add(told.hash, entries.tag(entry), hits, ToTicks(began));
    }
    if (core_.among != nullptr && hits != 0) NoteAmong(told, *terms.limit, hits, speaker, now);
    const std::uint64_t said = rare ? std::min(entries.returnable(entry), booked.hits) : 0;
    const std::uint64_t may = terms.totals->some_back ? booked.hits : said;
    if (may == 0) return;
    returnable_hits_.Told(told.hash, from_whom, may, said != 0, now);
    CreditPeer(told, booked.slot, terms, returnable_hits_.TakeAwaited(told.hash, from_whom, may, speaker.place), now);
  });
  HearAmong(speaker, now);
}

// ---- Tags that are charged to a divided one ----

// The peer has charged the divided tag as well, and says so in an entry of its own: this one says whose hits they were.
// Owners of tags are told otherwise (beside_hits.h).
void Debits::NoteAmong(const ToldEntry& told, const Limit& limit, std::uint64_t hits, const Speaker& speaker,
                       Instant now) {
  if (limit.among == Among::kLevel) core_.among->HearHits(told.hash, hits, speaker, now);
  if (!limit.derives || told.tag.is_digest || SomeOwn(core_)) return;
  core_.rules->ForEachDerived(told.index, {told.tag.bytes}, [&](std::string_view divided) {
    const std::uint64_t hash = core_.table->Hash(DerivedTag(divided, core_).tag());
    elsewhere_.push_back({hash, AmongTags::NameOf(told.tag), limit.weight, hits});
  });
}

// The shard of a divided tag cannot be locked beside that of the tag which is charged to it.
void Debits::HearAmong(const Speaker& speaker, Instant now) {
  for (const ChargedElsewhere& its : elsewhere_) {
    const Table::Shard shard(*core_.table, its.divided);
    core_.among->Hear(its.divided, its.member, its.weight, its.hits, speaker, now);
  }
  elsewhere_.clear();
}

// ---- What comes back ----

// The report of its hits may be missing, and come later.
void Debits::HearBack(const ToldEntry& told, const Speaker& speaker, std::uint64_t back, const Terms& terms,
                      Instant now) {
  const std::uint32_t peer = speaker.from_whom();
  const auto most = static_cast<Cost>(std::min<std::uint64_t>(back, std::numeric_limits<Cost>::max()));
  const auto credited = static_cast<Cost>(returnable_hits_.TakeBack(told.hash, peer, most));
  const Cost awaited = returnable_hits_.Await(told.hash, peer, most - credited, speaker.place, now);
  peers_.counts().returns_disbelieved += back - credited - awaited;
  terms.totals->some_back = true;
  CreditPeer(told, told.slot, terms, credited, now);
}

// So many tokens of the peer's hits have come back.
void Debits::CreditPeer(const ToldEntry& told, Slot* slot, const Terms& terms, Cost tokens, Instant now) {
  if (tokens == 0) return;
  peers_.counts().returned += tokens;
  if (core_.site_sums != nullptr) core_.site_sums->TakeBack(told.hash, tokens);
  if (slot == nullptr) return;
  slot->bucket.Credit(terms.limit->shape, tokens, now);
  const TagAt its{told.tag, told.hash, *terms.limit, slot};
  ways_.With(*terms.limit, [&](auto& way) { way.PeerGaveBack(its, tokens, now); });
}

// ---- What is told beside hits ----

void Debits::WatchTags(std::size_t, const std::function<void()>& wake) {
  wake_ = wake;
  core_.table->Exclusively([&] { beside_.WatchTags(wake); });
}

Instant Debits::urgent_at() const {
  return turns_.any_untold() ? Instant::min() : beside_.urgent_at();
}

bool Debits::ReportUrgent(Instant from, Instant now, Draft& out) {
  return beside_.ReportUrgent(now, out) || TellTurns(from, now, out);
}

void Debits::PeriodEnds(Instant) {
  beside_.PeriodEnds();
  others_own_.store(SomeOwn(core_), std::memory_order_relaxed);
  tells_denied_ = denied_.any_untold();
}

// Hits that wait for the report name the tag as well.
void Debits::NoteDenied(const Asked& asked) {
  if (asked.slot == nullptr || asked.slot->unreported.any()) return;
  if (asked.slot->bucket.Level(asked.shape, asked.now) >= static_cast<Tokens>(asked.query.cost)) return;
  denied_.Note(asked.hash, asked.query.tag, asked.now);
}

bool Debits::TellDenied(Instant now, Draft& out) {
  if (!tells_denied_) return false;
  tells_denied_ = denied_.TellSome(core_.ShardLock(), [&](std::uint64_t hash, const Tag& tag, Table::Shard& shard) {
    const Slot* const slot = shard.Find(tag, now);
    if (slot == nullptr || !SomeOwn(core_) || OwnsHere(core_, tag)) return true;
    const Limit& limit = core_.limit(slot->limit);
    const bool watched = ways_.With(limit, [&](auto& way) { return way.ReportedAt(hash); }).has_value();
    return watched || !limit.shared || AddSaid(tag, slot->limit, {0, 0}, ToTicks(now), out);
  });
  return tells_denied_;
}

bool Debits::TellTurns(Instant from, Instant now, Draft& out) {
  return turns_.TellSome(core_.ShardLock(), [&](const Tag& tag, Table::Shard& shard) {
    Slot* const slot = shard.Find(tag, now);
    if (slot == nullptr || !slot->unreported.any()) return true;
    if (!AddHits(tag, *slot, shard.waste(slot), from, now, out)) return false;
    shard.TakeUnreported(slot);
    return true;
  });
}

// While nobody can say what other hosts have taken, each has its equal part, and one place at least.
std::uint32_t Debits::PlacesHere(const Tag& tag, std::uint64_t hash, const Limit& limit, Instant now) {
  if (core_.window == 0) return limit.in_flight;
  if (!core_.gauges->HasRoom(hash)) return 0;
  if (core_.silent_owners != nullptr) {
    if (const auto part = core_.silent_owners->Part(tag, limit.in_flight, core_.peers + 1)) return *part;
  }
  return limit.in_flight - std::min(core_.gauges->Elsewhere(hash, now), limit.in_flight);
}

// Charges the bucket, and shows the certificate what came of it.
Debits::Booked Debits::DebitOne(const ToldEntry& told, const Terms& terms, const PeerWord& word, Instant now) {
  const Limit& limit = *terms.limit;
  const TagAt at{told.tag, told.hash, limit, told.slot};
  const Heed heed = ways_.With(limit, [&](auto& way) { return way.Hear(word, at, now); });
  if (word.hits == 0) return {told.slot, 0};
  const auto hits = static_cast<std::uint64_t>(word.hits);
  Bucket fresh;
  Waste never;
  Bucket& bucket = told.slot != nullptr ? told.slot->bucket : fresh;
  Waste& waste = told.slot != nullptr ? told.shard.waste(told.slot) : never;
  const Bucket before = bucket;
  Ticks forgiven = 0;
  if (word.when < core_.began) {    // this process has spent nothing since: all refill of that time may pay
    const Ticks window = std::max(core_.waste_window, ToTicks(now) - ToTicks(word.when));
    forgiven = bucket.Debit(limit.shape, hits, word.when, terms.max_debt, now, waste, window);
  } else if (heed.paid.has_value()) {
    forgiven = bucket.DebitPaid(limit.shape, hits, *heed.paid, terms.max_debt, now, waste, core_.waste_window);
  } else {
    forgiven = bucket.Debit(limit.shape, hits, word.when, terms.max_debt, now, waste, core_.waste_window);
  }
  terms.totals->hits += hits;
  all_totals_.hits += hits;
  Slot* slot = told.slot;
  if (slot == nullptr) {
    slot = peers_.Store(told, bucket, waste, Source::Peer(word.from_whom()), now);
  }
  Show(told, terms, word, heed, {before, bucket, slot}, now);
  const Ticks interval = limit.shape.interval, uncharged = forgiven == 0 ? 0 : (forgiven + interval - 1) / interval;
  return {slot, slot != nullptr ? hits - std::min(hits, static_cast<std::uint64_t>(uncharged)) : 0};
}

void Debits::Show(const ToldEntry& told, const Terms& terms, const PeerWord& word, const Heed& heed,
                  const Change& change, Instant now) {
  const Limit& limit = *terms.limit;
  const bool drained = change.after.IsNearLimit(limit.shape, now);
  if (!drained && !certificate_.Knows(told.hash)) return;
  const Tokens made = drained ? DebtMade(change.before, change.after, terms, now) : 0;
  Certificate::Hits seen{word.hits, word.when, heed.hits_from, heed.hits_to, false, heed.refused, made};
  if (certificate_.Served(told.hash, seen, now) || !drained || change.slot == nullptr) return;
  const TagLook look = TagLookOf(core_, limit, change.after.Level(limit.shape, now));
  seen.paid = std::max(word.hits - std::max(change.before.Level(limit.shape, word.when), 0.0) - made, 0.0);
  const Tokens untold = heed.told_at_once ? 0 : change.slot->unreported.hits();
  certificate_.Drained(told.hash, told.tag, look, seen, untold, now);
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
