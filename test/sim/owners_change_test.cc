// Fleets whose list of owners changes while they run (bus/owners/changing.h): by whatever way it changes, each hit is
// counted once, by one owner. A limit that hardly refills shows it: the level at a tag's owner is the burst without all
// hits that were served.
#include <catch2/catch.hpp>

#include <algorithm>

#include "lab/fleet.h"
#include "limiter/inspect.h"
#include "test/support/accuracy.h"
#include "test/support/sanitized.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;
using lab::After;

using Names = std::vector<std::string>;

lab::FleetOptions FleetWith(std::size_t hosts, std::size_t owners, Duration period = 1s) {
  lab::FleetOptions options;
  options.hosts = hosts;
  options.owners = OwnerNames(owners);
  options.rules = Rules("[[rule]]\nname=\"default\"\nburst=1000000\nrate=0.1\nshare=\"forecast\"\n");
  options.period = period;
  options.lanes = {.delay = 10ms};
  options.started_within = 500ms;
  return options;
}

lab::Workload ManyTags(Duration from, Duration until, double rate = 200) {
  lab::Workload workload = Poisson(rate / 100);
  workload.tags = 40;
  workload.from = After(from), workload.until = After(until);
  return workload;
}

constexpr double kHitsASecond = 200;    // of all hosts

// The largest error of a tag's level at its owner, in tokens; the fleet has been at rest.
double WorstLevel(lab::Fleet& fleet, const Names& owners) {
  const Owners all(owners);
  double worst = 0;
  for (const lab::Account& account : fleet.ledger().accounts()) {
    const std::uint32_t owner = lab::HostNumber(all.name(all.Of({account.tag, false})));
    const double error = fleet.host(owner).Level(account.tag, fleet.now()) - account.Level(fleet.now());
    worst = std::max(worst, std::abs(error));
  }
  return worst;
}

bool InForce(lab::Fleet& fleet, const Names& owners, std::size_t hosts) {
  Names sorted = owners;
  std::sort(sorted.begin(), sorted.end());
  for (std::uint32_t i = 0; i < hosts; ++i) {
    if (fleet.host(i).exchange().owners()->names() != sorted) return false;
  }
  return true;
}

// Each host reads its settings anew, one after the other.
void ReloadAll(lab::Fleet& fleet, lab::WorldTime at, const Names& owners, std::size_t hosts, Duration apart) {
  for (std::uint32_t i = 0; i < hosts; ++i) {
    fleet.At(at + i * apart, [&fleet, i, owners] { fleet.SetOwners(i, owners); });
  }
}

TEST_CASE("an owner joins and another leaves, and each hit is counted once") {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    CAPTURE(seed);
    lab::Fleet fleet(FleetWith(8, 2), seed);
    fleet.Add(ManyTags(10s, 50s));
    const Names three = {"host-0", "host-1", "host-5"}, other = {"host-1", "host-5"};
    ReloadAll(fleet, After(15s), three, 8, 300ms);
    ReloadAll(fleet, After(30s), other, 8, 300ms);
    fleet.Run(After(28s));
    CHECK(InForce(fleet, three, 8));
    fleet.Run(After(65s));
    CHECK(InForce(fleet, other, 8));
    CHECK(WorstLevel(fleet, other) < 0.5);
    CHECK(fleet.ledger().told_twice() == 0);
  }
}

// More than half of it is used, so every host hears of that, as far as a quarter of what is left.
TEST_CASE("what was counted of a quota goes along when an owner joins and another leaves") {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    CAPTURE(seed);
    lab::FleetOptions options = FleetWith(8, 2);
    options.rules = Rules("[[rule]]\nname=\"default\"\nburst=1000\nrate=1000\nquota=100\n");
    lab::Fleet fleet(options, seed);
    lab::Workload workload = ManyTags(10s, 50s, 80);    // some 80 of each tag
    fleet.Add(workload);
    ReloadAll(fleet, After(20s), {"host-0", "host-1", "host-5"}, 8, 300ms);
    ReloadAll(fleet, After(35s), {"host-1", "host-5"}, 8, 300ms);
    fleet.Run(After(60s));
    std::size_t tags = 0;
    for (const lab::Account& account : fleet.ledger().accounts()) {
      CAPTURE(account.tag, account.spent_max);
      if (account.spent_max < 60) continue;
      ++tags;
      CHECK(account.spent_max <= 101);
      for (std::uint32_t i = 0; i < 8; ++i) {
        lab::SimHost& host = fleet.host(i);
        const QuotaStanding its = *Inspect(host.limiter(), {{account.tag, false}}, host.clock().Local(fleet.now())).quota;
        CHECK(its.used <= account.spent_max);
        CHECK(its.left() <= (100 - std::min<std::uint64_t>(account.spent_max, 100)) * 4 / 3 + 2);
      }
    }
    CHECK(tags > 20);
  }
}

