// Work between queries: other rules, and rewriting the table for them.
#include <unordered_map>
#include <utility>

#include "limiter/limiter.h"

namespace dthrottle {

void Limiter::Adopt(std::shared_ptr<const Rulebook> rules) {
  std::vector<std::size_t> counters = AssignCounters(*rules);
  table_->Exclusively([&] {
    previous_ = std::exchange(rules_, std::move(rules));
    counter_of_rule_.swap(counters);
    for (NotedTag noted; TakeNoted(noted);) continue;    // they name limits by their old numbers
    // Under an equal fingerprint every slot says already what it should.
    if (previous_->fingerprint() != rules_->fingerprint()) table_->StartGeneration(rules_->fingerprint());
  });
  if (!reshaping()) retired_ = std::move(previous_);
}

bool Limiter::Tick(Instant now) {
  constexpr std::size_t kGroupsPerSlice = 32;
  if (!reshaping()) return false;
  if (table_->ReshapeSome(kGroupsPerSlice, now)) return true;
  retired_ = std::move(previous_);
  return false;
}

void Limiter::LookAtRetention(Instant now) {
  retention_.Look(
      *table_, [&](LimitIndex limit) { return counter_of_rule_[rules_->limit(limit).rule]; }, now);
}

// A rule keeps its counter as long as its name is in force. A counter that is free again starts where it stands.
std::vector<std::size_t> Limiter::AssignCounters(const Rulebook& rules) {
  std::unordered_map<std::string, std::size_t> counter_of_name;
  for (const Rule& rule : rules.rules()) counter_of_name.emplace(rule.name, Lane::kNoRule);
  std::vector<std::size_t> free;
  for (std::size_t i = 0; i < counter_names_.size(); ++i) {
    if (const auto it = counter_of_name.find(counter_names_[i]); it != counter_of_name.end()) {
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
        free.push_back(counter_names_.size());
        counter_names_.emplace_back();
        counter_bases_.emplace_back();
      }
      counter = free.back();
      free.pop_back();
      counter_names_[counter] = rule.name;
      counter_bases_[counter] = CounterTotals(counter);
      debits_[counter] = {};
      certificate_.Reassign(counter, HeardOf(counter));
      retention_.Reassign(counter);
    }
    counters.push_back(counter);
  }
  counters.push_back(Lane::kNoRule);    // for limits whose rule is none
  return counters;
}

}    // namespace dthrottle
