#include "admin/admin.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "admin/escape.h"
#include "admin/metrics.h"
#include "config/keys.h"
#include "config/values.h"

namespace dthrottle {

namespace {

using Json = nlohmann::ordered_json;

// ---- Answers as text ----

std::string Scalar(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "-";
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  return value.dump();
}

// Columns are those of the first row, padded to their widest value.
std::string TableText(const Json& rows) {
  if (rows.empty()) return "(none)\n";
  std::vector<std::vector<std::string>> lines(1);
  for (const auto& [name, value] : rows.front().items()) lines.front().push_back(name);
  for (const Json& row : rows) {
    lines.emplace_back();
    for (const auto& [name, value] : row.items()) lines.back().push_back(Scalar(value));
  }
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      out += i + 1 == widths.size() ? line[i] : fmt::format("{:<{}}  ", line[i], widths[i]);
    }
    out += '\n';
  }
  return out;
}

// A string is itself; an object, a line for each member; a list of objects, a table.
std::string Text(const Json& answer) {
  if (answer.is_string()) {
    std::string text = answer.get<std::string>();
    return text.ends_with('\n') ? text : text + '\n';
  }
  if (answer.is_array()) return TableText(answer);
  std::size_t width = 0;
  for (const auto& [name, value] : answer.items()) width = std::max(width, name.size());
  std::string out;
  for (const auto& [name, value] : answer.items()) {
    if (!value.is_array()) {
      out += fmt::format("{:<{}}  {}\n", name, width, Scalar(value));
    } else if (!value.empty() && value.front().is_string()) {
      for (const Json& line : value) out += Scalar(line) + '\n';
    } else {
      out += fmt::format("{}:\n{}", name, TableText(value));
    }
  }
  return out;
}

Json ErrorAnswer(std::string_view message) {
  return {{"error", message}};
}

std::string Finish(const Json& answer, bool as_json) {
  // Patterns and paths may hold bytes that are not UTF-8; they must not keep anybody from an answer.
  if (as_json) return answer.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n\n";
  if (answer.is_object() && answer.contains("error")) {
    return fmt::format("error: {}\n\n", answer["error"].get<std::string>());
  }
  std::string text = Text(answer);
  // An empty line is the end of the answer, so there can be none within.
  for (std::size_t i = text.find("\n\n"); i != std::string::npos; i = text.find("\n\n", i)) text.erase(i, 1);
  return text + '\n';
}

// ---- Commands ----

double Rounded(double x) {
  return std::round(x * 1e6) / 1e6;
}

std::string Hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string ShowTag(const Tag& tag) {
  return tag.is_digest ? fmt::format("(over-long, digest {})", Hex(tag.bytes)) : EscapeTag(tag.bytes);
}

std::string RuleName(const Rulebook& rules, const Limit& limit) {
  return limit.rule < rules.rules().size() ? rules.rules()[limit.rule].name : "(none)";
}

struct Context {
  AdminHost& host;
  std::string_view argument;
  Instant now;

  Limiter& limiter() const { return host.limiter(); }
  const Rulebook& rules() const { return host.limiter().rules(); }
};

// The tag that a command names, or null and the answer that says why not.
std::unique_ptr<NamedTag> TagArgument(const Context& c, Json& answer) {
  const Result<std::string> bytes = UnescapeTag(c.argument);
  if (!bytes) {
    answer = ErrorAnswer("TAG: " + bytes.error().message);
    return nullptr;
  }
  return std::make_unique<NamedTag>(*bytes, c.host.settings().query.max_tag_bytes, c.limiter().keys().digest);
}

Json Stats(const Context& c) {
  const Snapshot snapshot = TakeSnapshot(c.limiter(), c.host.Counts());
  Json out = {{"version", DTHROTTLE_VERSION}};
  for (const Count& count : Counts()) {
    const double value = count.value(snapshot);
    out[std::string(count.name)] = IsWhole(count) ? Json(static_cast<std::uint64_t>(value)) : Json(Rounded(value));
  }
  return out;
}

