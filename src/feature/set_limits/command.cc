// The command `limit`, and what `why` says of a limit that is set.
#include <fmt/format.h>

#include <algorithm>

#include "admin/admin.h"
#include "admin/commands/commands.h"
#include "admin/escape.h"
#include "base/words.h"
#include "config/values.h"
#include "feature/set_limits/feature.h"
#include "io/clock.h"
#include "limiter/limiter.h"
#include "rule/rulebook.h"

namespace dthrottle {

namespace {

using commands::ErrorAnswer;

std::string SpanText(Duration span) {
  return FormatDuration(std::chrono::floor<std::chrono::seconds>(span));
}

}    // namespace

Extension::Command SetLimitsFeature::command() const {
  return {"limit", "VERB ...", "limits that operators set while daemons run: list, set, rules, clear, stamp or put"};
}

bool SetLimitsFeature::Changes(std::string_view argument) const {
  const std::string_view verb = NextField(argument);
  return !verb.empty() && verb != "list" && verb != "stamp";
}

// A signed line is long and says nothing to people.
std::string SetLimitsFeature::Audited(std::string_view argument) const {
  std::string_view rest = argument;
  if (NextField(rest) != "put") return std::string(argument);
  const auto put = ParseSigned(rest);
  if (!put) return std::string(argument);
  const SetLimit& limit = put->limit;
  const bool of_rules = limit.of == LimitOf::kRules;
  std::string what = of_rules ? "rules" : fmt::format("{} {}", Name(limit.of), EscapeTag(limit.name));
  if (limit.clears) return fmt::format("put of {}: clear {}", By(*put), what);
  if (!of_rules) what += fmt::format(", burst {:g}, rate {:g}/s", limit.burst, limit.rate);
  const Duration from = std::min(limit.stamp, WallClock());    // the stamp may be ahead
  const Duration left = std::max(limit.until - from, Duration());
  const std::string span = limit.until == Duration() ? "" : ", for " + SpanText(left);
  return fmt::format("put of {}: {}{}", By(*put), what, span);
}

void SetLimitsFeature::Run(std::string_view argument, std::function<void(Json)> reply, Instant) {
  if (argument.empty() || argument == "list") return reply(List());
  const auto set = [&](const Result<SignedLimit>& limit) {
    if (!limit) return reply(ErrorAnswer(limit.error().message));
    const bool brings_rules = limit->limit.of == LimitOf::kRules && !limit->limit.clears;
    brings_rules ? CheckAndSet(*limit, reply) : Set(*limit, reply);
  };
  const std::string_view verb = NextField(argument);
  if (verb == "put") {
    const auto limit = ParseSigned(argument);
    if (limit && SetLimits::IsAhead(limit->limit, WallClock())) {
      return reply(ErrorAnswer("its date lies more than 5 minutes ahead of this host's clock"));
    }
    return set(limit);
  }
  if (verb != "set" && verb != "rules" && verb != "clear" && verb != "stamp") {
    return reply(ErrorAnswer("limit list, limit set, limit rules, limit clear, limit stamp or limit put"));
  }
  const auto of = verb == "rules" ? LimitOf::kRules : LimitOfNamed(NextField(argument));
  if (!of) return reply(ErrorAnswer(of.error().message));
  std::string_view burst, rate, time;
  if (verb == "set") burst = NextField(argument), rate = NextField(argument);
  if (verb == "set" || verb == "rules") time = NextField(argument);
  if (verb == "set" && (*of == LimitOf::kRules || burst.empty() || rate.empty() || time.empty())) {
    return reply(ErrorAnswer("limit set tag|rule BURST RATE TIME NAME, with \"-\" for TIME if it has none"));
  }
  const auto name = UnescapeTag(argument);
  if (!name) return reply(ErrorAnswer(name.error().message));
  if (verb == "stamp") return reply(Json{{"stamp", NowFor(*of, *name).stamp / std::chrono::microseconds(1)}});
  if (*of == LimitOf::kRules && (verb == "clear") != name->empty()) {
    return reply(ErrorAnswer("limit rules TIME TEXT, with \"-\" for TIME if it has none; or limit clear rules"));
  }
  const auto asked = LimitAsked(*of, *name, burst, rate, time == "-" ? "" : time, NowFor(*of, *name));
  if (!asked) return reply(ErrorAnswer(asked.error().message));
  set(Authorized(*asked, false));
}

std::string SetLimitsFeature::By(const SignedLimit& limit) const {
  if (limit.local()) return "this host's operator";
  const std::lock_guard lock(mutex_);
  const auto name = spreading_.keys().find(limit.key);
  return name != spreading_.keys().end() ? name->second : limit.key;
}

Extension::Json SetLimitsFeature::Describe(const SignedLimit& signed_limit) const {
  const SetLimit& limit = signed_limit.limit;
  const Duration wall = WallClock();
  const bool of_rules = limit.of == LimitOf::kRules;
  Json answer = {{"of", Name(limit.of)}, {"name", of_rules ? "" : EscapeTag(limit.name)}};
  answer["burst"] = limit.clears || of_rules ? Json() : Json(limit.burst);
  answer["rate"] = limit.clears || of_rules ? Json() : Json(limit.rate);
  answer["by"] = By(signed_limit);
  answer["set"] = SpanText(std::max(wall - limit.stamp, Duration())) + " ago";
  answer["ends"] = limit.clears || limit.until == Duration() ? "when it is cleared"
                                                             : "in " + SpanText(std::max(limit.until - wall, Duration()));
  if (limit.clears) answer["ends"] = "cleared";
  answer["hosts"] = signed_limit.local() ? "this one" : "all";
  std::string note = WhyNotKept(limit);
  if (const std::string why = NoteOn(limit); !why.empty()) note += (note.empty() ? "" : "; ") + why;
  answer["note"] = note.empty() ? Json() : Json(note);
  return answer;
}

// Why it changes nothing here, or not at once.
std::string SetLimitsFeature::NoteOn(const SetLimit& limit) const {
  const bool of_rules = limit.of == LimitOf::kRules;
  if (const std::string why = of_rules ? Unusable() : ""; !why.empty()) return why;
  if (IsBehindRules(limit)) return "rules that were set later hold";
  if (of_rules) return "";
  const Rulebook& rules = host_.admin.limiter().rules();
  std::optional<LimitIndex> index;
  if (limit.of == LimitOf::kRule) {
    index = rules.Named(limit.name);
    if (!index) return "no rule here has that name";
  } else {
    const bool fits = limit.name.size() <= host_.admin.settings().query.max_tag_bytes;
    if (!limit.clears && !fits) return "longer than query.max_tag_bytes: it never applies here";
    index = rules.Find(limit.name);
    const bool has_place = rules.overrides().size() < Rulebook::kOverridesMax || (index && rules.is_override(*index));
    if (!limit.clears && !has_place) return fmt::format("there are {} overrides already", Rulebook::kOverridesMax);
  }
  if (index && !limit.clears) {
    const Mode mode = rules.limit(*index).mode;
    if (mode == Mode::kOff) return "its mode is off: nothing is limited";
    if (mode == Mode::kShadow) return "its mode is shadow: it refuses nothing";
  }
  const bool is_divided = index && rules.limit(*index).divided;
  return is_divided ? "hosts divide this limit: each has its part of the old rate until all have the new one" : "";
}

Extension::Json SetLimitsFeature::List() const {
  const Duration wall = WallClock();
  std::vector<SignedLimit> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, limit] : set_.entries()) {
      if (IsInForce(limit.limit, wall)) all.push_back(limit);
    }
  }
  Json rows = Json::array();
  for (const SignedLimit& limit : all) rows.push_back(Describe(limit));
  return rows;
}

