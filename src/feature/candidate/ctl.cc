#include "feature/candidate/ctl.h"

#include <fmt/format.h>
#include <sysexits.h>
#include <CLI/CLI.hpp>

#include <filesystem>

#include "admin/escape.h"
#include "feature/command_line.h"

namespace dthrottle {
namespace {

using Get = std::function<tl::expected<std::string, int>(std::string)>;

// Sets the rules of the candidate on all hosts whose operators have signed keys. What is shown is the answer to that.
int Promote(const std::vector<std::string>& options, const Get& get,
            const std::function<int(std::vector<std::string>)>& run) {
  const auto answer = get("candidate rules\n");
  if (!answer) return answer.error();
  std::vector<std::string> words = {"limit", "rules"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", answer->substr(0, answer->find('\n'))});
  if (const int code = run(std::move(words)); code != EX_OK) return code;
  const auto stopped = get("candidate stop\n");
  return stopped ? EX_OK : stopped.error();
}

}    // namespace

int RunCandidate(std::vector<std::string> words, const std::function<int(std::string line)>& ask,
                 const std::function<tl::expected<std::string, int>(std::string line)>& get,
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
  app.add_flag("--here", here, "promote: on this host alone, until stop or a restart");
  if (const auto status = ReadWords(app, std::move(words))) return *status;
  if (what.empty()) return ask("candidate\n");
  if (what == "stop" || what == "clear") return ask("candidate stop\n");
  if (what == "promote" && here) return ask("candidate here\n");
  if (what == "promote") {
    std::vector<std::string> options;
    if (!key_file.empty()) options.insert(options.end(), {"--key", key_file});
    if (!time.empty()) options.insert(options.end(), {"--for", time});
    return Promote(options, get, run);
  }
  std::error_code error;
  const auto path = std::filesystem::absolute(what, error);    // the daemon has another directory
  return ask(fmt::format("candidate start {} {}\n", share, EscapeTag(path.string())));
}

}    // namespace dthrottle
