#include "share/capacity/dividing.h"

#include <catch2/catch.hpp>

#include <map>

#include "base/prng.h"
#include "base/state.h"
#include "rule/rulebook.h"
#include "share/capacity/part_table.h"
#include "share/ways.h"
#include "test/support/host.h"
#include "test/support/parts.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::Host;
using testing::Rules;

constexpr Instant kNow = FromNanoseconds(5'000'000'000);
constexpr const char* kDivided =
    "[[rule]]\nname=\"login\"\nmatch=\"login:*\"\nburst=100\nrate=100\nshare=\"capacity\"\n"
    "[[rule]]\nname=\"default\"\nburst=10\nrate=1\n";
constexpr Parts kQuarter = kWhole / 4;

int Served(Host& host, std::string_view tag, int queries, Instant now) {
  int served = 0;
  for (int i = 0; i < queries; ++i) served += host.Serves(tag, now);
  return served;
}

CapacityKey KeyOf(Host& host, std::string_view tag) {
  const Limit& limit = host.limiter->rules().limit(host.limiter->rules().Find(tag).value());
  return host.limiter->ways().Get<Division>().KeyOf({tag, false}, limit);
}

void SetPart(Host& host, std::string_view tag, double part, Instant now) {
  const CapacityKey key = KeyOf(host, tag);
  Division& division = host.limiter->ways().Get<Division>();
  division.ChangeParts([&](PartTable& parts) {
    if (parts.size() == 0) parts.Reset(10, {1, 2});
    parts.Add(key);
  });
  division.SetPart({tag, false}, key, part, now);
}

// ---- Parts ----

TEST_CASE("a part of a limit has that part of its burst and of its rate") {
  const Shape whole = Shape::From(100, 10), part = PartOf(whole, 0.25);
  CHECK(part.depth - whole.depth <= part.interval / 1'000'000);
  CHECK(part.depth / part.interval == 25);
  CHECK(PartOf(whole, PartOfWhole(kWhole / 10)).depth / PartOf(whole, PartOfWhole(kWhole / 10)).interval == 10);
  CHECK(part.interval == 4 * whole.interval);
  CHECK(PartOf(whole, 1) == whole);
  const Shape small = PartOf(whole, 0.001);    // a tenth of a token
  CHECK(small.depth == small.interval);
  CHECK(PartOf(whole, 1e-30).interval > ToTicks(Duration(365 * 24h)));
  Bucket bucket;
  CHECK_FALSE(bucket.Take(PartOf(whole, 0), 1, kNow));    // nothing is nothing
}

TEST_CASE("a table of parts finds what was added and not removed") {
  PartTable table;
  CHECK(table.Find({1, 1}) == nullptr);
  table.Reset(100, {1, 2});
  std::map<CapacityKey, double> model;
  Prng prng(7);
  for (int i = 0; i < 20'000; ++i) {
    const CapacityKey key{prng.Below(3), prng.Below(80)};
    if (prng.Below(2) == 0) {
      table.Remove(key);
      model.erase(key);
    } else if (PartTable::Entry* const entry = table.Add(key)) {
      model[key] = entry->part = static_cast<double>(prng.Below(1000)) / 1000;
    } else {
      REQUIRE(model.size() == 100);
    }
    REQUIRE(table.size() == model.size());
    const CapacityKey asked{prng.Below(3), prng.Below(80)};
    const auto known = model.find(asked);
    const PartTable::Entry* const found = table.Find(asked);
    REQUIRE((found != nullptr) == (known != model.end()));
    if (found != nullptr) REQUIRE(found->part == known->second);
  }
}

TEST_CASE("a divided limit serves the usual part, and the reserve once nothing is lent") {
  Host host(kDivided);
  CHECK(Served(host, "login:a", 200, kNow) == 100);    // without others, all of it
  testing::LendParts(host, 0.25, 0.1, kNow + 10s);
  CHECK(Served(host, "login:b", 200, kNow) == 25);
  CHECK(Served(host, "login:b", 200, kNow + 1s) == 25);
  CHECK(Served(host, "other", 200, kNow) == 10);    // under a rule that is not divided
  CHECK(Served(host, "login:c", 200, kNow + 10s) == 10);
  CHECK(Served(host, "login:c", 200, kNow + 10500ms) == 5);
}

TEST_CASE("a host that wakes finds its parts over at the first query") {
  Host host(kDivided);
  Duration suspended{};
  host.limiter->ways().Get<Division>().ReadBootClock([&] { return OnBootClock(kNow) + suspended; });
  testing::LendParts(host, 0.25, 0.1, kNow + 10s);
  CHECK(Served(host, "login:a", 200, kNow) == 25);
  suspended = 10s - 1ns;
  CHECK(Served(host, "login:b", 200, kNow) == 25);
  suspended = 10s;
  CHECK(Served(host, "login:c", 200, kNow) == 10);
}

TEST_CASE("a part below a token serves one at a time") {
  Host host("[[rule]]\nburst=4\nrate=4\nshare=\"capacity\"\n");
  testing::LendParts(host, 0.05);
  CHECK(Served(host, "a", 10, kNow) == 1);
  CHECK(Served(host, "a", 10, kNow + 4900ms) == 0);
  CHECK(Served(host, "a", 10, kNow + 5s) == 1);
  // A larger part comes: nothing of the long wait is left over.
  SetPart(host, "a", 1, kNow + 5s);
  CHECK(Served(host, "a", 10, kNow + 5s) == 0);
  CHECK(Served(host, "a", 10, kNow + 5250ms) == 1);
}

TEST_CASE("what is spent stays spent when the part changes") {
  Host host(kDivided);
  testing::LendParts(host, 0.25);
  CHECK(Served(host, "login:a", 200, kNow) == 25);
  SetPart(host, "login:a", 0.75, kNow);
  CHECK(Served(host, "login:a", 200, kNow) == 0);
  CHECK(host.Level("login:a", kNow + 100ms) == Approx(7.5));
  CHECK(Served(host, "login:a", 200, kNow + 200ms) == 15);
  SetPart(host, "login:a", 0.1, kNow + 200ms);
  CHECK(Served(host, "login:a", 200, kNow + 400ms) == 2);
}

TEST_CASE("what a host has gathered under a small part buys no more under a large one") {
  Host host(kDivided);
  testing::LendParts(host, 0.1);
  CHECK(Served(host, "login:a", 200, kNow) == 10);
  SetPart(host, "login:a", 0.9, kNow + 1s);    // after a rest
  CHECK(host.Level("login:a", kNow + 1s) == Approx(10));
  CHECK(Served(host, "login:a", 200, kNow + 1100ms) == 19);
  CHECK(Served(host, "login:a", 200, kNow + 1600ms) == 45);
  SetPart(host, "login:a", 0.1, kNow + 2600ms);    // it holds what a tenth of the burst is
  CHECK(host.Level("login:a", kNow + 2600ms) == Approx(10));
  SetPart(host, "login:a", PartTable::kUsual, kNow + 2600ms);
  CHECK(Served(host, "login:a", 200, kNow + 2600ms) == 10);
}

TEST_CASE("what a commit has cost more is owed under every part") {
  Host host(kDivided);
  testing::LendParts(host, 0.25);
  CHECK(Served(host, "login:a", 200, kNow) == 25);
  host.limiter->Settle({{{"login:a", false}, 5}, kNow}, 25, kNow);
  SetPart(host, "login:a", 0.5, kNow);
  CHECK(host.Level("login:a", kNow) == Approx(-20));
  CHECK(Served(host, "login:a", 200, kNow + 400ms) == 0);
  CHECK(Served(host, "login:a", 200, kNow + 500ms) == 5);
}

TEST_CASE("hosts whose parts move serve together what one host would") {
  const bool in_turns = GENERATE(false, true);    // each host is asked half of the time, in stretches of a second
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed, in_turns);
    constexpr int kHosts = 4;
    std::vector<std::unique_ptr<Host>> hosts;
    for (int i = 0; i < kHosts; ++i) hosts.push_back(std::make_unique<Host>(kDivided));
    constexpr double kReserve = 0.02;    // two tokens
    std::vector<double> parts(kHosts, 1.0 / kHosts);
    Prng prng(seed);
    int served = 0;
    const int rounds = 200;
    for (int round = 0; round < rounds; ++round) {
      // One gives another up to a tenth of what it has.
      double& giver = parts[prng.Below(kHosts)];
      const double gift = (giver - kReserve) * static_cast<double>(prng.Below(100)) / 1000;
      giver -= gift;
      parts[prng.Below(kHosts)] += gift;
      for (int i = 0; i < kHosts; ++i) {
        SetPart(*hosts[i], "login:a", parts[i], kNow + round * 100ms);
        if (in_turns && (round / 10 + i) % 2 == 0) continue;
        served += Served(*hosts[i], "login:a", 60, kNow + round * 100ms);
      }
    }
    CHECK(served <= 100 + 100 * rounds / 10);    // burst and rate
    if (!in_turns) CHECK(served >= 100 * rounds / 10);
  }
}