void SetLimitsFeature::Why(std::string_view tag, LimitIndex index, const std::function<void(std::string)>& say) const {
  const Duration wall = WallClock();
  const auto say_of = [&](const SignedLimit& its, std::string_view what) {
    say(fmt::format("{} has set the {} {} ago, {}.", By(its), what,
                    SpanText(std::max(wall - its.limit.stamp, Duration())),
                    its.limit.until == Duration() ? std::string("until it is cleared")
                                                  : fmt::format("for another {}", SpanText(its.limit.until - wall))));
  };
  if (const auto rules = RulesInForce(); rules) say_of(*rules, "rules of all hosts");
  const Rulebook& rules = host_.admin.limiter().rules();
  const bool is_override = rules.is_override(index);
  const Limit& limit = rules.limit(index);
  if (!is_override && limit.rule >= rules.rules().size()) return;
  const LimitOf of = is_override ? LimitOf::kTag : LimitOf::kRule;
  std::optional<SignedLimit> set;
  {
    const std::lock_guard lock(mutex_);
    const SignedLimit* const found = set_.Find({of, is_override ? std::string(tag) : rules.rules()[limit.rule].name});
    if (found != nullptr) set = *found;
  }
  const bool holds = set && IsInForce(set->limit, wall) && !IsBehindRules(set->limit);
  if (holds) say_of(*set, fmt::format("limit of the {}", Name(of)));
}

}    // namespace dthrottle
