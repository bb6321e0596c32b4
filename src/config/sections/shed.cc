// The section [shed] of the settings.
#include <cmath>

#include "config/findings.h"
#include "config/kinds.h"
#include "config/sections.h"

namespace dthrottle {

namespace {

constexpr double kNumberMax = 1e15;

// A number, or text for what has a unit.
std::optional<ShedBound> ReadBound(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    const auto parsed = ParseShedBound(*text);
    return parsed ? std::optional(*parsed) : std::nullopt;
  }
  const std::optional<double> number = NumberIn(value);
  if (!number || !(std::abs(*number) <= kNumberMax)) return std::nullopt;
  return ShedBound{ShedBound::Kind::kNumber, *number};
}

Value ShowBound(const ShedBound& bound) {
  switch (bound.kind) {
    case ShedBound::Kind::kUnset:
      return std::string();
    case ShedBound::Kind::kNumber:
      return bound.value;
    case ShedBound::Kind::kBytes:
      return FormatBytes(static_cast<std::uint64_t>(bound.value));
    case ShedBound::Kind::kPercent:
      return FormatNumber(bound.value) + "%";
  }
  return {};
}

Key<Settings> ShedBoundKey(std::string_view name, Member<Settings, ShedBound> member, std::string_view meaning) {
  return Made<Settings, ShedBound>(
      name, "\"\"",
      fmt::format("a size such as \"2.8GiB\", a percentage such as \"90%\", or a number from {:g} to {:g}", -kNumberMax,
                  kNumberMax),
      member, meaning, ReadBound, ShowBound);
}

}    // namespace

Section ShedSection() {
  using S = Settings;
  using namespace std::chrono_literals;
  return {"shed",
          "Refusing some queries when the host runs hot, under rules with *shed* = true. Between *low* and *high* the "
          "probability of a refusal rises along a *curve*; below *low* nothing is refused, from *high* on everything. A "
          "refusal costs the tag nothing. What cannot be measured refuses nothing.",
          {
              Reloads(Choice<S, ShedSignal>(
                  "signal", "\"cgroup\"", MEMBER(S, shed.signal),
                  "What is measured: \"cgroup\", the memory of a control group (version 2) against its memory.max, or "
                  "the host's memory where there is no maximum; \"host\", the memory of the host that is not available "
                  "for new work; \"pressure\", the percentage of the last 10 s in which something waited for memory "
                  "(PSI, avg10 of \"some\"); \"reported\", a number that an application reports with the admin command "
                  "shed. File pages that nobody has used lately do not count as memory of a group: the kernel drops "
                  "them before anything else.")),
              Reloads(Text<S>(
                  "cgroup", "\"\"", "a path below /sys/fs/cgroup or an absolute one, or \"\"", MEMBER(S, shed.cgroup),
                  "The control group that \"cgroup\" and \"pressure\" look at, such as \"system.slice/nginx.service\" "
                  "to protect a web server. Without it \"cgroup\" looks at the daemon's own and \"pressure\" at the "
                  "whole host. A group of version 1 works by its absolute path.",
                  NoControls)),
              Reloads(ShedBoundKey("low", MEMBER(S, shed.low),
                                   "Where refusing begins: for memory a size, or a percentage of the maximum; a "
                                   "percentage for \"pressure\"; a number for \"reported\". Without *low* and *high* "
                                   "memory is shed between 90 % and 98 %.")),
              Reloads(ShedBoundKey("high", MEMBER(S, shed.high),
                                   "Where everything is refused; of the same kind as *low* and not less. Leave room "
                                   "for what comes within an *interval*.")),
              Reloads(Choice<S, CurveShape>(
                  "curve", "\"logistic\"", MEMBER(S, shed.curve),
                  "How the probability of a refusal rises from *low* to *high*: \"logistic\", from 0.01 over 0.5 in the "
                  "middle to 0.99, which is gentle where a busy host spends its time; \"linear\", from 0 to 1; or "
                  "\"step\", which refuses everything from *low* on. *dthrottle-plan model curve* shows them side by "
                  "side.")),
              Reloads(DurationKey<S>("interval", "\"500ms\"", 50ms, 1min, MEMBER(S, shed.interval),
                                     "The time between two measurements. Queries never measure.")),
              Reloads(DurationKey<S>("expiry", "\"10s\"", 100ms, 1h, MEMBER(S, shed.expiry),
                                     "A value that is older than this, because its reporter died or a file cannot be "
                                     "read, refuses nothing any more. At least twice the *interval*.")),
          }};
}

void CheckShed(Findings& f) {
  using Kind = ShedBound::Kind;
  const auto& shed = f.settings().shed;
  if (f.wrong("shed")) return;    // what stands there instead is not what was meant
  const auto fits = [&](const ShedBound& bound) {
    switch (shed.signal) {
      case ShedSignal::kPressure:
        return bound.kind == Kind::kPercent;
      case ShedSignal::kReported:
        return bound.kind == Kind::kNumber;
      default:
        return bound.kind != Kind::kNumber;
    }
  };
  const std::string_view wanted = shed.signal == ShedSignal::kPressure ? "a percentage such as \"20%\""
                                  : shed.signal == ShedSignal::kReported
                                      ? "a number such as 250"
                                      : "a size such as \"2.8GiB\" or a percentage such as \"90%\"";
  bool all_fit = true;
  for (const auto& [key, bound] : {std::pair("shed.low", shed.low), std::pair("shed.high", shed.high)}) {
    if (fits(bound)) continue;
    all_fit = false;
    f.Error(key,
            fmt::format("{} = {}: must be {} with shed.signal = \"{}\"", key, f.Shown(key), wanted, Name(shed.signal)));
  }
  if (shed.expiry < 2 * shed.interval) {
    f.Error("shed.expiry", fmt::format("shed.expiry = \"{}\": must be at least twice shed.interval = \"{}\"",
                                       FormatDuration(shed.expiry), FormatDuration(shed.interval)));
  }
  if (!all_fit) return;
  if (shed.low.kind != shed.high.kind) {
    f.Error("shed.low",
            fmt::format("shed.low = {}: must be of the same kind as shed.high = {}: two sizes or two percentages",
                        f.Shown("shed.low"), f.Shown("shed.high")));
  } else if (shed.low.value > shed.high.value) {
    f.Error("shed.low",
            fmt::format("shed.low = {}: must be at most shed.high = {}", f.Shown("shed.low"), f.Shown("shed.high")));
  } else if (shed.signal != ShedSignal::kReported && shed.high.kind != Kind::kUnset && shed.high.value == 0) {
    f.Error("shed.high",
            fmt::format("shed.high = {}: must be more than 0, which is always reached", f.Shown("shed.high")));
  }
  const auto& rules = f.settings().rules;
  const bool used = std::any_of(rules.begin(), rules.end(), [](const Rule& rule) { return rule.shed; });
  if (shed.high.kind != Kind::kUnset && !used) {
    f.Warn("shed.high", "[shed] has bounds but no rule has shed = true: nothing is shed");
  }
}

}    // namespace dthrottle
