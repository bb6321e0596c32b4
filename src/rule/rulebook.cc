#include "rule/rulebook.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <map>
#include <span>
#include <string>

#include "base/check.h"
#include "base/siphash.h"
#include "bucket/table.h"
#include "rule/network_map.h"

namespace dthrottle {

namespace {

// Chains hashes of everything that decides what a bucket means. Not a secret: it tells rules apart, not enemies.
class RuleFingerprint {
 public:
  void Add(std::string_view text) { value_ = SipHash<1, 3>({value_, text.size()}, text); }
  void Add(double number) { value_ = SipHash<1, 3>({value_, std::bit_cast<std::uint64_t>(number)}, "number"); }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 1;
};

// What an override shares, how far, and whether it is shed, is its rule's to say; without one it is shared like any
// rule that says nothing.
Limit MakeLimit(const Shape& shape, std::uint32_t index, const Rule* rule, Mode mode) {
  Limit limit{.shape = shape, .rule = index, .mode = mode};
  if (rule != nullptr) {
    limit.shared = rule->share == Share::kDebit || rule->share == Share::kForecast;
    limit.divided = rule->share == Share::kCapacity && mode != Mode::kOff;
    if (rule->max_debt.has_value()) limit.max_debt = TicksOf(*rule->max_debt, shape);
    limit.horizon = rule->horizon.value_or(Duration::zero());
    limit.forecast = rule->share == Share::kForecast && mode != Mode::kOff;
    limit.derives = !rule->also.empty() && mode != Mode::kOff;
    limit.delay = rule->delay;
    if (mode != Mode::kOff) limit.quota = rule->quota;
    limit.penalizes = rule->penalty.after > 0 && mode != Mode::kOff;
    limit.max_unheard = rule->max_unheard.value_or(0);
    if (mode != Mode::kOff) limit.in_flight = rule->in_flight;
    limit.among = rule->among;
    limit.keeps_part = rule->cut_off == CutOff::kPart;
    limit.weight = rule->weight;
    if (rule->shed && mode != Mode::kOff) limit.shed_priority = static_cast<std::uint8_t>(rule->shed_priority);
  }
  limit.shared = limit.shared && mode != Mode::kOff;
  return limit;
}

std::uint64_t HashOf(const std::vector<Network>& networks) {
  std::uint64_t hash = 0;
  for (const auto& [address, bits] : networks) {
    const std::array<std::uint64_t, 3> words{address.high, address.low, std::uint64_t{address.is_v6} << 8 | bits};
    hash = SipHash<1, 3>({hash, 0}, std::string_view(reinterpret_cast<const char*>(words.data()), sizeof words));
  }
  return hash;
}

// In both, `limits` are those of the rules and then those of the overrides.
std::uint64_t FingerprintOf(std::span<const Rule> rules, std::span<const Override> overrides,
                            std::span<const Limit> limits, std::uint32_t own_parts) {
  RuleFingerprint fingerprint;
  for (const Rule& rule : rules) {
    fingerprint.Add(rule.name);
    fingerprint.Add(rule.match.has_value() ? "match" : "default");
    fingerprint.Add(rule.match.value_or(""));
    if (rule.networks.has_value()) fingerprint.Add(fmt::format("{}", HashOf(*rule.networks->list)));
    fingerprint.Add(rule.burst);
    fingerprint.Add(rule.rate);
    fingerprint.Add(Name(rule.mode));
    if (rule.max_own_limit > 0) fingerprint.Add(fmt::format("own {}", rule.max_own_limit));
  }
  if (own_parts > 1) fingerprint.Add(fmt::format("own parts {}", own_parts));
  for (std::size_t i = 0; i < overrides.size(); ++i) {
    fingerprint.Add(overrides[i].tag);
    fingerprint.Add(overrides[i].burst);
    fingerprint.Add(overrides[i].rate);
    fingerprint.Add(Name(limits[rules.size() + i].mode));
  }
  return fingerprint.value();
}

// 0: hosts divide none of them.
std::uint64_t FingerprintOfDivided(std::span<const Rule> rules, std::span<const Override> overrides,
                                   std::span<const Limit> limits) {
  if (std::ranges::none_of(limits, &Limit::divided)) return 0;
  RuleFingerprint fingerprint;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (!limits[i].divided) continue;
    fingerprint.Add(rules[i].name);
    fingerprint.Add(rules[i].match.value_or(""));
    if (rules[i].networks.has_value()) fingerprint.Add(fmt::format("{}", HashOf(*rules[i].networks->list)));
    fingerprint.Add(rules[i].rate);
    if (rules[i].max_own_limit > 0) fingerprint.Add(fmt::format("own {}", rules[i].max_own_limit));
  }
  for (std::size_t i = 0; i < overrides.size(); ++i) {
    if (!limits[rules.size() + i].divided) continue;
    fingerprint.Add(overrides[i].tag);
    fingerprint.Add(overrides[i].rate);
  }
  return fingerprint.value() | 1;
}

}    // namespace