TEST_CASE("hits under a divided limit are not reported") {
  Host host(kDivided);
  host.limiter->ways().Get<Debits>().ShareWith(3, 1s);
  CHECK(Served(host, "login:a", 50, kNow) == 50);
  struct Visitor final : SlotVisitor {
    bool Visit(const Tag& tag, const Slot&, const Waste&) override {
      CHECK(tag.bytes == "other");
      return true;
    }
  } visitor;
  CHECK(Served(host, "other", 5, kNow) == 5);
  host.limiter->table().TakeUnreported(1 << 20, visitor, {});
}

TEST_CASE("what a restart finds is not more than the part of then") {
  Host host(kDivided);
  testing::LendParts(host, 0.5);
  CHECK(Served(host, "login:a", 200, kNow) == 50);
  host.Start(Rules(kDivided), kNow);
  testing::LendParts(host, 0.025, 0.025);
  CHECK(Served(host, "login:a", 200, kNow) == 0);
  CHECK(Served(host, "login:a", 200, kNow + 1s) == 2);
}

// ---- Dividing ----

struct Divided {
  explicit Divided(const char* rules = kDivided, std::size_t tags_max = 100)
      : host(rules), dividing(host.limiter->ways().Get<Division>(), to, from, tags_max, 100ms, kNow) {
    Tell({CapacityStanding{1, BootInstant::max(), kQuarter / 10, kQuarter}, {}});
  }

