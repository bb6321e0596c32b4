// Golden traces of fleets: a story in commands, and everything that happened. Each file opens with a paragraph of
// situation; a block is commands, a line "----" and what came of them. Set DTHROTTLE_UPDATE_TRACES to write what comes
// of them now; read the difference and commit it only if you understand it.
//
//   fleet N period 5s seed 1    hosts A, B, ... on lossy lanes of 10 ms that lose nothing by themselves; all report at
//                               every period from now on, and time is counted from now on
//   rules                       before it; the lines that follow, up to an empty one, are TOML
//   at 500ms
//   ask A TAG N                 N queries to host A
//   look TAG                    level on every host, and when it would serve the tag
//   cut A B, mend A B           frames from A to B
//   kill A, wipe A              kill -9, and start again on the old table, or on none
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <sstream>

#include "config/values.h"
#include "lab/fleet.h"
#include "test/support/golden.h"
#include "test/support/host.h"
#include "test/support/in_phase.h"

namespace dthrottle::lab {
namespace {

class Story {
 public:
  void SetRules(const std::string& toml) { options_.rules = testing::Rules(toml); }

  std::string Run(const std::string& line) {
    std::istringstream words(line);
    std::string command, a, b, c;
    words >> command >> a >> b >> c;
    if (command == "fleet") return Begin(std::stoul(a), ParseDuration(c).value(), words);
    if (command == "at") {
      fleet_->Run(begin_ + ParseDuration(a).value());
      return "";
    }
    if (command == "ask") return Ask(a, b, std::stoi(c));
    if (command == "look") return Look(a);
    const WorldTime now = fleet_->now();
    if (command == "cut") return Do([this, a, b] { fleet_->network().Cut(Number(a), Number(b), fleet_->now()); });
    if (command == "mend") return Do([this, a, b] { fleet_->network().Mend(Number(a), Number(b), fleet_->now()); });
    if (command == "kill") fleet_->Inject({{.kind = Fault::Kind::kKill, .at = now, .host = Number(a)}});
    if (command == "wipe") fleet_->Inject({{.kind = Fault::Kind::kWipe, .at = now, .host = Number(a)}});
    fleet_->Run(now);
    return command == "kill" || command == "wipe" ? "" : "unknown command: " + line + "\n";
  }

 private:
  std::string Begin(std::size_t hosts, Duration period, std::istream& words) {
    std::string word;
    std::uint64_t seed;
    words >> word >> seed;
    options_.hosts = hosts;
    options_.period = period;
    options_.drift_ppm_max = 0;
    options_.lanes = {.delay = std::chrono::milliseconds(10), .lossy = true};
    fleet_ = std::make_unique<Fleet>(testing::InPhase(options_, seed), seed);
    begin_ = After(2 * period);
    fleet_->Run(begin_);
    return "";
  }

  template <class Change>
  std::string Do(Change&& change) {
    change();
    return "";
  }

  static std::uint32_t Number(const std::string& host) { return static_cast<std::uint32_t>(host[0] - 'A'); }
  static char Letter(std::uint32_t number) { return static_cast<char>('A' + number); }
  std::string Clock() const { return fmt::format("{:>8.3f}", Seconds(fleet_->now() - begin_)); }

  std::string Ask(const std::string& host, const std::string& tag, int queries) {
    int served = 0;
    for (int i = 0; i < queries; ++i) served += fleet_->Ask(Number(host), tag);
    return fmt::format("{} {} {}: OK x {}, NO x {}, level {:.6f}\n", Clock(), host, tag, served, queries - served,
                       fleet_->host(Number(host)).Level(tag, fleet_->now()));
  }

  std::string Look(const std::string& tag) {
    std::string seen;
    const WorldTime now = fleet_->now();
    for (std::uint32_t i = 0; i < fleet_->size(); ++i) {
      SimHost& host = fleet_->host(i);
      seen += fmt::format("{} {} {}: level {:.6f}, served at {:.6f}\n", Clock(), Letter(i), tag, host.Level(tag, now),
                          Seconds(host.ServesAt(tag, now) - begin_));
    }
    return seen;
  }

  FleetOptions options_;
  std::unique_ptr<Fleet> fleet_;
  WorldTime begin_{};
};

// Runs the commands of `text` and returns it with what came of them now.
std::string Replay(const std::string& text) {
  std::istringstream in(text);
  std::string out, line;
  Story story;
  while (std::getline(in, line)) {
    out += line + '\n';
    if (line.empty() || line[0] == '#') continue;
    if (line == "rules") {
      std::string toml;
      while (std::getline(in, line) && !line.empty()) toml += line + '\n';
      story.SetRules(toml);
      out += toml + '\n';
      continue;
    }
    std::string happened = story.Run(line);
    while (std::getline(in, line) && line != "----" && !line.empty()) {
      happened += story.Run(line);
      out += line + '\n';
    }
    while (line == "----" && std::getline(in, line) && !line.empty()) line = "----";
    out += (happened.empty() ? "" : "----\n" + happened) + '\n';
  }
  while (out.ends_with("\n\n")) out.pop_back();
  return out;
}

TEST_CASE("golden traces of fleets") {
  CHECK(testing::CheckGoldenTraces(DTHROTTLE_SOURCE "/test/sim", Replay) >= 2);
}

}    // namespace
}    // namespace dthrottle::lab
