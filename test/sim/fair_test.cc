// Fair shares over all hosts: what the tags that are charged with one shared limit get of it (Rule::among = "level"),
// against the max-min division of their demands.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>
#include <span>
#include <string>

#include "capacity/divide.h"
#include "lab/fleet.h"
#include "test/support/host.h"
#include "test/support/sanitized.h"
#include "test/support/sites.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;
using lab::Workload;

constexpr double kRate = 1000;    // of the tenant, tokens/s

struct Demand {
  std::string tag;    // the first of `tags`
  std::size_t tags;
  double rate;    // of each
  double weight = 1;
  Workload::Spread spread = Workload::Spread::kUniform;
};

struct Case {
  std::string share;
  Duration period = 1s;
  std::vector<Demand> demands;
  std::size_t hosts = 16;
  Duration met = 2s;    // before anybody asks
  Duration lasts = 40s;    // what is measured, behind the first 40 s
  std::uint32_t owners = 0;    // of the tags, in each site; 0: a mesh
  std::uint32_t sites = 1;
};

// What tags get of their max-min share.
struct Shares {
  double used = 0;                         // of the limit
  std::map<std::string, double> worst;     // tag of a demand
  std::map<std::string, double> mean;
};

std::string RulesOf(const Case& its) {
  std::string rules = fmt::format("[[rule]]\nname = \"tenant\"\nmatch = \"acme\"\nburst = {0}\nrate = {0}.0\n"
                                  "share = \"{1}\"\namong = \"level\"\n",
                                  kRate, its.share);
  for (const Demand& demand : its.demands) {
    rules += fmt::format("[[rule]]\nname = \"{0}\"\nmatch = \"*/{0}*\"\nburst = 100000\nrate = 100000.0\n"
                         "share = \"{1}\"\nalso = [\"before /\"]\nweight = {2}\n",
                         demand.tag, its.share, demand.weight);
  }
  return rules;
}

Shares Measure(const Case& its, std::uint64_t seed) {
  constexpr Duration kWarm = 40s;
  lab::FleetOptions options;
  options.hosts = its.hosts, options.rules = Rules(RulesOf(its)), options.period = its.period;
  options.owners = OwnersOfSites(its.hosts, its.sites, its.owners);
  options.site_period = 2 * its.period;
  options.lanes = {.sites = its.sites, .between_sites = 65ms};
  lab::Fleet fleet(options, seed);
  std::vector<WeightedRequest> requests;
  for (const Demand& demand : its.demands) {
    Workload workload{.rate = demand.rate * static_cast<double>(demand.tags), .poisson = true};
    workload.from = lab::After(its.met), workload.spread = demand.spread;
    workload.tag = "acme/" + demand.tag, workload.tags = demand.tags;
    fleet.Add(workload);
    requests.insert(requests.end(), demand.tags, {demand.rate, demand.weight});
  }
  std::map<std::string, double> served, asked;
  fleet.Watch([&](const lab::Decision& decision) {
    if (decision.at < lab::After(kWarm)) return;
    ++asked[fleet.ledger().account(decision.tag).tag];
    served[fleet.ledger().account(decision.tag).tag] += decision.served;
  });
  fleet.Run(lab::After(kWarm + its.lasts));
  const double level = LevelOf(requests, kRate);
  Shares shares;
  for (const Demand& demand : its.demands) {
    double worst = 1e9, sum = 0;
    for (std::size_t i = 0; i < demand.tags; ++i) {
      const std::string tag = demand.tags == 1 ? "acme/" + demand.tag : fmt::format("acme/{}{}", demand.tag, i);
      const double fair = std::min(asked[tag], demand.weight * level * Seconds(its.lasts));
      worst = std::min(worst, served[tag] / fair), sum += served[tag] / fair;
      shares.used += served[tag] / (kRate * Seconds(its.lasts));
    }
    shares.worst[demand.tag] = worst;
    shares.mean[demand.tag] = sum / static_cast<double>(demand.tags);
  }
  return shares;
}

