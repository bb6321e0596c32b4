// Fleets of several sites, each with owners of its own (protocol/sites.md), with the shipped core, against one bucket
// for all.
#include <catch2/catch.hpp>

#include "lab/fleet.h"
#include "test/support/accuracy.h"
#include "test/support/sanitized.h"
#include "test/support/sites.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;
using lab::After;

constexpr std::size_t kHosts = 12;

lab::FleetOptions Sites(std::uint32_t sites, const std::string& rule, std::size_t hosts = kHosts) {
  lab::FleetOptions options;
  options.hosts = hosts;
  options.owners = OwnersOfSites(hosts, sites, 2);
  options.rules = Rules("[[rule]]\nname=\"default\"\nburst=100\nrate=100\n" + rule);
  options.ideal_rules = Rules("[[rule]]\nname=\"default\"\nburst=100\nrate=100\n");
  options.period = 1s;
  options.site_period = 2s;
  options.lanes = {.delay = 5ms, .sites = sites, .between_sites = 60ms};
  options.started_within = 1s;
  options.sample = 10ms;
  return options;
}

// Over and under in windows of a second, in %, of what one bucket for all serves.
Accuracy Held(const lab::FleetOptions& options, lab::Workload workload, Duration lasts, std::uint64_t seed,
              const std::vector<lab::Fault>& faults = {}) {
  lab::Fleet fleet(options, seed);
  workload.from = After(10s), workload.until = After(10s) + lasts;
  fleet.Add(workload);
  fleet.Inject(faults);
  fleet.Run(workload.until);
  std::vector<lab::Sample> samples = fleet.samples();
  samples.erase(samples.begin(), samples.begin() + std::min<std::ptrdiff_t>(18s / options.sample, std::ssize(samples)));
  AccuracyOptions by;
  return Compare(samples, Seconds(options.sample), by);
}

const std::string kForecast = "share=\"forecast\"\n", kDebit = "share=\"debit\"\n";

TEST_CASE("sites hold one limit together, and in the long run exactly") {
  for (const std::uint32_t sites : {2, 3}) {
    for (const double times : {2, 10}) {
      CAPTURE(sites, times);
      const Accuracy a = Held(Sites(sites, kForecast), Poisson(times), 40s, 1);
      CHECK(a.over < 2.5 * sites);
      CHECK(a.under < 2.5 * sites);
      CHECK(std::abs(a.longer) < 2);
    }
  }
}

TEST_CASE("a client within its rate is served by all sites together") {
  for (const std::string& share : {kForecast, kDebit}) {
    for (const Duration period : {Duration(1s), Duration(3s)}) {
      CAPTURE(share, Seconds(period));
      lab::FleetOptions options = Sites(3, share);
      options.site_period = period;
      const Accuracy a = Held(options, Poisson(0.9), 40s, 2);
      CHECK(a.served > a.ideal - 0.5);
    }
  }
}

// ---- Exactness ----

// With next to no refill the level says how much was counted.
lab::FleetOptions Counting(const std::string& share) {
  lab::FleetOptions options = Sites(2, share);
  options.rules = Rules("[[rule]]\nname=\"default\"\nburst=10000\nrate=0.001\n" + share);
  options.ideal_rules = nullptr;
  return options;
}

// Tokens that an owner has not counted of each tag, at the owner that has counted least and the one that has most.
std::pair<double, double> Uncounted(lab::Fleet& fleet) {
  double least = 0, most = 0;
  for (const lab::Account& account : fleet.ledger().accounts()) {
    for (std::uint32_t site = 0; site < 2; ++site) {
      const auto first = static_cast<std::uint32_t>(site * kHosts / 2);
      const Owners owners({lab::HostName(first), lab::HostName(first + 1)});
      const std::uint32_t owner = lab::HostNumber(owners.name(owners.Of({account.tag, false})));
      const double off = fleet.host(owner).Level(account.tag, fleet.now()) - account.Level(fleet.now());
      least = std::min(least, off), most = std::max(most, off);
    }
  }
  return {least, most};
}

lab::Workload Tags(double rate, Duration from, Duration until) {
  lab::Workload workload{.rate = rate, .poisson = true};
  workload.tags = 20;
  workload.from = After(from), workload.until = After(until);
  return workload;
}

