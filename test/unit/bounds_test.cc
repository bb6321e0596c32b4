// What one peer can do to the buckets of this host, whatever it says, and that it never is less than an honest peer
// does.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <memory>
#include <string>

#include "base/prng.h"
#include "share/debit/sharing.h"
#include "share/ways.h"
#include "test/support/host.h"
#include "test/support/sanitized.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Instant kStart = FromNanoseconds(1'000'000'000'000);
constexpr char kTenOne[] = "[[rule]]\nname = \"r\"\nburst = 10\nrate = 1\nshare = \"debit\"\n";

Entries One(std::string_view tag, std::uint64_t value) {
  Entries entries;
  REQUIRE(entries.Add({tag, false}, value, 0));
  return entries;
}

struct Victim : testing::Host {
  explicit Victim(const std::string& toml = kTenOne) : Host(toml) { debits().ShareWith(63, 5s); }
  Debits& debits() const { return limiter->ways().Get<Debits>(); }
  void Debit(const Entries& entries, Instant from, Instant to, std::uint32_t peer = 1) {
    debits().Debit(entries, 0, entries.size(), from, to, to, peer);
  }
  std::uint64_t charged() const { return debits().grand_totals().hits; }
};

TEST_CASE("one entry charges no more than a host can have served, and the rest is counted for its peer") {
  Victim victim;
  victim.Debit(One("C", kHitsMax), kStart, kStart + 5s);
  constexpr std::uint64_t kMost = 10 + (5 + 5) + 1;    // a burst, the interval and a period, and a part of one
  CHECK(victim.charged() == kMost);
  CHECK(victim.debits().peers().counts().hits_disbelieved == kHitsMax - kMost);
  CHECK(victim.debits().peers().counts_of(1).hits_disbelieved == kHitsMax - kMost);
  CHECK(victim.debits().peers().counts_of(0).hits_disbelieved == 0);
  CHECK(victim.Level("C", kStart + 5s) == Approx(10 + 5.0 - kMost));
}

TEST_CASE("an interval is believed no further back than the horizon") {
  Victim victim;
  victim.Debit(One("C", kHitsMax), kStart - 24h, kStart);
  CHECK(victim.charged() == 10 + (20 + 5) + 1);    // refilling twice takes 20 s
}

// A host of the same rules whose only client asks for as much as it can get, in any costs. It is killed now and then,
// and every item that it reports goes to a victim.
class Greedy {
 public:
  Greedy(const std::string& toml, Duration period, std::uint64_t seed)
      : host_(toml), toml_(toml), period_(period), prng_(seed) {
    Begin(kStart);
  }

  // True if nothing of what it said was cut.
  bool Believed(Victim& victim, int steps) {
    Instant now = kStart;
    for (int i = 0; i < steps; ++i) {
      now += Below(period_ / 20);
      for (int asked = 0; asked < 30; ++asked) host_.Ask("C", now, static_cast<Cost>(1 + prng_.Below(4)));
      if (prng_.Below(40) == 0) {
        sharing_.reset();    // what it has handed over and not passed on is lost
        now += Below(prng_.Below(2) == 0 ? 3 * period_ : 10ms);
        host_.Start(testing::Rules(toml_), now);
        Begin(now);
      }
      while (sharing_->Work(now)) now += Below(1ms);
      Tell(victim, now);
    }
    return victim.debits().peers().counts().hits_disbelieved == 0 && victim.charged() > 0;
  }

 private:
  Duration Below(Duration most) {
    return Duration(static_cast<Duration::rep>(prng_.Below(static_cast<std::uint64_t>(most.count()))));
  }

  void Begin(Instant now) {
    out_ = std::make_unique<ToPeersRing>(256);
    in_ = std::make_unique<FromPeersRing>(16);
    sharing_ = std::make_unique<Sharing>(host_.limiter->ways(), *out_, *in_, 63, period_, prng_, now);
    host_.limiter->ways().WatchTags(512, {});
  }