Json Metrics(const Context& c) {
  return RenderMetrics(c.host, c.now);
}

// Bytes are whole.
Json SignalNumber(const ShedStatus& status, double value) {
  return IsMemory(status.signal) ? Json(static_cast<std::uint64_t>(std::clamp(value, 0.0, 0x1p63))) : Json(value);
}

std::string SignalText(const ShedStatus& status, double value) {
  const std::string_view unit = IsMemory(status.signal) ? " bytes" : status.signal == ShedSignal::kPressure ? " %" : "";
  return Scalar(SignalNumber(status, value)) + std::string(unit);
}

// The state of a bucket, for `show` and `why` alike.
Json BucketFields(const Inspection& seen, const Limit& limit, Instant now) {
  const double level = seen.bucket.Level(limit.shape, now);
  const bool serves = limit.mode == Mode::kOff || level >= 1;
  const Instant again = seen.bucket.ServesAt(limit.shape, 1, now);
  return {{"level", Rounded(level)},
          {"debt", Rounded(std::max(0.0, -level))},
          {"verdict", serves || limit.mode == Mode::kShadow ? "OK" : "NO"},
          {"served_again_in_s", serves ? 0.0 : Rounded(Seconds(again - now))},
          {"full_in_s", Rounded(Seconds(seen.bucket.UntilFull(now)))},
          {"recorded", seen.recorded}};
}

// Where everything is shed the bucket has no say.
Json FinalVerdict(const Json& of_bucket, const Limit& limit, double rejection_probability) {
  return rejection_probability >= 1 && limit.mode == Mode::kEnforce ? Json("NO") : of_bucket;
}

Json LimitFields(const Rulebook& rules, LimitIndex index) {
  const Limit& limit = rules.limit(index);
  const bool is_override = rules.is_override(index);
  const double burst = is_override ? rules.overrides()[index - rules.rules().size()].burst : rules.rules()[index].burst;
  const double rate = is_override ? rules.overrides()[index - rules.rules().size()].rate : rules.rules()[index].rate;
  return {{"rule", RuleName(rules, limit)},
          {"override", is_override},
          {"mode", Name(limit.mode)},
          {"burst", burst},
          {"rate", rate}};
}

