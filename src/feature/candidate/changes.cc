#include "feature/candidate/changes.h"

#include <unordered_map>

#include "config/keys.h"

namespace dthrottle {

namespace {

template <class T>
bool HasOtherLimit(const T& a, const T& b) {
  return a.burst != b.burst || a.rate != b.rate;
}

void CompareRules(const std::vector<Rule>& candidate, const std::vector<Rule>& in_force, Changes& changes) {
  changes.more = candidate.size() != in_force.size();
  for (std::size_t i = 0; i < candidate.size() && !changes.more; ++i) {
    const Rule &rule = candidate[i], &before = in_force[i];
    changes.more = DifferInMoreThanLimits(RuleKeys(), rule, before);
    if (HasOtherLimit(rule, before)) changes.limits.push_back({true, rule.name, rule.burst, rule.rate});
  }
}

void CompareOverrides(const std::vector<Override>& candidate, const std::vector<Override>& in_force, Changes& changes) {
  std::unordered_map<std::string_view, const Override*> before;
  for (const Override& its : in_force) before.emplace(its.tag, &its);
  for (const Override& its : candidate) {
    const auto found = before.find(its.tag);
    const Override nothing{its.tag, 0, 0, {}};
    const Override& other = found != before.end() ? *found->second : nothing;
    if (DifferInMoreThanLimits(OverrideKeys(), its, other)) changes.more = true;
    if (HasOtherLimit(its, other)) changes.limits.push_back({false, its.tag, its.burst, its.rate});
    if (found != before.end()) before.erase(found);
  }
  if (!before.empty()) changes.more = true;
}

}    // namespace

Changes ChangesTo(const Rulebook& candidate, const Rulebook& in_force) {
  Changes changes;
  CompareRules(candidate.rules(), in_force.rules(), changes);
  CompareOverrides(candidate.overrides(), in_force.overrides(), changes);
  return changes;
}

}    // namespace dthrottle
