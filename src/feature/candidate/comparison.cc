#include "feature/candidate/comparison.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "bucket/table_lookup.h"
#include "limiter/inspect.h"
#include "limiter/kept_penalties.h"
#include "rule/equal_part.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

constexpr std::size_t kCellsPerSlice = 2048;
constexpr std::uint64_t kTimedEvery = 16;       // calls
constexpr std::uint32_t kLately = 256;          // queries of a tag
constexpr std::uint64_t kAdmittedOf = 16;       // one of so many refusals
constexpr double kElsewhereMax = 16;            // times the hits that peers report

std::uint64_t PaymentKey(std::uint64_t hash, const Payment& paid) {
  const auto at = static_cast<std::uint64_t>(paid.at.time_since_epoch().count());
  return SideKey(hash, at ^ std::uint64_t{paid.query.cost} << 32);
}

Instant NoClock() {
  return Instant();
}

}    // namespace

// ---- What is compared ----

std::shared_ptr<const Rulebook> AsCompared(const Rulebook& candidate, std::size_t hosts) {
  std::vector<Rule> rules = candidate.rules();
  std::vector<Override> overrides = candidate.overrides();
  const auto divided = [&](const Override& its) {
    const auto index = candidate.Find(its.tag);
    return index.has_value() && candidate.limit(*index).divided;
  };
  for (Override& its : overrides) {
    if (divided(its)) TakeEqualPart(its, static_cast<double>(hosts));
    its.quota.reset();
  }
  for (Rule& rule : rules) {
    if (rule.share == Share::kCapacity) {
      TakeEqualPart(rule, static_cast<double>(hosts));
      rule.share = Share::kLocal, rule.max_own_limit = 0;
    }
    rule.in_flight = 0, rule.quota = 0, rule.shed = false;
  }
  return std::make_shared<Rulebook>(std::move(rules), std::move(overrides));
}

std::vector<std::string> NotCompared(const Rulebook& candidate, double share, bool refunds) {
  std::vector<std::string> notes;
  const auto any = [&](auto&& has) { return std::ranges::any_of(candidate.rules(), has); };
  if (any([](const Rule& rule) { return rule.share == Share::kCapacity; })) {
    notes.push_back("Rules with share = \"capacity\" are compared as if all hosts had equal parts.");
  }
  if (any([](const Rule& rule) { return rule.share == Share::kCapacity && rule.max_own_limit > 0; })) {
    notes.push_back("Limits that tags name themselves are not compared under them.");
  }
  if (any([](const Rule& rule) { return rule.in_flight != 0; })) notes.push_back("Places in flight are not compared.");
  if (any([](const Rule& rule) { return rule.penalty.after != 0 && rule.share != Share::kLocal; })) {
    notes.push_back("Refusals and penalties of other hosts are not compared.");
  }
  if (candidate.any_quota()) notes.push_back("Quotas are not compared.");
  if (refunds) notes.push_back("What is refunded comes back to tags that the candidate has refused, too.");
  if (share < 1 && any([](const Rule& rule) { return !rule.also.empty(); })) {
    notes.push_back("Tags that others are charged with (also) are charged by the sample only: use --of 100%.");
  }
  return notes;
}

std::size_t Comparison::BytesFor(std::size_t live_bytes, double share) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  const auto bytes = static_cast<std::size_t>(static_cast<double>(live_bytes) * share);
  return std::max((bytes + kMiB - 1) / kMiB * kMiB, Table::kRegionBytesMin);
}

Comparison::Comparison(MappedRegion memory, Limiter& live, std::shared_ptr<const Rulebook> rules, double share,
                       Instant (*clock)(), Instant now)
    : memory_(std::move(memory)),
      live_(live),
      rules_(std::move(rules)),
      sample_(share),
      clock_(clock != nullptr ? clock : NoClock),
      shadow_(memory_.bytes(), {}, live.keys(), rules_, live.tally().lanes(), now) {
  shadow_.SetTagBytesMax(live.ways().core().tag_bytes_max);
  for (std::size_t i = 0; i < live.tally().lanes(); ++i) {
    lanes_.push_back(std::make_unique<LaneCounts>(rules_->rules().size() + 1, i + 1));
    shadow_.ways().core().tally.lane(i).SampleNone();
  }
  FollowPeers();
}