Json Show(const Context& c) {
  Json answer;
  const auto tag = TagArgument(c, answer);
  if (tag == nullptr) return answer;
  const Inspection seen = c.limiter().Inspect(tag->query(), c.now);
  answer = {{"tag", EscapeTag(tag->bytes())}};
  if (!seen.limit.has_value()) {
    answer["rule"] = nullptr;
    answer["verdict"] = "OK";
    return answer;
  }
  answer.update(LimitFields(c.rules(), *seen.limit));
  const Limit& limit = c.rules().limit(*seen.limit);
  const double shed = c.limiter().rejection_probability(limit.shed_priority);
  answer.update(BucketFields(seen, limit, c.now));
  answer["verdict"] = FinalVerdict(answer["verdict"], limit, shed);
  answer["shed_probability"] = Rounded(shed);
  return answer;
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

Json Why(const Context& c) {
  Json answer;
  const auto tag = TagArgument(c, answer);
  if (tag == nullptr) return answer;
  const Rulebook& rules = c.rules();
  const Inspection seen = c.limiter().Inspect(tag->query(), c.now);
  Json steps = Json::array();
  const auto say = [&](std::string line) { steps.push_back(std::move(line)); };

  if (tag->query().over_long != nullptr) {
    say(fmt::format("The tag has {} bytes, more than query.max_tag_bytes = {}: it goes by its digest {}.",
                    tag->bytes().size(), c.host.settings().query.max_tag_bytes, Hex(tag->query().tag.bytes)));
  }
  const bool overridden = seen.limit.has_value() && rules.is_override(*seen.limit);
  say(overridden ? "An override names the tag." : "No override names the tag.");
  const std::size_t chosen = seen.limit.has_value() ? rules.limit(*seen.limit).rule : rules.rules().size();
  for (std::size_t i = 0; i < rules.rules().size(); ++i) {
    const Rule& rule = rules.rules()[i];
    const std::string what = rule.match.has_value() ? fmt::format("match {}", Quote(Value(*rule.match))) : "default";
    if (i == chosen) {
      say(fmt::format("Rule \"{}\" ({}): applies.", rule.name, what));
      if (rule.match.has_value()) break;
    } else if (rule.match.has_value()) {
      say(fmt::format("Rule \"{}\" ({}): does not match.", rule.name, what));
    }
  }
  answer = {{"tag", EscapeTag(tag->bytes())}};
  if (!seen.limit.has_value()) {
    say("No rule fits and there is no default rule: every query is answered OK.");
    answer["verdict"] = "OK";
    answer["steps"] = steps;
    return answer;
  }
  const Limit& limit = rules.limit(*seen.limit);
  const Json limit_fields = LimitFields(rules, *seen.limit);
  const Json bucket = BucketFields(seen, limit, c.now);
  say(fmt::format("The limit is burst {:g}, rate {:g}/s, mode {}.", limit_fields["burst"].get<double>(),
                  limit_fields["rate"].get<double>(), Name(limit.mode)));
  const double shed = c.limiter().rejection_probability(limit.shed_priority);
  if (limit.shed_priority < kShedPriorities) say(WhyShed(c, limit, shed));
  if (shed > 0 && limit.mode == Mode::kShadow) say("The mode is shadow: what is shed is counted and answered OK.");
  const double level = bucket["level"];
  if (shed >= 1 && limit.mode == Mode::kEnforce) {
    // The bucket is not asked.
  } else if (limit.mode == Mode::kOff) {
    say("The mode is off: every query is answered OK and nothing is kept.");
  } else if (!seen.recorded) {
    say("No bucket is recorded, which is the same as a full one: the next query is answered OK.");
  } else if (level >= 1) {
    say(fmt::format("The level is {:.3f} tokens, one or more: the next query is answered OK.", level));
  } else {
    say(fmt::format("The level is {:.3f} tokens, less than one: the limit says NO for another {:.3f} s.", level,
                    bucket["served_again_in_s"].get<double>()));
    if (limit.mode == Mode::kShadow) say("The mode is shadow: the query is counted and answered OK all the same.");
  }
  answer["verdict"] = FinalVerdict(bucket["verdict"], limit, shed);
  answer["steps"] = steps;
  return answer;
}

Json TopList(const Context& c, const TopSums& sums, std::size_t n) {
  Json rows = Json::array();
  for (const TopEntry& e : Largest(sums, n)) {
    const auto limit = e.is_digest ? std::nullopt : c.rules().Find(e.tag);
    rows.push_back({{"count", e.count},
                    {"error", e.error},
                    {"rule", limit.has_value() ? Json(RuleName(c.rules(), c.rules().limit(*limit))) : Json()},
                    {"tag", ShowTag({e.tag, e.is_digest})}});
  }
  return rows;
}

Json Top(const Context& c) {
  std::size_t n = 10;
  if (!c.argument.empty()) {
    const char* const end = c.argument.data() + c.argument.size();
    const auto [rest, error] = std::from_chars(c.argument.data(), end, n);
    if (error != std::errc() || rest != end || n < 1 || n > TopTags::kEntries) {
      return ErrorAnswer(fmt::format("N must be a whole number from 1 to {}", TopTags::kEntries));
    }
  }
  TopSums served, throttled;
  for (std::size_t i = 0; i < c.limiter().lanes(); ++i) c.limiter().lane(i).AddTop(served, throttled, c.now);
  return {{"throttled", TopList(c, throttled, n)}, {"served", TopList(c, served, n)}};
}

Json Rules(const Context& c) {
  Json rows = Json::array();
  const auto add = [&](const Json& name, const Json& match, const Json& burst, const Json& rate, const Json& share,
                       const Json& mode, const RuleTotals& t) {
    rows.push_back({{"rule", name},
                    {"match", match},
                    {"burst", burst},
                    {"rate", rate},
                    {"share", share},
                    {"mode", mode},
                    {"served", t.served},
                    {"throttled", t.throttled},
                    {"shadowed", t.shadowed},
                    {"shed", t.shed}});
  };
  const auto& rules = c.rules().rules();
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const Rule& r = rules[i];
    add(r.name, r.match.has_value() ? Json(EscapeTag(*r.match)) : Json(), r.burst, r.rate, Name(r.share), Name(r.mode),
        c.limiter().Totals(i));
  }
  const RuleTotals no_rule = c.limiter().Totals(Lane::kNoRule);
  if (no_rule.served + no_rule.throttled + no_rule.shadowed > 0) {
    add("(overrides without a rule)", {}, {}, {}, {}, {}, no_rule);
  }
  const RuleTotals unmatched = c.limiter().Totals(Lane::kUnmatched);
  if (unmatched.served > 0) add("(no rule fits)", {}, {}, {}, {}, {}, unmatched);
  return rows;
}

