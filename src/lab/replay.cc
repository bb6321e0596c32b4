#include "lab/replay.h"

#include <algorithm>
#include <utility>

#include "base/siphash.h"
#include "lab/dividing_hosts.h"
#include "limiter/limiter.h"
#include "query/named_tag.h"
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
  made.rules = std::move(rules);
  made.period = options.settings.peers.period;
  made.lanes.delay = options.delay;
  made.host.hand_over_max = kHandOverMax;
  made.host.watched_tags = options.settings.peers.watched_tags;
  made.host.capacity = CapacityOf(options.settings, *made.rules, hosts);
  made.host.ring_bytes = kRingBytes;
  const std::size_t share = kTableBytesAll / (options.hosts + 1) / 4096 * 4096;
  made.host.quota_bytes = std::max(Quotas::RegionBytes(Quotas::kSlotsMin),
                                   std::min<std::size_t>(share, options.settings.quota.memory));
  made.host.table_bytes =
      std::max(Table::kRegionBytesMin, std::min<std::size_t>(share, options.settings.table.memory / 4096 * 4096));
  return made;
}

// How long a bucket takes to be full from the deepest debt that hosts can get it into, and everything to be told.
Duration IdleMax(const Settings& settings, const Rulebook& rules, std::uint32_t hosts) {
  const double period = Seconds(settings.peers.period);
  double longest = 0;
  const auto fill = [&](Tokens burst, double rate, std::optional<Tokens> debt_max) {
    const Tokens debt = debt_max.value_or(hosts * (burst + rate * period));
    longest = std::max(longest, (burst + debt) / rate);
  };
  for (const Rule& rule : rules.rules()) fill(rule.burst, rule.rate, rule.max_debt);
  for (const Override& o : rules.overrides()) fill(o.burst, o.rate, std::nullopt);
  if (rules.any_own()) longest = kIdleSecondsMax;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(longest, kIdleSecondsMax))) +
         10 * settings.peers.period + 10s;
}

}    // namespace

Replay::Replay(const ReplayOptions& options)
    : options_(options),
      rules_(EnforcedRules(options.settings)),
      fleet_(OptionsOf(options, options.hosts, rules_), options.seed),
      one_(OptionsOf(options, 1, rules_), options.seed),
      prng_(options.seed),
      idle_max_(IdleMax(options.settings, *rules_, options.hosts)),
      second_begins_(After(TimeToMeet(options.settings, LaneOptions().reconnecting,
                                      CapacityOf(options.settings, *rules_, options.hosts).has_value()))) {
  fleet_.Run(second_begins_ - Duration(1));
  one_.Run(fleet_.now());
  for (const Rule& rule : rules_->rules()) rule_counts_.push_back({.name = rule.name});
  rule_counts_.push_back({.name = "(override)"});
  rule_counts_.push_back({.name = "(no limit)"});
}

Replay::~Replay() = default;

void Replay::Take(std::string_view line, bool cut) {
  ++counts_.lines;
  const Result<LogLine> parsed = cut ? Result<LogLine>(Fail("the line is too long")) : ParseLogLine(line);
  if (!parsed) {
    ++counts_.unreadable;
    if (unreadable_.size() < kSamplesMax) {
      unreadable_.push_back({counts_.lines, std::string(line.substr(0, kSampleBytes)), parsed.error().message});
    }
    return;
  }
  if (!begun_) {
    begun_ = true;
    counts_.first_s = second_.time_s = parsed->time_s;
    SetDate();
  } else if (parsed->time_s > second_.time_s) {
    const std::int64_t passed = parsed->time_s - second_.time_s;
    CloseSecond();
    const bool skips = passed > idle_max_ / kSecond;
    second_begins_ = std::min(kEnd, second_begins_ + (skips ? idle_max_ : passed * kSecond));
    second_ = {.time_s = parsed->time_s};
    if (skips) SetDate();
  } else if (parsed->time_s < second_.time_s) {
    ++counts_.late;
    counts_.late_s_max = std::max(counts_.late_s_max, second_.time_s - parsed->time_s);
  }
  options_.tag.Expand(*parsed, pending_);
  pending_ends_.push_back(pending_.size());
  // So many in one second that they do not fit: the others of it come at its end.
  if (pending_.size() > kPendingBytesMax) AskPending();
}

