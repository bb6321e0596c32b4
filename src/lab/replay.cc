#include "lab/replay.h"

#include <algorithm>
#include <span>
#include <utility>

#include "lab/dividing_hosts.h"
#include "lab/owning_hosts.h"
#include "limiter/limit_of.h"
#include "limiter/limiter.h"
#include "penalty/penalties.h"
#include "rule/rulebook.h"

namespace dthrottle::lab {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kTableBytesAll = std::size_t{256} << 20;    // of all hosts together
constexpr std::size_t kSampleBytes = 100;
constexpr Duration kSecond = 1s;

// Small, to stay in caches. Whatever waits moves on in the same instant, and wires that lose nothing need no repeats.
constexpr std::size_t kHandOverMax = 4;    // items
constexpr std::size_t kRingBytes = std::size_t{256} << 10;

// Buckets count in 16ths of a nanosecond, 18 years of them. A log that goes on for longer than this without pauses that
// can be passed over, which takes hours, stands still at the end.
constexpr WorldTime kEnd = After(10 * 365 * 24h);
constexpr double kIdleSecondsMax = 366.0 * 86400;

std::shared_ptr<const Rulebook> EnforcedRules(const Settings& settings) {
  std::vector<Rule> rules = settings.rules;
  std::vector<Override> overrides = settings.overrides;
  for (Rule& rule : rules) rule.mode = rule.mode == Mode::kShadow ? Mode::kEnforce : rule.mode;
  for (Override& o : overrides) o.mode = o.mode == Mode::kShadow ? Mode::kEnforce : o.mode;
  return std::make_shared<Rulebook>(std::move(rules), std::move(overrides));
}

FleetOptions OptionsOf(const ReplayOptions& options, std::uint32_t hosts, std::shared_ptr<const Rulebook> rules) {
  FleetOptions made;
  made.hosts = hosts;
  if (hosts > 1) made.owners = FirstHosts(OwnersIn(options.settings), hosts, 1);
  made.rules = std::move(rules);
  made.period = options.settings.peers.period;
  made.lanes.delay = options.delay;
  made.host.hand_over_max = kHandOverMax;
  made.host.watched_tags = options.settings.peers.watched_tags;
  made.host.capacity = CapacityOf(options.settings, *made.rules, hosts);
  made.host.ring_bytes = kRingBytes;
  made.host.counts_frequent_tags = false;    // a replay counts what is refused itself
  const std::size_t share = kTableBytesAll / (options.hosts + 1) / 4096 * 4096;
  made.host.quota_bytes = std::max(Quotas::RegionBytes(Quotas::kSlotsMin),
                                   std::min<std::size_t>(share, options.settings.quota.memory));
  made.host.table_bytes =
      std::max(Table::kRegionBytesMin, std::min<std::size_t>(share, options.settings.table.memory / 4096 * 4096));
  return made;
}

// How long after its latest refusal a tag differs from one that was never refused: it is penalized, or its next penalty
// will be twice as long.
Duration Remembered(const Penalty& penalty) {
  if (penalty.after == 0) return {};
  return penalty.doubling ? 2 * Penalties::kLongest : std::max(penalty.within, penalty.lasts);
}

// How long it takes until nothing is left of what was asked: a bucket is full from the deepest debt that hosts can get
// it into, penalties are forgotten, and everything is told.
Duration IdleMax(const Settings& settings, const Rulebook& rules, std::uint32_t hosts) {
  const double period = Seconds(settings.peers.period);
  double longest = 0, delay = 0;
  for (const Rule& rule : rules.rules()) delay = std::max(delay, Seconds(rule.delay));
  const auto fill = [&](Tokens burst, double rate, std::optional<Tokens> debt_max) {
    const Tokens debt = debt_max.value_or(hosts * (burst + rate * (period + delay)));
    longest = std::max(longest, (burst + debt) / rate);
  };
  for (const Rule& rule : rules.rules()) fill(rule.burst, rule.rate, rule.max_debt);
  for (const Override& o : rules.overrides()) fill(o.burst, o.rate, std::nullopt);
  for (const Rule& rule : rules.rules()) longest = std::max(longest, Seconds(Remembered(rule.penalty)));
  if (rules.any_own()) longest = kIdleSecondsMax;
  return DurationOf(std::min(longest, kIdleSecondsMax)) + 10 * settings.peers.period + 10s;
}

}    // namespace

