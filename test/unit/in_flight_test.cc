// Places in flight that hosts count together: gauges, and what peers make of them (hold/gauges.h).
#include <catch2/catch.hpp>

#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "config/load.h"
#include "limiter/asking.h"
#include "limiter/inspect.h"
#include "limiter/places.h"
#include "share/debit/debits.h"
#include "share/debit/sharing.h"
#include "share/ways.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::Host;

constexpr Instant kNow = FromNanoseconds(1'000'000'000'000);
constexpr const char* kJobs = "[[rule]]\nname=\"job\"\nburst=1000\nrate=1000\nin_flight=5\n";
constexpr Duration kPeriod = 5s, kLease = 3 * kPeriod;

// A host among others, whose urgent reports a test carries.
struct Peer {
  explicit Peer(std::string_view toml) : host(toml), sharing(host.limiter->ways(), out, in, 2, kPeriod, host.prng, kNow) {
    host.limiter->ways().WatchTags(64, [this] { ++woken; });
  }

  bool Enters(std::string_view tag, Instant now) {
    Asking asking(*host.limiter, 0, Prng(1), kTagBytesMax);
    asking.Begin(Verb::kEnter);
    REQUIRE(asking.Name(tag, 1));
    asking.Answer(now);
    return !asking.refusal(0).has_value();
  }
  int EntersAll(std::string_view tag, Instant now) {
    int entered = 0;
    while (entered < 1000 && Enters(tag, now)) ++entered;
    return entered;
  }
  void Give(std::string_view tag, std::uint32_t places) {
    GivePlaces(*host.limiter, host.limiter->table().Hash({tag}), places);
  }

  std::vector<ToPeers> Says(Instant now) {
    while (sharing.Work(now)) continue;
    std::vector<ToPeers> said;
    for (ToPeers item; out.TryPop(item);) {
      if (item.kind == ToPeers::Kind::kUrgent) said.push_back(std::move(item));
    }
    return said;
  }
  void Hear(const std::vector<ToPeers>& items, std::uint32_t peer, Instant now, Duration period = kPeriod,
            FromPeers::Kind kind = FromPeers::Kind::kDebits) {
    for (const ToPeers& item : items) {
      FromPeers debits;
      debits.kind = kind;
      debits.peer = peer;
      debits.period = period;
      debits.from = item.from;
      debits.to = item.to;
      debits.entries = item.entries;
      REQUIRE(in.TryPush(std::move(debits)));
    }
    while (sharing.Work(now)) continue;
  }

  Host host;
  ToPeersRing out{64};
  FromPeersRing in{64};
  Sharing sharing;
  int woken = 0;
};

TEST_CASE("places: those of all hosts together count, and come back as they are given back") {
  const std::string jobs = kJobs + std::string(GENERATE("share=\"debit\"\n", "share=\"forecast\"\n"));
  CAPTURE(jobs);
  Peer a(jobs), b(jobs), c(jobs);
  CHECK(a.Enters("job", kNow));
  CHECK(a.Enters("job", kNow));
  CHECK(a.woken == 1);
  CHECK(c.Enters("job", kNow));
  b.Hear(a.Says(kNow), 0, kNow);
  b.Hear(c.Says(kNow), 1, kNow);
  CHECK(b.EntersAll("job", kNow) == 2);
  CHECK_FALSE(b.host.Serves("job", kNow));
  CHECK(CountsOf(*b.host.limiter).in_flight.heard == 2);

  a.Give("job", 2);
  CHECK(a.sharing.next() == kNow + BesideHits::kEvery);
  b.Hear(a.Says(kNow + 50ms), 0, kNow + 50ms);
  CHECK(b.EntersAll("job", kNow + 50ms) == 2);
  CHECK(CountsOf(*b.host.limiter).in_flight.heard == 1);
}

TEST_CASE("places: the last word of a host counts though one before it is repaired behind it") {
  const std::uint32_t before = GENERATE(0, 1, 5), last = GENERATE(0, 2, 5);
  CAPTURE(before, last);
  Peer a(kJobs), b(kJobs);
  const auto hear = [&](std::uint32_t places, const ReportPlace& in) {
    FromPeers said;
    said.kind = FromPeers::Kind::kDebits;
    said.from = said.to = kNow;
    said.place = in;
    REQUIRE(said.entries.Add({"job"}, 0, 0, {.places = places}));
    REQUIRE(b.in.TryPush(std::move(said)));
    while (b.sharing.Work(kNow)) continue;
  };
  hear(last, {1, 9, 7});
  hear(before, {1, 8, 7});
  hear(before, {1, 7, 0});
  CHECK(b.EntersAll("job", kNow) == static_cast<int>(5 - last));
  b.Give("job", 5 - last);
  hear(4, {1, 10, 0});
  CHECK(b.EntersAll("job", kNow) == 1);
  b.Give("job", 1);
  hear(3, {2, 1, 0});    // of another life
  CHECK(b.EntersAll("job", kNow) == 2);
}