TEST_CASE("the first hits of a tag, served by a host while it becomes the tag's owner, count once") {
  const auto before = GENERATE(0ms, 20ms, 100ms, 250ms);
  CAPTURE(before.count());
  lab::Fleet fleet(FleetWith(4, 2, 200ms), 1);
  ReloadAll(fleet, After(10s), {"host-0", "host-2"}, 4, 0ms);
  fleet.At(After(10s) - before, [&] {
    for (int i = 0; i < 40; ++i) fleet.Ask(2, "new-" + std::to_string(i), 1 + static_cast<Cost>(i));
  });
  fleet.Run(After(20s));
  CHECK(InForce(fleet, {"host-0", "host-2"}, 4));
  CHECK(WorstLevel(fleet, {"host-0", "host-2"}) < 0.5);
}

// A random host joins or leaves, or one takes the place of another.
Names Changed(Names owners, std::size_t hosts, Prng& prng) {
  Names others;
  for (const std::string& name : OwnerNames(hosts)) {
    if (std::find(owners.begin(), owners.end(), name) == owners.end()) others.push_back(name);
  }
  const std::uint64_t kind = prng.Below(3);
  const bool leaves = kind != 0 && owners.size() > 1, joins = (kind != 1 || !leaves) && !others.empty();
  if (leaves) owners.erase(owners.begin() + static_cast<std::ptrdiff_t>(prng.Below(owners.size())));
  if (joins) owners.push_back(others[prng.Below(others.size())]);
  return owners;
}

// Every change is told to all hosts in a random order, by a reload of each.
Names ChangeAgainAndAgain(lab::Fleet& fleet, std::size_t changes, std::size_t hosts, Duration every, Prng& prng) {
  Names owners = OwnerNames(2);
  for (std::size_t i = 0; i < changes; ++i) {
    owners = Changed(owners, hosts, prng);
    const lab::WorldTime at = After(10s) + static_cast<Duration::rep>(i) * every;
    for (std::uint32_t host = 0; host < hosts; ++host) {
      const Duration later(static_cast<Duration::rep>(prng.Below(static_cast<std::uint64_t>((every / 3).count()))));
      fleet.At(at + later, [&fleet, host, owners] { fleet.SetOwners(host, owners); });
    }
  }
  return owners;
}

TEST_CASE("no hit is lost or counted twice over a thousand joins and leaves, on a network that loses and repeats") {
  constexpr std::size_t kHosts = 8;
  const std::size_t changes = kSanitized ? 50 : 1300;
  constexpr Duration kEvery = 1500ms;
  lab::FleetOptions options = FleetWith(kHosts, 2, 200ms);
  options.lanes.lossy = true;
  options.lanes.loss = 0.02, options.lanes.duplication = 0.02, options.lanes.overtaken = 0.02;
  lab::Fleet fleet(options, 1);
  const Duration end = 10s + static_cast<Duration::rep>(changes) * kEvery;
  fleet.Add(ManyTags(5s, end, 50));
  Prng prng(7);
  const Names owners = ChangeAgainAndAgain(fleet, changes, kHosts, kEvery, prng);
  fleet.Run(After(end + 20s));
  CHECK(InForce(fleet, owners, kHosts));
  std::uint64_t served = 0, made = 0;
  for (const lab::Account& account : fleet.ledger().accounts()) served += account.served;
  for (std::uint32_t i = 0; i < kHosts; ++i) made = std::max(made, fleet.host(i).exchange().Counts().owners_number);
  std::uint64_t dropped = 0, lost = 0, snapshots = 0;
  for (std::uint32_t i = 0; i < kHosts; ++i) {
    const ExchangeCounts counts = fleet.host(i).exchange().Counts();
    dropped += counts.owners_dropped, lost += counts.lost, snapshots += counts.snapshots_taken;
  }
  CAPTURE(dropped, lost, snapshots);
  CHECK(served > 10 * changes);
  CHECK(made > changes * 3 / 4);    // some come while another is under way, and are made with the next
  CHECK(WorstLevel(fleet, owners) < 0.5);
}

// Levels at the owners against all hits that were served, in tokens: below zero are hits that count twice, above zero
// such that are lost.
struct Errors {
  double doubled = 0, lost = 0;
};