Replay::Replay(const ReplayOptions& options)
    : options_(options),
      rules_(EnforcedRules(options.settings)),
      hosts_(OptionsOf(options, options.hosts, rules_), options.seed),
      one_(OptionsOf(options, 1, rules_), options.seed),
      prng_(options.seed),
      idle_max_(IdleMax(options.settings, *rules_, options.hosts)),
      second_begins_(After(
          TimeToMeet(options.settings, CapacityOf(options.settings, *rules_, options.hosts).has_value()))),
      reader_(options.question),
      named_(options.settings.query.max_tag_bytes) {
  Run(second_begins_ - Duration(1));
  hosts_.requests.Begin();
  one_.requests.Begin();
  for (const Rule& rule : rules_->rules()) rule_counts_.push_back({.name = rule.name});
  rule_counts_.push_back({.name = "(override)"});
  rule_counts_.push_back({.name = "(no limit)"});
}

Replay::~Replay() = default;

void Replay::Run(WorldTime until) {
  hosts_.requests.Run(std::max(until, hosts_.fleet.now()));
  one_.requests.Run(hosts_.fleet.now());
}

// ---- Lines ----

void Replay::Begin(std::string log) {
  log_ = std::move(log);
  log_lines_ = 0;
}

void Replay::Take(std::string_view line, bool cut) {
  ++counts_.lines, ++log_lines_;
  const auto question = cut ? Result<LoggedQuestion>(Fail("the line is too long")) : reader_.Read(line);
  if (!question) {
    ++counts_.unreadable;
    if (unreadable_.size() < kSamplesMax) {
      unreadable_.push_back({log_, log_lines_, std::string(line.substr(0, kSampleBytes)), question.error().message});
    }
    return;
  }
  if (!begun_) {
    begun_ = true;
    counts_.first_s = second_.time_s = question->time_s;
    SetDate();
  } else if (question->time_s > second_.time_s) {
    const std::int64_t passed = question->time_s - second_.time_s;
    CloseSecond();
    const bool skips = passed > idle_max_ / kSecond;
    second_begins_ = std::min(kEnd, second_begins_ + (skips ? idle_max_ : passed * kSecond));
    second_ = {.time_s = question->time_s};
    if (skips) PassOver(passed);
  } else if (question->time_s < second_.time_s) {
    ++counts_.late;
    counts_.late_s_max = std::max(counts_.late_s_max, second_.time_s - question->time_s);
  }
  pending_.Add(*question);
  // So many in one second that they do not fit: the others of it come at its end.
  if (pending_.bytes() > kPendingBytesMax) AskPending();
}

// So many seconds of the log have taken the fleets no more than idle_max_.
void Replay::PassOver(std::int64_t seconds) {
  const Duration over = std::min<std::int64_t>(seconds, kEnd.time_since_epoch() / kSecond) * kSecond - idle_max_;
  hosts_.requests.PassOver(over);
  one_.requests.PassOver(over);
  SetDate();
}

// So that the date is the log's when the second begins. Where that is none, there is one all the same.
void Replay::SetDate() {
  const std::int64_t time_s = std::clamp<std::int64_t>(second_.time_s, 0, kDateMaxS);
  const Duration date = time_s * kSecond - (second_begins_ - hosts_.fleet.now());
  hosts_.fleet.SetDate(date);
  one_.fleet.SetDate(date);
}

// Spread over its second.
void Replay::AskPending() {
  ExpireHolds();
  std::size_t index = 0;
  pending_.ForEach([&](const LoggedQuestion& question) { Do(question, index++, pending_.size()); });
  pending_.Clear();
}

void Replay::ExpireHolds() {
  if (std::min(hosts_.requests.next_end_s(), one_.requests.next_end_s()) > second_.time_s) return;
  Run(second_begins_);
  hosts_.requests.Expire(second_.time_s);
  one_.requests.Expire(second_.time_s);
}

void Replay::CloseSecond() {
  AskPending();
  counts_.last_s = second_.time_s;
  if (on_second_) on_second_(second_);
}

// ---- Questions ----

void Replay::Do(const LoggedQuestion& question, std::size_t index, std::size_t count) {
  Run(second_begins_ + kSecond / static_cast<Duration::rep>(count) * static_cast<Duration::rep>(index));
  using enum LoggedQuestion::Does;
  switch (question.does) {
    case kPeek:
      ++counts_.peeked;
      return;
    case kAsk:
      Read(question);
      return Ask(question);
    case kRefund: {
      Read(question);
      const auto named = std::span(queries_).first(question.tags.size());
      hosts_.requests.Refund(question, named);
      return one_.requests.Refund(question, named);
    }
    case kCommit:
    case kRelease:
    case kGive:
      hosts_.requests.Return(question);
      return one_.requests.Return(question);
  }
}

// Over-long tags are throttled under their digest, as everywhere.
void Replay::Read(const LoggedQuestion& question) {
  named_.Clear();
  for (std::size_t i = 0; i < question.tags.size(); ++i) {
    queries_[i] = named_.Read(question.tags[i].name, question.tags[i].cost, DigestKey{});
    limits_[i] = LimitOf(*rules_, queries_[i]);
  }
}