  void Tell(FromCapacity item) {
    REQUIRE(from.TryPush(std::move(item)));
    Work(kNow);
  }
  void Work(Instant at) {
    for (int i = 0; i < 1000 && dividing.Work(at); ++i) continue;
  }
  // Demand as it was told last, by key.
  std::map<CapacityKey, TagDemand> Told() {
    for (ToCapacity item; to.TryPop(item);) {
      for (const TagDemand& demand : item) told[demand.key] = demand;
    }
    return told;
  }
  // Asks so many times in each tenth of a second.
  void Ask(std::string_view tag, int queries, int rounds) {
    for (int i = 0; i < rounds; ++i) {
      Served(host, tag, queries, now);
      now += 100ms;
      Work(now);
      Told();
    }
  }

  Host host;
  ToCapacityRing to{8};
  FromCapacityRing from{8};
  Dividing dividing;
  Instant now = kNow;
  std::map<CapacityKey, TagDemand> told;
};

TEST_CASE("a tag takes part once it is refused, with all that is asked for it") {
  Divided d;
  d.Ask("login:calm", 2, 5);
  CHECK(d.Told().empty());
  d.Ask("login:busy", 20, 20);    // 200/s, where the part is 25/s
  const auto told = d.Told();
  REQUIRE(told.size() == 1);
  const TagDemand& demand = told.begin()->second;
  CHECK(demand.key == KeyOf(d.host, "login:busy"));
  CHECK(demand.capacity == 100);
  CHECK(demand.demand == Approx(200).epsilon(0.05));
  d.Ask("login:busy", 0, 60);
  CHECK(d.Told().begin()->second.demand == 0);
}