void Comparison::FollowPeers() {
  const LimiterCore& theirs = live_.ways().core();
  const LimiterCore& ours = shadow_.ways().core();
  if (ours.peers == theirs.peers && ours.window == theirs.window) return;
  shadow_.ways().Get<Debits>().ShareWith(theirs.peers, ToDuration(theirs.window));
}

// A digest does not say which rule its tag has, and the bucket of a divided limit goes by this host's part: tags of
// both begin with a full bucket.
bool Comparison::CopySome(Instant now) {
  class Copy final : public SlotVisitor {
   public:
    Copy(Comparison& comparison, Instant at) : c_(comparison), now_(at) {}
    bool Visit(const Tag& tag, const Slot& slot, const Waste&) override {
      const std::uint64_t hash = c_.shadow_.table().Hash(tag);
      if (tag.is_digest || !c_.sample_.Has(hash)) return true;
      const Limit& before = c_.live_.rules().limit(slot.limit);
      const auto index = c_.rules_->Find(tag.bytes);
      if (before.divided || !index.has_value() || c_.rules_->limit(*index).mode == Mode::kOff) return true;
      Table::Shard shard(c_.shadow_.table(), hash);
      if (shard.Find(tag, now_) != nullptr) return true;
      const Bucket bucket = slot.bucket.Reshaped(before.shape, c_.rules_->limit(*index).shape, now_);
      if (!bucket.IsFull(now_)) shard.Insert(tag, bucket, *index, Source::kQuery, now_);
      return true;
    }

   private:
    Comparison& c_;
    const Instant now_;
  };
  Copy copy(*this, now);
  if (live_.table().VisitSome(copied_, kCellsPerSlice, copy, now)) return true;
  RestorePenalties(shadow_, KeepPenalties(live_, now), now);
  return false;
}

// ---- What is decided ----

void Comparison::Answered(std::span<const Query> queries, std::span<const Verdict> verdicts, std::size_t lane,
                          Instant now) {
  Compare(queries, verdicts, CountedAs::kOne, lane, now);
}

void Comparison::Compare(std::span<const Query> queries, std::span<const Verdict> verdicts, CountedAs counted_as,
                         std::size_t lane, Instant now) {
  DT_CHECK(queries.size() <= kAtOnce);
  LaneCounts& counts = *lanes_[lane];
  const bool timed = counts.calls++ % kTimedEvery == 0;
  const Instant begun = timed ? clock_() : Instant();
  std::array<Verdict, kAtOnce> would;
  const std::size_t n = queries.size();
  const std::span standings = std::span(counts.standings).first(n);
  std::ranges::fill(standings, Standing());
  shadow_.Answer(queries, std::span(would).first(n), lane, counts.prng, now, standings);
  for (std::size_t i = 0; i < n; ++i) {
    const Cost times = counted_as == CountedAs::kTokens ? queries[i].cost : 1;
    Note(queries[i], standings[i], verdicts[i] == Verdict::kServe, would[i] == Verdict::kServe, times, counts);
  }
  if (!timed) return;
  counts.timed_ns.Add(static_cast<std::uint64_t>((clock_() - begun).count()));
  counts.timed_queries.Add(n);
}

// A question counts once, for the tag that decided it.
void Comparison::Asked(const Questions::Question& question, std::span<const Query> queries, const Outcome& outcome,
                       std::size_t lane, Instant now) {
  LaneCounts& counts = *lanes_[lane];
  Questions questions;
  questions.Begin(question.verb == Verb::kHold ? Verb::kHold : Verb::kTake, question.patience);
  for (const Query& query : queries) questions.Name(query);
  Outcome would;
  std::array<Standing, Questions::kTagsMax> standings;
  shadow_.Ask(questions, {&would, 1}, std::span(standings).first(queries.size()), lane, counts.prng, now);
  const bool served = outcome.verdict == Verdict::kServe, would_serve = would.verdict == Verdict::kServe;
  const std::size_t tag = !would_serve ? would.tag : !served ? outcome.tag : 0;
  Note(queries[tag], standings[tag], served, would_serve, 1, counts);
  const bool may_come_back = question.verb == Verb::kHold || outcome.wait != Duration::zero();
  if (!served || would_serve || !may_come_back) return;
  for (const Query& query : queries) KeepUnpaid({query, now});
}

