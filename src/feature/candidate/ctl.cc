#include "feature/candidate/ctl.h"

#include <fmt/format.h>
#include <sysexits.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <sstream>

#include "admin/escape.h"
#include "feature/command_line.h"

namespace dthrottle {
namespace {

constexpr int kRefused = 1;    // the daemon answered, but did not do it

int Complain(const std::string& message, int exit_code) {
  fmt::print(stderr, "dthrottlectl: {}\n", message);
  return exit_code;
}

// Sets all rules at once, or each limit that differs if that is all, on all hosts whose operators have signed keys.
// What was set before a limit fails stays set, and the same command goes on there.
int Promote(const std::vector<std::string>& options, const std::function<int(std::string)>& ask,
            const std::function<Result<std::string>(std::string)>& get,
            const std::function<int(std::vector<std::string>)>& run) {
  const Result<std::string> answer = get("candidate changes\n");
  if (!answer) return Complain(answer.error().message, EX_UNAVAILABLE);
  if (answer->starts_with("error: ")) return fmt::print(stderr, "{}", *answer), kRefused;
  std::istringstream lines(*answer);
  std::size_t set = 0;
  bool all = false;
  for (std::string of, burst, rate, name; lines >> of >> burst >> rate && lines.get() == ' ' && std::getline(lines, name);
       ++set) {
    all = of == "rules";
    std::vector<std::string> words = {"limit", all ? "rules" : "set"};
    if (of == "rule") words.push_back("--rule");
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--", name});
    if (!all) words.insert(words.end(), {burst, rate});
    if (const int code = run(std::move(words)); code != EX_OK) return code;
  }
  all ? fmt::print("all rules set\n") : fmt::print("{} limits set; the rest of the rules is as it was\n", set);
  return ask("candidate stop\n");
}

}    // namespace

int RunCandidate(std::vector<std::string> words, const std::function<int(std::string line)>& ask,
                 const std::function<Result<std::string>(std::string line)>& get,
                 const std::function<int(std::vector<std::string> words)>& run) {
  CLI::App app("Tries the rules of a file beside those in force.", "dthrottlectl candidate");
  std::string what, share = "10%", key_file, time;
  bool here = false;
  app.add_option("WHAT", what,
                 "A settings file, to begin with its rules; stop or clear, to end it; promote, to put it in force; "
                 "otherwise the comparison is shown");
  app.add_option("--of", share, "Share of all tags that are compared, 0.1% to 100%")->capture_default_str();
  app.add_option("--key,-k", key_file, "promote: the operator's key, to sign it with")->envname("DTHROTTLECTL_KEY");
  app.add_option("--for", time, "promote: how long it holds, such as 1h; otherwise until it is cleared");
  app.add_flag("--here", here, "promote: all of the rules, on this host alone, until stop or a restart");
  if (const auto status = ReadWords(app, std::move(words))) return *status;
  if (what.empty()) return ask("candidate\n");
  if (what == "stop" || what == "clear") return ask("candidate stop\n");
  if (what == "promote" && here) return ask("candidate here\n");
  if (what == "promote") {
    std::vector<std::string> options;
    if (!key_file.empty()) options.insert(options.end(), {"--key", key_file});
    if (!time.empty()) options.insert(options.end(), {"--for", time});
    return Promote(options, ask, get, run);
  }
  std::error_code error;
  const auto path = std::filesystem::absolute(what, error);    // the daemon has another directory
  return ask(fmt::format("candidate start {} {}\n", share, EscapeTag(path.string())));
}

}    // namespace dthrottle