// The networks of all rules, while patterns are made: rules of one pattern share a map.
class Rulebook::Networks {
 public:
  // Whether a pattern of that text is there already, which then has the rule's networks too.
  bool Add(const std::string& match, std::size_t pattern, const Rule& rule, std::uint32_t number) {
    auto& [its, mapped] = by_match_.try_emplace(match, pattern, std::vector<MappedNetwork>()).first->second;
    for (const Network& network : *rule.networks->list) mapped.push_back({network, static_cast<std::uint16_t>(number)});
    return its != pattern;
  }
  void Finish(std::vector<Pattern>& patterns) {
    for (auto& [match, group] : by_match_) {
      patterns[group.first].networks = std::make_shared<NetworkMap>(std::move(group.second));
    }
  }

 private:
  std::map<std::string, std::pair<std::size_t, std::vector<MappedNetwork>>> by_match_;
};

void Rulebook::AddPattern(std::uint32_t number, Networks& networks) {
  const Rule& rule = rules_[number];
  Pattern pattern{Glob::Compile(*rule.match).value(), number, 0, nullptr};
  pattern.head = static_cast<std::uint32_t>(pattern.glob.literal_head().size());
  heads_[number] = pattern.head;
  if (rule.networks.has_value() && networks.Add(*rule.match, patterns_.size(), rule, number)) return;
  patterns_.push_back(std::move(pattern));
}

Rulebook::Rulebook(std::vector<Rule> rules, std::vector<Override> overrides, std::uint32_t own_parts)
    : rules_(std::move(rules)), overrides_(std::move(overrides)) {
  DT_CHECK(rules_.size() <= kRulesMax && overrides_.size() <= kOverridesMax);
  limits_.reserve(rules_.size() + overrides_.size());
  heads_.resize(rules_.size());
  Networks networks;
  for (std::uint32_t i = 0; i < rules_.size(); ++i) {
    const Rule& rule = rules_[i];
    if (rule.match.has_value()) {
      AddPattern(i, networks);
    } else {
      DT_CHECK(!default_rule_.has_value());
      default_rule_ = i;
    }
    limits_.push_back(MakeLimit(Shape::From(rule.burst, rule.rate), i, &rule, rule.mode));
    numbers_.push_back(SipHash<1, 3>({}, rule.name));
  }
  networks.Finish(patterns_);
  IndexPatterns();
  by_tag_.reserve(overrides_.size());
  for (const Override& o : overrides_) {
    const auto found = RuleOf(o.tag);
    const Rule* const rule = found.has_value() ? &rules_[*found] : nullptr;
    const std::uint32_t index = found.value_or(static_cast<std::uint32_t>(rules_.size()));
    const Mode mode = o.mode.value_or(rule != nullptr ? rule->mode : Mode::kEnforce);
    DT_CHECK(by_tag_.emplace(o.tag, static_cast<LimitIndex>(limits_.size())).second);
    Limit& limit = limits_.emplace_back(MakeLimit(Shape::From(o.burst, o.rate), index, rule, mode));
    if (mode != Mode::kOff && rule != nullptr) limit.quota = o.quota.value_or(limit.quota);
    limit.weight = o.weight.value_or(limit.weight);
  }
  fingerprint_ = FingerprintOf(rules_, overrides_, limits_, own_parts);
  divided_fingerprint_ = FingerprintOfDivided(rules_, overrides_, limits_);
  for (Limit& limit : limits_) {
    if (limit.quota > 0) limit.calendar = CalendarOf(rules_[limit.rule].calendar);
    limit.whole = limit.derives || limit.quota > 0;
    limit.plain = limit.mode != Mode::kOff && limit.in_flight == 0 && !limit.penalizes && !limit.whole;
    any_in_flight_ = any_in_flight_ || limit.in_flight > 0;
    weight_max_ = std::max(weight_max_, limit.weight);
    any_among_ = any_among_ || limit.among != Among::kFirst;
    any_penalty_ = any_penalty_ || limit.penalizes;
    if (limit.shed_priority < kShedPriorities) shed_priorities_.set(limit.shed_priority);
  }
  if (std::ranges::any_of(rules_, [](const Rule& rule) { return rule.max_own_limit > 0; })) {
    limits_.resize(first_own() + OwnLimits::kRoom);
    own_ = std::make_unique<OwnLimits>(&limits_[first_own()], own_parts);
  }
}

std::uint16_t Rulebook::CalendarOf(const QuotaCalendar& calendar) {
  const auto known = std::ranges::find(calendars_, calendar);
  if (known != calendars_.end()) return static_cast<std::uint16_t>(known - calendars_.begin());
  calendars_.push_back(calendar);
  return static_cast<std::uint16_t>(calendars_.size() - 1);
}