  void Tell(Victim& victim, Instant now) {
    for (ToPeers item; out_->TryPop(item);) {
      victim.debits().Debit(item.entries, 0, item.entries.size(), item.from, std::min(item.to, now), now, 1);
    }
  }

  testing::Host host_;
  std::string toml_;
  Duration period_;
  Prng prng_;
  std::unique_ptr<ToPeersRing> out_;
  std::unique_ptr<FromPeersRing> in_;
  std::unique_ptr<Sharing> sharing_;
};

TEST_CASE(
    "no hit of an honest host within the horizon is cut, however greedy its client is and whenever it is killed") {
  const auto mode = GENERATE("enforce", "shadow");
  for (std::uint64_t seed = 1; seed <= testing::Fewer(60); ++seed) {
    INFO("seed " << seed);
    Prng draw(seed);
    const int burst = 4 + static_cast<int>(draw.Below(100));
    const double rate = 0.1 * static_cast<double>(1 + draw.Below(2000));
    const Duration period = 100ms * static_cast<int>(1 + draw.Below(100));
    const std::string toml = fmt::format(
        "[[rule]]\nname = \"r\"\nburst = {}\nrate = {}\nshare = \"{}\"\nmode = \"{}\"\n"
        "horizon = \"300s\"\n",
        burst, rate, seed % 2 == 0 ? "forecast" : "debit", mode);
    Victim victim(toml);
    victim.debits().ShareWith(63, period);
    Greedy greedy(toml, period, seed);
    REQUIRE(greedy.Believed(victim, 2000));
  }
}

TEST_CASE("a peer names so many new tags a second, and other peers as many") {
  Victim victim;
  victim.debits().peers().SetNewTagsMax(10);    // 100 at once
  const auto say = [&](std::uint32_t peer, int tags, Instant at) {
    for (int i = 0; i < tags; ++i) victim.Debit(One(fmt::format("{}-{}", peer, i), 1), at - 1s, at, peer);
    return victim.debits().peers().counts_of(peer).new_tags_cut;
  };
  CHECK(say(1, 250, kStart) == 150);
  CHECK(say(2, 90, kStart) == 0);
  CHECK(say(1, 100, kStart + 100ms) == 150);    // of tags that have a bucket any number
  CHECK(victim.Level("1-99", kStart + 100ms) < 9.5);
  CHECK(victim.Level("1-100", kStart + 100ms) == 10);
  CHECK(say(1, 250, kStart + 5s) == 150 + 100);    // 50 more by now
  CHECK(victim.debits().peers().counts().new_tags_cut == 250);
}

TEST_CASE("a donor's word takes a bucket no deeper than one host can, and never up") {
  Victim victim;
  const Instant now = kStart;
  for (int i = 0; i < 9; ++i) REQUIRE(victim.Serves("drained", now));
  const auto merge = [&](std::string_view tag, std::uint64_t microseconds) {
    const Entries entries = One(tag, microseconds);
    victim.debits().buckets().Merge(entries, 0, 1, now, now);
    return victim.debits().peers().counts().debts_disbelieved;
  };
  CHECK(merge("honest", kMicrosecondsMax) == 1);
  CHECK(victim.Level("honest", now) == Approx(-(10 + 5)));
  CHECK(merge("drained", 0) == 1);
  CHECK(victim.Level("drained", now) == Approx(1));
  CHECK(merge("owes", 25'000'000) == 1);    // ten tokens and 15 of debt: as much as may be
  CHECK(victim.Level("owes", now) == Approx(-15));
  // Deeper debt that this host has seen itself stays.
  for (std::uint32_t peer = 0; peer < 8; ++peer) victim.Debit(One("deep", 20), now - 1s, now, peer);
  const double deep = victim.Level("deep", now);
  CHECK(deep < -100);
  CHECK(merge("deep", kMicrosecondsMax) == 2);
  CHECK(victim.Level("deep", now) == Approx(deep));
}

}    // namespace
}    // namespace dthrottle