TEST_CASE("places: that a host has none takes no room from those that others have") {
  Gauges gauges;
  Prng prng(5);
  for (int i = 0; i < 200'000; ++i) gauges.Hear({"none"}, prng.Next() | 1, 0, {0, kNow + 1s, {1, 9, 8}}, kNow);
  int heard = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t hash = prng.Next() | 1;
    gauges.Hear({"theirs"}, hash, 1, {1, kNow + 1s}, kNow);
    heard += gauges.Elsewhere(hash, kNow) == 1;
  }
  CHECK(heard == 1000);
}

TEST_CASE("places: a host that dies gives them back after its lease and not before") {
  Peer a(kJobs), b(kJobs);
  CHECK(a.EntersAll("job", kNow) == 5);
  b.Hear(a.Says(kNow), 0, kNow + 20ms);
  CHECK_FALSE(b.Enters("job", kNow + kLease - 1ns));
  CHECK(b.EntersAll("job", kNow + kLease) == 5);
}

TEST_CASE("places: a peer or an owner that reports more rarely is believed for its own periods, and for no hour") {
  Peer a(kJobs);
  CHECK(a.EntersAll("job", kNow) == 5);
  const std::vector<ToPeers> said = a.Says(kNow);
  const auto holds_until = [&](Duration period, FromPeers::Kind kind) {
    Peer b(kJobs);
    b.Hear(said, 0, kNow, period, kind);
    Instant now = kNow;
    while (!b.Enters("job", now)) now += 1s;
    return now - kNow;
  };
  CHECK(holds_until(100ms, FromPeers::Kind::kDebits) == kLease);
  CHECK(holds_until(30s, FromPeers::Kind::kDebits) == 90s);
  CHECK(holds_until(1h, FromPeers::Kind::kDebits) == 15min);
  CHECK(holds_until(100ms, FromPeers::Kind::kNear) == 4 * kPeriod);
  CHECK(holds_until(30s, FromPeers::Kind::kNear) == 2min);
}

TEST_CASE("places: those of a host that may not speak any more come back at once, and no other's") {
  Peer a(kJobs), b(kJobs);
  for (int i = 0; i < 2; ++i) CHECK(a.Enters("job", kNow));
  const std::vector<ToPeers> said = a.Says(kNow);
  b.Hear(said, 0, kNow, 1h);
  b.Hear(said, 1, kNow, 1h);
  FromPeers barred;
  barred.kind = FromPeers::Kind::kHostBarred;
  barred.peer = 1;
  REQUIRE(b.in.TryPush(std::move(barred)));
  while (b.sharing.Work(kNow + 1s)) continue;
  CHECK(b.EntersAll("job", kNow + 1s) == 3);
  CHECK(CountsOf(*b.host.limiter).in_flight.heard == 1);
}

TEST_CASE("places: they are told in each period, so a host that lives keeps them and one that comes hears of them") {
  Peer a(kJobs), b(kJobs);
  CHECK(a.EntersAll("job", kNow) == 5);
  a.Says(kNow);
  for (Instant now = kNow + kPeriod; now < kNow + 6 * kPeriod; now += kPeriod) {
    b.Hear(a.Says(now), 0, now);
    CHECK_FALSE(b.Enters("job", now + kPeriod));
  }
}

TEST_CASE("places: what a process took goes over to the next one, which tells of it") {
  Peer before(kJobs), after(kJobs), b(kJobs);
  CHECK(before.EntersAll("job", kNow) == 5);
  after.sharing.Resume(before.sharing.Keep(), kNow);
  RestorePlaces(*after.host.limiter, after.host.limiter->table().Hash({"job"}), 5);
  b.Hear(after.Says(kNow), 0, kNow);
  CHECK_FALSE(b.Enters("job", kNow));
}

