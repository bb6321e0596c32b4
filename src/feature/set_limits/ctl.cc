#include "feature/set_limits/ctl.h"

#include <fmt/format.h>
#include <sodium/core.h>
#include <sysexits.h>
#include <CLI/CLI.hpp>

#include "admin/escape.h"
#include "base/host_name.h"
#include "base/words.h"
#include "feature/command_line.h"
#include "feature/set_limits/set_limit.h"
#include "feature/set_limits/set_limits.h"
#include "io/clock.h"
#include "io/keys.h"

namespace dthrottle {
namespace {

using Ask = std::function<int(std::string)>;
using Get = std::function<tl::expected<std::string, int>(std::string)>;

// What the command line says.
struct Words {
  std::string name, burst, rate, time, key_file, directory = ".";
  bool of_rule = false, of_rules = false, clears = false;

  LimitOf of() const { return of_rules ? LimitOf::kRules : of_rule ? LimitOf::kRule : LimitOf::kTag; }
};

int Keygen(const Words& words) {
  if (!IsHostName(words.name)) {
    return Complain(fmt::format("\"{}\": must be a name of up to 64 letters, digits and \"_-.\"", EscapeTag(words.name)),
                    EX_USAGE);
  }
  const OperatorSecret secret = MakeOperatorSecret();
  const std::string path = words.directory + "/" + words.name + ".operator";
  const auto written = WriteNewFile(
      path, 0600, fmt::format("# Of the operator {} alone. Hosts need the public key only.\n{}\n", words.name, secret.seed));
  if (!written) return Complain(written.error().message, EX_CANTCREAT);
  fmt::print("{}  for this operator alone: dthrottlectl limit --key\n\"{} {}\"  for all hosts: into operator.keys\n", path,
             words.name, secret.key);
  return EX_OK;
}

// The name or the rules, from the command line or the standard input. A text that is far too long is cut, and refused
// as too long.
Result<std::string> NameOf(const Words& words) {
  if (!words.of_rules || words.name != "-") return UnescapeTag(words.name);
  std::string text(std::size_t{1} << 20, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), stdin));
  return text;
}

// Signs a limit that is newer than all that it replaces, which may have been set where the clock is ahead.
int SetSigned(const Words& words, const std::string& name, const Ask& ask, const Get& get) {
  const auto text = ReadSecret(words.key_file);
  if (!text) return Complain(text.error().message, EX_NOINPUT);
  const auto secret = ParseOperatorSecret(*text);
  if (!secret) return Complain(words.key_file + ": " + secret.error().message, EX_DATAERR);
  const LimitOf of = words.of();
  const auto answer = get(fmt::format("limit stamp {} {}\n", Name(of), of == LimitOf::kRules ? "" : EscapeTag(name)));
  if (!answer) return answer.error();
  std::string_view line = std::string_view(*answer).substr(0, answer->find('\n'));
  Duration newer{};
  if (!TakeWord(line, "stamp") || !ReadDate(NextWord(line), newer)) return fmt::print(stderr, "{}", *answer), kRefused;
  const Duration wall = WallClock();
  const auto limit = LimitAsked(of, name, words.burst, words.rate, words.time, {std::max(wall, newer), wall});
  if (!limit) return Complain(limit.error().message, EX_USAGE);
  if (SetLimits::IsAhead(*limit, wall)) {    // a host could keep the line, and bring it at that date
    return Complain(kReplacesAhead, kRefused);
  }
  return ask(fmt::format("limit put {}\n", Sign(*limit, *secret).Line()));
}

// A tag comes as the daemon shows it.
int Set(const Words& words, const Ask& ask, const Get& get) {
  const auto name = NameOf(words);
  if (!name) return Complain((words.of_rules ? "TEXT: " : "TAG: ") + name.error().message, EX_USAGE);
  if (words.of_rules && words.clears != name->empty()) {
    return Complain("limit rules takes a text that is not empty, or --clear", EX_USAGE);
  }
  const Duration wall = WallClock();
  const auto limit = LimitAsked(words.of(), *name, words.burst, words.rate, words.time, {wall, wall});
  if (!limit) return Complain(limit.error().message, EX_USAGE);
  if (!words.key_file.empty()) return SetSigned(words, *name, ask, get);
  const std::string escaped = EscapeTag(*name);
  if (limit->clears) return ask(fmt::format("limit clear {} {}\n", Name(limit->of), escaped));
  const std::string time = words.time.empty() ? "-" : words.time;
  if (words.of_rules) return ask(fmt::format("limit rules {} {}\n", time, escaped));
  return ask(fmt::format("limit set {} {} {} {} {}\n", Name(limit->of), words.burst, words.rate, time, escaped));
}

}    // namespace

int RunLimit(std::vector<std::string> words, const Ask& ask, const Get& get) {
  CLI::App app("Sets limits while daemons run, on all hosts.", "dthrottlectl limit");
  app.require_subcommand(1);
  Words given;
  CLI::App* const list = app.add_subcommand("list", "Shows the limits that are set");
  CLI::App* const set = app.add_subcommand("set", "Sets the limit of a tag or of a rule");
  CLI::App* const clear = app.add_subcommand("clear", "Puts what the settings say in force again");
  CLI::App* const keygen = app.add_subcommand("keygen", "Makes the key of an operator");
  CLI::App* const rules =
      app.add_subcommand("rules", "Sets all rules and overrides, in the place of those of the settings");
  for (CLI::App* const command : {set, clear}) {
    command->add_option("TAG", given.name, "The tag, or with --rule the name of the rule")->required();
    command->add_flag("--rule", given.of_rule, "Of a rule, for every tag that has no override");
  }
  rules->add_option("TEXT", given.name,
                    "[[rule]] and [[override]] in TOML, with \\x0a for the end of a line; - reads them from the "
                    "standard input as they are");
  rules->add_flag("--clear", given.clears, "The rules of the settings hold again");
  for (CLI::App* const command : {set, clear, rules}) {
    command->add_option("--key,-k", given.key_file, "The operator's key, to sign it with")->envname("DTHROTTLECTL_KEY");
  }
  set->add_option("BURST", given.burst, "Tokens")->required();
  set->add_option("RATE", given.rate, "Tokens a second, or text such as 60/m")->required();
  for (CLI::App* const command : {set, rules}) {
    command->add_option("--for", given.time, "How long it holds, such as 90s, 1h or 7d; otherwise until it is cleared");
  }
  keygen->add_option("NAME", given.name, "The operator's name")->required();
  keygen->add_option("--directory,-d", given.directory, "Where the file NAME.operator goes")->capture_default_str();
  if (const auto status = ReadWords(app, std::move(words))) return *status;
  if (sodium_init() < 0) return Complain("no randomness", EX_OSERR);
  given.of_rules = rules->parsed();
  if (list->parsed()) return ask("limit list\n");
  return keygen->parsed() ? Keygen(given) : Set(given, ask, get);
}

}    // namespace dthrottle
