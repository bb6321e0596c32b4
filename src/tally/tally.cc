#include "tally/tally.h"

#include <unordered_map>

namespace dthrottle {

Tally::Tally(std::size_t lanes) {
  for (std::size_t i = 0; i < lanes; ++i) lanes_.push_back(std::make_unique<Lane>(i));
}

std::vector<std::size_t> Tally::Assign(const Rulebook& rules, const std::function<void(std::size_t)>& reassigned) {
  std::unordered_map<std::string, std::size_t> counter_of_name;
  for (const Rule& rule : rules.rules()) counter_of_name.emplace(rule.name, Lane::kNoRule);
  std::vector<std::size_t> free;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (const auto it = counter_of_name.find(names_[i]); it != counter_of_name.end()) {
      it->second = i;
    } else {
      free.push_back(i);
    }
  }
  std::vector<std::size_t> counters;
  for (const Rule& rule : rules.rules()) {
    std::size_t& counter = counter_of_name[rule.name];
    if (counter == Lane::kNoRule) {
      if (free.empty()) {
        free.push_back(names_.size());
        names_.emplace_back();
        bases_.emplace_back();
      }
      counter = free.back();
      free.pop_back();
      names_[counter] = rule.name;
      bases_[counter] = CounterTotals(counter);
      reassigned(counter);
    }
    counters.push_back(counter);
  }
  counters.push_back(Lane::kNoRule);    // for limits whose rule is none
  return counters;
}

RuleTotals Tally::CounterTotals(std::size_t counter) const {
  RuleTotals sum;
  for (const auto& lane : lanes_) {
    const RuleCounters& counters = std::as_const(*lane).counters(counter);
    sum += {counters.served.Read(), counters.throttled.Read(), counters.shadowed.Read(), counters.near_limit.Read(),
            counters.shed.Read(),   counters.penalized.Read(),
            counters.over_quota.Read()};
  }
  return sum;
}

RuleTotals Tally::Totals(std::size_t rule) const {
  const std::size_t counter = CounterNamed(rule);
  RuleTotals sum = CounterTotals(counter);
  if (counter < bases_.size()) sum -= bases_[counter];
  return sum;
}

RuleTotals Tally::GrandTotals() const {
  RuleTotals sum = CounterTotals(Lane::kNoRule);
  for (std::size_t i = 0; i < names_.size(); ++i) sum += CounterTotals(i);
  return sum;
}

}    // namespace dthrottle