TEST_CASE("places: a peer that lies takes those of one limit for its lease, and names so many new tags") {
  Peer liar("[[rule]]\nname=\"job\"\nburst=1000\nrate=1000\nin_flight=1000000\n"), b(kJobs);
  b.host.limiter->ways().Get<Debits>().peers().SetNewTagsMax(10);
  CHECK(liar.EntersAll("job", kNow) == 1000);
  b.Hear(liar.Says(kNow), 0, kNow);
  for (int i = 0; i < 2000; ++i) REQUIRE(liar.Enters("lie" + std::to_string(i), kNow + 1s));
  for (Instant now = kNow + 1s; now < kNow + 2s; now += 100ms) b.Hear(liar.Says(now), 0, now);
  CHECK_FALSE(b.Enters("job", kNow + 2s));
  CHECK(CountsOf(*b.host.limiter).in_flight.heard <= 1 + 10 * 10);
  CHECK(b.host.limiter->ways().Get<Debits>().peers().counts().new_tags_cut > 1000);
}

TEST_CASE("places: a limit of each host alone is told to nobody") {
  Peer a("[[rule]]\nname=\"job\"\nburst=1000\nrate=1000\nin_flight=5\nshare=\"local\"\n");
  CHECK(a.EntersAll("job", kNow) == 5);
  CHECK(a.Says(kNow).empty());
}

TEST_CASE("places: tags that peers took make room for those that are taken here") {
  Gauges gauges;
  Prng prng(3);
  for (int i = 0; i < 100'000; ++i) gauges.Hear({"theirs"}, prng.Next() | 1, 0, {1, kNow + 1s}, kNow);
  CHECK(gauges.crowded() > 0);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t hash = prng.Next() | 1;
    CHECK(gauges.HasRoom(hash));
    gauges.Changed({"mine"}, hash);
    CHECK(gauges.Knows(hash));
  }
}

TEST_CASE("places: a peer that claims ever more tags leaves others, and this host, room for theirs") {
  Gauges gauges;
  Prng prng(4);
  for (int i = 0; i < 200'000; ++i) gauges.Hear({"lie"}, prng.Next() | 1, 0, {1'000'000, kNow + 1s}, kNow);
  std::vector<std::uint64_t> theirs(2000);    // one in each set
  for (std::uint64_t& hash : theirs) {
    hash = prng.Next() | 1;
    gauges.Hear({"theirs"}, hash, 1, {5, kNow + 1s}, kNow);
  }
  for (int i = 0; i < 1000; ++i) gauges.Changed({"mine"}, prng.Next() | 1);
  for (int i = 0; i < 200'000; ++i) gauges.Hear({"lie"}, prng.Next() | 1, 0, {1'000'000, kNow + 1s}, kNow);
  int known = 0;
  for (const std::uint64_t hash : theirs) known += gauges.Elsewhere(hash, kNow) == 5;
  CHECK(known > 1900);
  for (const std::uint64_t hash : theirs) gauges.Hear({"theirs"}, hash, 0, {1, kNow + 1s}, kNow);    // taken over
  for (int i = 0; i < 200'000; ++i) gauges.Hear({"lie"}, prng.Next() | 1, 0, {1'000'000, kNow + 1s}, kNow);
  known = 0;
  for (const std::uint64_t hash : theirs) known += gauges.Elsewhere(hash, kNow) == 6;
  CHECK(known > 1900);
}

TEST_CASE("places: several peers that claim ever more tags leave what others say of theirs its room") {
  Gauges gauges;
  Prng prng(6);
  std::vector<std::uint64_t> lies(30'000), theirs(250);
  const auto lie = [&] {
    for (std::uint32_t peer = 0; peer < 4; ++peer) {
      for (const std::uint64_t hash : lies) gauges.Hear({"lie"}, hash, peer, {1'000'000, kNow + 1s}, kNow);
    }
  };
  for (std::uint64_t& hash : lies) hash = prng.Next() | 1;
  lie();
  for (std::uint64_t& hash : theirs) {
    hash = prng.Next() | 1;
    gauges.Hear({"theirs"}, hash, 4, {5, kNow + 1s}, kNow);
  }
  lie();
  int known = 0;
  for (const std::uint64_t hash : theirs) known += gauges.Elsewhere(hash, kNow) == 5;
  CHECK(known > 225);
}

TEST_CASE("places: counts of several threads add up") {
  Host host("[[rule]]\nburst=1000000\nrate=1000\nin_flight=1000000\n", 4);
  constexpr int kThreads = 4, kEach = 20'000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&host, t] {
      const std::uint64_t hash = host.limiter->table().Hash({std::string_view("abcd").substr(static_cast<unsigned>(t), 1)});
      for (int i = 0; i < kEach; ++i) {
        RestorePlaces(*host.limiter, hash, 2);
        GivePlaces(*host.limiter, hash, 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(CountsOf(*host.limiter).in_flight.entered == 2 * kThreads * kEach);
  CHECK(CountsOf(*host.limiter).in_flight.taken == kThreads * kEach);
}

}    // namespace
}    // namespace dthrottle