// The limit is used, and holds.
void CheckUsed(const Shares& shares) {
  CHECK(shares.used > 0.97);
  CHECK(shares.used < 1.01);
}

// In a mesh, and where four of the hosts own the tags: the others hear of their own tags alone.
struct Way {
  const char* share;
  std::uint32_t owners;
};
constexpr Way kWays[] = {{"debit", 4}, {"forecast", 0}, {"debit", 0}, {"forecast", 4}};
// A sanitizer looks at lines, and all are in the last two.
constexpr std::span<const Way> Ways() {
  return std::span(kWays).subspan(kSanitized ? 2 : 0);
}
constexpr std::uint32_t kSites = 2;

}    // namespace

TEST_CASE("a hog at a hundred times takes nothing of what 99 tags ask for within their share, on 16 hosts") {
  for (const auto& [share, owners] : Ways()) {
    const Shares shares = Measure({.share = share, .demands = {{"tag", 99, 8}, {"hog", 1, 1000}}, .owners = owners}, 1);
    CAPTURE(share, owners, shares.used, shares.worst.at("tag"), shares.mean.at("tag"), shares.mean.at("hog"));
    CHECK(shares.worst.at("tag") > 0.95);
    CHECK(shares.mean.at("hog") > 0.9);    // it has what the others leave
    CheckUsed(shares);
  }
}

TEST_CASE("where all ask for more than their share, a hog at a hundred times gets no more than the others") {
  for (const auto& [share, owners] : Ways()) {
    const Shares shares =
        Measure({.share = share, .demands = {{"tag", 99, 14}, {"hog", 1, 1400}}, .owners = owners}, 2);
    CAPTURE(share, owners, shares.used, shares.worst.at("tag"), shares.mean.at("tag"), shares.mean.at("hog"));
    CHECK(shares.mean.at("tag") > 0.97);
    CHECK(shares.worst.at("tag") > (owners == 0 ? 0.93 : 0.9));
    CHECK(shares.mean.at("hog") > 0.9);
    CHECK(shares.mean.at("hog") < 1.1);
    CheckUsed(shares);
  }
}

TEST_CASE("a hog on one host takes nothing from tags on the others, and weights count over all of them") {
  const Demand hog{"hog", 1, 1000, 1, Workload::Spread::kSticky};
  for (const auto& [share, owners] : Ways()) {
    const Shares shares =
        Measure({.share = share, .demands = {{"tag", 40, 9}, {"gold", 10, 70, 4}, hog}, .owners = owners}, 3);
    CAPTURE(share, owners, shares.used, shares.worst.at("tag"), shares.mean.at("gold"), shares.mean.at("hog"));
    CHECK(shares.worst.at("tag") > 0.95);
    CHECK(shares.mean.at("gold") > 0.95);    // four times what the hog gets
    CHECK(shares.mean.at("hog") > 0.9);
    CHECK(shares.mean.at("hog") < 1.3);
    CheckUsed(shares);
  }
}

TEST_CASE("a hog takes nothing of what tags ask for within their share at another site, or at the same") {
  for (const char* share : {"debit", "forecast"}) {
    for (const auto spread : {Workload::Spread::kUniform, Workload::Spread::kSticky}) {
      if (kSanitized && spread == Workload::Spread::kSticky) continue;
      const Demand hog{"hog", 1, 1000, 1, spread};
      const Shares shares = Measure(
          {.share = share, .demands = {{"tag", 40, 9}, {"gold", 10, 70, 4}, hog}, .owners = 2, .sites = kSites}, 5);
      CAPTURE(share, shares.used, shares.worst.at("tag"), shares.mean.at("gold"), shares.mean.at("hog"));
      CHECK(shares.worst.at("tag") > 0.95);
      CHECK(shares.mean.at("gold") > 0.95);
      CHECK(shares.mean.at("hog") > 0.9);
      CHECK(shares.mean.at("hog") < 1.3);
      CheckUsed(shares);
    }
  }
}