// They came one after the other. Where they are more than kMost, each query that is compared stands for several and
// costs as many tokens, so that a look takes no longer: what it counts is right to one in kMost.
void Comparison::Decided(const Query& query, bool served, Cost times, std::size_t lane, Instant now) {
  constexpr Cost kMost = 16 * kAtOnce;
  std::array<Query, kAtOnce> queries;
  queries.fill(query);
  std::array<Verdict, kAtOnce> verdicts;
  verdicts.fill(served ? Verdict::kServe : Verdict::kThrottle);
  for (Cost compared = std::min(times, kMost); compared > 0;) {
    const auto n = static_cast<Cost>(std::min<std::size_t>(compared, kAtOnce));
    for (Query& its : std::span(queries).first(n)) {
      its.cost = times / compared;
      times -= its.cost, --compared;
    }
    Compare(std::span(queries).first(n), std::span(verdicts).first(n), CountedAs::kTokens, lane, now);
  }
}

void Comparison::Settled(const Payment& paid, Cost actual, Instant now) {
  if (!TakeUnpaid(paid)) shadow_.Settle({paid.query, paid.at}, actual, now);
}

void Comparison::GivenBack(const Query& query, Instant now) {
  if (query.cost > 0) any_refunds_.store(true, std::memory_order_relaxed);
  shadow_.GiveBack(query, 0, now);
}

void Comparison::Forgiven(const Query& query, Instant now) {
  Forgive(shadow_, query, now);
}

void Comparison::Note(const Query& query, const Standing& standing, bool served, bool would_serve, Cost times,
                      LaneCounts& counts) {
  const std::size_t rule = standing.limit.has_value() ? rules_->limit(*standing.limit).rule : rules_->rules().size();
  LaneCounts::Counters& its = counts.by_rule[rule];
  its.queries.Add(times);
  if (!served) its.refused.Add(times);
  if (!would_serve) its.candidate_refused.Add(times);
  if (served && !would_serve) its.newly_refused.Add(times);
  if (!served && would_serve) its.newly_served.Add(times);
  if (!served || !would_serve || tags_.used() != 0) NoteTag(query.tag, served, would_serve, times, counts);
}

// Where there are more tags than places a refusal brings a tag in by chance, as one that is refused often will be soon:
// looking for one to make room costs more than all the rest.
void Comparison::NoteTag(const Tag& tag, bool served, bool would_serve, Cost times, LaneCounts& counts) {
  const std::uint64_t hash = shadow_.table().Hash(tag);
  const Table::Shard shard(shadow_.table(), hash);
  std::size_t at = tags_.Find(hash);
  if (at == tags_.kNone) {
    if (served && would_serve) return;
    if (tags_.UsedNear(hash) == kTagWays && counts.prng.Below(kAdmittedOf) != 0) return;
    at = tags_.RoomFor(hash, [&](std::size_t place) {
      const Differences& seen = tags_[place].seen;
      return std::optional(seen.newly_refused + seen.newly_served);
    });
    if (at == tags_.kNone) return;
    tags_.Put(at, hash);
    tags_[at] = Seen();
    tags_[at].tag = KeptTag(tag);
  }
  Seen& its = tags_[at];
  its.seen.Add(served, would_serve, times);
  its.served += served ? times : 0, its.would_serve += would_serve ? times : 0;
  if (its.served + its.would_serve >= kLately) its.served /= 2, its.would_serve /= 2;
}

// ---- What comes back ----

void Comparison::KeepUnpaid(const Payment& paid) {
  const std::uint64_t hash = shadow_.table().Hash(paid.query.tag);
  if (!sample_.Has(hash)) return;    // nobody will say that it comes back
  const Table::Shard shard(shadow_.table(), hash);
  const auto worth = [&](std::size_t place) { return std::optional(unpaid_[place].at); };
  Unpaid& its = unpaid_[unpaid_.FindOrPut(PaymentKey(hash, paid), worth)];
  ++its.times, its.at = paid.at;
}