Errors ErrorsOf(lab::Fleet& fleet, const Names& owners) {
  const Owners all(owners);
  Errors errors;
  for (const lab::Account& account : fleet.ledger().accounts()) {
    const std::uint32_t owner = lab::HostNumber(all.name(all.Of({account.tag, false})));
    const double error = fleet.host(owner).Level(account.tag, fleet.now()) - account.Level(fleet.now());
    (error < 0 ? errors.doubled : errors.lost) += std::abs(error);
  }
  return errors;
}

ExchangeCounts SumOf(lab::Fleet& fleet, std::size_t hosts) {
  ExchangeCounts sum;
  for (std::uint32_t i = 0; i < hosts; ++i) {
    if (!fleet.host(i).running()) continue;
    const ExchangeCounts counts = fleet.host(i).exchange().Counts();
    sum.owners_conflicts += counts.owners_conflicts, sum.owners_missed += counts.owners_missed;
    sum.owners_dropped += counts.owners_dropped, sum.owners_awaited += counts.owners_awaited;
    sum.owners_giving += counts.owners_giving, sum.owners_closing += counts.owners_closing;
    sum.owners_differ += counts.owners_differ;
  }
  return sum;
}

// Hosts that own nothing come and go, each for a moment in every round, while owners join and leave. Queries go to hosts
// that are there, and to one that is about to be killed only if `asked_until_killed`.
struct Churn {
  static constexpr std::uint32_t kHosts = 100, kOwnersMost = 12;
  static constexpr Duration kRound = 14s, kQuiet = 3s;    // before a host is killed: two periods, and the way

  Churn(std::size_t rounds, bool asked_until_killed)
      : fleet(FleetWith(kHosts, 2), 1), end(10s + static_cast<Duration::rep>(rounds) * kRound) {
    for (std::size_t round = 0; round < rounds; ++round) {
      const lab::WorldTime from = After(10s + static_cast<Duration::rep>(round) * kRound);
      for (std::uint32_t host = kOwnersMost; host < kHosts; ++host) {
        const lab::WorldTime kill = from + kQuiet + Within(6s);
        const Duration away = 100ms + Within(4s);
        fleet.At(asked_until_killed ? kill : kill - kQuiet, [this, host] { asked[host] = false; });
        fleet.Inject({{.kind = lab::Fault::Kind::kKill, .at = kill, .lasts = away, .host = host}});
        fleet.At(kill + away + 1ms, [this, host] {
          asked[host] = true;
          lost_hits += fleet.host(host).exchange().Counts().owners_lost_hits;
        });
        ++came;
      }
      for (int change = 0; change < 4; ++change) {
        owners = Changed(owners, kOwnersMost, prng);
        for (std::uint32_t host = 0; host < kHosts; ++host) {
          fleet.At(from + change * 3s + Within(1s), [this, host, list = owners] { fleet.SetOwners(host, list); });
        }
        ++came;
      }
    }
    fleet.At(After(5s), [this] { Ask(); });
    fleet.Run(After(end + 20s));
  }

  Duration Within(Duration most) {
    return Duration(static_cast<Duration::rep>(prng.Below(static_cast<std::uint64_t>(most.count()))));
  }

  // Two hundred queries a second, of 40 tags.
  void Ask() {
    const auto host = static_cast<std::uint32_t>(prng.Below(kHosts));
    if (asked[host]) served += fleet.Ask(host, "client" + std::to_string(prng.Below(40)));
    if (fleet.now() < After(end)) fleet.At(fleet.now() + 5ms, [this] { Ask(); });
  }

  Prng prng{5};
  lab::Fleet fleet;
  Duration end;
  Names owners = OwnerNames(2);
  std::vector<bool> asked = std::vector<bool>(kHosts, true);
  std::size_t came = 0, served = 0;
  std::uint64_t lost_hits = 0;    // as hosts say after they were killed
};

TEST_CASE("no hit is lost or counted twice while hosts come and go a thousand times, and owners as well") {
  const std::size_t rounds = kSanitized ? 1 : 11;
  Churn churn(rounds, false);
  CHECK(InForce(churn.fleet, churn.owners, Churn::kHosts));
  CHECK(churn.came > 90 * rounds);
  CHECK(churn.served > 1000 * rounds);
  const Errors errors = ErrorsOf(churn.fleet, churn.owners);
  CHECK(errors.doubled < 0.5);
  CHECK(errors.lost < 0.5);
  CHECK(churn.lost_hits == 0);
}