void Replay::Ask(const LoggedQuestion& question) {
  const Answer answer = AskOn(hosts_, HostFor(question), question), ideal = AskOn(one_, 0, question);
  CountAsked(question.tags.size());
  if (!ideal.served) {
    ++rule_counts_[RuleOf(ideal.limit)].ideal_refused;
    ++counts_.ideal_refused, ++second_.ideal_refused;
  }
  if (!answer.served) CountRefused(question, answer);
}

// A question about one tag and one token of no request, as most logs have them, is asked as a query, which costs less.
Replay::Answer Replay::AskOn(Side& side, std::uint32_t host, const LoggedQuestion& question) {
  const std::span queries = std::span(queries_).first(question.tags.size());
  const bool one = queries.size() == 1 && queries[0].cost == 1 && !(limits_[0] && rules_->limit(*limits_[0]).derives);
  if (one && question.verb == Verb::kTake && question.patience == Duration(0) && question.request.empty()) {
    return {.served = side.fleet.AskOnly(host, queries[0]), .limit = limits_[0]};
  }
  questions_.Clear();
  questions_.Begin(question.verb, question.patience);
  for (const Query& query : queries) questions_.Name(query);
  std::array<Standing, Questions::kTagsMax> all;
  const std::span standings = std::span(all).first(queries.size());
  const dthrottle::Outcome outcome = side.fleet.AskOnly(host, questions_, standings);
  if (outcome.verdict != Verdict::kServe) {
    side.requests.Refused(question);
    const bool never = !outcome.busy && outcome.wait == dthrottle::Outcome::kNever;
    return {false, outcome.tag, standings[outcome.tag].limit, outcome.busy, never};
  }
  if (outcome.wait > Duration(0)) side.waits.Add(outcome.wait);
  side.requests.Took(question, queries, standings, host, second_.time_s);
  return {};
}

// Overrides that no rule fits, and tags without a limit, have counts of their own.
std::size_t Replay::RuleOf(std::optional<LimitIndex> limit) const {
  return limit ? std::size_t{rules_->limit(*limit).rule} : rules_->rules().size() + 1;
}

void Replay::CountAsked(std::size_t tags) {
  ++counts_.asked, ++second_.asked;
  for (std::size_t i = 0; i < tags; ++i) {
    ++rule_counts_[RuleOf(limits_[i])].asked;
    if (!limits_[i]) continue;
    rules_->ForEachDerived(*limits_[i], TextOf(queries_[i]), [&](std::string_view derived) {
      if (const auto limit = rules_->Find(derived)) ++rule_counts_[RuleOf(limit)].asked;
    });
  }
}

void Replay::CountRefused(const LoggedQuestion& question, const Answer& answer) {
  ++counts_.refused, ++second_.refused;
  counts_.busy += answer.busy;
  counts_.never += answer.never;
  const std::size_t rule = RuleOf(answer.limit);
  RuleCounts& counts = rule_counts_[rule];
  if (counts.refused++ == 0) counts.first_s = second_.time_s;
  counts.last_s = second_.time_s;
  // The limiter says under which limit a tag is refused that is charged with this one.
  std::string charged;
  if (const auto own = limits_[answer.tag]; own && own != answer.limit) {
    rules_->ForEachDerived(*own, TextOf(queries_[answer.tag]), [&](std::string_view derived) {
      if (rules_->Find(derived) == answer.limit) charged = derived;
    });
  }
  const std::string_view tag = charged.empty() ? question.tags[answer.tag].name : std::string_view(charged);
  refused_.Add(tag, rule, answer.limit && rules_->is_override(*answer.limit), second_.time_s);
}

// What a request has is at one host, to which its connection leads.
std::uint32_t Replay::HostFor(const LoggedQuestion& question) {
  if (!question.request.empty()) {
    if (const auto host = hosts_.requests.HostOf(question.request)) return *host;
  }
  switch (options_.spread) {
    case ReplayOptions::Spread::kRandom:
      return static_cast<std::uint32_t>(prng_.Below(options_.hosts));
    case ReplayOptions::Spread::kSticky:
      return HostOfTag(question.tags[0].name, options_.hosts, options_.seed);
    case ReplayOptions::Spread::kRoundRobin:
      return turn_++ % options_.hosts;
  }
  return 0;
}

void Replay::Finish() {
  if (begun_) CloseSecond();
  for (std::uint32_t i = 0; i < hosts_.fleet.size(); ++i) {
    counts_.evicted += hosts_.fleet.host(i).limiter().table().counts().evicted;
  }
}

}    // namespace dthrottle::lab