// Whether one of these was kept, which is forgotten.
bool Comparison::TakeUnpaid(const Payment& paid) {
  const std::uint64_t hash = shadow_.table().Hash(paid.query.tag);
  const Table::Shard shard(shadow_.table(), hash);
  const std::size_t place = unpaid_.Find(PaymentKey(hash, paid));
  if (place == unpaid_.kNone) return false;
  if (--unpaid_[place].times == 0) unpaid_.Remove(place);
  return true;
}

// ---- What peers say ----

// How many hits the peer would have served of the tag, if the candidate does there to it what it does here.
std::uint64_t Comparison::HitsOf(const Tag& tag, std::uint64_t hash, std::uint64_t hits) {
  const Table::Shard shard(shadow_.table(), hash);
  const std::size_t at = tags_.Find(hash);
  if (at == tags_.kNone || tags_[at].tag.tag() != tag) return hits;
  Seen& its = tags_[at];
  const double ratio = std::min((its.would_serve + 1.0) / (its.served + 1.0), kElsewhereMax);
  its.owed += static_cast<double>(hits) * ratio;
  const auto whole = static_cast<std::uint64_t>(its.owed);
  its.owed -= static_cast<double>(whole);
  return whole;
}

void Comparison::Heard(const Entries& entries, std::size_t first, std::size_t n, Instant from, Instant to,
                       const Speaker& speaker, Instant now) {
  auto& debits = shadow_.ways().Get<Debits>();
  heard_.Clear();
  const auto debit = [&] {
    if (!heard_.empty()) debits.Debit(heard_, 0, heard_.size(), from, to, now, speaker);
    heard_.Clear();
  };
  for (const Entry& entry : std::span(entries.list()).subspan(first, n)) {
    const Tag tag = entries.tag(entry);
    const Tag known = tag.is_digest ? Tag{tag.bytes.substr(0, kDigestBytes), true} : tag;
    const std::uint64_t hash = shadow_.table().Hash(known);
    if (entry.value == 0 || !sample_.Has(hash)) continue;
    const std::uint64_t hits = HitsOf(known, hash, entry.value);
    if (hits == 0 || heard_.Add(tag, hits, entry.phase)) continue;
    debit();
    heard_.Add(tag, hits, entry.phase);
  }
  debit();
}

// ---- Results ----

std::vector<Differences> Comparison::ByRule() const {
  std::vector<Differences> sums(rules_->rules().size() + 1);
  for (const auto& lane : lanes_) {
    for (std::size_t rule = 0; rule < sums.size(); ++rule) {
      const LaneCounts::Counters& its = lane->by_rule[rule];
      sums[rule] += {its.queries.Read(), its.refused.Read(), its.candidate_refused.Read(), its.newly_refused.Read(),
                     its.newly_served.Read()};
    }
  }
  return sums;
}

std::vector<Comparison::OfTag> Comparison::TopTags(std::size_t n) {
  std::vector<OfTag> tags;
  for (std::size_t place = 0; place < tags_.places() && tags_.used() != 0; ++place) {
    const std::uint64_t hash = tags_.HashAt(place);
    if (hash == 0) continue;
    const Table::Shard shard(shadow_.table(), hash);
    if (tags_.HashAt(place) != hash) continue;
    const Seen& its = tags_[place];
    if (its.seen.newly_refused + its.seen.newly_served == 0) continue;
    tags.push_back({std::string(its.tag.tag().bytes), its.tag.tag().is_digest, its.seen});
  }
  const auto differs = [](const OfTag& its) { return its.seen.newly_refused + its.seen.newly_served; };
  std::ranges::sort(tags, [&](const OfTag& a, const OfTag& b) {
    return std::pair(differs(b), std::string_view(a.tag)) < std::pair(differs(a), std::string_view(b.tag));
  });
  if (tags.size() > n) tags.resize(n);
  return tags;
}

double Comparison::NanosecondsEach() const {
  std::uint64_t ns = 0, queries = 0;
  for (const auto& lane : lanes_) ns += lane->timed_ns.Read(), queries += lane->timed_queries.Read();
  return queries > 0 ? static_cast<double>(ns) / static_cast<double>(queries) : 0;
}

}    // namespace dthrottle