TEST_CASE("a report counts for ten seconds, and then for less and less") {
  Divided d;
  d.dividing.GoByReports(true);
  const auto told_after = [&](Duration later) {
    d.now = kNow + later;
    d.Work(d.now);
    const auto told = d.Told();
    return told.empty() ? 0 : told.begin()->second.demand / told.begin()->second.capacity;
  };
  d.Ask("login:busy", 20, 2);
  CHECK(told_after(1s) == 0);    // nobody has reported
  REQUIRE(d.dividing.Indicate({"login:busy", false}, 0.5, kNow + 1s));
  CHECK(told_after(2s) == Approx(0.5));
  CHECK(told_after(10900ms) == Approx(0.5));
  CHECK(told_after(12s) == Approx(0.5 / 2.718).epsilon(0.01));
  CHECK(told_after(21s) == Approx(0.5 * 4.54e-5).epsilon(0.01));
  CHECK(told_after(10min) > 0);    // it takes part, and wants less than any other
  REQUIRE(d.dividing.Indicate({"login:busy", false}, 0.7, kNow + 10min));
  CHECK(told_after(10min + 1s) == Approx(0.7));
}

TEST_CASE("shares come into force, and are forgotten under another serial") {
  Divided d;
  const CapacityKey a = KeyOf(d.host, "login:a"), b = KeyOf(d.host, "login:b");
  d.Tell({std::nullopt, {{a, 3 * kQuarter}, {b, 0}}});
  CHECK(Served(d.host, "login:a", 200, kNow) == 75);
  CHECK(Served(d.host, "login:b", 200, kNow) == 0);
  CHECK(Served(d.host, "login:c", 200, kNow) == 25);
  d.Tell({CapacityStanding{2, BootInstant::max(), 0, kWhole / 10}, {{b, kQuarter}}});
  CHECK(Served(d.host, "login:b", 200, kNow + 100s) == 25);
  CHECK(Served(d.host, "login:a", 200, kNow + 100s) == 10);
}

TEST_CASE("a tag that a peer began with is counted, and named by the first query") {
  Divided d;
  d.Tell({std::nullopt, {{KeyOf(d.host, "login:a"), kQuarter}}});
  REQUIRE(d.dividing.participants().size() == 1);
  CHECK(d.dividing.participants().begin()->second.capacity == 0);
  d.Ask("login:a", 1, 10);    // all of them served
  const auto told = d.Told();
  REQUIRE(told.size() == 1);
  CHECK(told.begin()->second.demand == Approx(10).epsilon(0.2));
  CHECK(d.dividing.participants().begin()->second.tag == "login:a");
}

