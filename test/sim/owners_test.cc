// Fleets in which a few hosts own all tags (protocol/owners.md), with the shipped core, against one bucket for all.
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <vector>

#include "bus/codec.h"
#include "lab/experiment.h"
#include "test/support/accuracy.h"
#include "test/support/sanitized.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;
using lab::After;

// ---- Accuracy ----

AccuracyOptions Owned(std::size_t hosts, double times) {
  AccuracyOptions options{.hosts = hosts, .owners = 4, .workload = Poisson(times)};
  options.lasts = 30s;
  options.settles = 8s;
  return options;
}

TEST_CASE("a limit that owners keep holds in every second, at twice the rate and at ten times") {
  for (const std::size_t hosts : {16, 64, 128}) {
    for (const double times : {2, 10}) {
      if (kSanitized && hosts > 16) continue;
      CAPTURE(hosts, times);
      const Accuracy a = MeasureAccuracy(Owned(hosts, times), 1);
      CHECK(a.over < 4);
      CHECK(a.under < 4);
      CHECK(std::abs(a.longer) < 1);
      CHECK(a.entries <= 1);
    }
  }
}

TEST_CASE("bursts are held by owners") {
  AccuracyOptions options = Owned(64, 2);
  options.workload = Bursty();
  const Accuracy a = MeasureAccuracy(options, 1);
  CHECK(a.over < 8);
  CHECK(a.under < 8);
}

TEST_CASE("a tag far from its limit is told of once a period both ways, and near it as soon as that matters") {
  struct Frames {
    double up, down;    // of one host, a second
  };
  const auto frames = [](double rate) -> Frames {
    lab::FleetOptions options;
    options.hosts = 32;
    options.owners = {"host-0", "host-1"};
    options.period = 1s;
    options.rules = Rules("[[rule]]\nname=\"default\"\nburst=128\nrate=128\nshare=\"forecast\"\n");
    lab::Fleet fleet(options, 1);
    lab::Workload workload{.rate = rate, .poisson = true};
    workload.tags = 100;
    workload.until = After(30s);
    fleet.Add(workload);
    const auto counted = [&] {
      Frames sum{};
      for (std::uint32_t host = 0; host < 32; ++host) {
        const ExchangeCounts counts = fleet.host(host).exchange().Counts();
        if (host >= 2) sum.up += static_cast<double>(counts.published) / 30 / 10;
        sum.down += static_cast<double>(counts.levels_sent) / 31 / 10;
      }
      return sum;
    };
    fleet.Run(After(20s));
    const Frames before = counted();
    fleet.Run(After(30s));
    const Frames after = counted();
    return {after.up - before.up, after.down - before.down};
  };
  const Frames far = frames(100 * 32), near = frames(100 * 192);    // 0.25 and 1.5 of each tag's rate
  CAPTURE(far.up, far.down, near.up, near.down);
  CHECK(far.up < 10);
  CHECK(far.down < 25);
  CHECK(near.up > 20);
  CHECK(near.down > 20);
}

TEST_CASE("a client within its rate is served by a fleet with owners as by one bucket") {
  for (const std::size_t hosts : {4, 64, 256}) {
    if (kSanitized && hosts > 64) continue;
    CAPTURE(hosts);
    const Accuracy a = MeasureAccuracy(Owned(hosts, 0.9), 1);
    CHECK(a.served > a.ideal - 0.5);
  }
}

TEST_CASE("a fleet file names its owners, which are hosts of the fleet") {
  const auto text = [](const std::string& owner) {
    return "[fleet]\nhosts=16\nduration=\"20s\"\n[network]\ndelay=\"10ms\"\n"
           "[peers]\nperiod=\"1s\"\nspread=\"owners\"\nowners=[\"host-0\",\"" + owner + "\"]\n"
           "[[rule]]\nname=\"all\"\nburst=100\nrate=100\nshare=\"forecast\"\n[[workload]]\nrate=200\n";
  };
  const lab::LoadedFleet fleet = lab::ParseFleet(text("host-1"), "fleet.toml");
  REQUIRE(fleet.ok());
  const lab::Outcome outcome = lab::Simulate(fleet.file, std::nullopt, 1);
  CHECK(outcome.measures.over < 4);
  CHECK(outcome.measures.under < 4);
  CHECK_FALSE(lab::ParseFleet(text("host-16"), "fleet.toml").ok());
}

// ---- Exactness ----

