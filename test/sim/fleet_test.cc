// Properties of a fleet: what must hold whatever the network and its hosts go through. Each runs under several seeds,
// and whatever fails says under which.
// sim_tests "[long]" has them at full size; see scripts/simulate and seeds.h.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <string>

#include "lab/fleet.h"
#include "test/sim/seeds.h"
#include "test/support/faults.h"
#include "test/support/host.h"
#include "test/support/in_phase.h"

namespace dthrottle::lab {
namespace {

using namespace std::chrono_literals;

using testing::kSanitized;
using testing::RandomFaults;
using testing::Seeds;

std::shared_ptr<const Rulebook> OneRule(Tokens burst, double rate) {
  return testing::Rules(fmt::format("[[rule]]\nname = \"default\"\nburst = {}\nrate = {}\n", burst, rate));
}

LaneOptions Stream() {
  return {.delay = 1ms, .jitter = 20ms};
}

LaneOptions Lossy() {
  return {.delay = 1ms, .jitter = 20ms, .lossy = true, .loss = 0.02, .duplication = 0.02, .overtaken = 0.02};
}

std::string Describe(const std::vector<LevelError>& errors) {
  std::string text = fmt::format("{} wrong levels", errors.size());
  for (std::size_t i = 0; i < std::min<std::size_t>(errors.size(), 5); ++i) {
    const LevelError& e = errors[i];
    text += fmt::format("\n  {} on {}: {:.3f}, truth {:.3f}, allowed {:.3f}", e.tag, HostName(e.host), e.level, e.truth,
                        e.allowed);
  }
  return text;
}

std::uint64_t Total(const Ledger& ledger, std::uint64_t Account::*member) {
  std::uint64_t sum = 0;
  for (const Account& account : ledger.accounts()) sum += account.*member;
  return sum;
}

// ---- The simulator ----

TEST_CASE("the same seed gives the same run, another seed another") {
  const auto digest = [](std::uint64_t seed) {
    Fleet fleet({.hosts = 5, .rules = OneRule(10, 1), .period = 1s, .lanes = Lossy(), .started_within = 2s}, seed);
    fleet.Add({.rate = 20, .poisson = true, .tags = 20, .tag_exponent = 1});
    Prng prng(seed);
    fleet.Inject(
        RandomFaults({.count = 10, .hosts = 5, .from = After(10s), .until = After(100s), .lasts_max = 20s}, prng));
    fleet.Run(After(2min));
    return fleet.digest();
  };
  for (const std::uint64_t seed : Seeds(3)) {
    CAPTURE(seed);
    CHECK(digest(seed) == digest(seed));
    CHECK(digest(seed) != digest(seed + 1));
  }
}

void AgreeAmong(std::uint32_t hosts) {
  Fleet fleet({.hosts = hosts, .rules = OneRule(10, 1), .lanes = Stream(), .started_within = 5s}, 1);
  fleet.Add({.rate = 1000, .poisson = true, .from = After(15s), .until = After(16s), .tags = 10});
  fleet.Run(After(30s));
  for (const Account& account : fleet.ledger().accounts()) {    // every host was told of every hit once
    for (std::uint32_t i = 0; account.shared && i < fleet.size(); ++i) CHECK(account.Missing(i) == 0);
  }
  CHECK(Total(fleet.ledger(), &Account::served) > 500);
  const auto errors = fleet.LevelErrors();
  INFO(Describe(errors));
  CHECK(errors.empty());
  WARN(fmt::format("{} hosts: {} frames, {} bytes, {} events", hosts, fleet.counts().network.sent,
                   fleet.counts().network.bytes, fleet.counts().events));
}

TEST_CASE("hosts that start together know each other at once, by one hello each way") {
  constexpr std::uint32_t kHosts = 20;
  Fleet fleet({.hosts = kHosts, .rules = OneRule(10, 1), .period = 10min, .lanes = Stream()}, 1);
  fleet.Run(After(500ms));
  for (std::uint32_t i = 0; i < kHosts; ++i) {
    const auto peers = fleet.host(i).exchange().Peers(fleet.host(i).clock().Local(fleet.now()));
    CHECK(std::ranges::count(peers, PeerState::kUp, &PeerStatus::state) == kHosts - 1);
  }
  // Each hello is answered. There is room for snapshots, but not for a hello more to each.
  CHECK(fleet.counts().network.sent < 3 * kHosts * (kHosts - 1));
}

TEST_CASE("a hundred hosts in one process agree") {
  AgreeAmong(kSanitized ? 20 : 100);
}

TEST_CASE("a thousand hosts in one process agree", "[.][long]") {
  AgreeAmong(1000);
}

// ---- What a client gets ----

TEST_CASE("whoever asks for more gets the rate of one bucket in the long run, wherever the queries go") {
  using Spread = Workload::Spread;
  for (const std::uint64_t seed : Seeds(10)) {
    CAPTURE(seed);
    Prng prng(seed);
    const auto hosts = static_cast<std::uint32_t>(2 + prng.Below(9));
    const Tokens burst = static_cast<double>(2 + prng.Below(50));
    const double rate = static_cast<double>(1 + prng.Below(5));
    const auto period = std::chrono::seconds(1 + prng.Below(5));
    Workload w{.rate = 3 * rate, .poisson = prng.Below(2) == 0, .from = After(20s)};
    if (prng.Below(2) == 0) w.on = 10s, w.off = 5s;
    if (prng.Below(2) == 0) w.flash_after = 600s, w.flash_lasts = 60s, w.flash_factor = 10;
    w.spread = static_cast<Spread>(prng.Below(4));
    CAPTURE(hosts, burst, rate, period.count(), w.poisson, w.off.count(), static_cast<int>(w.spread));
    Fleet fleet({.hosts = hosts,
                 .rules = OneRule(burst, rate),
                 .period = period,
                 .lanes = prng.Below(2) == 0 ? Stream() : Lossy(),
                 .started_within = period},
                seed);
    fleet.Add(w);
    const Duration length = kSanitized ? 30min : 2h;
    fleet.Run(w.from + length);
    const Account& account = fleet.ledger().accounts().front();
    const double served = static_cast<double>(account.served), most = burst + rate * Seconds(length);
    // What all hosts together can give away before they have heard of each other, once.
    const double ahead = hosts * (burst + 2 * rate * Seconds(period));
    CHECK(served <= most * 1.0002 + ahead);
    CHECK(served >= static_cast<double>(account.ideal) * 0.98);
  }
}

void ServeWhoKeepsTheRate(std::uint32_t hosts, Tokens burst, double rate, Duration period, bool in_phase,
                          Workload::Spread spread, std::uint64_t seed) {
  CAPTURE(seed, hosts, burst, rate, Seconds(period), in_phase, static_cast<int>(spread));
  FleetOptions options{
      .hosts = hosts, .rules = OneRule(burst, rate), .period = period, .lanes = Stream(), .started_within = period};
  if (in_phase) options = testing::InPhase(options, seed);
  Fleet fleet(options, seed);
  fleet.Add({.rate = 0.9 * rate, .from = After(20s), .until = After(20s + 60 * period), .spread = spread});
  fleet.Run(After(20s + 60 * period));
  const Account& account = fleet.ledger().accounts().front();
  CHECK(static_cast<double>(account.served) >= 0.995 * static_cast<double>(account.asked));
}

TEST_CASE("a client at nine tenths of its rate is served, however late reports are") {
  for (const std::uint64_t seed : Seeds(60)) {
    Prng prng(seed);
    const std::array<std::uint32_t, 4> hosts{2, 3, 10, 25};
    const std::array<Tokens, 5> bursts{2, 3, 5, 20, 100};
    const std::array<double, 3> rates{0.5, 2, 10};
    ServeWhoKeepsTheRate(hosts[prng.Below(4)], bursts[prng.Below(5)], rates[prng.Below(3)],
                         std::chrono::seconds(1 + prng.Below(5)), prng.Below(2) == 0,
                         prng.Below(2) == 0 ? Workload::Spread::kInTurns : Workload::Spread::kUniform, seed);
  }
}

TEST_CASE("a client at nine tenths of its rate is served: all of them", "[.][long]") {
  for (const std::uint32_t hosts : {2u, 3u, 5u, 10u, 20u, 50u}) {
    for (const Tokens burst : {2., 3., 5., 10., 20., 50., 100.}) {
      for (const double rate : {0.5, 1., 2., 10.}) {
        for (const Duration period : {1s, 2s, 5s}) {
          for (const bool in_phase : {false, true}) {
            for (const auto spread : {Workload::Spread::kInTurns, Workload::Spread::kUniform}) {
              ServeWhoKeepsTheRate(hosts, burst, rate, period, in_phase, spread, 1);
            }
          }
        }
      }
    }
  }
}

// ---- What hosts know ----

// Buckets that do not fill up during a story: whatever was lost or told twice shows in the level for ever.
std::shared_ptr<const Rulebook> DeepBuckets() {
  return OneRule(30'000, 0.001);
}

// What hosts' levels are short of, or have too much of, as a share of what was served elsewhere.
struct Debited {
  double owed = 0, under = 0, over = 0;
};

Debited Compare(Fleet& fleet) {
  Debited result;
  for (const Account& account : fleet.ledger().accounts()) {
    for (std::uint32_t host = 0; host < fleet.size(); ++host) {
      result.owed += static_cast<double>(account.served - account.served_on[host]);
    }
  }
  for (const LevelError& e : fleet.LevelErrors(true)) {
    const double error = std::round(e.level - e.truth);    // clocks that drift make a hundredth of a token
    (error > 0 ? result.under : result.over) += std::abs(error);
  }
  return result;
}

// Six hosts, 300 tags, 400 periods, 2 % lost, 2 % repeated, a restart and a partition of 40 periods.
Debited LoseAndRepair(Fault::Kind restart, std::uint64_t seed) {
  Fleet fleet({.hosts = 6, .rules = DeepBuckets(), .period = 5s, .lanes = Lossy(), .started_within = 5s}, seed);
  fleet.Add({.rate = 60, .poisson = true, .from = After(20s), .until = After(2000s), .tags = 300, .tag_exponent = 1});
  fleet.Inject({{.kind = restart, .at = After(500s), .lasts = 3s, .host = 2},
                {.kind = Fault::Kind::kSplit, .at = After(1000s), .lasts = 200s, .host = 4, .size = 2}});
  fleet.Run(After(2060s));
  CHECK(fleet.ledger().invented() == 0);
  return Compare(fleet);
}

TEST_CASE("loss, repetition, a restart and a long partition leave at most a hundredth of a percent unknown") {
  for (const Fault::Kind restart : {Fault::Kind::kKill, Fault::Kind::kWipe}) {
    Debited sum;
    for (const std::uint64_t seed : Seeds(10)) {
      CAPTURE(seed, static_cast<int>(restart));
      const Debited one = LoseAndRepair(restart, seed);
      // A host that is killed keeps its table. It charges a frame twice that it had heard, and that the donor of its
      // snapshot had neither heard nor missed yet.
      CHECK(one.over <= (restart == Fault::Kind::kKill ? 1e-4 * one.owed : 0));
      CHECK(one.under <= 1e-3 * one.owed);
      sum.owed += one.owed, sum.under += one.under, sum.over += one.over;
    }
    WARN(fmt::format("{}: under-debited {:.5f} % of {}", restart == Fault::Kind::kKill ? "kill" : "wipe",
                     100 * sum.under / sum.owed, sum.owed));
    CHECK(sum.under <= 1e-4 * sum.owed);
    CHECK(sum.over <= 1e-5 * sum.owed);
  }
}

// Moments in which a host of so many, which hear each other every 100 ms, reads reports; in a second, by milliseconds.
int Readings(std::size_t hosts) {
  FleetOptions options{
      .hosts = hosts, .rules = OneRule(1000, 1000), .period = 100ms, .lanes = {}, .started_within = 100ms};
  Fleet fleet(options, 1);
  fleet.Run(After(3s));
  int moments = 0;
  std::uint64_t before = fleet.host(0).exchange().Counts().received;
  for (int ms = 1; ms <= 1000; ++ms) {
    fleet.Run(After(3s + std::chrono::milliseconds(ms)));
    const std::uint64_t received = fleet.host(0).exchange().Counts().received;
    moments += received != before;
    before = received;
  }
  return moments;
}

TEST_CASE("hosts of a large fleet read reports some at a time, as daemons do") {
  CHECK(Readings(40) >= 250);    // 390 reports
  CHECK(Readings(80) <= 200);    // 790
}

TEST_CASE("after any one fault that has healed nothing is lost or counted twice, and all hosts agree") {
  for (const std::uint64_t seed : Seeds(60)) {
    Prng prng(seed);
    const auto hosts = static_cast<std::uint32_t>(2 + prng.Below(7));
    const auto period = std::chrono::seconds(1 + prng.Below(5));
    const bool lossy = prng.Below(2) == 0;
    FleetOptions options{.hosts = hosts,
                         .rules = OneRule(1000, 0.5),
                         .period = period,
                         .lanes = lossy ? Lossy() : Stream(),
                         .started_within = period};
    Fleet fleet(options, seed);
    fleet.Add({.rate = 10, .poisson = true, .from = After(20s), .until = After(300s), .tags = 5});
    const auto faults =
        RandomFaults({.hosts = hosts, .from = After(40s), .until = After(100s), .lasts_max = 100s}, prng);
    const Fault& fault = faults.front();
    CAPTURE(seed, hosts, period.count(), lossy, static_cast<int>(fault.kind), Seconds(fault.at - WorldTime{}),
            Seconds(fault.lasts), fault.host, fault.size);
    fleet.Inject(faults);
    fleet.Run(After(340s));
    CHECK(fleet.ledger().invented() == 0);
    const bool killed = fault.kind == Fault::Kind::kKill || fault.kind == Fault::Kind::kWipe;
    for (const Account& account : fleet.ledger().accounts()) {
      for (std::uint32_t i = 0; i < hosts; ++i) {
        if (killed && (lossy || i == fault.host)) continue;    // what it had published last may be gone with it
        CAPTURE(account.tag, i);
        CHECK(account.Missing(i) == 0);
      }
    }
    const auto errors = fleet.LevelErrors();
    INFO(Describe(errors));
    CHECK(errors.empty());
  }
}

TEST_CASE("hosts that no query comes to know what a client spends on all the others") {
  for (const std::uint64_t seed : Seeds(4)) {
    CAPTURE(seed);
    // Each host serves so little in a period that refill would pay for it, if it were all there is.
    Fleet fleet({.hosts = 16, .rules = OneRule(1000, 0.2), .period = 25s, .lanes = Stream(), .started_within = 25s},
                seed);
    fleet.Add({.rate = 6, .poisson = true, .from = After(60s), .until = After(60s + 30min), .tags = 10});
    fleet.Run(After(60s + 31min));
    const auto errors = fleet.LevelErrors();
    INFO(Describe(errors));
    CHECK(errors.empty());
  }
}

// ---- Everything at once ----

struct Soak {
  std::uint64_t frames = 0, queries = 0, events = 0;
};

// A day, or less, of rounds: load and faults, and then quiet enough to compare.
Soak Endure(std::uint32_t hosts, Duration length, std::uint64_t seed) {
  Prng prng(seed);
  const auto period = std::chrono::seconds(20 + prng.Below(11));
  const bool lossy = prng.Below(2) == 0;
  const Tokens burst = 300;
  const double rate = 0.05;
  CAPTURE(seed, hosts, period.count(), lossy);
  Fleet fleet({.hosts = hosts,
               .rules = OneRule(burst, rate),
               .period = period,
               .lanes = lossy ? Lossy() : Stream(),
               .started_within = period},
              seed);
  const Duration round = 2h, busy = 100min, calm = 10min;
  fleet.Add({.rate = 1.5,
             .poisson = true,
             .on = busy,
             .off = round - busy,
             .from = After(2min),
             .spread = prng.Below(2) == 0 ? Workload::Spread::kUniform : Workload::Spread::kZipf,
             .tags = 20,
             .tag_exponent = 1});
  double away = 0;    // seconds that hosts did not hear each other
  for (WorldTime start = After(2min); start < After(length); start += round) {
    const auto faults = RandomFaults({.count = 1 + prng.Below(6),
                                      .hosts = hosts,
                                      .from = start,
                                      .until = start + busy - 10min,
                                      .lasts_max = 200s,
                                      .one_by_one = true,
                                      .healed = 5 * period},
                                     prng);
    for (const Fault& fault : faults) away += Seconds(fault.lasts);
    fleet.Inject(faults);
    fleet.Run(start + busy + calm);
    CAPTURE(Seconds(fleet.now() - WorldTime{}));
    auto errors = fleet.LevelErrors();
    // Hits that come after a long cut find no account of refill wasted so long ago (waste.h), and are charged in full.
    const Tokens forgotten = 2 * rate * Seconds(period);
    std::erase_if(errors, [&](const LevelError& e) { return std::abs(e.level - e.truth) <= e.allowed + forgotten; });
    INFO(Describe(errors));
    CHECK(errors.empty());
  }
  CHECK(fleet.ledger().invented() == 0);
  for (const Account& account : fleet.ledger().accounts()) {
    CAPTURE(account.tag);
    const double served = static_cast<double>(account.served), ideal = static_cast<double>(account.ideal);
    const double most = burst + rate * Seconds(length);
    CHECK(served <= most * 1.0002 + hosts * (burst + 2 * rate * Seconds(period)) + hosts * rate * away);
    CHECK(served >= 0.98 * ideal);
  }
  const FleetCounts counts = fleet.counts();
  return {counts.network.sent, counts.queries, counts.events};
}

void EndureAll(std::uint32_t hosts, Duration length, std::uint64_t seeds) {
  Soak sum;
  for (const std::uint64_t seed : Seeds(seeds)) {
    const Soak one = Endure(hosts, length, seed);
    sum.frames += one.frames, sum.queries += one.queries, sum.events += one.events;
  }
  WARN(fmt::format("{} frames, {} queries, {} events", sum.frames, sum.queries, sum.events));
}

TEST_CASE("a morning of sixteen hosts among random faults breaks no property") {
  EndureAll(16, kSanitized ? 1h : 6h, 5);
}

TEST_CASE("a day of sixteen hosts among random faults breaks no property", "[.][long]") {
  EndureAll(16, 24h, 200);
}

}    // namespace
}    // namespace dthrottle::lab
