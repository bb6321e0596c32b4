// Keys of rules that are given and change nothing, because of another key.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "config/findings.h"
#include "config/sections.h"

namespace dthrottle {

namespace {

struct Idle {
  bool given, idle;
  std::string_view key, because;
};

}    // namespace

void CheckIdleKeys(Findings& f) {
  const Settings& s = f.settings();
  if (f.wrong("rule")) return;
  const Rule usual;
  const bool any_quota = std::ranges::any_of(s.overrides, [](const Override& o) { return o.quota.value_or(0) > 0; });
  const bool any_level = std::ranges::any_of(s.rules, [](const Rule& rule) { return rule.among == Among::kLevel; });
  for (std::size_t i = 0; i < s.rules.size(); ++i) {
    const Rule& r = s.rules[i];
    if (r.mode == Mode::kOff) continue;
    const bool unpunished = r.penalty.after == 0, unlimited = r.quota == 0 && !any_quota;
    const bool undebited = r.share == Share::kLocal || r.share == Share::kCapacity;
    constexpr std::string_view kNoPenalty = "penalty.after = 0", kNoQuota = "quota = 0";
    const std::string_view share = r.share == Share::kLocal ? "share = \"local\"" : "share = \"capacity\"";
    const Idle all[] = {
        {r.penalty.within != usual.penalty.within, unpunished, "penalty.within", kNoPenalty},
        {r.penalty.lasts != usual.penalty.lasts, unpunished, "penalty.lasts", kNoPenalty},
        {r.penalty.doubling, unpunished, "penalty.doubling", kNoPenalty},
        {r.calendar.per != usual.calendar.per, unlimited, "per", kNoQuota},
        {r.calendar.time_zone != usual.calendar.time_zone, unlimited, "time_zone", kNoQuota},
        {r.max_debt.has_value(), undebited, "max_debt", share},
        {r.horizon.has_value(), undebited, "horizon", share},
        {r.tolerance > 0, undebited, "tolerance", share},
        {r.max_unheard.has_value(), r.share != Share::kForecast, "max_unheard", "share is not \"forecast\""},
        {r.fail_closed, r.mode != Mode::kEnforce, "fail_closed", "mode is not \"enforce\""},
        {r.shed_priority > 0, !r.shed, "shed_priority", "shed = false"},
        {r.weight != usual.weight, !any_level, "weight", "no rule has among = \"level\""},
    };
    for (const Idle& its : all) {
      if (!its.given || !its.idle) continue;
      f.Warn(f.rules[i], fmt::format("rule \"{}\": {} changes nothing, because {}", r.name, its.key, its.because));
    }
  }
}

}    // namespace dthrottle
