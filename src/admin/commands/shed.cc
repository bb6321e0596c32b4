// `shed`: load shedding.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "admin/commands/commands.h"
#include "admin/escape.h"
#include "base/number.h"
#include "limiter/shedder.h"
#include "rule/rulebook.h"

namespace dthrottle::commands {

namespace {

// Bytes are whole.
Json SignalNumber(const ShedStatus& status, double value) {
  return IsMemory(status.signal) ? Json(static_cast<std::uint64_t>(std::clamp(value, 0.0, 0x1p63))) : Json(value);
}

std::string SignalText(const ShedStatus& status, double value) {
  const std::string_view unit = IsMemory(status.signal) ? " bytes" : status.signal == ShedSignal::kPressure ? " %" : "";
  return Scalar(SignalNumber(status, value)) + std::string(unit);
}

Json ShedAnswer(const Context& c) {
  const ShedStatus status = c.host.Shed();
  const auto number = [&](bool known, double x) { return known ? SignalNumber(status, x) : Json(); };
  const bool known = status.value.has_value();
  Json rows = Json::array();
  const auto& priorities = c.rules().shed_priorities();
  for (std::size_t p = 0, step = 0; p < kShedPriorities; ++p) {
    if (!priorities[p]) continue;
    std::string names;
    for (const Rule& rule : c.rules().rules()) {
      if (rule.shed && rule.shed_priority == p) names += (names.empty() ? "" : ", ") + rule.name;
    }
    const auto part = known ? status.curve->Part(step, priorities.count()) : ShedCurve(0, 0);
    ++step;
    rows.push_back({{"priority", p},
                    {"low", number(known, part.low())},
                    {"high", number(known, part.high())},
                    {"probability", Rounded(c.limiter().shedder().probability(p))},
                    {"rules", names}});
  }
  return {{"signal", Name(status.signal)},
          {"source", Escaped(status.source)},
          {"value", number(known, status.value.value_or(0))},
          {"age_s", known ? Json(Rounded(Seconds(status.age))) : Json()},
          {"maximum", number(status.maximum > 0, status.maximum)},
          {"low", number(known, known ? status.curve->low() : 0)},
          {"high", number(known, known ? status.curve->high() : 0)},
          {"curve", known ? Json(Name(status.curve->shape())) : Json()},
          {"note", Escaped(status.note)},
          {"priorities", rows}};
}

}    // namespace

Json Shed(const Context& c) {
  if (c.argument.empty()) return ShedAnswer(c);
  double value = 0;
  if (!ParseNumber(c.argument, value) || !std::isfinite(value)) return ErrorAnswer("VALUE must be a number");
  if (const auto taken = c.host.ReportShed(value); !taken) return ErrorAnswer(taken.error().message);
  return ShedAnswer(c);
}

std::string WhyShed(const Context& c, const Limit& limit, double probability) {
  const ShedStatus status = c.host.Shed();
  const std::string unknown = status.note.empty() ? "nothing is measured yet" : EscapeTag(status.note);
  const std::string why = status.value.has_value() ? fmt::format("shed.signal = \"{}\" is at {}", Name(status.signal),
                                                                 SignalText(status, *status.value))
                                                   : unknown;
  const bool all = probability >= 1;
  return fmt::format(
      "The rule sheds with priority {}, {}: {}.", limit.shed_priority,
      probability == 0 ? "but not now"
      : all            ? "and now every query"
            : fmt::format("and now a query with probability {:.6g}, before its bucket is asked", probability),
      why);
}

}    // namespace dthrottle::commands