std::string_view Name(PeerState state) {
  constexpr std::string_view kNames[] = {"connecting", "up", "silent", "self", "refused"};
  return kNames[static_cast<int>(state)];
}

// Everything in it that a peer or a name server wrote is escaped.
Json Peers(const Context& c) {
  Json rows = Json::array();
  for (const PeerStatus& p : c.host.Peers()) {
    const bool heard = p.last_heard >= Duration::zero();
    rows.push_back({{"address", EscapeTag(p.address)},
                    {"name", p.name.empty() ? Json() : Json(EscapeTag(p.name))},
                    {"state", Name(p.state)},
                    {"heard_s_ago", heard ? Json(Rounded(Seconds(p.last_heard))) : Json()},
                    {"age_s", heard ? Json(Rounded(Seconds(p.age))) : Json()},
                    {"reports", p.reports},
                    {"missed", p.missed},
                    {"lost", p.lost},
                    {"version", p.version.empty() ? Json() : Json(EscapeTag(p.version))},
                    {"note", p.reason.empty() ? Json() : Json(EscapeTag(p.reason))}});
  }
  return rows;
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
    const auto& curve = status.curve;
    const auto part =
        curve ? LogisticCurve::Step(curve->low(), curve->high(), step, priorities.count()) : LogisticCurve(0, 0);
    ++step;
    rows.push_back({{"priority", p},
                    {"low", number(known, part.low())},
                    {"high", number(known, part.high())},
                    {"probability", Rounded(c.limiter().rejection_probability(p))},
                    {"rules", names}});
  }
  return {{"signal", Name(status.signal)},
          {"source", status.source.empty() ? Json() : Json(EscapeTag(status.source))},
          {"value", number(known, status.value.value_or(0))},
          {"age_s", known ? Json(Rounded(Seconds(status.age))) : Json()},
          {"maximum", number(status.maximum > 0, status.maximum)},
          {"low", number(known, known ? status.curve->low() : 0)},
          {"high", number(known, known ? status.curve->high() : 0)},
          {"note", status.note.empty() ? Json() : Json(EscapeTag(status.note))},
          {"priorities", rows}};
}

Json Shed(const Context& c) {
  if (c.argument.empty()) return ShedAnswer(c);
  double value = 0;
  const char* const end = c.argument.data() + c.argument.size();
  const auto [rest, error] = std::from_chars(c.argument.data(), end, value);
  if (error != std::errc() || rest != end || !std::isfinite(value)) return ErrorAnswer("VALUE must be a number");
  if (const auto taken = c.host.ReportShed(value); !taken) return ErrorAnswer(taken.error().message);
  return ShedAnswer(c);
}

Json Config(const Context& c) {
  return RenderSettings(c.host.settings(), c.rules().rules(), c.rules().overrides());
}