TEST_CASE("what is leased out of a part is pinned first, and what is not confirmed is not leased") {
  Divided d;
  const CapacityKey key = KeyOf(d.host, "login:a");
  const auto lease = [&](double wants, double has) { return *d.dividing.Lease("login:a", {wants, has}, d.now); };
  const auto told = [&] {
    d.now += 100ms;
    d.Work(d.now);
    return d.Told().at(key);
  };
  CHECK_FALSE(d.dividing.Lease("other", {1, 0}, d.now).has_value());    // no rule divides it
  CHECK(lease(0.5, 0).part == Approx(0.025));                           // the reserve: nothing is confirmed
  TagDemand asked = told();
  CHECK((asked.demand == Approx(50) && asked.pinned == kWhole / 2));
  d.Tell({std::nullopt, {{key, kQuarter, 0, asked.pin - 1}}});    // an answer to something else
  CHECK(lease(0.5, 0).part == Approx(0.025));
  d.Tell({std::nullopt, {{key, kQuarter, 0, asked.pin}}});
  CHECK((lease(0.5, 0).part == 0.25 && lease(0.5, 0).share == 0.25));

  // A neighbour waits for a tenth: the pin follows what is out, but not below it.
  d.Tell({std::nullopt, {{key, kQuarter, kWhole / 10, asked.pin}}});
  CHECK((lease(0.5, 0.25).part == 0.25 && lease(0.5, 0.25).share == Approx(0.15)));
  CHECK(told().pinned == kQuarter);
  CHECK(lease(0.5, 0.15).part == Approx(0.15));
  asked = told();
  CHECK(asked.pinned == Approx(0.15 * static_cast<double>(kWhole)));

  // Up again: not before this, too, is confirmed.
  d.Tell({std::nullopt, {{key, kQuarter, 0, asked.pin}}});
  CHECK(lease(0.25, 0.15).part == Approx(0.15));
  d.Tell({std::nullopt, {{key, kQuarter, 0, asked.pin}}});    // said before the other half knew
  CHECK(lease(0.25, 0.15).part == Approx(0.15));
  d.Tell({std::nullopt, {{key, kQuarter, 0, told().pin}}});
  CHECK(lease(0.25, 0.15).part == 0.25);

  // Another generation: nothing is confirmed.
  d.Tell({CapacityStanding{2, OnBootClock(d.now + 1s), kWhole / 40, kQuarter}, {}});
  CHECK(lease(0.25, 0.15).part == Approx(0.025));
  d.now += 2s;    // no longer lent, and nobody asks
  d.Work(d.now);
  CHECK(d.Told().at(key).pinned == 0);
}

TEST_CASE("places go with parts beyond the reserve, whole ones only, and never sum to more than there are") {
  // A standing of so many hosts that are there, of members that have a tenth of an equal share as reserve.
  const auto standing = [](std::uint64_t members, std::uint64_t here) {
    CapacityStanding s{.reserve = kWhole / 10 / members, .aside = kWhole / 10 / members};
    s.hosts = here;
    s.absent = members - here;
    s.divided = (kWhole - members * s.reserve) / here * here;
    return s;
  };
  const auto reserve = [](const CapacityStanding& s, std::uint32_t in_flight) {
    return PlaceParts::Of(PartOfWhole(s.reserve), in_flight);
  };
  Prng prng(3);
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t members = 1 + prng.Below(9), here = 1 + prng.Below(members);
    const auto in_flight = static_cast<std::uint32_t>(1 + prng.Below(i % 2 == 0 ? 12 : 400));
    CAPTURE(i, members, here, in_flight);
    const CapacityStanding s = standing(members, here);
    const PlaceUnits units(s, reserve(s, in_flight), in_flight);
    // All parts beyond reserves are given out, at random.
    Parts left = s.divided;
    std::uint64_t sum = (members - here) * reserve(s, in_flight);
    for (std::uint64_t host = 0; host < here; ++host) {
      const Parts part = host + 1 == here || prng.Below(4) == 0 ? left : prng.Below(left + 1);
      left -= part;
      sum += units.Of(PartOfWhole(s.reserve + part));
    }
    REQUIRE(sum <= in_flight);
    // One host can have all that the others do not keep.
    REQUIRE(units.Of(PartOfWhole(s.reserve + s.divided)) == in_flight - (members - 1) * reserve(s, in_flight));
    const auto places = static_cast<std::uint32_t>(prng.Below(units.reserve() + units.rest() + 1));
    REQUIRE(units.Of(std::max(units.PartOf(places), PartOfWhole(s.reserve))) == std::max(places, units.reserve()));
  }
}

