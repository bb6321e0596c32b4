// A fleet takes something for a while: holds whose cost is known afterwards, and places in flight.
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/dividing_hosts.h"
#include "lab/fleet.h"
#include "limiter/asking.h"
#include "limiter/places.h"
#include "share/ways.h"
#include "test/support/faults.h"
#include "test/support/host.h"
#include "test/support/sanitized.h"

namespace dthrottle::lab {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kTag = "tag";
constexpr const char* kShares[] = {"capacity", "debit", "forecast"};
// A sanitizer looks at lines, and nearly all are in the last.
constexpr std::span<const char* const> Shares() {
  return std::span(kShares).subspan(testing::kSanitized ? 2 : 0);
}

Fleet MakeFleet(std::size_t hosts, const std::string& toml, std::uint64_t seed) {
  const LoadedSettings loaded = ParseSettings(toml, "fleet");
  const auto rules = testing::Rules(toml);
  HostOptions host;
  host.capacity = CapacityOf(loaded.settings, *rules, hosts);
  return Fleet({.hosts = hosts, .rules = rules, .period = 1s, .lanes = {.delay = 1ms, .jitter = 20ms}, .host = host},
               seed);
}

// Asks one question about the tag at a host that answers.
bool Asks(Fleet& fleet, std::uint32_t host, Verb verb, Cost cost) {
  Asking asking(fleet.host(host).limiter(), 0, Prng(1), kTagBytesMax);
  asking.Begin(verb);
  REQUIRE(asking.Name(kTag, cost));
  asking.Answer(fleet.host(host).clock().Local(fleet.now()));
  return !asking.refusal(0).has_value();
}

// ---- Holds ----

struct Used {
  double tokens = 0, limit = 0;    // used in all, and what one bucket for all would have given until then
  double over_percent() const { return std::max(tokens / limit - 1, 0.0) * 100; }
};

// Each host takes `each` holds, as soon as it may, and settles them seconds later.
Used HoldAndSettle(const char* share, std::size_t hosts, int each, Cost estimate, Cost actual_max, std::uint64_t seed) {
  constexpr double kBurst = 2000, kRate = 1000;
  constexpr WorldTime kFrom = After(60s);
  const std::string rule =
      fmt::format("[[rule]]\nname = \"r\"\nburst = {}\nrate = {}\nshare = \"{}\"\n", kBurst, kRate, share);
  Fleet fleet = MakeFleet(hosts, rule, seed);
  std::vector<int> held(hosts);
  Used used;
  std::function<void(std::uint32_t)> turn = [&](std::uint32_t host) {
    if (held[host] == each) return;
    const WorldTime now = fleet.now();
    if (Asks(fleet, host, Verb::kHold, estimate)) {
      ++held[host];
      const auto actual = static_cast<Cost>(fleet.prng().Below(actual_max + 1));
      fleet.At(now + Duration(fleet.prng().Below(2'000'000'000)), [&, host, actual] {
        const Instant local = fleet.host(host).clock().Local(fleet.now());
        fleet.host(host).limiter().Settle({{{kTag}, estimate}, local}, actual, local);
        used.tokens += actual;
        used.limit = kBurst + kRate * Seconds(fleet.now() - kFrom);
      });
    }
    fleet.At(now + 50ms + Duration(fleet.prng().Below(50'000'000)), [&, host] { turn(host); });
  };
  for (std::uint32_t host = 0; host < hosts; ++host) fleet.At(kFrom, [&, host] { turn(host); });
  fleet.Run(kFrom + 10min);
  CHECK(std::all_of(held.begin(), held.end(), [&](int n) { return n == each; }));
  return used;
}

TEST_CASE("holds: 16 hosts serve no more than the limit where estimates are not below what was used") {
  for (const char* share : Shares()) {
    const Used used = HoldAndSettle(share, 16, 100, 100, 100, 1);
    std::printf("holds over 16 hosts, %s, estimates of 100 for 0 to 100: %.0f tokens used of %.0f, %.2f %% above\n", share,
                used.tokens, used.limit, used.over_percent());
    CHECK(used.over_percent() == 0);
  }
}

TEST_CASE("holds: 16 hosts serve at most 3 % above the limit where estimates are too low") {
  for (const char* share : Shares()) {
    const Used used = HoldAndSettle(share, 16, 100, 50, 200, 1);
    std::printf("holds over 16 hosts, %s, estimates of 50 for 0 to 200: %.0f tokens used of %.0f, %.2f %% above\n", share,
                used.tokens, used.limit, used.over_percent());
    CHECK(used.over_percent() <= 3);
  }
}

// ---- Places ----

// Jobs on every host, each of which has a place as long as it runs.
class Jobs {
 public:
  struct Terms {
    Duration least = 500ms, more = 20s;    // a job lasts the first and some of the second
  };

  Jobs(Fleet& fleet, Terms terms) : fleet_(fleet), terms_(terms), hosts_(fleet.size()) {
    for (std::uint32_t host = 0; host < fleet.size(); ++host) Turn(host);
  }

  std::uint32_t peak() const { return peak_; }
  std::uint32_t running() const {
    std::uint32_t sum = 0;
    for (const Host& host : hosts_) sum += static_cast<std::uint32_t>(host.running.size());
    return sum;
  }
  std::uint64_t begun() const { return begun_; }
  std::uint64_t begun(std::uint32_t host) const { return hosts_[host].begun; }
  // The longest time that the host has waited for a place.
  Duration waited(std::uint32_t host) const { return hosts_[host].waited; }
  std::uint64_t taken_back() const { return taken_back_; }

 private:
  struct Host {
    std::map<std::uint64_t, bool> running;
    std::uint32_t life = 0;
    std::uint64_t begun = 0;
    std::optional<WorldTime> waits_since;
    Duration waited{};
  };

  // What a host's process had is gone with it.
  bool Lives(std::uint32_t host) {
    Host& its = hosts_[host];
    if (fleet_.host(host).running() && fleet_.host(host).lives() == its.life) return true;
    its.running.clear();
    if (!fleet_.host(host).running()) return false;
    its.life = fleet_.host(host).lives();
    auto& division = fleet_.host(host).limiter().ways().Get<Division>();
    division.OnOver([this, host, &its](const Tag&, std::uint64_t hash, std::uint32_t places) {
      for (; places > 0 && !its.running.empty(); --places, ++taken_back_) End(host, its.running.begin()->first, hash);
    });
    return true;
  }
  void End(std::uint32_t host, std::uint64_t job, std::uint64_t hash) {
    if (hosts_[host].running.erase(job) != 0) GivePlaces(fleet_.host(host).limiter(), hash, 1);
  }
  void Turn(std::uint32_t host) {
    if (Lives(host)) Ask(host);
    for (std::uint32_t i = 0; i < fleet_.size(); ++i) Lives(i);
    peak_ = std::max(peak_, running());
    fleet_.At(fleet_.now() + 100ms + Duration(fleet_.prng().Below(300'000'000)), [this, host] { Turn(host); });
  }
  void Ask(std::uint32_t host) {
    Host& its = hosts_[host];
    if (!its.waits_since) its.waits_since = fleet_.now();
    its.waited = std::max<Duration>(its.waited, fleet_.now() - *its.waits_since);
    if (!Asks(fleet_, host, Verb::kEnter, 1)) return;
    its.waits_since.reset();
    ++its.begun;
    const std::uint64_t job = begun_++;
    its.running[job] = true;
    const Duration lasts = terms_.least + Duration(fleet_.prng().Below(static_cast<std::uint64_t>(terms_.more.count())));
    fleet_.At(fleet_.now() + lasts, [this, host, job] {
      if (Lives(host)) End(host, job, fleet_.host(host).limiter().table().Hash({kTag}));
    });
  }

  Fleet& fleet_;
  const Terms terms_;
  std::vector<Host> hosts_;
  std::uint32_t peak_ = 0;
  std::uint64_t begun_ = 0, taken_back_ = 0;
};

std::string PlacesRule(std::uint32_t places) {
  return fmt::format("[[rule]]\nname = \"r\"\nburst = 1000\nrate = 1000\nshare = \"capacity\"\nin_flight = {}\n",
                     places);
}

void InjectAll(Fleet& fleet, std::uint64_t seed) {
  Prng prng(seed);
  std::vector<Fault> faults = testing::RandomFaults(
      {.count = 30, .hosts = fleet.size(), .from = After(200s), .until = After(900s), .lasts_max = 60s}, prng);
  // Nobody can take from a host that stands still.
  std::erase_if(faults, [](const Fault& fault) { return fault.kind == Fault::Kind::kPause; });
  fleet.Inject(faults);
}

// Settings that all hosts have from now on, one after another, and that nobody divides under with the former ones.
void ChangeSettings(Fleet& fleet, const std::string& rule, std::uint64_t number) {
  const LoadedSettings loaded = ParseSettings(rule, "fleet");
  CapacitySettings settings = *CapacityOf(loaded.settings, *testing::Rules(rule), fleet.size());
  settings.digest += number;
  for (std::uint32_t host = 0; host < fleet.size(); ++host) {
    fleet.At(fleet.now() + host * 300ms,
             [&fleet, host, settings] { fleet.host(host).SetCapacity(settings); });
  }
}

TEST_CASE("places: 8 hosts that divide a limit never have more in flight, whatever is cut and killed") {
  constexpr std::uint32_t kMost = 40;
  for (std::uint64_t seed = 1; seed <= testing::Fewer(3); ++seed) {
    CAPTURE(seed);
    Fleet fleet = MakeFleet(8, PlacesRule(kMost), seed);
    InjectAll(fleet, seed);
    Jobs jobs(fleet, {});
    fleet.Run(After(199s));
    const std::uint32_t calm = jobs.running();
    fleet.Run(After(1000s));
    std::printf("places of 8 hosts, %u in all: %u taken when calm, %u at most, of %zu jobs %zu taken back\n", kMost, calm,
                jobs.peak(), static_cast<std::size_t>(jobs.begun()), static_cast<std::size_t>(jobs.taken_back()));
    CHECK(jobs.peak() <= kMost);
    CHECK(calm >= kMost / 2);
  }
}

TEST_CASE("places: nor while settings change, again and again, among cuts and kills") {
  for (std::uint64_t seed = 1; seed <= testing::Fewer(4); ++seed) {
    const std::uint32_t most = seed % 2 == 0 ? 3 : 40;
    CAPTURE(seed, most);
    Fleet fleet = MakeFleet(8, PlacesRule(most), seed);
    InjectAll(fleet, seed);
    Jobs jobs(fleet, {});
    for (std::uint64_t i = 1; i <= 12; ++i) {
      fleet.Run(After(i * 75s));
      ChangeSettings(fleet, PlacesRule(most), i);
    }
    fleet.Run(After(1000s));
    std::printf("places of 8 hosts, %u in all, under other settings every 75 s: %u at most, of %zu jobs %zu taken back\n",
                most, jobs.peak(), static_cast<std::size_t>(jobs.begun()), static_cast<std::size_t>(jobs.taken_back()));
    CHECK(jobs.peak() <= most);
    CHECK(jobs.begun() > 100);
  }
}

TEST_CASE("places: hosts that divide anew keep what they have, and take nothing from a program") {
  for (std::uint64_t seed = 1; seed <= testing::Fewer(3); ++seed) {
    CAPTURE(seed);
    Fleet fleet = MakeFleet(5, PlacesRule(23), seed);
    Jobs jobs(fleet, {.least = 200s, .more = 200s});
    fleet.Run(After(100s));
    const std::uint32_t before = jobs.running();
    REQUIRE(jobs.taken_back() == 0);
    ChangeSettings(fleet, PlacesRule(23), 1);
    fleet.Run(After(180s));
    CHECK(before >= 18);
    CHECK(jobs.running() >= before);
    CHECK(jobs.taken_back() == 0);
    CHECK(jobs.peak() <= 23);
  }
}

TEST_CASE("places: where there is less than one for each host, they have them in turn") {
  struct Case {
    std::uint32_t hosts, places;
  };
  for (const auto& [hosts, places] : {Case{4, 1}, Case{4, 3}, Case{8, 4}, Case{8, 1}}) {
    if (testing::kSanitized && hosts > 4) continue;
    Fleet fleet = MakeFleet(hosts, PlacesRule(places), 1);
    Jobs jobs(fleet, {.least = 100ms, .more = 200ms});
    fleet.Run(After(600s));
    std::uint64_t least = jobs.begun();
    Duration waited{};
    for (std::uint32_t host = 0; host < hosts; ++host) {
      least = std::min(least, jobs.begun(host));
      waited = std::max(waited, jobs.waited(host));
    }
    std::printf("%u places among %u hosts: %zu jobs, %zu at least on each, after %.0f s at most\n", places, hosts,
                static_cast<std::size_t>(jobs.begun()), static_cast<std::size_t>(least), Seconds(waited));
    CAPTURE(hosts, places);
    CHECK(jobs.peak() <= places);
    CHECK(least > 20);
    if (4 * places >= hosts) CHECK(waited < 300s);    // beyond, whose turn it is depends on chance more and more
  }
}

}    // namespace
}    // namespace dthrottle::lab