TEST_CASE("every hit is counted once in each site, whatever the network does") {
  for (const std::string& share : {kForecast, kDebit}) {
    CAPTURE(share);
    lab::FleetOptions options = Counting(share);
    options.lanes.lossy = true;
    options.lanes.loss = 0.1, options.lanes.duplication = 0.1, options.lanes.overtaken = 0.1;
    lab::Fleet fleet(options, 3);
    fleet.Add(Tags(400, 10s, 40s));
    fleet.Run(After(60s));
    REQUIRE(fleet.counts().network.lost > 100);
    const auto [least, most] = Uncounted(fleet);
    CHECK(least > -0.1);
    CHECK(most < 0.1);
  }
}

TEST_CASE("hits of a site that could not be reached for a while are counted when it is reached again") {
  for (const Duration lasts : {Duration(3s), Duration(15s)}) {
    CAPTURE(Seconds(lasts));
    lab::Fleet fleet(Counting(kForecast), 4);
    fleet.Add(Tags(400, 10s, 40s));
    fleet.Inject({{.kind = lab::Fault::Kind::kSplit, .at = After(15s), .lasts = lasts, .host = 0, .size = kHosts / 2}});
    fleet.Run(After(70s));
    const auto [least, most] = Uncounted(fleet);
    CHECK(least > -0.1);
    CHECK(most < 0.1);
  }
}

TEST_CASE("a host of a site that starts anew counts what the others still keep") {
  lab::FleetOptions options = Counting(kForecast);
  options.starts.assign(kHosts, lab::WorldTime{});
  for (std::uint32_t host = kHosts / 2; host < kHosts; ++host) options.starts[host] = After(25s);
  lab::Fleet fleet(options, 5);
  lab::Workload workload = Tags(400, 10s, 24s);
  workload.spread = lab::Workload::Spread::kGroup;    // one host after the other
  workload.stays = 60s;
  fleet.Add(workload);
  fleet.Run(After(40s));
  const auto [least, most] = Uncounted(fleet);
  CHECK(least > -0.1);
  CHECK(most < 0.1);
}

TEST_CASE("an owner that is killed leaves at most the hits of one period and of its absence untold") {
  lab::Fleet fleet(Counting(kForecast), 6);
  fleet.Add(Tags(400, 10s, 40s));
  fleet.Inject({{.kind = lab::Fault::Kind::kKill, .at = After(25s), .lasts = 1s, .host = 0}});
  fleet.Run(After(60s));
  const auto [least, most] = Uncounted(fleet);
  CHECK(least > -30);                // of 600 of a tag: what hosts claim after a kill errs to this side
  CHECK(most < 3.5 * 400 / 20.0);    // 2 s and 1 s of 20/s
}

// ---- While a site is not heard ----

// Two sites do not hear each other for a while. Returns what they serve meanwhile, as a part of what one limit gives,
// and what they serve afterwards.
std::pair<double, double> ServedApart(const std::string& rule, double part) {
  lab::FleetOptions options = Sites(2, rule);
  options.site_part = part;
  lab::Fleet fleet(options, 7);
  lab::Workload workload = Poisson(4);
  workload.from = After(10s), workload.until = After(100s);
  fleet.Add(workload);
  fleet.Inject({{.kind = lab::Fault::Kind::kSplit, .at = After(30s), .lasts = 30s, .host = 0, .size = kHosts / 2}});
  fleet.Run(workload.until);
  const auto served = [&](Duration from, Duration until) {
    double sum = 0;
    for (const lab::Sample& sample : fleet.samples()) {
      const Duration at = sample.from.time_since_epoch();
      if (at >= from && at < until) sum += static_cast<double>(sample.served);
    }
    return sum / (kAccuracyRate * Seconds(until - from));
  };
  return {served(42s, 60s), served(70s, 100s)};
}

TEST_CASE("a limit goes on in full while a site is not heard, or with the site's part, as its rule says") {
  const auto [full, after_full] = ServedApart(kForecast, 0.5);
  CHECK(full > 1.9);
  CHECK(full < 2.1);
  for (const std::string& share : {kForecast, kDebit}) {
    CAPTURE(share);
    const auto [part, after_part] = ServedApart(share + "cut_off=\"part\"\n", 0.5);
    CHECK(part > 0.9);
    CHECK(part < 1.1);
    CHECK(after_part > 0.9);
    CHECK(after_part < 1.1);
  }
}

TEST_CASE("a site that is not heard leaves clients within the site's part alone") {
  lab::FleetOptions options = Sites(2, kForecast + "cut_off=\"part\"\n");
  options.site_part = 0.5;
  const Accuracy a = Held(options, Poisson(0.7), 60s, 8,
                          {{.kind = lab::Fault::Kind::kSplit, .at = After(20s), .lasts = 40s, .host = 0, .size = 6}});
  CHECK(a.served > 99.5);
}

}    // namespace
}    // namespace dthrottle::testing