// There each host hears late of the first hits, so that no two hosts know the same bucket.
TEST_CASE("a hog on one host comes down to nearly its share in a fleet that starts under load") {
  const Demand hog{"hog", 1, 1000, 1, Workload::Spread::kSticky};
  for (std::uint64_t seed = 1; seed <= Fewer(5); ++seed) {
    const Case its{.share = "forecast", .demands = {{"tag", 40, 9}, {"gold", 10, 70, 4}, hog}, .met = 0s};
    const Shares shares = Measure(its, seed);
    CAPTURE(seed, shares.used, shares.worst.at("tag"), shares.mean.at("gold"), shares.mean.at("hog"));
    CHECK(shares.worst.at("tag") > 0.95);
    CHECK(shares.mean.at("gold") > 0.95);
    CHECK(shares.mean.at("hog") < 1.8);
    CHECK(shares.used > 0.97);
  }
}

// No two hosts find quite the same level, because their clocks and the moments of their reports differ.
TEST_CASE("after minutes no host has taken the parts of the others, so a hog and light tags keep to their shares") {
  if (kSanitized) return;    // it takes minutes there, and runs the lines that the others run
  for (const char* share : {"debit", "forecast"}) {
    const Shares shares = Measure({.share = share,
                                   .demands = {{"tag", 20, 75}, {"light", 5, 50, 0.02}, {"hog", 1, 2000}},
                                   .hosts = 3, .lasts = 240s}, 77);
    CAPTURE(share, shares.used, shares.mean.at("tag"), shares.mean.at("light"), shares.mean.at("hog"));
    CHECK(shares.worst.at("tag") > 0.97);
    CHECK(shares.mean.at("hog") < 1.05);
    CHECK(shares.mean.at("light") < 1.2);
    CheckUsed(shares);
  }
}

TEST_CASE("fair shares hold where reports come every five seconds") {
  for (const std::uint32_t owners : {0, 4}) {
    const Shares shares =
        Measure({.share = "debit", .period = 5s, .demands = {{"tag", 99, 8}, {"hog", 1, 1000}}, .owners = owners}, 4);
    CAPTURE(owners, shares.used, shares.worst.at("tag"), shares.mean.at("tag"), shares.mean.at("hog"));
    CHECK(shares.mean.at("tag") > 0.95);
    CheckUsed(shares);
  }
}

TEST_CASE("a hog, or twenty of them, take nothing from 3,000 tags") {
  for (const std::uint32_t owners : {0, 4}) {
    if (kSanitized && owners == 0) continue;
    for (const Demand& hogs : {Demand{"hog", 1, 1000}, Demand{"hog", 20, 100}}) {
      if (kSanitized && hogs.tags > 1) continue;
      Case its{.share = "forecast", .demands = {{"tag", 3000, 0.2}}, .owners = owners};
      its.demands.push_back(hogs);
      const Shares shares = Measure(its, 1);
      CAPTURE(owners, shares.used, shares.mean.at("tag"), shares.mean.at("hog"), shares.worst.at("hog"));
      CHECK(shares.mean.at("tag") > 0.99);
      CHECK(shares.worst.at("hog") > 0.9);
      CHECK(shares.mean.at("hog") < 1.05);
      CheckUsed(shares);
    }
  }
}

TEST_CASE("fair shares hold on 64 hosts whose tags eight of them own") {
  const Case its{
      .share = "forecast", .demands = {{"tag", 99, 8}, {"hog", 1, 1000}}, .hosts = kSanitized ? 20u : 64u, .owners = 8};
  const Shares shares = Measure(its, 1);
  CAPTURE(shares.used, shares.worst.at("tag"), shares.mean.at("tag"), shares.mean.at("hog"));
  CHECK(shares.worst.at("tag") > 0.95);
  CHECK(shares.mean.at("hog") > 0.9);
  CheckUsed(shares);
}

}    // namespace dthrottle::testing
