// Floods through a full table, on two hosts that tell each other their hits: who is still limited, and who is harmed.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "limiter/retention.h"
#include "share/ways.h"
#include "tally/tally.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Duration kPeriod = 1s;

constexpr std::string_view kRules = R"(
[[rule]]
name = "slow"
match = "slow:*"
burst = 1
rate = "1/h"
[[rule]]
name = "medium"
match = "medium:*"
burst = 20
rate = "10/m"
[[rule]]
name = "fast"
match = "fast:*"
burst = 100
rate = 100
)";

constexpr Instant At(double seconds) {
  return FromNanoseconds(static_cast<Duration::rep>(seconds * 1e9));
}

// Two hosts, which exchange their hits once a period without loss or delay.
class TwoHosts {
 public:
  TwoHosts() : hosts_{testing::Host(std::string(kRules)), testing::Host(std::string(kRules))} {
    for (testing::Host& host : hosts_) host.limiter->ways().Get<Debits>().ShareWith(1, kPeriod);
  }

  bool Serves(std::size_t host, std::string_view tag, double at) { return hosts_[host].Serves(tag, At(at)); }

  void Exchange(double at) {
    for (std::size_t i = 0; i < 2; ++i) {
      Debits& to = hosts_[1 - i].limiter->ways().Get<Debits>();
      for (const Entries& entries : Hits(i, at)) to.Debit(entries, 0, entries.size(), At(at) - kPeriod, At(at), At(at));
    }
  }

  double Level(std::size_t host, std::string_view tag, double at) { return hosts_[host].Level(tag, At(at)); }

  Limiter& limiter(std::size_t host) { return *hosts_[host].limiter; }
  Debits& debits() { return limiter(0).ways().Get<Debits>(); }
  Retention::Totals Forgotten(std::size_t rule) {
    return limiter(0).retention().totals(limiter(0).tally().CounterNamed(rule));
  }
  std::size_t cells() { return limiter(0).table().cells(); }

 private:
  // One period's hits of a host, as its report has them.
  std::vector<Entries> Hits(std::size_t host, double at) {
    class Collect final : public SlotVisitor {
     public:
      Collect(Limiter& from, Instant to) : limiter_(from), to_(to) {}
      bool Visit(const Tag& tag, const Slot& slot, const Waste& waste) override {
        if (limiter_.ways().Get<Debits>().AddHits(tag, slot, waste, to_ - kPeriod, to_, draft_)) return true;
        Finish();
        return limiter_.ways().Get<Debits>().AddHits(tag, slot, waste, to_ - kPeriod, to_, draft_);
      }
      void Finish() {
        draft_.Stamp(to_ - kPeriod, to_, Duration(0));
        all.push_back(std::move(draft_.entries));
        draft_ = {};
      }
      std::vector<Entries> all;

     private:
      Limiter& limiter_;
      Instant to_;
      Draft draft_;
    } collect(*hosts_[host].limiter, At(at));
    while (hosts_[host].limiter->table().TakeUnreported(1000, collect, {})) {
    }
    collect.Finish();
    return std::move(collect.all);
  }

  testing::Host hosts_[2];
};

// How many of `asked` queries are served for each of 40 tags nobody has seen, at one instant on one host.
std::vector<int> ServedOfFresh(TwoHosts& hosts, std::string_view name, double at, int asked = 50) {
  std::vector<int> served(40, 0);
  for (std::size_t i = 0; i < served.size(); ++i) {
    for (int k = 0; k < asked; ++k) served[i] += hosts.Serves(0, fmt::format("{}-{}-{}", name, at, i), at);
  }
  return served;
}

TEST_CASE("two hosts full of tags in debt leave no fresh tag unlimited, and other rules as they were") {
  TwoHosts hosts;
  constexpr int kDrained = 100, kFlood = 36'200, kASecond = 860;
  for (int i = 0; i < kDrained; ++i) {
    for (int k = 0; k < 20; ++k) REQUIRE(hosts.Serves(0, fmt::format("medium:{}", i), 0));
  }
  double at = 0;
  for (int i = 0; i < kFlood; ++i) {
    at = 0.5 + static_cast<double>(i) / kASecond;
    const std::string tag = fmt::format("slow:flood-{}", i);
    hosts.Serves(0, tag, at);
    hosts.Serves(1, tag, at);
    if (i % kASecond == kASecond - 1) hosts.Exchange(at);
    // Never more than a burst, at any time.
    if (i % 5000 == 0) CHECK(hosts.Serves(0, fmt::format("slow:x-{}", i), at));
    if (i % 5000 == 0) CHECK_FALSE(hosts.Serves(0, fmt::format("slow:x-{}", i), at));
  }
  hosts.Exchange(at);
  for (const double rest : {0.0, 20.0, 30.0}) {
    for (const int served : ServedOfFresh(hosts, "slow:fresh", at + rest)) CHECK(served == 1);
  }
  int kept = 0;
  for (int i = 0; i < kDrained; ++i) {
    const double level = hosts.Level(0, fmt::format("medium:{}", i), at);
    kept += level <= at / 6 + 1e-6;
  }
  CHECK(kept == kDrained);
  CHECK(hosts.Forgotten(1).evicted == 0);
  CHECK(hosts.Forgotten(0).evicted > 0);
}