lab::FleetOptions FleetWith(std::size_t hosts, std::size_t owners) {
  lab::FleetOptions options;
  options.hosts = hosts;
  options.owners = OwnerNames(owners);
  options.rules = Rules("[[rule]]\nname=\"default\"\nburst=100\nrate=100\nshare=\"forecast\"\n");
  options.period = 1s;
  options.lanes = {.delay = 10ms};
  options.started_within = 1s;
  return options;
}

lab::Workload ManyTags(Duration from, Duration until) {
  lab::Workload workload = Poisson(5);
  workload.tags = 20;
  workload.from = After(from), workload.until = After(until);
  return workload;
}

// Tokens that the owner of each tag has not counted; negative: counted twice. By all owners, or by one.
std::int64_t Uncounted(const lab::Fleet& fleet, std::size_t owners, std::optional<std::uint32_t> only = {}) {
  const Owners all(OwnerNames(owners));
  std::int64_t uncounted = 0;
  for (const lab::Account& account : fleet.ledger().accounts()) {
    const std::string& owner = all.name(all.Of({account.tag, false}));
    const std::uint32_t host = lab::HostNumber(owner);
    if (!only || *only == host) uncounted += account.Missing(host);
  }
  return uncounted;
}

TEST_CASE("every hit is counted once by the owner of its tag, whatever the network does") {
  for (std::uint64_t seed = 1; seed <= testing::Fewer(3); ++seed) {
    CAPTURE(seed);
    lab::FleetOptions options = FleetWith(12, 3);
    options.lanes.lossy = true;
    options.lanes.loss = 0.1, options.lanes.duplication = 0.1, options.lanes.overtaken = 0.1;
    lab::Fleet fleet(options, seed);
    fleet.Add(ManyTags(10s, 40s));
    fleet.Run(After(60s));
    REQUIRE(fleet.counts().network.lost > 100);
    REQUIRE(fleet.counts().network.repeated > 100);
    CHECK(Uncounted(fleet, 3) == 0);
    CHECK(fleet.ledger().told_twice() == 0);
    CHECK(fleet.ledger().invented() == 0);
  }
}

// What an owner has counted is kept no longer by who said it.
TEST_CASE("hosts keep what an owner has not counted, and no more") {
  lab::Fleet fleet(FleetWith(6, 2), 1);
  fleet.Add(ManyTags(10s, 30s));
  lab::Fleet& f = fleet;
  f.Run(After(20s));
  f.network().filter = [](const lab::Parcel& parcel) { return parcel.to != 0 && parcel.from != 0; };
  f.Run(After(25s));
  CHECK(f.host(5).exchange().Counts().ring_frames >= 5);
  f.network().filter = nullptr;
  f.Run(After(40s));
  CHECK(f.host(5).exchange().Counts().ring_frames <= 2);
  CHECK(Uncounted(f, 2) == 0);
}

// What hosts served meanwhile is charged, and the refill of that time pays first.
TEST_CASE("an owner that is killed costs an interval and no count") {
  const std::uint64_t seeds = testing::Fewer(6);
  double longer = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    AccuracyOptions options = Owned(32, 2);
    options.owners = 1;
    options.lasts = 40s;
    options.before = [](lab::Fleet& fleet, lab::WorldTime begin) {
      fleet.Inject({{.kind = lab::Fault::Kind::kKill, .at = begin + 15s, .lasts = 3s, .host = 0}});
    };
    const Accuracy a = MeasureAccuracy(options, seed);
    CHECK(a.over + a.under < 10);
    CHECK(std::abs(a.longer) < 6);
    longer += a.longer / static_cast<double>(seeds);
  }
  if (seeds > 1) CHECK(std::abs(longer) < 4.5);
}

// What hosts serve meanwhile is kept in their frames, and the owner knows where in these it had come to.
TEST_CASE("an owner that is killed again and again counts once what every host served meanwhile") {
  for (std::uint64_t seed = 1; seed <= testing::Fewer(4); ++seed) {
    CAPTURE(seed);
    lab::Fleet fleet(FleetWith(12, 2), seed);
    fleet.Add(ManyTags(10s, 45s));
    for (const Duration at : {Duration(15s), Duration(18500ms), Duration(30s)}) {
      fleet.Inject({{.kind = lab::Fault::Kind::kKill, .at = After(at), .lasts = 3s, .host = 0}});
    }
    fleet.Run(After(60s));
    CHECK(Uncounted(fleet, 2, 0) == 0);    // the other owner has lost what this one had taken to tell it
    const ExchangeCounts counts = fleet.host(0).exchange().Counts();
    CHECK(counts.lost == 0);
    CHECK(counts.owners_dropped == 0);
    CHECK(counts.snapshots_taken == 11);    // for what hosts tell beside hits
  }
}

