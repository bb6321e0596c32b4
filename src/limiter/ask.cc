// Questions about several tags. All shards of a question's tags are locked while every tag is looked at, and then
// either all tags pay or the one that refuses is told so, as by a query of its own: it counts the refusal, keeps its
// bucket against floods and asks for a larger part. The other tags neither pay nor count, and nobody hears of them.
#include <array>

#include "base/check.h"
#include "base/prng.h"
#include "limiter/limit_of.h"
#include "limiter/limiter.h"
#include "limiter/shedder.h"
#include "limiter/under_limit.h"
#include "query/question.h"

namespace dthrottle {

namespace {

// Where a host is not sure that it may serve though it has the tokens, the tag refuses for a while that is not known.
constexpr Duration kWaitMin = std::chrono::milliseconds(1);

Duration WaitFor(const Looked& looked) {
  if (looked.query.cost > looked.shape.depth / looked.shape.interval) return Outcome::kNever;
  return std::max(looked.bucket.ServesAt(looked.shape, looked.query.cost, looked.now) - looked.now, kWaitMin);
}

}    // namespace

struct Limiter::Named {
  const Query* query;
  Table::Probe probe;
  const Limit* limit;    // null: no bucket is asked
};

void Limiter::Ask(const Questions& questions, std::span<Outcome> outcomes, std::span<Standing> standings,
                  LaneUse use, Prng& prng, Instant now) {
  const std::span<const Query> queries = questions.queries();
  DT_CHECK(outcomes.size() == questions.size() && standings.size() == queries.size());
  Lane& lane = core_->tally.lane(use.number);
  lane.Tick(queries.size(), now);
  std::array<Named, Questions::kTagsMax> named;
  std::size_t n = 0, at = 0;
  const auto tag_of = [&](std::size_t i) -> const Tag& { return queries[i].tag; };
  core_->table->ForEach(queries.size(), false, tag_of, [&](std::size_t i, const Table::Probe& probe) {
    named[n++] = {&queries[i], probe, nullptr};
    const Questions::Question& question = questions[at];
    if (n < question.tags) return;
    const Outcome outcome = outcomes[at++] =
        AskOne(question.verb, std::span(named).first(n), standings.subspan(question.first, n), lane, prng, now);
    if (outcome.verdict != Verdict::kServe && question.verb != Verb::kPeek && lane.refusals().Due(now)) {
      const Named& refusing = named[outcome.tag];
      const Table::Shard shard(*core_->table, refusing.probe.hash);
      NoteRefusal(*core_, lane, use.front_end, *refusing.query, outcome.verdict, now);
    }
    n = 0;
  });
}

Outcome Limiter::AskOne(Verb verb, std::span<Named> tags, std::span<Standing> standings, Lane& lane, Prng& prng,
                        Instant now) {
  const Table::Shards locked(*core_->table, tags.size(), [&](std::size_t i) { return tags[i].probe.hash; });
  Outcome outcome;
  for (std::size_t i = 0; i < tags.size(); ++i) {
    const std::optional<Duration> wait = LookAt(tags[i], standings[i], now);
    if (wait.has_value() && (outcome.verdict == Verdict::kServe || *wait > outcome.wait)) {
      outcome = {.verdict = Verdict::kThrottle, .tag = i, .wait = *wait};
    }
  }
  if (core_->rules->any_in_flight()) {
    const Outcome places = LookAtPlaces(tags, standings);
    if (outcome.verdict == Verdict::kServe) outcome = places;
  }
  if (verb == Verb::kPeek) return outcome;
  // The host comes before the buckets, as for queries.
  if (shedder_->any()) [[unlikely]] {
    if (const auto hottest = Shed(tags, prng)) outcome = {.verdict = Verdict::kShed, .tag = *hottest};
  }
  const auto decide = [&](std::size_t i) {
    const bool served = DecideNamed(tags[i], outcome, standings[i], lane, prng, now) == Verdict::kServe;
    if (lane.Sampled()) lane.Sample(tags[i].query->tag, tags[i].probe.hash, served, prng, now);
  };
  if (outcome.verdict != Verdict::kServe) {
    decide(outcome.tag);
  } else {
    for (std::size_t i = 0; i < tags.size(); ++i) decide(i);
    if (verb == Verb::kHold) {
      for (const Named& named : tags) ways_->Get<Debits>().MayComeBack(named.probe.hash, now);
    }
    if (verb == Verb::kEnter && core_->rules->any_in_flight()) Enter(tags, standings);
  }
  return outcome;
}

// Says where the tag stands; how long to wait if it refuses.
std::optional<Duration> Limiter::LookAt(Named& named, Standing& standing, Instant now) {
  const LimiterCore& core = *core_;
  const Query& query = *named.query;
  standing = Standing();
  const Slot* const slot = Table::Locked(*core.table, named.probe.hash).Find(query.tag, named.probe, now);
  standing.limit = slot != nullptr ? std::optional(LimitIndex{slot->limit}) : LimitOf(*core.rules, query);
  if (!standing.limit.has_value()) return std::nullopt;
  const Limit& limit = core.limit(*standing.limit);
  if (limit.mode == Mode::kOff) return std::nullopt;
  named.limit = &limit;
  Looked looked{query, named.probe.hash, limit, slot, now, limit.shape, slot != nullptr ? slot->bucket : Bucket()};
  const bool within = ways_->Would(looked);
  standing.shape = looked.shape;
  standing.bucket = looked.bucket;
  if (within || limit.mode == Mode::kShadow) return std::nullopt;
  return WaitFor(looked);
}

// ---- Places ----

bool Limiter::IsBusy(const Limit& limit, std::uint64_t hash) const {
  return !in_flight_->Has(hash, limit.in_flight);
}

// The first tag that has no place refuses, unless it is in shadow mode.
Outcome Limiter::LookAtPlaces(std::span<const Named> tags, std::span<Standing> standings) const {
  Outcome outcome;
  for (std::size_t i = tags.size(); i-- > 0;) {
    const Limit* const limit = tags[i].limit;
    if (limit == nullptr || limit->in_flight == 0) continue;
    const std::uint32_t taken = in_flight_->taken(tags[i].probe.hash);
    standings[i].free = limit->in_flight - std::min(taken, limit->in_flight);
    if (IsBusy(*limit, tags[i].probe.hash) && limit->mode != Mode::kShadow) {
      outcome = {.verdict = Verdict::kThrottle, .tag = i, .busy = true, .wait = kWaitMin};
    }
  }
  return outcome;
}

void Limiter::Enter(std::span<const Named> tags, std::span<Standing> standings) {
  for (std::size_t i = 0; i < tags.size(); ++i) {
    const Limit* const limit = tags[i].limit;
    if (limit == nullptr || limit->in_flight == 0) continue;
    standings[i].entered = in_flight_->Take(tags[i].probe.hash);
    const std::uint32_t taken = in_flight_->taken(tags[i].probe.hash);
    standings[i].free = limit->in_flight - std::min(taken, limit->in_flight);
  }
}

void Limiter::GivePlaces(std::uint64_t hash, std::uint32_t places) {
  const Table::Shard shard(*core_->table, hash);
  if (in_flight_ != nullptr) in_flight_->Give(hash, places);
}

void Limiter::RestorePlaces(std::uint64_t hash, std::uint32_t places) {
  const Table::Shard shard(*core_->table, hash);
  if (in_flight_ != nullptr) in_flight_->Take(hash, places);
}

// ---- Verdicts ----

// A hot host refuses a question as one, as often as it refuses queries of the tag that it refuses most.
std::optional<std::size_t> Limiter::Shed(std::span<const Named> tags, Prng& prng) const {
  std::size_t hottest = 0;
  double probability = 0;
  for (std::size_t i = 0; i < tags.size(); ++i) {
    const Limit* const limit = tags[i].limit;
    if (limit == nullptr || limit->mode == Mode::kShadow) continue;
    if (const double its = shedder_->probability(limit->shed_priority); its > probability) {
      hottest = i;
      probability = its;
    }
  }
  return Sheds(probability, prng) ? std::optional(hottest) : std::nullopt;
}

// The slot is looked up once more, because the tag decided before this one may have moved or taken its cells. What
// loses its cells has a full bucket again, so it does not refuse now what it would have served.
Verdict Limiter::DecideNamed(const Named& named, const Outcome& outcome, Standing& standing, Lane& lane, Prng& prng,
                             Instant now) {
  LimiterCore& core = *core_;
  if (!standing.limit.has_value()) return Serve(lane.counters(Lane::kUnmatched));
  const LimitIndex index = *standing.limit;
  RuleCounters& counters = lane.counters(core.tally.counter(core.limit(index).rule));
  if (named.limit == nullptr) return Serve(counters);
  const Limit& limit = *named.limit;
  if (outcome.verdict == Verdict::kShed) return Refuse(limit, Verdict::kShed, counters);
  if (limit.mode == Mode::kShadow && shedder_->any() && Sheds(shedder_->probability(limit.shed_priority), prng)) {
    return Refuse(limit, Verdict::kShed, counters);
  }
  if (outcome.busy || (limit.in_flight != 0 && IsBusy(limit, named.probe.hash))) {
    in_flight_->CountBusy();
    return Refuse(limit, Verdict::kThrottle, counters);
  }
  Table::Locked cells(*core.table, named.probe.hash);
  Slot* const slot = cells.Find(named.query->tag, named.probe, now);
  Asked asked{*named.query, named.probe.hash, index, limit, cells, slot, lane.number(), now, limit.shape};
  const auto free = standing.free;
  const Verdict verdict = DecideUnderLimit(*ways_, asked, counters, &standing);
  standing.free = free;
  return verdict;
}

}    // namespace dthrottle