// A kill -9 loses the ring, and so what was on its way: a little of what one host serves in the time of a report. What
// an owner has counted in the last moment before it, and not said yet, the host says is lost as well.
TEST_CASE("hosts that are killed while they serve cost what was on its way, and no hit counts twice") {
  const std::size_t rounds = kSanitized ? 1 : 11;
  Churn churn(rounds, true);
  CHECK(InForce(churn.fleet, churn.owners, Churn::kHosts));
  const Errors errors = ErrorsOf(churn.fleet, churn.owners);
  CHECK(errors.doubled < 0.5);
  CHECK(errors.lost < 0.2 * static_cast<double>(churn.came));
  CHECK(static_cast<double>(churn.lost_hits) > errors.lost - 0.5);
  CHECK(static_cast<double>(churn.lost_hits) < 2 * errors.lost + 0.1 * static_cast<double>(churn.came));
  WARN("killed hosts lost " << errors.lost << " hits and said " << churn.lost_hits << ", of " << churn.served);
}

TEST_CASE("of two owners that are told of other lists at once the one proposes its list after the other") {
  const auto apart = GENERATE(0ms, 3ms, 10ms, 25ms, 60ms, 150ms);
  const bool reversed = GENERATE(false, true);
  CAPTURE(apart.count(), reversed);
  lab::Fleet fleet(FleetWith(8, 2), 3);
  fleet.Add(ManyTags(5s, 30s));
  for (std::uint32_t i = 2; i < 8; ++i) {
    fleet.At(After(9s), [&fleet, i] { fleet.SetOwners(i, OwnerNames(4)); });
  }
  const Names one = {"host-0", "host-1", "host-2"}, other = {"host-0", "host-1", "host-3"};
  fleet.At(After(20s), [&] { fleet.SetOwners(reversed ? 1 : 0, one); });
  fleet.At(After(20s) + apart, [&] { fleet.SetOwners(reversed ? 0 : 1, other); });
  fleet.Run(After(45s));
  const ExchangeCounts counts = SumOf(fleet, 8);
  const bool first_was_last = InForce(fleet, one, 8);
  CHECK((first_was_last || InForce(fleet, other, 8)));
  CHECK(counts.owners_conflicts == 0);
  CHECK(counts.owners_missed == 0);
  CHECK(counts.owners_awaited + counts.owners_giving + counts.owners_closing == 0);
  CHECK(counts.owners_differ > 0);
  CHECK(WorstLevel(fleet, first_was_last ? one : other) < 0.5);
}

TEST_CASE("of two lists of owners that could not hear each other the greater counts, and nothing waits for ever") {
  const std::uint64_t seed = GENERATE(1u, 2u, 3u);
  CAPTURE(seed);
  lab::FleetOptions options = FleetWith(8, 3);
  options.owners = {"host-1", "host-2", "host-5"};
  lab::Fleet fleet(options, seed);
  fleet.Add(ManyTags(5s, 50s));
  for (const std::uint32_t i : {0u, 3u, 4u, 6u, 7u}) {
    fleet.At(After(9s), [&fleet, i] { fleet.SetOwners(i, OwnerNames(8)); });
  }
  fleet.Inject({{.kind = lab::Fault::Kind::kSplit, .at = After(18s), .lasts = 9s, .host = 4, .size = 4}});
  fleet.At(After(22s), [&] { fleet.SetOwners(1, {"host-1", "host-2", "host-3"}); });
  fleet.At(After(22s), [&] { fleet.SetOwners(5, {"host-2", "host-5", "host-6"}); });
  fleet.Run(After(75s));
  const Names owners = fleet.host(0).exchange().owners()->names();
  CHECK(InForce(fleet, owners, 8));
  const ExchangeCounts counts = SumOf(fleet, 8);
  CHECK(counts.owners_conflicts > 0);
  CHECK(counts.owners_awaited + counts.owners_giving + counts.owners_closing == 0);
  // What the halves could not tell each other is given up, and counted; hosts claim what they foretell.
  const Errors errors = ErrorsOf(fleet, owners);
  CHECK(errors.doubled < 0.1 * kHitsASecond);
  CHECK(errors.lost < 4.5 * kHitsASecond);    // the lesser half of 9 s
  CHECK(counts.owners_dropped > 0);
}

TEST_CASE("a list that changes back while it changes counts each hit once") {
  const auto later = GENERATE(5ms, 40ms, 200ms, 700ms);
  CAPTURE(later.count());
  lab::Fleet fleet(FleetWith(8, 2), 4);
  fleet.Add(ManyTags(5s, 40s));
  const Names ours = {"host-0", "host-1"}, other = {"host-0", "host-5"};
  ReloadAll(fleet, After(20s), other, 8, 0ms);
  ReloadAll(fleet, After(20s) + later, ours, 8, 0ms);
  fleet.Run(After(55s));
  const ExchangeCounts counts = SumOf(fleet, 8);
  CHECK(counts.owners_awaited + counts.owners_giving + counts.owners_closing == 0);
  const Names owners = fleet.host(0).exchange().owners()->names();
  CHECK(InForce(fleet, owners, 8));
  CHECK(counts.owners_missed == 0);
  CHECK(WorstLevel(fleet, owners) < 0.5);
}

