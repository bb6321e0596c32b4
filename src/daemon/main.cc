// dthrottled: see man/dthrottled.8.
#include <fmt/format.h>
#include <sodium/core.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <system_error>

#include "base/check.h"
#include "carrier/list.h"
#include "config/load.h"
#include "daemon/confine.h"
#include "daemon/counting.h"
#include "daemon/daemon.h"
#include "daemon/dividing_options.h"
#include "daemon/elsewhere.h"
#include "daemon/takeover.h"
#include "feature/list.h"
#include "frontend/list.h"
#include "io/files.h"
#include "io/handover.h"
#include "io/log.h"
#include "io/output_main.h"
#include "io/peer_settings.h"
#include "io/signals.h"
#include "plan/divided_graph.h"

namespace dthrottle {
namespace {

constexpr const char* kDefaultPath = "/etc/dthrottle/dthrottled.toml";

bool IsUsableDirectory(const std::string& path) {
  constexpr mode_t kMode = 0755;    // under any umask: query.unix_mode says who may ask
  const bool made = ::mkdir(path.c_str(), kMode) == 0;
  if (made ? ::chmod(path.c_str(), kMode) != 0 : errno != EEXIST) return false;
  return ::access(path.c_str(), W_OK | X_OK) == 0;
}

// /run/dthrottle, or the same under $XDG_RUNTIME_DIR for a user that may not write there.
std::string RuntimeDir() {
  const std::string system = "/run/dthrottle";
  const char* xdg = std::getenv("XDG_RUNTIME_DIR");
  if (IsUsableDirectory(system) || xdg == nullptr) return system;
  const std::string own = std::string(xdg) + "/dthrottle";
  return IsUsableDirectory(own) ? own : system;
}

// `takes_over`: it is to be asked of a program that the one now running is to become.
int CheckOnly(const std::string& path, bool takes_over, std::uint32_t handover_version) {
  if (handover_version != kHandoverVersion) {
    fmt::print("dthrottled {} takes over in format {}, not {}\n", DTHROTTLE_VERSION, kHandoverVersion,
               handover_version);
    return EX_UNAVAILABLE;
  }
  const auto text = ReadFile(path, kSettingsBytesMax);
  if (!text) {
    fmt::print("{}\n", text.error().message);
    return EX_NOINPUT;
  }
  const std::string runtime_dir = takes_over ? RuntimeDir() : "/run/dthrottle";
  LoadedSettings loaded = ParseSettings(*text, path, runtime_dir, {}, ReadNamedFile);
  if (const auto problem = WhyNoUser(loaded)) loaded.problems.push_back(*problem);
  if (const auto problem = takes_over ? WhyNoTakeover(loaded) : std::nullopt) loaded.problems.push_back(*problem);
  if (const auto problem = loaded.ok() && !takes_over ? WhyNoQuotaFile(loaded, nullptr) : std::nullopt) {
    loaded.problems.push_back(*problem);
  }
  if (loaded.ok()) CheckFeatureFiles(loaded, takes_over);
  if (takes_over) FindTroubleOfTakeover(loaded);
  for (const Problem& problem : loaded.problems) fmt::print("{}\n", Format(problem));
  bool good = loaded.ok();
  for (const Result<void>& checked :
       {loaded.ok() ? CheckDividing(loaded.settings) : plan::CheckGraphFile(loaded.settings),
        CheckFrontEnds(loaded.settings), CheckKeys(loaded.settings),
        loaded.ok() ? CheckCarrier(loaded.settings) : Result<void>()}) {
    if (!checked) fmt::print("{}: error: {}\n", path, checked.error().message);
    good = good && checked;
  }
  if (!good) return EX_CONFIG;
  for (const std::string& warning : CheckFeatures(loaded.settings)) fmt::print("{}: {}\n", path, warning);
  fmt::print("{}: ok, {} rules, {} overrides\n", path, loaded.settings.rules.size(), loaded.settings.overrides.size());
  return EX_OK;
}

// Throws StartFailure, and std::system_error where the system has no further thread.
int Serve(const std::string& path, Launch& launch, Log& log) {
  Inheritance inheritance = TakeInheritance();
  if (!inheritance.complaint.empty()) log.Warning("what the program before has left: {}", inheritance.complaint);
  auto text = ReadFile(path, kSettingsBytesMax);
  if (!text) {
    log.Error("{}", text.error().message);
    return EX_NOINPUT;
  }
  const std::string runtime_dir = RuntimeDir();
  LoadedSettings loaded;
  Elsewhere([&] { loaded = ParseSettings(*text, path, runtime_dir, {}, ReadNamedFile); });
  for (const Problem& problem : loaded.problems) {
    const bool is_error = problem.severity == Problem::Severity::kError;
    log.Say(is_error ? LogLevel::kError : LogLevel::kWarning, Format(problem));
  }
  if (!loaded.ok()) return EX_CONFIG;
  text->clear();
  const auto become = WhomToBecome(loaded, inheritance.any, log);
  if (!become) {
    log.Say(LogLevel::kError, Format(become.error()));
    return EX_CONFIG;
  }
  launch.become = *become;
  Daemon daemon(path, runtime_dir, std::move(loaded.settings), launch, std::move(inheritance.handover), log);
  daemon.Start();
  daemon.Run();
  return EX_OK;
}

// Says in the log why a start has failed.
int ServeOrSay(const std::string& path, Launch launch) {
  Log log;
  try {
    return Serve(path, launch, log);
  } catch (const StartFailure& failure) {
    log.WaitForRoom();
    log.Error("{}{}", failure.message, launch.become ? " (as " + launch.become->name + ", process.user)" : "");
    return failure.exit_code;
  } catch (const std::system_error& error) {
    log.WaitForRoom();
    log.Error("the system has no further thread for this process: {}", error.what());
    return EX_OSERR;
  }
}

int Main(int argc, char** argv) {
  CLI::App app("Answers whether a client's request should be served or throttled.", "dthrottled");
  std::string config = kDefaultPath, check;
  std::uint32_t handover = kHandoverVersion;
  app.add_option("--config,-c", config, "The settings file")->envname("DTHROTTLED_CONFIG")->capture_default_str();
  app.add_option("--check,-t", check, "Check a settings file, say everything that is wrong with it, and exit");
  app.add_option("--handover", handover, "With --check: also check that an upgrade from this format is possible")
      ->needs("--check");
  app.set_version_flag("--version,-V", "dthrottled " DTHROTTLE_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return WithOutput([&] { return app.exit(e) == 0 ? EX_OK : EX_USAGE; });
  }
  DT_CHECK(sodium_init() >= 0);
  if (app.count("--check") > 0) {
    return WithOutput([&] { return CheckOnly(check, app.count("--handover") > 0, handover); });
  }
  BlockEarlyOrders();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);    // a file beyond `ulimit -f` is an error of the call, with a message
  return ServeOrSay(config, {OwnProgram(argv[0]), {argv + 1, argv + argc}});
}

}    // namespace
}    // namespace dthrottle

int main(int argc, char** argv) {
  dthrottle::OpenStandardDescriptors();
  dthrottle::HearOfChildren();
  return dthrottle::Main(argc, argv);
}
