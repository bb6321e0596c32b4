// The simulator's own parts: a property that holds over a network that loses nothing proves nothing.
#include <catch2/catch.hpp>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lab/clock.h"
#include "lab/events.h"
#include "lab/ledger.h"
#include "lab/network.h"
#include "lab/workload.h"
#include "test/support/host.h"

namespace dthrottle::lab {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a clock tells the first moment at which it shows a time") {
  Prng prng(1);
  for (int i = 0; i < 10'000; ++i) {
    const HostClock clock(Uniform(28h, prng), static_cast<std::int64_t>(prng.Below(200'001)) - 100'000);
    const Instant local(Uniform(48h, prng));
    const WorldTime t = clock.When(local);
    REQUIRE(clock.Local(t) >= local);
    REQUIRE(clock.Local(t - 1ns) < local);
  }
  CHECK(HostClock(1h, 100'000).Local(After(10'000s)) == Instant(1h + 10'001s));
}

TEST_CASE("events happen in order, and those of one instant as they were foreseen") {
  EventQueue queue;
  Prng prng(2);
  std::vector<std::pair<WorldTime, std::uint32_t>> expected;
  const auto push = [&](std::uint32_t i) {
    Event event;
    event.parcel.from = i;
    const WorldTime at = After(Duration(prng.Below(100)));
    queue.Push(at, std::move(event));
    expected.emplace_back(at, i);
  };
  for (std::uint32_t i = 0; i < 1000; ++i) push(i);
  std::sort(expected.begin(), expected.end());
  for (const auto& [at, from] : expected) {
    REQUIRE(queue.next() == at);
    REQUIRE(queue.Pop().parcel.from == from);
  }
  CHECK(queue.empty());
}

TEST_CASE("a frame to many hosts arrives at each of them in its turn, whatever happens at the same moment") {
  struct Expected {
    WorldTime at;
    std::size_t order;
    std::uint32_t from, to, connection;
  };
  EventQueue queue;
  Prng prng(3);
  std::vector<Expected> expected;
  std::size_t popped = 0, foretold = 0;
  std::map<std::size_t, std::uint32_t> coming;    // hosts that were foretold, by how many events are before
  const auto push = [&](WorldTime at, const Parcel& parcel) {
    queue.Push(at, {Event::Kind::kParcel, parcel});
    expected.push_back({at, expected.size(), parcel.from, parcel.to, parcel.connection});
  };
  const auto pop = [&] {
    const auto next = std::ranges::min_element(expected.begin() + static_cast<std::ptrdiff_t>(popped), expected.end(),
                                               {}, [](const Expected& e) { return std::pair(e.at, e.order); });
    std::iter_swap(expected.begin() + static_cast<std::ptrdiff_t>(popped), next);
    const Expected& first = expected[popped++];
    REQUIRE(queue.next() == first.at);
    const Parcel parcel = queue.Pop().parcel;
    REQUIRE(std::tuple(parcel.from, parcel.to, parcel.connection) == std::tuple(first.from, first.to, first.connection));
    if (const auto its = coming.find(popped); its != coming.end()) REQUIRE(its->second == parcel.to);
    for (std::size_t later = 1; later <= 3; ++later) {
      if (const std::uint32_t host = queue.Coming(later); host != EventQueue::kNobody) {
        coming[popped + later] = host;
        ++foretold;
      }
    }
    return first.at;
  };
  WorldTime now{};
  for (int round = 0; round < 300; ++round) {
    Parcel parcel{.from = static_cast<std::uint32_t>(round)};
    if (prng.Below(4) != 0) parcel.frame = std::make_shared<const std::string>("frame");
    const std::uint64_t hosts = 1 + prng.Below(8);
    for (std::uint64_t to = 0; to < hosts; ++to) {
      parcel.to = static_cast<std::uint32_t>(to), parcel.connection = static_cast<std::uint32_t>(prng.Below(3));
      const bool apart = prng.Below(8) == 0;
      push(now + Duration(apart ? prng.Below(3) : 1), parcel);
      if (prng.Below(8) == 0) push(now + Duration(1), {.from = 1000, .to = parcel.to});    // of somebody else
      if (prng.Below(4) == 0) now = pop();
    }
  }
  while (popped < expected.size()) pop();
  CHECK(queue.empty());
  CHECK(foretold > 300);
}

// ---- Workloads ----

std::vector<Arrival> Arrivals(const Workload& workload, std::size_t hosts = 4, std::uint64_t seed = 1) {
  ArrivalStream stream(workload, hosts, seed, Prng(seed));
  std::vector<Arrival> all;
  while (const auto next = stream.Next()) all.push_back(*next);
  return all;
}

TEST_CASE("a workload has the rate that it says") {
  Workload w{.rate = 7, .from = After(5s), .until = After(1005s)};
  SECTION("steady: exactly") {
    const auto all = Arrivals(w);
    CHECK(all.size() == 6999);
    CHECK(all[0].at == After(5s + Duration(142857142)));
    CHECK(all[6998].at == After(5s + Duration(999'857'142'857)));
  }
  SECTION("Poisson: within four standard deviations, with gaps of mean and deviation alike") {
    w.poisson = true;
    const auto all = Arrivals(w);
    CHECK(std::abs(static_cast<double>(all.size()) - 7000) < 4 * 84);
    double squares = 0;
    for (std::size_t i = 1; i < all.size(); ++i) squares += std::pow(Seconds(all[i].at - all[i - 1].at) * 7 - 1, 2);
    CHECK(squares / static_cast<double>(all.size()) == Approx(1).margin(0.15));
  }
  SECTION("bursts: only while they are on") {
    w.on = 3s, w.off = 7s, w.poisson = true;
    const auto all = Arrivals(w);
    CHECK(std::abs(static_cast<double>(all.size()) - 2100) < 4 * 46);
    for (const Arrival& a : all) REQUIRE((a.at - After(5s)) % 10s < 3s);
  }
  SECTION("a flash crowd: so many times more, for so long") {
    w.flash_after = 100s, w.flash_lasts = 50s, w.flash_factor = 20;
    std::size_t inside = 0;
    const auto all = Arrivals(w);
    for (const Arrival& a : all) inside += a.at >= After(105s) && a.at < After(155s);
    CHECK(inside == Approx(7000).margin(1));
    CHECK(all.size() == 6999 + 19 * 350);
  }
}

TEST_CASE("a workload spreads as it says, and the same from the same seed") {
  Workload w{.rate = 100, .until = After(100s), .tags = 10};
  std::map<std::uint32_t, int> hosts;
  const auto count = [&] {
    for (const Arrival& a : Arrivals(w)) ++hosts[a.host];
  };
  SECTION("in turns") {
    w.spread = Workload::Spread::kInTurns;
    count();
    CHECK(hosts == std::map<std::uint32_t, int>{{0, 2500}, {1, 2500}, {2, 2500}, {3, 2499}});
  }
  SECTION("uniform") {
    count();
    for (std::uint32_t i = 0; i < 4; ++i) CHECK(std::abs(hosts[i] - 2500) < 200);
  }
  SECTION("Zipf: 1, 1/2, 1/3, 1/4") {
    w.spread = Workload::Spread::kZipf;
    count();
    CHECK(hosts[0] == Approx(4800).margin(200));
    CHECK(hosts[3] == Approx(1200).margin(150));
  }
  SECTION("sticky: a tag has one host, and not all tags the same") {
    w.spread = Workload::Spread::kSticky;
    std::map<std::size_t, std::set<std::uint32_t>> of_tag;
    for (const Arrival& a : Arrivals(w)) of_tag[a.tag].insert(a.host), ++hosts[a.host];
    CHECK(of_tag.size() == 10);
    for (const auto& [tag, where] : of_tag) CHECK(where.size() == 1);
    CHECK(hosts.size() > 1);
  }
  SECTION("sticky: by the tag itself, in whichever workload it is") {
    w.spread = Workload::Spread::kSticky, w.until = After(1s), w.tags = 1;
    const auto host_of = [&](std::string tag) {
      w.tag = std::move(tag);
      return Arrivals(w).at(0).host;
    };
    for (const char* tag : {"a", "b", "c", "d", "e", "f", "g", "h"}) ++hosts[host_of(tag)];
    CHECK(hosts.size() > 2);
    const std::uint32_t seventh = host_of("client7");
    w.tag = "client", w.tags = 10, w.until = After(100s);
    for (const Arrival& a : Arrivals(w)) CHECK((a.tag != 7 || a.host == seventh));
  }
  SECTION("tags by Zipf") {
    w.tag_exponent = 1;
    std::map<std::size_t, int> tags;
    for (const Arrival& a : Arrivals(w)) ++tags[a.tag];
    CHECK(tags[0] == Approx(3414).margin(200));
  }
  const auto a = Arrivals(w, 4, 7), b = Arrivals(w, 4, 7);
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) REQUIRE((a[i].at == b[i].at && a[i].host == b[i].host));
}

// ---- Network ----

struct Wire {
  explicit Wire(const LaneOptions& options) : network(3, options, queue, Prng(1)) {}

  void Send(std::uint32_t number, WorldTime now, std::uint32_t from = 0, std::uint32_t to = 1) {
    network.Send({Channel::kPublished, from, to, number, frame}, now);
  }
  // Numbers as they arrive.
  std::vector<std::uint32_t> Arrived() {
    std::vector<std::uint32_t> numbers;
    while (!queue.empty()) {
      last = queue.next();
      numbers.push_back(queue.Pop().parcel.connection);
    }
    return numbers;
  }

  decltype(Parcel::frame) frame = std::make_shared<const std::string>("frame");
  EventQueue queue;
  Network network;
  WorldTime last{};
};

using Numbers = std::vector<std::uint32_t>;

TEST_CASE("a stream keeps order whatever the jitter") {
  Wire wire({.delay = 1ms, .jitter = 500ms});
  Numbers sent;
  for (std::uint32_t i = 0; i < 100; ++i) wire.Send(i, After(i * 10ms)), sent.push_back(i);
  CHECK(wire.Arrived() == sent);
  CHECK(wire.network.counts().sent == 100);
  CHECK(wire.network.counts().bytes == 500);
}

TEST_CASE("a short cut of a stream delays, a long one loses what was said meanwhile") {
  Wire wire({.delay = 1ms, .patience = 8s, .reconnecting = 2s});
  wire.network.Cut(0, 1, After(10s));
  wire.Send(1, After(11s));
  wire.Send(2, After(11s), 1, 0);    // the other direction is whole
  CHECK(wire.Arrived() == Numbers{2});
  wire.network.Mend(0, 1, After(15s));
  wire.Send(3, After(16s));
  CHECK(wire.Arrived() == Numbers{1, 3});
  CHECK(wire.last > After(15s));

  wire.network.Cut(0, 1, After(20s));
  wire.Send(4, After(21s));
  wire.Send(5, After(29s));
  wire.Send(6, After(29s), 1, 0);    // no acknowledgement for so long: no connection either way
  wire.network.Mend(0, 1, After(30s));
  wire.Send(7, After(33s));
  CHECK(wire.Arrived() == Numbers{7});
  CHECK(wire.network.counts().lost == 3);
}

TEST_CASE("cuts over cuts: a lane is whole when all are mended") {
  Wire wire({.lossy = true});
  wire.network.Cut(0, 1, After(1s));
  wire.network.Cut(0, 1, After(2s));
  wire.network.Mend(0, 1, After(3s));
  wire.Send(1, After(4s));
  wire.network.Mend(0, 1, After(5s));
  wire.Send(2, After(6s));
  CHECK(wire.Arrived() == Numbers{2});
}

TEST_CASE("a killed host has no connections until it has made them anew") {
  Wire wire({.delay = 1ms, .reconnecting = 2s});
  wire.network.Disconnect(1);
  wire.Send(1, After(1s));
  wire.Send(2, After(1s), 1, 2);
  wire.network.Reconnect(1, After(2s));
  wire.Send(3, After(4s));
  wire.Send(4, After(4s), 2, 0);    // has nothing to do with it
  CHECK(wire.Arrived() == Numbers{3, 4});
}

TEST_CASE("a lossy lane loses, repeats and overtakes as often as it says") {
  Wire wire({.lossy = true, .loss = 0.02, .duplication = 0.05, .overtaken = 0.1, .held_up = 1s});
  constexpr std::uint32_t kFrames = 100'000;
  for (std::uint32_t i = 0; i < kFrames; ++i) wire.Send(i, After(i * 10ms));
  const Numbers arrived = wire.Arrived();
  CHECK(static_cast<double>(wire.network.counts().lost) == Approx(2000).margin(200));
  CHECK(static_cast<double>(wire.network.counts().repeated) == Approx(4900).margin(300));
  CHECK(arrived.size() == kFrames - wire.network.counts().lost + wire.network.counts().repeated);
  std::size_t late = 0;
  std::uint32_t newest = 0;
  for (const std::uint32_t i : arrived) late += i < newest, newest = std::max(newest, i);
  CHECK(late > kFrames / 20);
}

// ---- Ledger ----

TEST_CASE("the ledger knows the level with all hits, and who was told") {
  const WallClock wall;
  Ledger ledger(testing::Rules("[[rule]]\nname=\"default\"\nburst=10\nrate=1\n"), 3, wall);
  const TagNumber c = ledger.Open("C");
  CHECK(ledger.Open("C") == c);
  for (int i = 0; i < 18; ++i) {
    ledger.Served(c, i % 2 == 0 ? 0 : 1, 1, After(100ms));
  }
  const Account& account = ledger.account(c);
  CHECK(account.Level(After(5100ms)) == Approx(-3).margin(1e-9));
  CHECK(account.Level(After(9s)) == Approx(0.9).margin(1e-9));
  CHECK(account.Busy(After(9s)) == 8900ms);
  CHECK(account.Level(After(1h)) == 10);
  CHECK(account.Busy(After(1h)) == 18s);
  CHECK(account.Missing(0) == 9);
  CHECK(account.Missing(2) == 18);

  Entries told;
  told.Add({"C", false}, 9, 0);
  ledger.Debited(0, told);
  CHECK(account.Missing(0) == 0);
  CHECK(ledger.told_twice() == 0);
  ledger.Debited(0, told);
  CHECK(account.Missing(0) == -9);
  CHECK(ledger.told_twice() == 1);
  told.Clear();
  told.Add({"D", false}, 1, 0);
  ledger.Debited(0, told);
  CHECK(ledger.invented() == 1);
}

}    // namespace
}    // namespace dthrottle::lab
