#include "admin/admin.h"

#include <fmt/format.h>

#include <algorithm>

#include "admin/commands/commands.h"
#include "admin/escape.h"
#include "admin/extension.h"
#include "admin/metrics.h"
#include "config/keys.h"
#include "rule/rulebook.h"

namespace dthrottle {

namespace {

using namespace commands;

Json Metrics(const Context& c) {
  return RenderMetrics(c.host, c.now);
}

Json Config(const Context& c) {
  return RenderSettings(c.host.settings(), c.rules().rules(), c.rules().overrides());
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
  for (Extension* const extension : host.extensions()) {
    if (extension->command().name != name) continue;
    return extension->Run(argument, [=](const Json& answer) { reply(Finish(answer, as_json)); }, now);
  }
  reply(Finish(ErrorAnswer(fmt::format("unknown command \"{}\"; try help", EscapeTag(name.substr(0, 64)))), as_json));
}

bool ChangesState(std::string_view line, const AdminHost& host) {
  if (line.starts_with("json ")) line.remove_prefix(5);
  const std::string_view name = line.substr(0, line.find_first_of(" \r"));
  for (const Extension* const extension : host.extensions()) {
    if (extension->command().name == name) return extension->Changes(line.substr(std::min(name.size() + 1, line.size())));
  }
  const bool reports = name == "shed" && line.size() > name.size() + 1;
  return reports || name == "forgive" || name == "reload" || name == "upgrade";
}

std::string CommandTooLong() {
  return Finish(ErrorAnswer(fmt::format("a command has at most {} bytes", kCommandBytesMax)), false);
}

}    // namespace dthrottle