TEST_CASE("what the next process goes on with: parts at once, and the demand of who takes part") {
  Divided d;
  const CapacityKey a = KeyOf(d.host, "login:a");
  d.Ask("login:a", 20, 20);
  d.Tell({CapacityStanding{3, OnBootClock(kNow + 60s), kWhole / 50, kQuarter}, {}});
  d.Tell({std::nullopt, {{a, kWhole / 2}}});
  const std::string kept = WriteState(Dividing::kKeptVersion, d.dividing.Keep());

  Divided next;
  Dividing::Kept read;
  REQUIRE(ReadState(kept, Dividing::kKeptVersion, read));
  CHECK_FALSE(ReadState(kept, Dividing::kKeptVersion + 1, read));
  REQUIRE(ReadState(kept, Dividing::kKeptVersion, read));
  read.PutInForce(next.host.limiter->ways().Get<Division>(), 10);
  CHECK(Served(next.host, "login:a", 200, kNow) == 50);
  CHECK(Served(next.host, "login:b", 200, kNow) == 25);
  CHECK(Served(next.host, "login:c", 200, kNow + 60s) == 2);    // the lease is over
  next.dividing.Resume(read, next.now);
  REQUIRE(next.dividing.participants().contains(a));
  CHECK(next.dividing.participants().at(a).tag == "login:a");
  CHECK(next.dividing.participants().at(a).demand.value() == d.dividing.participants().at(a).demand.value());
  // The same serial: what the exchange says comes on top of it.
  next.Tell({CapacityStanding{3, OnBootClock(kNow + 90s), kWhole / 50, kQuarter}, {}});
  CHECK(Served(next.host, "login:a", 200, kNow + 80s) == 50);
}

TEST_CASE("no more tags take part than there is room for") {
  Divided d(kDivided, 2);
  for (const char* tag : {"login:a", "login:b", "login:c"}) d.Ask(tag, 100, 3);
  CHECK(d.dividing.participants().size() == 2);
  CHECK(d.dividing.crowded() > 0);
  CHECK(Served(d.host, "login:c", 200, d.now + 10s) == 25);    // the usual part
}

TEST_CASE("a tag that nobody asks for leaves with the next serial") {
  Divided d;
  d.Ask("login:a", 100, 5);
  d.Ask("login:b", 100, 60);    // so long that nothing is left of the demand on a
  REQUIRE(d.dividing.participants().size() == 2);
  d.Tell({CapacityStanding{2, BootInstant::max(), 0, kQuarter}, {}});
  REQUIRE(d.dividing.participants().size() == 1);
  CHECK(d.dividing.participants().begin()->second.tag == "login:b");
  d.Told();
  d.told.clear();
  d.Ask("login:b", 100, 2);    // under another serial demand is told again
  CHECK(d.Told().size() == 1);
}

TEST_CASE("other rules change what a tag's capacity is") {
  Divided d;
  d.Ask("login:a", 100, 5);
  d.host.limiter->Adopt(Rules("[[rule]]\nname=\"login\"\nburst=100\nrate=200\nshare=\"capacity\"\n"));
  while (d.host.limiter->Tick(d.now)) continue;
  d.Ask("login:a", 50, 3);
  CHECK(d.Told().begin()->second.capacity == 200);
  d.host.limiter->Adopt(Rules("[[rule]]\nname=\"login\"\nburst=100\nrate=200\n"));
  while (d.host.limiter->Tick(d.now)) continue;
  CHECK(Served(d.host, "login:a", 500, d.now + 10s) == 100);
  d.Ask("login:a", 50, 60);
  CHECK(d.Told().begin()->second.demand == 0);    // it is counted under no divided limit
}

TEST_CASE("an over-long tag takes part under its digest") {
  Divided d;
  d.Ask("login:" + std::string(400, 'x'), 100, 3);
  REQUIRE(d.dividing.participants().size() == 1);
  const auto& participant = d.dividing.participants().begin()->second;
  CHECK(participant.is_digest);
  CHECK(participant.rule == "login");
}

}    // namespace
}    // namespace dthrottle