void Rulebook::IndexPatterns() {
  begins_.Reset(patterns_.size());
  ends_.Reset(patterns_.size());
  for (std::size_t i = 0; i < patterns_.size(); ++i) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (patterns_[i].glob.MayBegin(static_cast<unsigned char>(byte)))
        begins_.Add(static_cast<unsigned char>(byte), i);
      if (patterns_[i].glob.MayEnd(static_cast<unsigned char>(byte))) ends_.Add(static_cast<unsigned char>(byte), i);
    }
  }
}

template <class Matcher>
std::optional<LimitIndex> Rulebook::FirstRule(Matcher&& matches) const {
  for (const Pattern& pattern : patterns_) {
    if (const auto rule = matches(pattern)) return rule;
  }
  return default_rule_;
}

// The rule that a tag finds through a pattern that it matches.
std::optional<LimitIndex> Rulebook::RuleIn(const Pattern& pattern, TagText tag) {
  if (pattern.networks == nullptr) return pattern.rule;
  const auto address = tag.whole ? ParseAddress(tag.bytes.substr(pattern.head)) : std::nullopt;
  const std::uint16_t rule = address.has_value() ? pattern.networks->Find(*address) : NetworkMap::kNone;
  return rule != NetworkMap::kNone ? std::optional<LimitIndex>(rule) : std::nullopt;
}

std::optional<LimitIndex> Rulebook::RuleOf(std::string_view tag) const {
  const auto matches = [&](const Pattern& pattern) {
    return pattern.glob.Matches(tag) ? RuleIn(pattern, {tag}) : std::nullopt;
  };
  if (tag.empty()) return FirstRule(matches);
  const auto first = static_cast<unsigned char>(tag.front()), last = static_cast<unsigned char>(tag.back());
  for (std::size_t word = 0; word < begins_.words(); ++word) {
    for (std::uint64_t bits = begins_.Word(first, word) & ends_.Word(last, word); bits != 0; bits &= bits - 1) {
      const Pattern& pattern = patterns_[word * 64 + static_cast<std::size_t>(std::countr_zero(bits))];
      if (const auto rule = matches(pattern)) return rule;
    }
  }
  return default_rule_;
}

std::optional<LimitIndex> Rulebook::Find(std::string_view tag) const {
  return Find(tag, Source::kQuery);
}

std::optional<LimitIndex> Rulebook::Find(std::string_view tag, Source source) const {
  if (const auto it = by_tag_.find(tag); it != by_tag_.end()) return it->second;
  if (const auto own = AllowedOwn(tag)) {
    const auto index = PlaceOf(*own, source);
    if (index.has_value() || !source.is_query()) return index;
  }
  return RuleOf(tag);
}

std::optional<LimitIndex> Rulebook::FindOwn(std::string_view tag) const {
  return FindOwn(tag, Source::kQuery);
}

std::optional<LimitIndex> Rulebook::FindOwn(std::string_view tag, Source source) const {
  const auto own = AllowedOwn(tag);
  return own.has_value() ? PlaceOf(*own, source) : std::nullopt;
}

std::optional<Rulebook::Allowed> Rulebook::AllowedOwn(std::string_view tag) const {
  const auto limit = own_ != nullptr ? ReadOwnLimit(tag) : std::nullopt;
  if (!limit.has_value() || !limit->can_be()) return std::nullopt;
  const auto rule = RuleOf(limit->tag);
  if (!rule.has_value() || limit->requests > rules_[*rule].max_own_limit) return std::nullopt;
  if (by_tag_.contains(tag) || by_tag_.contains(limit->tag)) return std::nullopt;
  return Allowed{*limit, *rule};
}

std::optional<LimitIndex> Rulebook::PlaceOf(const Allowed& own, Source source) const {
  const auto place = own_->Find(own.limit, rules_[own.rule], limits_[own.rule], source);
  return place.has_value() ? std::optional(static_cast<LimitIndex>(first_own() + *place)) : std::nullopt;
}

std::optional<LimitIndex> Rulebook::Find(const OverLongTag& tag) const {
  const bool whole = tag.size <= tag.head.size();
  return FirstRule([&](const Pattern& pattern) {
    const bool matches = whole ? pattern.glob.Matches(tag.head) : pattern.glob.MatchesEnds(tag.head, tag.tail);
    return matches ? RuleIn(pattern, {tag.head, whole}) : std::nullopt;
  });
}

std::optional<LimitIndex> Rulebook::Named(std::string_view name) const {
  for (std::uint32_t i = 0; i < rules_.size(); ++i) {
    if (rules_[i].name == name) return i;
  }
  return std::nullopt;
}

}    // namespace dthrottle