TEST_CASE("an owner that is killed while it hands tags over costs what it alone knew, and nothing waits for it") {
  const auto later = GENERATE(1ms, 12ms, 22ms, 35ms, 60ms, 120ms, 400ms);
  CAPTURE(later.count());
  lab::Fleet fleet(FleetWith(8, 2), 6);
  fleet.Add(ManyTags(5s, 40s));
  const Names others = {"host-0", "host-5"};
  fleet.Inject({{.kind = lab::Fault::Kind::kKill, .at = After(20s) + later, .lasts = 100s, .host = 1}});
  fleet.At(After(20s), [&] { fleet.SetOwners(0, others); });
  for (std::uint32_t i = 2; i < 8; ++i) fleet.At(After(20s), [&fleet, i, others] { fleet.SetOwners(i, others); });
  fleet.Run(After(55s));
  const ExchangeCounts counts = SumOf(fleet, 8);
  CHECK(counts.owners_awaited + counts.owners_giving + counts.owners_closing == 0);
  for (const std::uint32_t i : {0u, 2u, 3u, 4u, 5u, 6u, 7u}) {
    CHECK(fleet.host(i).exchange().owners()->names() == others);
  }
  // What it had counted and told nobody is lost, within two periods, and counted; hosts claim what they foretell.
  const Errors errors = ErrorsOf(fleet, others);
  CAPTURE(errors.lost, errors.doubled, counts.owners_missed, counts.owners_dropped);
  CHECK(errors.doubled < (counts.owners_missed > 0 ? 0.2 * kHitsASecond : 1));
  CHECK(errors.lost < (counts.owners_missed > 0 ? 2. : 0.2) * kHitsASecond);
}

TEST_CASE("an owner that was killed is replaced within a second of the list without it") {
  lab::Fleet fleet(FleetWith(8, 2), 5);
  fleet.Add(ManyTags(5s, 50s));
  fleet.Inject({{.kind = lab::Fault::Kind::kKill, .at = After(20s), .lasts = 100s, .host = 0}});
  const Names others = {"host-1", "host-5"};
  fleet.At(After(25s), [&] {
    for (std::uint32_t i = 1; i < 8; ++i) fleet.SetOwners(i, others);
  });
  fleet.Run(After(26s));
  for (std::uint32_t i = 1; i < 8; ++i) {
    CHECK(fleet.host(i).exchange().owners()->names() == others);
    CHECK(fleet.host(i).exchange().Counts().owners_awaited == 0);
  }
}

// The only owner is gone for good, so nobody in force is left who could propose another list.
TEST_CASE("a host that the settings name in place of all owners takes over once none of them is heard") {
  const Names owner = {"host-1"};
  lab::Fleet fleet(FleetWith(8, 1), 9);
  fleet.Add(ManyTags(5s, 60s));
  fleet.Inject({{.kind = lab::Fault::Kind::kKill, .at = After(20s), .lasts = 1000s, .host = 0}});
  for (std::uint32_t i = 1; i < 8; ++i) {
    fleet.At(After(21s) + i * 500ms, [&fleet, i, owner] { fleet.SetOwners(i, owner); });
  }
  fleet.Run(After(45s));
  for (std::uint32_t i = 1; i < 8; ++i) {
    CAPTURE(i);
    CHECK(fleet.host(i).exchange().owners()->names() == owner);
    CHECK(fleet.host(i).exchange().Counts().owners_awaited == 0);
  }
  // What the hosts did not know of each other is forgotten; from then on each hit counts once.
  const Errors then = ErrorsOf(fleet, owner);
  fleet.Run(After(75s));
  const Errors errors = ErrorsOf(fleet, owner);
  CAPTURE(then.lost, errors.lost);
  CHECK(errors.lost < then.lost + 0.1 * kHitsASecond);
  CHECK(errors.doubled < 0.1 * kHitsASecond);
}

TEST_CASE("a host that the settings name in place of all owners does not take over from one that is heard") {
  lab::Fleet fleet(FleetWith(8, 2), 9);
  fleet.Add(ManyTags(5s, 40s));
  fleet.At(After(15s), [&] { fleet.SetOwners(5, {"host-5"}); });
  fleet.Run(After(40s));
  CHECK(InForce(fleet, {"host-0", "host-1"}, 8));
}

}    // namespace
}    // namespace dthrottle::testing
