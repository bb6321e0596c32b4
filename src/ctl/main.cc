// dthrottlectl: one command to the admin socket, its answer to standard output. See man/dthrottlectl.1.
#include <fmt/format.h>
#include <sysexits.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdlib>
#include <functional>

#include "admin/escape.h"
#include "base/host_name.h"
#include "base/result.h"
#include "config/values.h"
#include "ctl/admin_call.h"
#include "ctl/lease.h"
#include "feature/candidate/ctl.h"
#include "feature/command_line.h"
#include "feature/set_limits/ctl.h"
#include "io/keys.h"
#include "io/number_option.h"
#include "io/output_main.h"

namespace dthrottle {
namespace {

// A tag comes as the daemon shows it; only what would break the line has to be escaped here.
std::string Line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    if (&word != &words.front()) line += ' ';
    for (const char c : word) line += static_cast<unsigned char>(c) < 0x20 ? EscapeTag({&c, 1}) : std::string(1, c);
  }
  return line + '\n';
}

bool IsRefusal(const std::string& answer) {
  return answer.starts_with("error: ") || answer.starts_with("{\"error\":") || answer.starts_with("reloaded  false") ||
         answer.starts_with("{\"reloaded\":false");
}

constexpr std::string_view kError = "error: ";

// An answer that begins with kError, as the daemon says it in JSON.
std::string AsJson(std::string_view error) {
  nlohmann::json answer;
  answer["error"] = error.substr(kError.size(), error.size() - kError.size() - 1);    // without LF
  return answer.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + '\n';
}

// Makes the keys of one host: NAME.key, which stays there, and NAME.pub, for the others' authorized_keys.
int Keygen(std::vector<std::string> words) {
  CLI::App app("Makes a key pair for a host that shares limits.", "dthrottlectl keygen");
  std::string name, directory = ".", address;
  app.add_option("NAME", name, "The host's name, as in its peers.name")->required();
  app.add_option("--directory,-d", directory, "Where the two files go")->capture_default_str();
  app.add_option("--address,-a", address, "Where the host listens, such as tcp://10.0.0.2:7314, for its .pub file");
  if (const auto status = ReadWords(app, std::move(words))) return *status;
  if (!IsHostName(name)) {
    return Complain(fmt::format("\"{}\": must be a name of up to 64 letters, digits and \"_-.\"", EscapeTag(name)),
                    EX_USAGE);
  }
  if (const auto bound = ParseBind(address); !bound) {
    return Complain(fmt::format("\"{}\": must be a numeric address such as tcp://10.0.0.2:7314", EscapeTag(address)),
                    EX_USAGE);
  }
  const KeyPair keys = GenerateKeyPair();
  const std::string path = directory + "/" + name;
  // The public half first, and gone again if the secret cannot be written: never two halves that do not fit.
  auto written = WritePublicKeyFile(path + ".pub", keys.public_key, address);
  if (written) {
    written = WriteKeyFile(path + ".key", keys);
    if (!written) ::unlink((path + ".pub").c_str());
  }
  if (!written) return Complain(written.error().message, EX_CANTCREAT);
  fmt::print(
      "{0}.key  for this host alone: peers.key_file\n{0}.pub  for the others: into their peers.authorized_keys\n",
      path);
  return EX_OK;
}

int Main(int argc, char** argv) {
  CLI::App app("Looks inside a running dthrottled.", "dthrottlectl");
  std::string socket = DefaultAdminSocket();
  bool as_json = false;
  double timeout_s = 5;
  app.add_option("--socket,-s", socket, "The daemon's admin socket")
      ->envname("DTHROTTLECTL_SOCKET")
      ->capture_default_str();
  app.add_flag("--json,-j", as_json, "Print the answer as JSON");
  app.add_option("--timeout", timeout_s, "Seconds to wait for the answer")
      ->check(NumberFrom(0.001, 3600))
      ->capture_default_str();
  app.set_version_flag("--version,-V", "dthrottlectl " DTHROTTLE_VERSION);
  app.footer(
      "Then a command and its argument. The daemon knows:\n"
      "  help, stats, metrics, show TAG, why TAG, top [N], penalties, refusals [N], rules, peers, sites,\n"
      "  shed [VALUE], capacity [TAG], indicate VALUE TAG, leases [RESOURCE], config, forgive TAG, reload,\n"
      "  upgrade, json COMMAND, candidate [FILE|stop|clear|promote], limit list|set|rules|clear\n"
      "lease RESOURCE WANTS [-- PROGRAM...] asks lease servers; keygen NAME and limit keygen NAME ask nobody.");
  app.prefix_command();    // what follows the options is the daemon's, brackets and dashes included
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? EX_OK : EX_USAGE;
  }
  const std::vector<std::string> given = app.remaining();
  if (given.empty() || given.front().starts_with('-')) {    // no command, or an option that there is not
    fmt::print(stderr, "{}", app.help());
    return EX_USAGE;
  }
  const auto patience = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1000));
  const auto ask = [&](const std::string& line) {
    const Result<std::string> answer = AskAdmin(socket, (as_json ? "json " : "") + line, patience);
    if (!answer) return Complain(answer.error().message, EX_UNAVAILABLE);
    const bool refused = IsRefusal(*answer);
    fmt::print(refused && !as_json ? stderr : stdout, "{}", *answer);
    return refused ? kRefused : EX_OK;
  };
  const std::function get = [&](const std::string& line) -> tl::expected<std::string, int> {
    const Result<std::string> answer = AskAdmin(socket, line, patience);
    if (!answer) return tl::unexpected(Complain(answer.error().message, EX_UNAVAILABLE));
    if (!answer->starts_with(kError)) return *answer;
    fmt::print(as_json ? stdout : stderr, "{}", as_json ? AsJson(*answer) : *answer);
    return tl::unexpected(kRefused);
  };
  const std::function<int(std::vector<std::string>)> run = [&](std::vector<std::string> words) {
    if (words.front() == "keygen") return Keygen(words);
    if (words.front() == "lease") return RunLease(words, socket);
    if (words.front() == "limit") return RunLimit(words, ask, get);    // feature/set_limits/
    if (words.front() == "candidate") return RunCandidate(words, ask, get, run);    // feature/candidate/
    return ask(Line(words));
  };
  return run(given);
}

}    // namespace
}    // namespace dthrottle

int main(int argc, char** argv) {
  return dthrottle::WithOutput([&] { return dthrottle::Main(argc, argv); });
}