// So that the date is the log's when the second begins. Where that is none, there is one all the same.
void Replay::SetDate() {
  const std::int64_t time_s = std::clamp<std::int64_t>(second_.time_s, 0, kDateMaxS);
  const Duration date = time_s * kSecond - (second_begins_ - fleet_.now());
  fleet_.SetDate(date);
  one_.SetDate(date);
}

// Spread over its second.
void Replay::AskPending() {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < pending_ends_.size(); ++i) {
    Ask(std::string_view(pending_).substr(begin, pending_ends_[i] - begin), i, pending_ends_.size());
    begin = pending_ends_[i];
  }
  pending_.clear();
  pending_ends_.clear();
}

void Replay::CloseSecond() {
  AskPending();
  counts_.last_s = second_.time_s;
  if (on_second_) on_second_(second_);
}

void Replay::Ask(std::string_view tag, std::size_t index, std::size_t count) {
  const WorldTime at = second_begins_ + kSecond / static_cast<Duration::rep>(count) * static_cast<Duration::rep>(index);
  fleet_.Run(std::max(at, fleet_.now()));
  one_.Run(fleet_.now());
  // Over-long tags are throttled under their digest, as everywhere.
  std::optional<NamedTag> long_tag;
  Query query;
  query.tag = {tag};
  if (tag.size() > options_.settings.query.max_tag_bytes) {
    long_tag.emplace(std::string(tag), options_.settings.query.max_tag_bytes, DigestKey{});
    query = long_tag->query();
  }
  const bool served = fleet_.AskOnly(HostFor(tag), query), ideal = one_.AskOnly(0, query);

  const auto limit = query.over_long != nullptr ? rules_->Find(*query.over_long) : rules_->Find(tag);
  const std::size_t rules = rules_->rules().size();
  const std::size_t rule = limit ? std::size_t{rules_->limit(*limit).rule} : rules + 1;
  RuleCounts& counts = rule_counts_[rule];
  ++counts.asked, ++counts_.asked, ++second_.asked;
  if (!ideal) ++counts.ideal_refused, ++counts_.ideal_refused, ++second_.ideal_refused;
  if (served) return;
  if (counts.refused++ == 0) counts.first_s = second_.time_s;
  counts.last_s = second_.time_s;
  ++counts_.refused;
  ++second_.refused;
  NoteRefused(tag, rule, limit && rules_->is_override(*limit));
}

void Replay::NoteRefused(std::string_view tag, std::size_t rule, bool override_) {
  auto it = refused_.find(std::string(tag));
  if (it == refused_.end()) {
    if (refused_.size() >= kRefusedTagsMax) {
      ++refused_untold_;
      return;
    }
    it = refused_
             .emplace(
                 tag,
                 TagCounts{.first_s = second_.time_s, .rule = static_cast<std::uint32_t>(rule), .override_ = override_})
             .first;
  }
  ++it->second.refused;
  it->second.last_s = second_.time_s;
}

std::uint32_t Replay::HostFor(std::string_view tag) {
  switch (options_.spread) {
    case ReplayOptions::Spread::kRandom:
      return static_cast<std::uint32_t>(prng_.Below(options_.hosts));
    case ReplayOptions::Spread::kSticky:
      return static_cast<std::uint32_t>(SipHash<1, 3>({options_.seed, 0}, tag) % options_.hosts);
    case ReplayOptions::Spread::kRoundRobin:
      return turn_++ % options_.hosts;
  }
  return 0;
}

void Replay::Finish() {
  if (begun_) CloseSecond();
  for (std::uint32_t i = 0; i < fleet_.size(); ++i) {
    counts_.evicted += fleet_.host(i).limiter().table().counts().evicted;
  }
}

std::vector<Replay::Refused> Replay::MostRefused(std::size_t count) const {
  std::vector<Refused> all;
  all.reserve(refused_.size());
  for (const auto& [tag, c] : refused_) all.push_back({tag, c.refused, c.first_s, c.last_s, c.rule, c.override_});
  count = std::min(count, all.size());
  const auto more = [](const Refused& a, const Refused& b) {
    return a.refused != b.refused ? a.refused > b.refused : a.tag < b.tag;
  };
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end(), more);
  all.resize(count);
  return all;
}

}    // namespace dthrottle::lab