Json ForgiveTag(const Context& c) {
  Json answer;
  const auto tag = TagArgument(c, answer);
  if (tag == nullptr) return answer;
  const bool had = c.limiter().Forgive(tag->query(), c.now);
  return {{"tag", EscapeTag(tag->bytes())}, {"forgiven", had}};
}

Json Help(const Context&);

struct Command {
  std::string_view name;
  std::string_view argument;    // shown in help; "[" in front: may be left out
  std::string_view meaning;
  Json (*run)(const Context&);    // null for those that answer later
};

constexpr Command kCommands[] = {
    {"help", "", "this list", Help},
    {"stats", "", "everything that is counted", Stats},
    {"metrics", "", "the same and more for Prometheus, as text that it scrapes", Metrics},
    {"show", "TAG", "the limit and the bucket of a tag, and when it will be served again", Show},
    {"why", "TAG", "how the next verdict on a tag comes about, step by step", Why},
    {"top", "[N]", "the N most throttled and most served tags of the last minute or two", Top},
    {"rules", "", "rules in order, with what they served and throttled", Rules},
    {"peers", "", "the other hosts: where, heard how long ago, how old their news was, what was missed", Peers},
    {"shed", "[VALUE]", "what load shedding goes by and how much it refuses; VALUE reports what to go by", Shed},
    {"config", "", "the settings in force, as TOML", Config},
    {"forgive", "TAG", "forget what a tag has spent or owes", ForgiveTag},
    {"reload", "", "read the settings file again and put it in force, if it is good", nullptr},
    {"upgrade", "", "go over to the program as it is installed now, with every socket and connection", nullptr},
};

Json Help(const Context&) {
  Json rows = Json::array();
  for (const Command& command : kCommands) {
    const std::string_view blank = command.argument.empty() ? "" : " ";
    rows.push_back(
        {{"command", fmt::format("{}{}{}", command.name, blank, command.argument)}, {"meaning", command.meaning}});
  }
  rows.push_back({{"command", "json COMMAND"}, {"meaning", "the answer as one line of JSON"}});
  return rows;
}

Json ReloadAnswer(const ReloadOutcome& outcome) {
  Json answer = {{"reloaded", outcome.in_force}};
  if (!outcome.in_force) answer["note"] = "the settings in force have not changed";
  answer["problems"] = outcome.problems;
  return answer;
}

}    // namespace

void RunCommand(std::string_view line, AdminHost& host, const AdminReply& reply, Instant now) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const bool as_json = line.starts_with("json ");
  if (as_json) line.remove_prefix(5);
  const std::size_t blank = std::min(line.find(' '), line.size());
  const std::string_view name = line.substr(0, blank);
  const std::string_view argument = line.substr(std::min(blank + 1, line.size()));

  for (const Command& command : kCommands) {
    if (command.name != name) continue;
    if (command.argument.empty() && !argument.empty()) {
      return reply(Finish(ErrorAnswer(fmt::format("{} takes nothing after it", name)), as_json));
    }
    // A tag may be empty, but then the blank before it says that it was meant.
    if (command.argument == "TAG" && blank == line.size()) {
      return reply(Finish(ErrorAnswer(fmt::format("{} needs a TAG", name)), as_json));
    }
    if (command.run != nullptr) return reply(Finish(command.run({host, argument, now}), as_json));
    if (name == "upgrade") {
      return host.Upgrade([=](const Result<std::string>& program) {
        reply(Finish(program ? Json{{"upgrading", true}, {"program", *program}} : ErrorAnswer(program.error().message),
                     as_json));
      });
    }
    return host.Reload([=](const ReloadOutcome& outcome) { reply(Finish(ReloadAnswer(outcome), as_json)); });
  }
  reply(Finish(ErrorAnswer(fmt::format("unknown command \"{}\"; try help", EscapeTag(name.substr(0, 64)))), as_json));
}

std::string CommandTooLong() {
  return Finish(ErrorAnswer(fmt::format("a command has at most {} bytes", kCommandBytesMax)), false);
}

}    // namespace dthrottle
