// What became of queries, by rule. Each query thread counts in a lane of its own. A rule keeps its counter as long as
// its name is in force, whatever place a reload gives it; a counter that is free again goes on from where it stands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rule/rulebook.h"
#include "tally/lane.h"

namespace dthrottle {

struct RuleTotals {
  std::uint64_t served = 0, throttled = 0, shadowed = 0, near_limit = 0, shed = 0, penalized = 0;
  std::uint64_t over_quota = 0;

  RuleTotals& operator+=(const RuleTotals& o) {
    served += o.served, throttled += o.throttled, shadowed += o.shadowed, near_limit += o.near_limit, shed += o.shed;
    penalized += o.penalized, over_quota += o.over_quota;
    return *this;
  }
  RuleTotals& operator-=(const RuleTotals& o) {
    served -= o.served, throttled -= o.throttled, shadowed -= o.shadowed, near_limit -= o.near_limit, shed -= o.shed;
    penalized -= o.penalized, over_quota -= o.over_quota;
    return *this;
  }
};

class Tally {
 public:
  explicit Tally(std::size_t lanes);

  // The counter of each of these rules, and kNoRule behind them. Calls `reassigned` for each counter that counts for
  // another rule from now on.
  std::vector<std::size_t> Assign(const Rulebook& rules, const std::function<void(std::size_t)>& reassigned);
  // The rules of `counters`, which Assign returned, are in force. REQUIRES: no query is decided meanwhile.
  void Use(std::vector<std::size_t>& counters) { counter_of_rule_.swap(counters); }

  // The counter that Limit::rule means.
  std::size_t counter(std::size_t rule) const { return counter_of_rule_[rule]; }
  // The same for people, whose `rule` may also be Lane::kUnmatched or Lane::kNoRule.
  std::size_t CounterNamed(std::size_t rule) const {
    return rule + 1 < counter_of_rule_.size() ? counter_of_rule_[rule] : rule;
  }

  std::size_t lanes() const { return lanes_.size(); }
  Lane& lane(std::size_t i) { return *lanes_[i]; }
  const Lane& lane(std::size_t i) const { return *lanes_[i]; }

  // Sums over lanes: since the rule has had its counter (`rule` as for CounterNamed), since the start, and since the
  // start over all that has a limit.
  RuleTotals Totals(std::size_t rule) const;
  RuleTotals CounterTotals(std::size_t counter) const;
  RuleTotals GrandTotals() const;

 private:
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::size_t> counter_of_rule_;    // one more entry, for kNoRule
  std::vector<std::string> names_;              // the rule that each counter counts for
  std::vector<RuleTotals> bases_;               // what each counter had counted for another rule before
};

}    // namespace dthrottle
