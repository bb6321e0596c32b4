#include "daemon/kept_rules.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/state.h"
#include "config/keys.h"
#include "config/load.h"
#include "daemon/kept_state.h"

namespace dthrottle {
namespace {

constexpr std::string_view kRulesMagic = "dthrottle rules\n";
constexpr std::uint32_t kRulesVersion = 1;
constexpr std::size_t kRulesBytesMax = std::size_t{1} << 30;

bool IsKeptRules(std::string_view text) {
  return text.starts_with(kRulesMagic);
}

bool IsSame(const Override& a, const Override& b) {
  return a.burst == b.burst && a.rate == b.rate && a.mode == b.mode && a.quota == b.quota && a.weight == b.weight;
}

struct KeptOverride {
  Override its{};

  static void Fields(auto& state, auto& self) {
    state(self.its.tag, self.its.burst, self.its.rate, self.its.mode, self.its.quota, self.its.weight);
  }
};

}    // namespace

struct KeptRules::Difference {
  std::uint64_t fingerprint = 0;    // of the rules that come of it
  std::string rules;                // as TOML that ParseRules reads; empty: those of the file
  bool all_overrides = false;       // those below are all there are; else those that are not as in the file
  std::vector<KeptOverride> overrides;

  static void Fields(auto& state, auto& self) {
    state(self.fingerprint, self.rules, self.all_overrides, self.overrides);
  }

  static Difference Between(const Rulebook& of_file, const Rulebook& next) {
    Difference made{next.fingerprint(), RenderRules(next.rules(), {}), false, {}};
    if (made.rules == RenderRules(of_file.rules(), {})) made.rules.clear();
    const std::vector<Override>&before = of_file.overrides(), &after = next.overrides();
    const auto same_tag = [](const Override& a, const Override& b) { return a.tag == b.tag; };
    made.all_overrides = after.size() < before.size() ||
                         !std::equal(before.begin(), before.end(), after.begin(), same_tag);
    for (std::size_t i = 0; i < after.size(); ++i) {
      if (!made.all_overrides && i < before.size() && IsSame(before[i], after[i])) continue;
      made.overrides.push_back({after[i]});
    }
    return made;
  }

  std::vector<Override> OverridesBy(const std::vector<Override>& of_file) const {
    std::vector<Override> made;
    if (!all_overrides) made = of_file;
    std::unordered_map<std::string_view, const Override*> changed;
    for (const KeptOverride& kept : overrides) changed.emplace(kept.its.tag, &kept.its);
    for (Override& its : made) {
      const auto found = changed.find(its.tag);
      if (found == changed.end()) continue;
      const Override& now = *found->second;
      changed.erase(found);
      its = now;
    }
    for (const KeptOverride& kept : overrides) {
      if (changed.contains(kept.its.tag)) made.push_back(kept.its);
    }
    return made;
  }
};

KeptRules::KeptRules(const std::string& table) : path_(table.empty() ? "" : table + ".rules") {}

KeptRules::~KeptRules() = default;

std::string KeptRules::Whole(const Rulebook& rules) {
  Difference whole{rules.fingerprint(), RenderRules(rules.rules(), {}), true, {}};
  for (const Override& its : rules.overrides()) whole.overrides.push_back({its});
  return WriteState(kRulesVersion, whole);
}

void KeptRules::Add(std::string_view whole) {
  Difference its;
  if (!ReadState(whole, kRulesVersion, its)) return;
  std::erase_if(kept_, [&](const Difference& kept) { return kept.fingerprint == its.fingerprint; });
  kept_.push_back(std::move(its));
  written_ = false;
}

FileResult<void> KeptRules::Read() {
  if (path_.empty()) return {};
  if (auto ours = CheckStateFile(path_, IsKeptRules); !ours) return ours;
  const auto text = ReadRegularFile(path_, kRulesBytesMax);
  if (!text) return {};
  const auto body = Unsealed(kRulesMagic, *text);
  if (!body || !ReadState(*body, kRulesVersion, kept_)) kept_.clear();
  return {};
}

std::shared_ptr<const Rulebook> KeptRules::Find(std::uint64_t fingerprint, const Rulebook& of_file,
                                                const Settings& settings) const {
  const auto found = std::ranges::find(kept_, fingerprint, &Difference::fingerprint);
  if (found == kept_.end()) return nullptr;
  std::vector<Rule> rules = of_file.rules();
  if (!found->rules.empty()) {
    LoadedSettings loaded = ParseRules(found->rules, "rules", settings, ReadNamedFile);
    if (!loaded.ok()) return nullptr;
    rules = std::move(loaded.settings.rules);
  }
  std::vector<Override> overrides = found->OverridesBy(of_file.overrides());
  if (overrides.size() > Rulebook::kOverridesMax) return nullptr;
  auto made = std::make_shared<Rulebook>(std::move(rules), std::move(overrides));
  return made->fingerprint() == fingerprint ? made : nullptr;    // the file, or a list of networks, has changed
}

FileResult<void> KeptRules::Keep(const Rulebook& next, const Rulebook& of_file, std::uint64_t in_force) {
  const std::uint64_t fingerprint = next.fingerprint();
  if (path_.empty() || fingerprint == of_file.fingerprint()) return {};
  const bool known = std::ranges::find(kept_, fingerprint, &Difference::fingerprint) != kept_.end();
  if (known && written_) return {};
  if (!known) {
    std::erase_if(kept_, [&](const Difference& its) { return its.fingerprint != in_force; });
    kept_.push_back(Difference::Between(of_file, next));
  }
  auto written = ReplaceFile(path_, Sealed(kRulesMagic, WriteState(kRulesVersion, kept_)));
  written_ = written.has_value();
  return written;
}

}    // namespace dthrottle
