#include "feature/candidate/changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "admin/escape.h"
#include "config/keys.h"

namespace dthrottle {

namespace {

bool IsNumberOfLimit(std::string_view key) {
  return key == "burst" || key == "rate";
}

// The keys that differ, but burst and rate.
template <class T>
std::vector<std::string> OtherKeys(const std::vector<Key<T>>& keys, const T& a, const T& b) {
  std::vector<std::string> names;
  for (const Key<T>& key : keys) {
    if (!IsNumberOfLimit(key.name) && key.get(a) != key.get(b)) names.emplace_back(key.name);
  }
  return names;
}

class Comparing {
 public:
  void Rules(const std::vector<Rule>& candidate, const std::vector<Rule>& in_force) {
    const auto name = [](const Rule& rule) -> const std::string& { return rule.name; };
    if (!std::ranges::equal(candidate, in_force, {}, name, name)) {
      return Say("The rules have other names, or another order.");
    }
    for (std::size_t i = 0; i < candidate.size(); ++i) {
      const Rule &rule = candidate[i], &before = in_force[i];
      Keys(fmt::format("The rule {}", EscapeTag(rule.name)), OtherKeys(RuleKeys(), rule, before));
      if (rule.burst != before.burst || rule.rate != before.rate) {
        changes_.limits.push_back({true, rule.name, rule.burst, rule.rate});
      }
    }
  }

  void Overrides(const std::vector<Override>& candidate, const std::vector<Override>& in_force) {
    std::unordered_map<std::string_view, const Override*> before;
    for (const Override& its : in_force) before.emplace(its.tag, &its);
    for (const Override& its : candidate) {
      const auto found = before.find(its.tag);
      const Override nothing{its.tag, 0, 0, {}};
      const Override& other = found != before.end() ? *found->second : nothing;
      Keys(fmt::format("The override of {}", EscapeTag(its.tag)), OtherKeys(OverrideKeys(), its, other));
      if (its.burst != other.burst || its.rate != other.rate) {
        changes_.limits.push_back({false, its.tag, its.burst, its.rate});
      }
      if (found != before.end()) before.erase(found);
    }
    for (const Override& its : in_force) {
      if (before.contains(its.tag)) {
        Say(fmt::format("The tag {} has a limit of its own now, by an override or by limit set, and then has not.",
                        EscapeTag(its.tag)));
      }
    }
  }

  Changes Take() { return std::move(changes_); }

 private:
  void Keys(const std::string& whose, const std::vector<std::string>& names) {
    for (const std::string& name : names) Say(fmt::format("{} has another {}.", whose, name));
  }
  void Say(std::string text) {
    if (changes_.others.size() < Changes::kOthersMax) changes_.others.push_back(std::move(text));
  }

  Changes changes_;
};

}    // namespace

Changes ChangesTo(const Rulebook& candidate, const Rulebook& in_force) {
  Comparing comparing;
  comparing.Rules(candidate.rules(), in_force.rules());
  comparing.Overrides(candidate.overrides(), in_force.overrides());
  return comparing.Take();
}

}    // namespace dthrottle