// Two of them in one group have most of its cells, so that group would rather forget one of them than the flood's.
TEST_CASE("long tags that meet in a group by chance lose nothing to a flood of another rule") {
  TwoHosts hosts;
  constexpr std::size_t kLong = 100, kFlood = 300'000;
  const auto tag = [](std::size_t i) { return fmt::format("medium:{:0240}", i); };
  for (std::size_t i = 0; i < kLong; ++i) {
    for (int k = 0; k < 20; ++k) REQUIRE(hosts.Serves(0, tag(i), 0));
    if (i % 2 == 0) REQUIRE_FALSE(hosts.Serves(0, tag(i), 0));
  }
  for (std::size_t i = 0; i < kFlood; ++i) hosts.Serves(0, fmt::format("slow:flood-{}", i), 1);
  CHECK(hosts.Forgotten(0).evicted > kFlood / 2);
  CHECK(hosts.Forgotten(1).evicted == 0);
  for (std::size_t i = 0; i < kLong; ++i) CHECK(hosts.Level(0, tag(i), 1) < 1);
}

// Fresh tags a second, on a table of 1 MiB: 1/64 of what 64 MiB bear at 650, 10,000 and 500,000.
TEST_CASE(
    "during a flood of a rule its hammered tags stay refused, its newcomers are served, other rules feel nothing") {
  for (const double flood_per_s : {10.0, 156.0, 7800.0}) {
    CAPTURE(flood_per_s);
    TwoHosts hosts;
    // So full of the flooded rule that every newcomer costs somebody a place.
    std::size_t n = 0;
    const auto flood = [&](double at) { return hosts.Serves(n % 2, fmt::format("slow:flood-{}", n), at); };
    for (; n < 4 * hosts.cells(); ++n) flood(0);
    REQUIRE(hosts.Serves(0, "slow:hammered", 1));
    REQUIRE(hosts.Serves(0, "slow:resting", 1));
    for (int k = 0; k < 20; ++k) REQUIRE_FALSE(hosts.Serves(0, "slow:resting", 1));
    for (int k = 0; k < 5; ++k) REQUIRE_FALSE(hosts.Serves(0, "slow:hammered", 1));

    constexpr double kSeconds = 60;
    int extra = 0, newcomers = 0, medium = 0, fast = 0;
    double due = 0;
    for (int second = 0; second < static_cast<int>(kSeconds); ++second) {
      for (int tick = 0; tick < 200; ++tick) {
        const double at = 2 + second + tick / 200.0;
        for (due += flood_per_s / 200; due >= 1; due -= 1, ++n) flood(at);
        if (tick == 7) extra += hosts.Serves(0, "slow:hammered", at);
        if (tick == 9) newcomers += hosts.Serves(0, fmt::format("slow:new-{}", second), at);
        if (tick % 40 == 11) medium += hosts.Serves(0, "medium:fresh", at);
        fast += hosts.Serves(0, "fast:fresh", at);
      }
      hosts.Exchange(3 + second);
    }
    CHECK(extra == 0);
    CHECK_FALSE(hosts.Serves(0, "slow:resting", 2 + kSeconds));
    CHECK(newcomers == static_cast<int>(kSeconds));
    CHECK(medium == 29);    // what one bucket serves in 59.8 s
    CHECK(fast == Approx(100 + 100 * kSeconds).epsilon(0.02));
    CHECK(hosts.Forgotten(1).evicted + hosts.Forgotten(2).evicted == 0);
  }
}

