// The section [quota] of the settings, and the checks of rules that have one.
#include "config/findings.h"
#include "config/kinds.h"
#include "config/sections.h"
#include "quota/quotas.h"
#include "rule/rulebook.h"
#include "share/check.h"

namespace dthrottle {

Section QuotaSection() {
  using S = Settings;
  constexpr std::uint64_t kBytesMin = 1 << 20;
  static_assert(kBytesMin >= Quotas::RegionBytes(Quotas::kSlotsMin));
  return {
      "quota",
      "What is counted for rules with a quota. A daemon without such a rule takes none of it.",
      {
          Text<S>("file", "\"\"", "an absolute path, or \"\" for none", MEMBER(S, quota.file),
                  "The file that keeps what has been counted, on a disk: it outlives a reboot. The daemon writes it in "
                  "place. With \"\" counts outlive an upgrade, and with table.file an orderly restart within the hour. "
                  "Such a start also moves counts to another file, if that is new, or to memory. A host that starts "
                  "without them hears from its peers what they know.",
                  IsPath),
          BytesKey<S>("memory", "\"16MiB\"", kBytesMin, std::uint64_t{1} << 33, MEMBER(S, quota.memory),
                      "The size of the file, or of the memory in its place. A tag takes 512 bytes, and as much again for "
                      "each 20 other hosts that have served it. Half of it is for what others have counted. Where it is "
                      "full the tags with the least use are forgotten, and counted in quota_forgotten. Another size "
                      "keeps what there is room for, and the log says how many tags had none."),
      }};
}

namespace {

void CheckBuiltIn(Findings& f, Findings::Place at, std::string_view whose, std::uint64_t quota) {
  if (KnowsQuotas()) return;
  f.Error(at, fmt::format("{}: quota = {}: quotas are not built into this program", whose, quota));
}

// Returns whether some override has a quota that counts. How long its period is, only a rule says.
bool CheckOverridesWithQuota(Findings& f) {
  const Settings& s = f.settings();
  const auto has_quota = [](const Override& o) { return o.quota.value_or(0) > 0; };
  if (!f.ok() || std::ranges::none_of(s.overrides, has_quota)) return false;
  const Rulebook rules(s.rules, {});
  bool any = false;
  for (std::size_t i = 0; i < s.overrides.size(); ++i) {
    const Override& o = s.overrides[i];
    if (!has_quota(o)) continue;
    const auto rule = rules.RuleOf(o.tag);
    if (!rule.has_value()) {
      f.Error(f.overrides[i], fmt::format("override.tag = {}: quota = {} needs a rule that fits the tag, which says per "
                                          "and time_zone", Quote(o.tag), *o.quota));
    } else if (o.mode.value_or(s.rules[*rule].mode) != Mode::kOff) {
      CheckBuiltIn(f, f.overrides[i], fmt::format("override.tag = {}", Quote(o.tag)), *o.quota);
      any = true;
    }
  }
  return any;
}

}    // namespace

void CheckQuotas(Findings& f) {
  const Settings& s = f.settings();
  bool any = CheckOverridesWithQuota(f);
  for (std::size_t i = 0; i < s.rules.size(); ++i) {
    const Rule& rule = s.rules[i];
    if (rule.quota == 0 || rule.mode == Mode::kOff) continue;
    any = true;
    CheckBuiltIn(f, f.rules[i], fmt::format("rule \"{}\"", rule.name), rule.quota);
    if (rule.burst <= static_cast<double>(rule.quota)) continue;
    f.Warn(f.rules[i], fmt::format("rule \"{}\": quota = {} is less than burst = {}: the first burst spends it all",
                                   rule.name, rule.quota, FormatNumber(rule.burst)));
  }
  if (!any || f.fleet()) return;
  if (s.quota.file.empty()) {
    f.Warn("quota.file", "quota.file = \"\": what rules with a quota count is lost at a kill or a reboot; name a file on a disk");
  } else if (s.quota.file.starts_with("/run/") || s.quota.file.starts_with("/dev/shm/")) {
    f.Warn("quota.file", fmt::format("quota.file = {}: is lost at a reboot; name a file on a disk",
                                     Quote(Value(s.quota.file))));
  }
}

}    // namespace dthrottle
