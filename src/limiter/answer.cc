// The query path.
#include <array>
#include <utility>

#include "base/check.h"
#include "base/prng.h"
#include "limiter/limit_of.h"
#include "limiter/limiter.h"
#include "limiter/recall.h"
#include "limiter/shedder.h"
#include "limiter/under_limit.h"

namespace dthrottle {

// Queries that an observer is to see, gathered, because the memory of one is on its way while another is decided.
class Limiter::Shown {
 public:
  Shown(const Observed& observed, std::size_t lane, Instant now)
      : observed_(observed), sample_(observed.sample()), lane_(lane), now_(now) {}

  void Decided(const Query& query, std::uint64_t hash, Verdict verdict) {
    if (!sample_.Has(hash) || verdict == Verdict::kShed) [[likely]] return;
    if (std::exchange(left_out_, false)) return;
    queries_[size_] = query;
    verdicts_[size_++] = verdict;
    if (size_ == Observer::kAtOnce) Show();
  }
  // The query of which Decided is told next was refused by something that is not shown.
  void LeaveOut(std::uint64_t hash) { left_out_ = sample_.Has(hash); }
  void Show() {
    if (size_ == 0) return;
    if (const auto observer = observed_.observer()) {
      observer->Answered(std::span(queries_).first(size_), std::span(verdicts_).first(size_), lane_, now_);
    }
    size_ = 0;
  }

 private:
  const Observed& observed_;
  const TagSample sample_;
  const std::size_t lane_;
  const Instant now_;
  std::size_t size_ = 0;
  bool left_out_ = false;
  std::array<Verdict, Observer::kAtOnce> verdicts_;
  union {    // nothing by default: most calls gather none
    std::array<Query, Observer::kAtOnce> queries_;
  };
};

namespace {

// Says how a bucket stands that was not asked.
void ShowBucket(Ways& ways, Looked looked, Standing& standing) {
  (void)ways.Would(looked);    // for the shape on this host
  standing.shape = looked.shape;
  standing.bucket = looked.bucket;
}

}    // namespace

// Memory is the cost of a decision, so nobody waits for it: while one query is decided, the cells of those behind it
// are on their way, and the directory lines of those behind them.
void Limiter::Answer(std::span<const Query> queries, std::span<Verdict> verdicts, LaneUse use, Prng& prng,
                     Instant now, std::span<Standing> standings) {
  DT_CHECK(verdicts.size() == queries.size() && (standings.empty() || standings.size() == queries.size()));
  Lane& lane = core_->tally.lane(use.number);
  lane.Tick(queries.size(), now);
  Shown shown(core_->observed, use.number, now);
  const auto tag_of = [&](std::size_t i) -> const Tag& { return queries[i].tag; };
  core_->table->ForEach(queries.size(), false, tag_of, [&](std::size_t i, const Table::Probe& probe) {
    Standing* const standing = standings.empty() ? nullptr : &standings[i];
    const std::optional<Verdict> alone = Decide(queries[i], probe, lane, prng, now, standing, shown);
    if (alone.has_value()) [[likely]] {
      verdicts[i] = *alone;
      if (lane.Sampled()) lane.Sample(queries[i].tag, probe.hash, *alone == Verdict::kServe, prng, now);
      if (*alone != Verdict::kServe && lane.refusals().Due(now)) [[unlikely]] {
        const Table::Shard shard(*core_->table, probe.hash);
        NoteRefusal(*core_, lane, use.front_end, queries[i], *alone, now);
      }
    } else {
      const Outcome outcome = DecideDerived(queries[i], probe, use, prng, now, standing);
      verdicts[i] = outcome.verdict;
      if (outcome.busy || outcome.spent) shown.LeaveOut(probe.hash);
    }
    shown.Decided(queries[i], probe.hash, verdicts[i]);
  });
  shown.Show();
}

// None: other tags are charged with this one, so it is a question about all of them, or it has a quota.
inline std::optional<Verdict> Limiter::Decide(const Query& query, const Table::Probe& probe, Lane& lane, Prng& prng,
                                              Instant now, Standing* standing, Shown& shown) {
  LimiterCore& core = *core_;
  Table::Shard shard(*core.table, probe.hash);
  Slot* const slot = shard.Find(query.tag, probe, now);
  LimitIndex index;
  if (slot != nullptr) {
    index = slot->limit;
  } else if (const auto found = LimitOf(*core.rules, query)) {
    index = *found;
  } else {
    return Serve(lane.counters(Lane::kUnmatched));
  }
  if (standing != nullptr) standing->limit = index;
  const Limit& limit = core.limit(index);
  RuleCounters& counters = lane.counters(core.tally.counter(limit.rule));
  if (!limit.plain || shedder_->any()) [[unlikely]] {
    if (limit.whole) return std::nullopt;
    if (const auto verdict = DecideBefore(query, probe.hash, limit, counters, prng, now, standing, shown)) {
      if (standing != nullptr && limit.mode != Mode::kOff) {
        const Bucket bucket = slot != nullptr ? slot->bucket : Bucket();
        ShowBucket(*ways_, {query, probe.hash, limit, slot, now, limit.shape, bucket}, *standing);
      }
      return verdict;
    }
  }
  Asked asked{query, probe.hash, index, limit, shard, slot, lane.number(), now, limit.shape};
  BeforeAsking(*ways_, asked, lane);
  return DecideUnderLimit(*ways_, asked, counters, standing);
}

// What comes before the bucket, if that decides. The host comes first, so a query that it and the bucket would refuse
// counts as shed.
std::optional<Verdict> Limiter::DecideBefore(const Query& query, std::uint64_t hash, const Limit& limit,
                                             RuleCounters& counters, Prng& prng, Instant now, Standing* standing,
                                             Shown& shown) {
  if (limit.mode == Mode::kOff) return Serve(counters);
  if (Sheds(shedder_->probability(limit.shed_priority), prng)) return Refuse(limit, Verdict::kShed, counters);
  if (const Duration left = PenaltyLeft(*core_, limit, hash, now); left != Duration::zero()) {
    if (standing != nullptr) standing->penalty = left;
    return RefusePenalized(limit, counters);
  }
  if (limit.in_flight != 0 && IsBusy(*ways_, query.tag, hash, limit, now)) {
    const Verdict verdict = RefuseBusy(*ways_, query, hash, limit, counters, now);
    if (verdict != Verdict::kServe) shown.LeaveOut(hash);
    return verdict;
  }
  return std::nullopt;
}

}    // namespace dthrottle
