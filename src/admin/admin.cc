#include "admin/admin.h"

#include <fmt/format.h>

#include <algorithm>

#include "admin/commands/commands.h"
#include "admin/escape.h"
#include "admin/extension.h"
#include "admin/metrics.h"
#include "config/keys.h"
#include "config/values.h"
#include "rule/rulebook.h"

namespace dthrottle {

namespace {

using namespace commands;

Json Metrics(const Context& c) {
  return RenderMetrics(c.host);
}

Json Config(const Context& c) {
  const std::span<const Override> overrides = c.rules().overrides();
  std::string text = RenderSettings(c.host.settings(), c.rules().rules(), overrides);
  for (const Override& its : overrides.first(std::min(overrides.size(), kOverridesRendered))) {
    if (IsTagOfFile(its.tag)) continue;
    text += fmt::format("\n# an override that no file can have, of the tag {}: burst = {}, rate = {}\n",
                        EscapeTag(its.tag), FormatNumber(its.burst), FormatNumber(its.rate));
  }
  return text;
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
    {"top", "[N]", "the N most throttled and most served tags of the last minute or two, and N penalized ones", Top},
    {"penalties", "", "the tags that were refused too often and are refused at once, and for how long",
     AllPenalties},
    {"refusals", "[N]", "a sample of what was refused lately: which tag, by which rule, through which front end",
     RecentRefusals},
    {"rules", "", "rules in order, with what they served and throttled", Rules},
    {"peers", "", "the other hosts: where, heard how long ago, how old their news was, what was missed", Peers},
    {"shed", "[VALUE]", "what load shedding goes by and how much it refuses; VALUE reports what to go by", Shed},
    {"capacity", "[TAG]", "how hosts divide limits: members and tags that take part, or one tag's part and neighbours",
     Capacity},
    {"indicate", "VALUE TAG", "reports how an application does with this host's part of a divided tag", Indicate},
    {"leases", "[RESOURCE]", "who grants leases, and what is leased out; of RESOURCE, to whom", Leases},
    {"config", "", "the settings in force, as TOML", Config},
    {"forgive", "TAG", "forget what a tag has spent or owes", ForgiveTag},
    {"reload", "", "read the settings file again and put it in force, if it is good", nullptr},
    {"upgrade", "", "go over to the program as it is installed now, with every socket and connection", nullptr},
};

Json Help(const Context& c) {
  Json rows = Json::array();
  const auto add = [&](std::string_view name, std::string_view argument, std::string_view meaning) {
    const std::string_view blank = argument.empty() ? "" : " ";
    rows.push_back({{"command", fmt::format("{}{}{}", name, blank, argument)}, {"meaning", meaning}});
  };
  for (const Command& command : kCommands) add(command.name, command.argument, command.meaning);
  for (const Extension* const extension : c.host.extensions()) {
    const auto [name, argument, meaning] = extension->command();
    add(name, argument, meaning);
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

// A command line without its end, and how it is to be answered.
struct CommandLine {
  bool as_json = false;
  std::string_view text;    // without "json "
  std::string_view name;
  bool has_blank = false;    // after the name
  std::string_view argument;

  explicit CommandLine(std::string_view line) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    as_json = line.starts_with("json ");
    text = as_json ? line.substr(5) : line;
    const std::size_t blank = std::min(text.find(' '), text.size());
    name = text.substr(0, blank);
    has_blank = blank < text.size();
    argument = text.substr(std::min(blank + 1, text.size()));
  }
};

using JsonReply = std::function<void(const Json&)>;

void Run(const CommandLine& line, AdminHost& host, const JsonReply& reply, Instant now) {
  for (const Command& command : kCommands) {
    if (command.name != line.name) continue;
    if (command.argument.empty() && !line.argument.empty()) {
      return reply(ErrorAnswer(fmt::format("{} takes nothing after it", line.name)));
    }
    // A tag may be empty, but then the blank before it says that it was meant.
    if (command.argument == "TAG" && !line.has_blank) {
      return reply(ErrorAnswer(fmt::format("{} needs a TAG", line.name)));
    }
    if (command.run != nullptr) return reply(command.run({host, line.argument, now}));
    if (line.name == "upgrade") {
      return host.Upgrade([=](const Result<std::string>& program) {
        reply(program ? Json{{"upgrading", true}, {"program", *program}} : ErrorAnswer(program.error().message));
      });
    }
    return host.Reload([=](const ReloadOutcome& outcome) { reply(ReloadAnswer(outcome)); });
  }
  for (Extension* const extension : host.extensions()) {
    if (extension->command().name == line.name) return extension->Run(line.argument, reply, now);
  }
  reply(ErrorAnswer(fmt::format("unknown command \"{}\"; try help", EscapeTag(line.name.substr(0, 64)))));
}

// What the audit says of a command; empty: it changes nothing.
std::string ForAudit(const CommandLine& line, const AdminHost& host) {
  for (const Extension* const extension : host.extensions()) {
    if (extension->command().name != line.name) continue;
    if (!extension->Changes(line.argument)) return "";
    return fmt::format("{} {}", line.name, extension->Audited(line.argument));
  }
  const bool reports = line.name == "shed" && !line.argument.empty();
  const bool changes = reports || line.name == "forgive" || line.name == "reload" || line.name == "upgrade";
  return changes ? std::string(line.text) : "";
}

// What the audit shows of a command, and of a reason. A tag of 255 bytes takes up to 1020.
constexpr std::size_t kAuditedBytesMax = 1200;

// Why an answer says that nothing was done; empty: it was.
std::string WhyNot(const Json& answer) {
  if (!answer.is_object()) return "";
  const char* const member = answer.contains("error") ? "error" : answer.value("reloaded", true) ? nullptr : "note";
  return member != nullptr ? answer[member].get<std::string>() : "";
}

}    // namespace

void RunCommand(std::string_view line, AdminHost& host, const AdminReply& reply, Instant now) {
  const CommandLine command(line);
  Run(command, host, [=](const Json& answer) { reply(Finish(answer, command.as_json)); }, now);
}

void RunAudited(std::string_view line, std::string_view who, AdminHost& host, const AdminReply& reply, Instant now) {
  const CommandLine command(line);
  std::string what = ForAudit(command, host);
  if (what.empty()) return RunCommand(line, host, reply, now);
  const auto shown = [](std::string_view text) { return Shortened(EscapeRest(text), kAuditedBytesMax); };
  what = fmt::format("{}: {}{}", who, command.as_json ? "json " : "", shown(what));
  const auto audited = [&host, reply, shown, what = std::move(what), as_json = command.as_json](const Json& answer) {
    const std::string why = WhyNot(answer);
    host.Audit(why.empty() ? what : fmt::format("{}: refused: {}", what, shown(why)));
    reply(Finish(answer, as_json));
  };
  Run(command, host, audited, now);
}

std::string CommandTooLong() {
  return Finish(ErrorAnswer(fmt::format("a command has at most {} bytes", kCommandBytesMax)), false);
}

}    // namespace dthrottle