TEST_CASE("a peer with a table full of debt makes this host forget nothing") {
  TwoHosts hosts;
  const std::size_t local = hosts.cells() / 2;
  for (std::size_t i = 0; i < local; ++i) REQUIRE(hosts.Serves(0, fmt::format("slow:{}", i), 0));
  Entries lies;
  std::uint64_t said = 0;
  for (std::size_t i = 0; i < 1'000'000; ++i, ++said) {
    const std::string tag = fmt::format("slow:lie-{}", i);
    if (!lies.Add({tag, false}, 1000, 0)) {
      hosts.debits().Debit(lies, 0, lies.size(), At(0), At(1), At(1));
      lies = Entries();
      REQUIRE(lies.Add({tag, false}, 1000, 0));
    }
  }
  hosts.debits().Debit(lies, 0, lies.size(), At(0), At(1), At(1));
  CHECK(hosts.limiter(0).table().counts().evicted == 0);
  CHECK(hosts.debits().peers().counts().unrecorded + hosts.limiter(0).table().counts().hearsay_forgotten >
        said - hosts.cells());
  std::size_t forgotten = 0;
  for (std::size_t i = 0; i < local; ++i) forgotten += hosts.Serves(0, fmt::format("slow:{}", i), 1);
  CHECK(forgotten == 0);
  // Tags that are asked for the first time take the place of what the peer spoke of.
  for (std::size_t i = 0; i < local / 64; ++i) CHECK(hosts.Serves(0, fmt::format("slow:new-{}", i), 2));
  for (std::size_t i = 0; i < local; ++i) forgotten += hosts.Serves(0, fmt::format("slow:{}", i), 3);
  CHECK(forgotten == 0);
}

TEST_CASE("a peer that floods the table with tags leaves no hit uncharged that other peers tell of") {
  TwoHosts hosts;
  for (std::size_t i = 0; i < hosts.cells() / 4; ++i) REQUIRE(hosts.Serves(0, fmt::format("slow:{}", i), 0));
  const auto tell = [&](std::uint32_t peer, const std::string& name, std::size_t begin, std::size_t n) {
    Entries entries;
    for (std::size_t i = 0; i < n; ++i) REQUIRE(entries.Add({fmt::format("{}-{}", name, begin + i), false}, 4, 0));
    hosts.debits().Debit(entries, 0, n, At(0), At(1), At(1), peer);
  };
  hosts.debits().peers().SetNewTagsMax(1'000'000);
  constexpr std::size_t kHonest = 50;
  std::size_t n = 0;
  for (std::size_t flood = 0; flood < 8 * hosts.cells(); flood += 1000) {
    tell(7, "slow:lie", flood, 1000);
    for (const std::uint32_t peer : {1, 2}) {
      if (n < 20 * kHonest) tell(peer, fmt::format("medium:{}", peer), n, kHonest);
    }
    n += kHonest;
  }
  for (const std::uint32_t peer : {1, 2}) {
    for (std::size_t i = 0; i < 20 * kHonest; ++i) {
      REQUIRE(hosts.Level(0, fmt::format("medium:{}-{}", peer, i), 1) == Approx(16 + 1 / 6.0).margin(0.01));
    }
  }
  CHECK(hosts.limiter(0).table().counts().hearsay_forgotten > 5 * hosts.cells());
  CHECK(hosts.limiter(0).table().counts().evicted == 0);
}

TEST_CASE("how long a rule is remembered is its tags over what is forgotten of it a second") {
  testing::Host host((std::string(kRules)));
  Limiter& limiter = *host.limiter;
  limiter.SampleRetention(At(0));
  CHECK_FALSE(limiter.retention().of(limiter.tally().counter(0)).has_value());
  std::size_t n = 0;
  const auto ask = [&](int tags, double at) {
    for (int i = 0; i < tags; ++i) REQUIRE(host.Serves(fmt::format("slow:{}", n++), At(at)));
  };
  ask(30'000, 0);
  limiter.SampleRetention(At(0.5));
  for (int second = 1; second <= 60; ++second) {
    ask(400, second);
    limiter.SampleRetention(At(second));
  }
  REQUIRE(limiter.retention().of(limiter.tally().counter(0)).has_value());
  const auto tags = static_cast<double>(limiter.table().cells());
  CHECK(Seconds(*limiter.retention().of(limiter.tally().counter(0))) == Approx(tags / 400).epsilon(0.1));
  CHECK_FALSE(limiter.retention().of(limiter.tally().counter(1)).has_value());
  CHECK(limiter.retention().totals(limiter.tally().CounterNamed(0)).evicted == limiter.table().counts().evicted);
  for (int second = 61; second <= 300; ++second) limiter.SampleRetention(At(second));
  CHECK_FALSE(limiter.retention().of(limiter.tally().counter(0)).has_value());
}

}    // namespace
}    // namespace dthrottle
