// All rules and overrides of one set of settings, ready to be asked which limit applies to a tag.
//
// The answer is an index (rules first, in order, then overrides), which the table keeps with the tag's bucket: rules
// and overrides are searched once for a tag that is new, never again while its bucket lives. A rulebook never changes;
// a reload makes another one.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/tag.h"
#include "bucket/bucket.h"
#include "rule/glob.h"
#include "rule/rule.h"

namespace dthrottle {

// One rule's or override's effect on a bucket.
struct Limit {
  Shape shape;
  std::uint32_t rule;    // index into rules(), also for an override; rules().size() if no rule matches its tag
  Mode mode;
  bool shared;                   // with other hosts
  std::uint8_t shed_priority;    // kShedPriorities: never sheds
  Ticks max_debt;                // of Bucket::Debit; negative: the limiter's
  Duration horizon;              // 0: the limiter's
};

class Rulebook {
 public:
  static constexpr std::size_t kRulesMax = 1000;
  static constexpr std::size_t kOverridesMax = 1'000'000;

  Rulebook() = default;    // no rules: every tag is served

  // REQUIRES: names and override tags are unique, at most one rule has no match, patterns compile, numbers are within
  // the bounds of bucket.h, counts within those above.
  Rulebook(std::vector<Rule> rules, std::vector<Override> overrides);
  Rulebook(const Rulebook&) = delete;
  Rulebook& operator=(const Rulebook&) = delete;

  // The limit of a tag: its override, else the first rule that matches, else the default rule, else none.
  std::optional<LimitIndex> Find(std::string_view tag) const;

  // The same for an over-long tag, which no override can name.
  std::optional<LimitIndex> Find(const OverLongTag& tag) const;

  // REQUIRES: index < limits().
  const Limit& limit(LimitIndex index) const { return limits_[index]; }
  std::size_t limits() const { return limits_.size(); }
  bool is_override(LimitIndex index) const { return index >= rules_.size(); }

  // The priorities of limits that shed.
  const std::bitset<kShedPriorities>& shed_priorities() const { return shed_priorities_; }

  const std::vector<Rule>& rules() const { return rules_; }
  const std::vector<Override>& overrides() const { return overrides_; }

  // Whether the rule's own pattern matches; true for the default rule. For explanations.
  bool Matches(std::size_t rule, std::string_view tag) const;

  // The index of the rule of that name.
  std::optional<LimitIndex> Named(std::string_view name) const;

  // Equal exactly when limits have the same numbers and the same effect on the table.
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  struct Pattern {
    Glob glob;
    std::uint32_t rule;
  };

  template <class Matcher>
  std::optional<LimitIndex> FirstRule(Matcher&& matches) const;

  std::vector<Rule> rules_;
  std::vector<Override> overrides_;
  std::vector<Limit> limits_;
  std::vector<Pattern> patterns_;    // of the rules that have one, in order
  std::optional<std::uint32_t> default_rule_;
  std::unordered_map<std::string_view, LimitIndex> by_tag_;    // views into overrides_
  std::bitset<kShedPriorities> shed_priorities_;
  std::uint64_t fingerprint_ = 0;
};

}    // namespace dthrottle
