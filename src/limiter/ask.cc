// Questions about several tags. All shards of a question's tags are locked while every tag is looked at, and then
// either all tags pay or the one that refuses is told so, as by a query of its own: it counts the refusal, keeps its
// bucket against floods and asks for a larger part. The other tags neither pay nor count, and nobody hears of them.
#include <array>

#include "base/check.h"
#include "base/prng.h"
#include "limiter/deciding.h"
#include "limiter/recall.h"
#include "limiter/limit_of.h"
#include "limiter/shedder.h"
#include "limiter/under_limit.h"

namespace dthrottle {

namespace {

// Where a host is not sure that it may serve though it has the tokens, the tag refuses for a while that is not known.
constexpr Duration kWaitMin = std::chrono::milliseconds(1);

Duration WaitFor(const Looked& looked) {
  if (!looked.shape.Holds(looked.query.cost)) return Outcome::kNever;
  return std::max(looked.bucket.ServesAt(looked.shape, looked.query.cost, looked.now) - looked.now, kWaitMin);
}

// The shape of a bucket that is asked for tokens it has only later: deeper by what it gains until then. So the queue is
// the bucket's debt, and the longest wait bounds it. A cost that the bucket never holds is not waited for.
Shape Patient(const Shape& shape, Cost cost, Duration patience) {
  if (patience == Duration::zero() || !shape.Holds(cost)) return shape;
  return {shape.interval, shape.depth + ToTicks(patience)};
}

Duration PatienceUnder(const Limit& limit, Duration patience) {
  return limit.mode == Mode::kEnforce ? std::min(patience, limit.delay) : Duration::zero();
}

// The wait, or up to `apart` more by chance, if no tag's limit forbids it.
Duration Apart(Duration wait, Duration apart, Duration patience, std::span<const NamedTagAt> tags, Prng& prng) {
  for (const NamedTagAt& its : tags) {
    if (its.limit != nullptr) patience = PatienceUnder(*its.limit, patience);
  }
  const Duration later(static_cast<Duration::rep>(prng.Below(static_cast<std::uint64_t>(apart.count()))));
  return std::max(wait, std::min(wait + later, patience));
}

void ShowTo(const Observed& observed, std::span<const NamedTagAt> tags, const Questions::Question& question,
            std::span<const Query> queries, const Outcome& outcome, std::size_t lane, Instant now) {
  if (question.verb == Verb::kPeek || outcome.verdict == Verdict::kShed || outcome.busy || outcome.spent) return;
  const TagSample sample = observed.sample();
  if (std::none_of(tags.begin(), tags.end(), [&](const NamedTagAt& its) { return sample.Has(its.probe.hash); })) return;
  if (const auto observer = observed.observer()) observer->Asked(question, queries, outcome, lane, now);
}

}    // namespace

void Limiter::Ask(const Questions& questions, std::span<Outcome> outcomes, std::span<Standing> standings,
                  LaneUse use, Prng& prng, Instant now) {
  const std::span<const Query> queries = questions.queries();
  DT_CHECK(outcomes.size() == questions.size() && standings.size() == queries.size());
  Lane& lane = core_->tally.lane(use.number);
  lane.Tick(queries.size(), now);
  Deciding deciding(*core_, *ways_, *shedder_, use.front_end, lane, prng, now);
  std::array<NamedTagAt, Questions::kTagsMax> named;
  std::size_t n = 0, at = 0;
  const auto tag_of = [&](std::size_t i) -> const Tag& { return queries[i].tag; };
  core_->table->ForEach(queries.size(), false, tag_of, [&](std::size_t i, const Table::Probe& probe) {
    named[n++] = {&queries[i], probe};
    const Questions::Question& question = questions[at];
    if (n < question.tags) return;
    const std::span tags = std::span(named).first(n);
    outcomes[at] = deciding.Ask(question, tags, standings.subspan(question.first, n));
    ShowTo(core_->observed, tags, question, queries.subspan(question.first, n), outcomes[at], use.number, now);
    ++at;
    n = 0;
  });
}

Outcome Deciding::Ask(const Questions::Question& question, std::span<NamedTagAt> tags, std::span<Standing> standings) {
  {
    const Table::Shards locked(*core_.table, tags.size(), [&](std::size_t i) { return tags[i].probe.hash; });
    const Outcome outcome = LookAtAll(question, tags, standings);
    const auto derives = [](const NamedTagAt& named) { return named.limit != nullptr && named.limit->derives; };
    if (std::none_of(tags.begin(), tags.end(), derives)) [[likely]] return Decide(question, outcome, tags, standings);
  }
  return AskDerived(question, tags, standings);
}

Outcome Deciding::LookAtAll(const Questions::Question& question, std::span<NamedTagAt> tags,
                            std::span<Standing> standings) {
  Outcome outcome;
  for (std::size_t i = 0; i < tags.size(); ++i) {
    Duration slot{};
    const std::optional<Duration> wait = LookAt(question, tags[i], standings[i], slot);
    if (wait.has_value()) {
      if (outcome.verdict == Verdict::kServe || *wait > outcome.wait) {
        outcome = {.verdict = Verdict::kThrottle, .tag = i, .wait = *wait};
      }
    } else if (outcome.verdict == Verdict::kServe) {
      outcome.wait = std::max(outcome.wait, slot);
    }
  }
  if (core_.rules->any_quota()) LookAtQuotas(tags, outcome);
  if (outcome.verdict == Verdict::kServe && core_.rules->any_in_flight()) LookAtPlaces(tags, standings, outcome);
  return outcome;
}

Outcome Deciding::Decide(const Questions::Question& question, Outcome outcome, std::span<const NamedTagAt> tags,
                       std::span<Standing> standings) {
  if (question.verb == Verb::kPeek) {
    if (core_.rules->any_quota()) ShowQuotas(outcome, tags, standings);
    return outcome;
  }
  // The host comes before the buckets, as for queries.
  if (shedder_.any()) [[unlikely]] {
    if (const auto hottest = Shed(tags)) outcome = {.verdict = Verdict::kShed, .tag = *hottest};
  }
  const auto decide = [&](std::size_t i) {
    const bool served = DecideOne(tags[i], outcome, question.patience, standings[i]) == Verdict::kServe;
    if (outcome.verdict != Verdict::kShed && !outcome.busy) CountAmong(tags[i], question.verb, standings[i]);
    if (lane_.Sampled()) lane_.Sample(tags[i].query->tag, tags[i].probe.hash, served, prng_, now_);
  };
  if (outcome.verdict != Verdict::kServe) {
    decide(outcome.tag);
    const NamedTagAt& refusing = tags[outcome.tag];
    if (lane_.refusals().Due(now_)) {
      NoteRefusal(core_, lane_, front_end_, *refusing.query, outcome.verdict, now_);
    }
    if (outcome.verdict == Verdict::kThrottle && refusing.limit->penalizes) {    // perhaps from this refusal on
      outcome.wait = std::max(outcome.wait, core_.penalties.Left(refusing.probe.hash, now_));
    }
  } else {
    apart_ = Duration::zero();
    for (std::size_t i = 0; i < tags.size(); ++i) decide(i);
    if (question.verb == Verb::kHold || outcome.wait != Duration::zero()) {
      for (const NamedTagAt& its : tags) ways_.Get<Debits>().MayComeBack(its.probe.hash, now_);
    }
    if (apart_ != Duration::zero()) outcome.wait = Apart(outcome.wait, apart_, question.patience, tags, prng_);
    if (question.verb == Verb::kEnter && core_.rules->any_in_flight()) Enter(tags, standings);
  }
  if (core_.rules->any_quota()) ShowQuotas(outcome, tags, standings);
  return outcome;
}

// Says where the tag stands; how long to wait if it refuses, and otherwise in `slot` how long until it has what it
// gives now.
std::optional<Duration> Deciding::LookAt(const Questions::Question& question, NamedTagAt& named, Standing& standing,
                                         Duration& slot) {
  const Query& query = *named.query;
  standing = Standing();
  named.limit = nullptr;
  Table::Locked cells(*core_.table, named.probe.hash);
  Slot* cell = cells.Find(query.tag, named.probe, now_);
  standing.limit = cell != nullptr ? std::optional(LimitIndex{cell->limit}) : LimitOf(*core_.rules, query);
  if (!standing.limit.has_value()) return std::nullopt;
  const Limit& limit = core_.limit(*standing.limit);
  if (limit.mode == Mode::kOff) return std::nullopt;
  named.limit = &limit;
  if (core_.loans.any()) {
    Asked asked{query, named.probe.hash, *standing.limit, limit, cells, cell, lane_.number(), now_, limit.shape};
    CollectLoans(ways_, asked, lane_, question.verb == Verb::kPeek);
    cell = asked.slot;
  }
  Looked looked{query, named.probe.hash, limit, cell, now_, limit.shape, cell != nullptr ? cell->bucket : Bucket()};
  bool within = ways_.Would(looked);
  standing.shape = looked.shape;
  standing.bucket = looked.bucket;
  standing.penalty = PenaltyLeft(core_, limit, named.probe.hash, now_);
  if (standing.penalty != Duration::zero() && limit.mode != Mode::kShadow) [[unlikely]] return standing.penalty;
  if (const Duration longest = PatienceUnder(limit, question.patience); !within && longest != Duration::zero()) {
    looked.shape = Patient(limit.shape, query.cost, longest);
    within = ways_.Would(looked);
    looked.shape = limit.shape;
    if (within) slot = WaitFor(looked);
  }
  named.cut = within && IsCut(named, looked.shape);
  if ((within && !named.cut) || limit.mode == Mode::kShadow) return std::nullopt;
  return named.cut ? AmongTags::kCycle : WaitFor(looked);
}

// ---- Quotas ----

// Where several refuse, the one with the longest wait counts.
void Deciding::LookAtQuotas(std::span<const NamedTagAt> tags, Outcome& outcome) const {
  for (std::size_t i = 0; i < tags.size(); ++i) {
    const Limit* const limit = tags[i].limit;
    if (limit == nullptr || !ways_.HasQuota(*limit) || limit->mode == Mode::kShadow) continue;
    const QuotaStanding its = ways_.quotas()->Look(tags[i].probe.hash, *limit, now_);
    const Duration wait = RefusedFor(its, tags[i].query->cost, now_);
    if (wait == Duration::zero()) continue;
    if (outcome.verdict == Verdict::kServe || wait > outcome.wait) {
      outcome = {.verdict = Verdict::kThrottle, .tag = i, .spent = true, .wait = wait};
    }
  }
}

// A tag stands where its quota does, if that bounds it more than its bucket.
void Deciding::ShowQuotas(const Outcome& outcome, std::span<const NamedTagAt> tags,
                          std::span<Standing> standings) const {
  for (std::size_t i = 0; i < tags.size(); ++i) {
    const Limit* const limit = tags[i].limit;
    if (limit == nullptr || !ways_.HasQuota(*limit)) continue;
    const Cost refused = outcome.verdict == Verdict::kServe ? 0 : tags[i].query->cost;
    ShowQuota(ways_.quotas()->Look(tags[i].probe.hash, *limit, now_), standings[i], refused, now_);
  }
}

// ---- Places ----

// The first tag that has no place refuses, unless it is in shadow mode.
void Deciding::LookAtPlaces(std::span<const NamedTagAt> tags, std::span<Standing> standings, Outcome& outcome) const {
  for (std::size_t i = tags.size(); i-- > 0;) {
    const Limit* const limit = tags[i].limit;
    if (limit == nullptr || limit->in_flight == 0) continue;
    ShowFree(*limit, tags[i], standings[i]);
    if (IsBusy(ways_, tags[i].query->tag, tags[i].probe.hash, *limit, now_, tags[i].times) && limit->mode != Mode::kShadow) {
      outcome = {.verdict = Verdict::kThrottle, .tag = i, .busy = true, .wait = kWaitMin};
    }
  }
}

void Deciding::ShowFree(const Limit& limit, const NamedTagAt& at, Standing& standing) const {
  const std::uint32_t most = PlacesHere(ways_, at.query->tag, at.probe.hash, limit, now_);
  standing.free = most - std::min(core_.in_flight->taken(at.probe.hash), most);
}

void Deciding::Enter(std::span<const NamedTagAt> tags, std::span<Standing> standings) {
  for (std::size_t i = 0; i < tags.size(); ++i) {
    const Limit* const limit = tags[i].limit;
    if (limit == nullptr || limit->in_flight == 0) continue;
    standings[i].entered = core_.in_flight->Take(tags[i].probe.hash, tags[i].times);
    if (limit->shared) core_.gauges->Changed(tags[i].query->tag, tags[i].probe.hash);
    ShowFree(*limit, tags[i], standings[i]);
  }
}

// ---- Verdicts ----

// A hot host refuses a question as one, as often as it refuses queries of the tag that it refuses most.
std::optional<std::size_t> Deciding::Shed(std::span<const NamedTagAt> tags) {
  std::size_t hottest = 0;
  double probability = 0;
  for (std::size_t i = 0; i < tags.size(); ++i) {
    const Limit* const limit = tags[i].limit;
    if (limit == nullptr || limit->mode == Mode::kShadow) continue;
    if (const double its = shedder_.probability(limit->shed_priority); its > probability) {
      hottest = i;
      probability = its;
    }
  }
  return Sheds(probability, prng_) ? std::optional(hottest) : std::nullopt;
}

// The slot is looked up once more, because the tag decided before this one may have moved or taken its cells. What
// loses its cells has a full bucket again, so it does not refuse now what it would have served.
Verdict Deciding::DecideOne(const NamedTagAt& named, const Outcome& outcome, Duration patience, Standing& standing) {
  if (!standing.limit.has_value()) return Serve(lane_.counters(Lane::kUnmatched));
  const LimitIndex index = *standing.limit;
  RuleCounters& counters = lane_.counters(core_.tally.counter(core_.limit(index).rule));
  if (named.limit == nullptr) return Serve(counters);
  const Limit& limit = *named.limit;
  if (outcome.verdict == Verdict::kShed) return Refuse(limit, Verdict::kShed, counters);
  if (limit.mode == Mode::kShadow && shedder_.any() && Sheds(shedder_.probability(limit.shed_priority), prng_)) {
    return Refuse(limit, Verdict::kShed, counters);
  }
  if (standing.penalty != Duration::zero()) return RefusePenalized(limit, counters);
  if (ways_.HasQuota(limit) && IsSpent(ways_, *named.query, named.probe.hash, limit, now_)) [[unlikely]] {
    return RefuseSpent(limit, counters);
  }
  if (outcome.busy || (limit.in_flight != 0 && IsBusy(ways_, named.query->tag, named.probe.hash, limit, now_, named.times))) {
    return RefuseBusy(ways_, *named.query, named.probe.hash, limit, counters, now_);
  }
  Table::Locked cells(*core_.table, named.probe.hash);
  Slot* const slot = cells.Find(named.query->tag, named.probe, now_);
  const bool waits = outcome.verdict == Verdict::kServe && outcome.wait != Duration::zero();
  const Duration longest = waits ? PatienceUnder(limit, patience) : Duration::zero();
  Asked asked{*named.query, named.probe.hash, index, limit, cells, slot, lane_.number(), now_,
              Patient(limit.shape, named.query->cost, longest)};
  const auto free = standing.free;
  const Verdict verdict = named.cut ? Cut(asked, counters)
                          : ways_.HasQuota(limit)
                              ? DecideUnderLimit<true>(ways_, asked, counters, &standing)
                              : DecideUnderLimit<false>(ways_, asked, counters, &standing);
  standing.free = free;
  if (longest != Duration::zero()) {
    standing.shape = limit.shape;
    if (verdict == Verdict::kServe) {
      apart_ = std::max(apart_, ways_.With(limit, [&](auto& way) { return way.Waits(asked, outcome.wait); }));
    }
  }
  return verdict;
}

}    // namespace dthrottle