TEST_CASE("what hosts kept for an owner whose table is gone is said to be lost") {
  lab::Fleet fleet(FleetWith(12, 2), 1);
  fleet.Add(ManyTags(10s, 25s));
  fleet.Inject({{.kind = lab::Fault::Kind::kWipe, .at = After(15s), .lasts = 3s, .host = 0}});
  fleet.Run(After(40s));
  const std::uint64_t dropped = fleet.host(0).exchange().Counts().owners_dropped;
  CHECK(dropped >= 3 * 10);
}

TEST_CASE("hits that an owner could not hear for a while reach it when it is reached again") {
  for (const Duration lasts : {Duration(2s), Duration(20s)}) {    // with its connections, and with new ones
    CAPTURE(Seconds(lasts));
    lab::Fleet fleet(FleetWith(8, 2), 4);
    fleet.Add(ManyTags(10s, 40s));
    fleet.Inject({{.kind = lab::Fault::Kind::kSplit, .at = After(15s), .lasts = lasts, .host = 0}});
    fleet.Run(After(70s));
    CHECK(fleet.ledger().told_twice() == 0);
    CHECK(Uncounted(fleet, 2) == 0);
  }
}

// ---- Levels that are late or lost ----

// Four hosts, and the first owns all tags, which hardly refill.
lab::FleetOptions FourHosts(const char* share, Duration period) {
  lab::FleetOptions options = FleetWith(4, 1);
  options.rules = Rules(fmt::format("[[rule]]\nname=\"default\"\nburst=400\nrate=0.01\nshare=\"{}\"\n", share));
  options.period = period;
  return options;
}

// Queries that one host gets, one each `every`, and how many of them it serves.
struct Asked {
  std::uint32_t host;
  Duration from, until, every;
  std::uint64_t served = 0;
};
void AskEach(lab::Fleet& fleet, std::vector<Asked>& all) {
  for (Asked& asked : all) {
    for (Duration at = asked.from; at < asked.until; at += asked.every) {
      fleet.At(After(at), [&fleet, &asked] { asked.served += fleet.Ask(asked.host, "t"); });
    }
  }
}

// Nothing that the owner says to host 3 comes from then on, for a while.
void LoseLevels(lab::Fleet& fleet, Duration from, Duration until) {
  fleet.At(After(from), [&fleet] {
    fleet.network().filter = [](const lab::Parcel& parcel) { return parcel.from != 0 || parcel.to != 3; };
  });
  fleet.At(After(until), [&fleet] { fleet.network().filter = nullptr; });
}

TEST_CASE("a host that has not heard that others stopped asking serves what they left, some periods later") {
  lab::Fleet fleet(FourHosts("forecast", 500ms), 1);
  std::vector<Asked> asked = {{1, 10s, 15s, 35ms}, {2, 10s, 15s, 35ms}, {3, 10s, 23s, 370ms}, {3, 23s, 33s, 370ms}};
  AskEach(fleet, asked);
  LoseLevels(fleet, 15s, 20s);
  fleet.Run(After(33s));
  REQUIRE(asked[0].served + asked[1].served > 200);
  CHECK(asked[3].served == 28);
}

TEST_CASE("a host that has not heard what others served serves no more than they left, some periods later") {
  for (const char* const share : {"debit", "forecast"}) {
    CAPTURE(share);
    lab::Fleet fleet(FourHosts(share, 500ms), 1);
    std::vector<Asked> asked = {{1, 9s, 12s, 50ms}, {2, 11s, 12s, 50ms}, {3, 10s, 30s, 50ms}};
    AskEach(fleet, asked);
    LoseLevels(fleet, 11s, 14s);
    fleet.Run(After(30s));
    CHECK(asked[0].served + asked[1].served + asked[2].served <= 405);
  }
}

// ---- Owners that are farther away than a period ----

void FarAway(lab::Fleet& fleet) {
  fleet.network().options().delay = 75ms;    // a way, and a report goes out each 100 ms
}

TEST_CASE("hosts that an owner answers later than a period share one burst") {
  for (const char* const share : {"debit", "forecast"}) {
    CAPTURE(share);
    lab::Fleet fleet(FourHosts(share, 100ms), 1);
    FarAway(fleet);
    std::vector<Asked> asked = {{1, 10s, 40s, 100ms}, {2, 10s, 40s, 100ms}, {3, 10s, 40s, 100ms}};
    AskEach(fleet, asked);
    fleet.Run(After(40s));
    const std::uint64_t served = asked[0].served + asked[1].served + asked[2].served;
    CHECK(served >= 400);
    CHECK(served < 410);
  }
}

TEST_CASE("a client within its rate is served though an owner answers later than a period") {
  for (const Scheme scheme : {Scheme::kPlain, Scheme::kForecast}) {
    AccuracyOptions options = Owned(8, 0.9);
    options.scheme = scheme;
    options.period = 100ms;
    options.before = [](lab::Fleet& fleet, lab::WorldTime) { FarAway(fleet); };
    const Accuracy a = MeasureAccuracy(options, 1);
    CHECK(a.served > a.ideal - 0.5);
  }
}

TEST_CASE("what comes back is no one's loss though an owner answers later than a period") {
  AccuracyOptions options = Owned(8, 0.5);
  options.scheme = Scheme::kPlain;
  options.period = 100ms;
  options.before = [](lab::Fleet& fleet, lab::WorldTime begin) {
    FarAway(fleet);
    lab::Workload holds{.rate = 2};
    holds.from = begin;
    holds.cost = 30, holds.takes = lab::Workload::Takes::kHold, holds.lasts = 300ms, holds.released = 1;
    fleet.Add(holds);
  };
  const Accuracy a = MeasureAccuracy(options, 1);
  CAPTURE(a.served, a.ideal);
  CHECK(a.served > a.ideal - 0.5);
}

// ---- Clients that move ----

// A client asks for a burst at once, each time at another host; returns what it is served in `times` bursts.
std::uint64_t ServedToMover(bool with_announcements, Duration every, int times) {
  lab::Fleet fleet(FleetWith(64, 2), 1);
  Codec codec;
  Message message;
  if (!with_announcements) {
    fleet.network().filter = [&](const lab::Parcel& parcel) {
      const bool read = codec.Decode(*parcel.frame, message) == DecodeFault::kNone;
      return !read || message.kind != MessageKind::kNear;
    };
  }
  std::uint64_t served = 0;
  for (int i = 0; i < times; ++i) {
    fleet.At(After(10s + i * every), [&fleet, &served, i] {
      const auto host = static_cast<std::uint32_t>(2 + i % 62);
      for (int k = 0; k < 100; ++k) served += fleet.Ask(host, "mover");
    });
  }
  fleet.Run(After(10s + times * every));
  return served;
}

TEST_CASE("a client that moves to a fresh host each 0.1 s has one bucket, because owners announce low levels") {
  constexpr double kOneBucket = 100 + 60 * 0.1 * 100;
  const auto served = static_cast<double>(ServedToMover(true, 100ms, 60));
  CHECK(served < kOneBucket + 30);
  CHECK(served > 0.6 * kOneBucket);
  CHECK(static_cast<double>(ServedToMover(false, 100ms, 60)) > 2 * kOneBucket);    // max_unheard on each host
}

TEST_CASE("a client that moves and keeps to its limit is served") {
  for (const std::size_t hosts : {16, 64}) {
    for (const Duration stays : {Duration(100ms), Duration(1s)}) {
      if (kSanitized && hosts > 16) continue;
      CAPTURE(hosts, Seconds(stays));
      AccuracyOptions options = Owned(hosts, 0.9);
      options.workload.spread = lab::Workload::Spread::kGroup;
      options.workload.stays = stays;
      CHECK(MeasureAccuracy(options, 1).served > (stays < 1s ? 97 : 99));
    }
  }
}

// ---- Cost ----

TEST_CASE("what a host says and hears does not grow with the fleet") {
  const auto bytes_of = [](std::size_t hosts) {
    lab::FleetOptions options = FleetWith(hosts, 2);
    lab::Fleet fleet(options, 1);
    fleet.Run(After(15s));
    const std::uint64_t before = fleet.host(5).exchange().Counts().received_bytes;
    lab::Workload workload = Poisson(static_cast<double>(hosts) / 10);
    workload.tags = hosts * 4;    // each of them on few hosts
    workload.spread = lab::Workload::Spread::kSticky;
    workload.from = fleet.now(), workload.until = fleet.now() + 10s;
    fleet.Add(workload);
    fleet.Run(After(25s));
    return static_cast<double>(fleet.host(5).exchange().Counts().received_bytes - before);
  };
  CHECK(bytes_of(128) < 1.2 * bytes_of(64));
}

}    // namespace
}    // namespace dthrottle::testing
