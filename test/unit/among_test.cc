// What a host may serve of one tag, divided among the tags that are charged with it: DST section 7.
#include <catch2/catch.hpp>

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capacity/divide.h"
#include "limiter/inspect.h"
#include "query/question.h"
#include "support/host.h"
#include "share/among/among_tags.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;

// A tenant may have 100 tokens/s in all; three users of it ask for 200, 40 and 10 a second, and are not limited themselves.
class Tenant {
 public:
  explicit Tenant(std::string_view among, std::string_view more = "")
      : host_(fmt::format("[[rule]]\nname=\"tenant\"\nmatch=\"acme\"\nshare=\"local\"\nburst=50\nrate=100\namong=\"{}\"\n{}"
                          "[[rule]]\nname=\"user\"\nmatch=\"*/*\"\nshare=\"local\"\nburst=1000\nrate=1000\n"
                          "also=[\"before /\"]\n",
                          among, more)) {}

  // How many a second are served of each user, over the seconds from `from` on.
  std::map<std::string, double> Run(std::map<std::string, int> asked, int seconds, int from) {
    std::map<std::string, double> served;
    for (int ms = 0; ms < seconds * 1000; ++ms) {
      for (const auto& [user, rate] : asked) {
        if (ms % (1000 / rate) != 0) continue;
        const bool served_now = host_.Serves("acme/" + user, FromNanoseconds(0) + ms * 1ms);
        if (ms >= from * 1000) served[user] += served_now / double(seconds - from);
      }
    }
    return served;
  }

  Host& host() { return host_; }

 private:
  Host host_;
};

const std::map<std::string, int> kAsked = {{"a", 200}, {"b", 40}, {"c", 10}};

TEST_CASE("among: by level, users that ask for little are served in full and the largest gets what is left") {
  Tenant tenant("level");
  auto served = tenant.Run(kAsked, 60, 20);
  CHECK(served["b"] == Approx(40).epsilon(0.01));
  CHECK(served["c"] == Approx(10).epsilon(0.01));
  CHECK(served["a"] == Approx(50).epsilon(0.03));
}

TEST_CASE("among: first come, a user that asks for much takes from those that ask for little") {
  Tenant tenant("first");
  CHECK(tenant.Run(kAsked, 60, 20)["b"] < 30);
}

TEST_CASE("among: by ratio, all users keep the same share of what they ask for") {
  Tenant tenant("ratio");
  auto served = tenant.Run(kAsked, 200, 20);
  for (const auto& [user, rate] : kAsked) CHECK(served[user] / rate == Approx(100.0 / 250).epsilon(0.07));
}

TEST_CASE("among: users that ask for more than the level get the same, however much they ask for") {
  Tenant tenant("level");
  auto served = tenant.Run({{"a", 1000}, {"b", 100}, {"c", 500}}, 60, 20);
  for (const auto& [user, rate] : served) CHECK(rate == Approx(100.0 / 3).epsilon(0.03));
}

TEST_CASE("among: where there is enough nobody is cut, and the limit holds from the first second on") {
  Tenant enough("level");
  auto served = enough.Run({{"a", 50}, {"b", 20}}, 10, 0);
  CHECK(served["a"] == Approx(50));
  CHECK(served["b"] == Approx(20));
  Tenant tenant("level");
  double all = 0;
  for (const auto& [user, rate] : tenant.Run(kAsked, 10, 0)) all += rate * 10;
  CHECK(all <= 50 + 100 * 10);
  CHECK(all >= 900);
}

TEST_CASE("among: a part of less than one token a second comes to each in its time") {
  Host host("[[rule]]\nname=\"tenant\"\nmatch=\"acme\"\nshare=\"local\"\nburst=10\nrate=2\namong=\"level\"\n"
            "[[rule]]\nmatch=\"*/*\"\nshare=\"local\"\nburst=10\nrate=10\nalso=[\"before /\"]\n");
  Prng prng(1);
  std::map<std::uint64_t, int> served;
  for (int ms = 0; ms < 400'000; ms += 50) {
    const std::uint64_t user = prng.Below(20);
    served[user] += host.Serves(fmt::format("acme/{}", user), FromNanoseconds(0) + ms * 1ms);
  }
  for (const auto& [user, times] : served) CHECK(times == Approx(40).margin(8));
}

TEST_CASE("among: in shadow mode nobody is cut, and what would have been is counted") {
  Tenant tenant("level", "mode=\"shadow\"\n");
  auto served = tenant.Run(kAsked, 10, 0);
  CHECK(served["a"] == Approx(200));
  CHECK(CountsOf(*tenant.host().limiter).among.cut > 0);
}

TEST_CASE("among: more users than are measured are served first come, within the limit") {
  Tenant tenant("level");
  int served = 0;
  for (int ms = 0; ms < 5000; ++ms) {
    for (int user = 0; user < 10; ++user) {
      served += tenant.host().Serves(fmt::format("acme/{}", (ms * 10 + user) % 20'000), FromNanoseconds(0) + ms * 1ms);
    }
  }
  CHECK(served <= 50 + 500);
  CHECK(served >= 450);
  CHECK(CountsOf(*tenant.host().limiter).among.crowded > 0);
}

TEST_CASE("among: a user that its own limit refuses has asked for nothing of the tenant's") {
  Host host("[[rule]]\nname=\"tenant\"\nmatch=\"acme\"\nshare=\"local\"\nburst=50\nrate=100\namong=\"ratio\"\n"
            "[[rule]]\nmatch=\"*/*\"\nshare=\"local\"\nburst=1\nrate=10\nalso=[\"before /\"]\n");
  for (int ms = 0; ms < 3000; ++ms) host.Serves("acme/a", FromNanoseconds(0) + ms * 1ms);
  CHECK(Inspect(*host.limiter, {{"acme", false}}, FromNanoseconds(0) + 3s).among->ratio == 1);
}

TEST_CASE("among: the wrong way of sharing is an error") {
  CHECK_THROWS_WITH(Rules("[[rule]]\nshare=\"debit\"\namong=\"ratio\"\n"),
                    Catch::Contains("among = \"ratio\" with share = \"debit\": must be \"local\" or \"capacity\""));
  CHECK_THROWS_WITH(Rules("[[rule]]\nburst=1\nrate=1\nweight=0\n"), Catch::Contains("rule.weight = 0: must be a number from 0.001"));
}

TEST_CASE("among: what was held and not used has not been asked for") {
  for (const char* const among : {"level", "ratio"}) {
    Tenant tenant(among);
    int refused = 0;
    for (int ms = 0; ms < 20'000; ms += 200) {
      const Instant now = FromNanoseconds(0) + ms * 1ms;
      const bool served = tenant.host().Serves("acme/a", now, 30);
      if (served) tenant.host().limiter->Settle({{{"acme/a"}, 30}, now}, 10, now);
      refused += !served;
    }
    CHECK(refused == 0);
  }
}

TEST_CASE("among: what a call needed beyond its hold has been asked for") {
  Tenant tenant("level");
  Limiter& limiter = *tenant.host().limiter;
  const auto at = [](int ms) { return FromNanoseconds(0) + ms * 1ms; };
  for (int ms = 0; ms <= 1000; ms += 100) {
    REQUIRE(tenant.host().Serves("acme/a", at(ms)));
    limiter.Settle({{{"acme/a"}, 1}, at(ms)}, 14, at(ms));
  }
  CHECK(Inspect(limiter, {{"acme"}}, at(1000)).among->level < 140);
}

// Holds of 8 that use 1 each want 62 of 100 tokens a second, and takes want 20. A surge of takes wants 2,000.
class Surged {
 public:
  explicit Surged(std::string_view among)
      : host_(fmt::format("[[rule]]\nname=\"tenant\"\nmatch=\"acme\"\nshare=\"local\"\nburst=20\nrate=100\n"
                          "among=\"{}\"\n[[rule]]\nmatch=\"*/*\"\nshare=\"local\"\nburst=10000\nrate=10000\n"
                          "also=[\"before /\"]\n",
                          among)) {}

  void Run(int ms_from, int ms_until, bool surge) {
    for (int ms = ms_from; ms < ms_until; ++ms) {
      const Instant now = FromNanoseconds(0) + ms * 1ms;
      if (ms % 16 == 0) Hold(now);
      if (ms % 50 == 0) takes_ += host_.Serves("acme/y", now);
      if (!surge) continue;
      host_.Serves("acme/z", now);
      host_.Serves("acme/z", now);
    }
  }
  // Since this was asked.
  std::pair<int, int> TakeServed() { return {std::exchange(holds_, 0), std::exchange(takes_, 0)}; }

 private:
  // Settles the hold before, and takes another one.
  void Hold(Instant now) {
    if (open_) host_.limiter->Settle({{{"acme/h"}, 8}, *open_}, 1, now);
    open_.reset();
    Questions questions;
    questions.Begin(Verb::kHold);
    questions.Name({{"acme/h"}, 8});
    Outcome outcome;
    Standing standing;
    host_.limiter->Ask(questions, {&outcome, 1}, {&standing, 1}, 0, host_.prng, now);
    if (outcome.verdict == Verdict::kServe) open_ = now, ++holds_;
  }

  Host host_;
  std::optional<Instant> open_;
  int holds_ = 0, takes_ = 0;
};

TEST_CASE("among: holds that use little are served again soon after a surge, as others are") {
  for (const char* const among : {"level", "ratio"}) {
    CAPTURE(among);
    Surged tenant(among);
    tenant.Run(0, 2000, false);
    tenant.Run(2000, 3000, true);
    tenant.Run(3000, 6000, false);
    tenant.TakeServed();
    tenant.Run(6000, 16'000, false);
    const auto [holds, takes] = tenant.TakeServed();
    CHECK(holds >= 0.99 * 625);
    CHECK(takes >= 0.99 * 200);
  }
}

TEST_CASE("among: what is refunded of some queries would have been of those that are refused") {
  Tenant tenant("ratio");
  Limiter& limiter = *tenant.host().limiter;
  int served = 0;
  for (int ms = 0; ms < 20'000; ++ms) {
    const Instant now = FromNanoseconds(0) + ms * 1ms;
    if (ms >= 2000 && ms < 3000) tenant.host().Serves("acme/z", now);
    if (!tenant.host().Serves("acme/a", now)) continue;
    served += ms >= 10'000;
    if (ms % 12 != 0) limiter.GiveBack({{"acme/a"}, 1}, 0, now);
  }
  CHECK(served >= 0.99 * 10'000);
}

// ---- Weights ----

TEST_CASE("among: a user of twice the weight gets twice as much, by its rule or by an override") {
  Host host("[[rule]]\nname=\"tenant\"\nmatch=\"acme\"\nshare=\"local\"\nburst=50\nrate=100\namong=\"level\"\n"
            "[[rule]]\nname=\"gold\"\nmatch=\"*/gold*\"\nshare=\"local\"\nburst=1000\nrate=1000\nalso=[\"before /\"]\n"
            "weight=2\n"
            "[[rule]]\nname=\"user\"\nmatch=\"*/*\"\nshare=\"local\"\nburst=1000\nrate=1000\nalso=[\"before /\"]\n"
            "[[override]]\ntag=\"acme/c\"\nburst=1000\nrate=1000\nweight=4\n");
  std::map<std::string, double> served;
  for (int ms = 0; ms < 60'000; ms += 2) {
    for (const char* const tag : {"acme/a", "acme/gold", "acme/c"}) {
      served[tag] += host.Serves(tag, FromNanoseconds(0) + ms * 1ms) && ms >= 20'000 ? 1.0 / 40 : 0;
    }
  }
  CHECK(served["acme/a"] == Approx(100.0 / 7).epsilon(0.04));
  CHECK(served["acme/gold"] == Approx(200.0 / 7).epsilon(0.04));
  CHECK(served["acme/c"] == Approx(400.0 / 7).epsilon(0.04));
}

TEST_CASE("among: what water-filling gives is weight times level, or the request where that is less") {
  std::vector<WeightedRequest> requests = {{10, 1}, {10, 2}, {1, 4}, {100, 1}};
  const double level = LevelOf(requests, 25);    // 1 + 10 leave 14 to the two of weight 1
  CHECK(level == Approx(7));
  double sum = 0;
  for (const WeightedRequest& its : requests) sum += std::min(its.request, its.weight * level);
  CHECK(sum == Approx(25));
  CHECK(std::isinf(LevelOf(requests, 122)));
}

// ---- Over several hosts ----

TEST_CASE("among: what peers serve of a user counts against its level here, and nothing is cut that all can have") {
  AmongTags among;
  Prng prng(1);
  const Shape shape = Shape::From(100, 100);
  const Tag tenant{"acme", false};
  AmongTags::Charge hog{.divided = {tenant, 1, Among::kLevel, 2, 1s}, .member = 2, .cost = 1};
  AmongTags::Charge small = hog;
  small.member = 3;
  const Speaker peer(7);
  // Here 400/s of the hog and 20/s of the other; the peer serves 35/s and 10/s. The limit is 100/s.
  std::map<std::uint64_t, double> served, asked;
  Instant now = FromNanoseconds(0);
  const auto ask = [&](const AmongTags::Charge& charge, bool counts) {
    const bool within = among.Would(charge, shape, prng, now);
    among.Count(charge, within, shape, 50, now);
    asked[charge.member] += counts, served[charge.member] += counts && within;
  };
  for (int ms = 0; ms < 60'000; ++ms, now += 1ms) {
    if (ms % 5 == 0) ask(hog, ms >= 20'000), ask(hog, ms >= 20'000);
    if (ms % 50 == 0) ask(small, ms >= 20'000);
    if (ms % 1000 != 0) continue;
    among.HearHits(1, 45, peer, now);
    among.Hear(1, 2, 1, 35, peer, now), among.Hear(1, 3, 1, 10, peer, now);
  }
  CHECK(served[3] == asked[3]);
  CHECK(served[2] / 40 == Approx(35).epsilon(0.1));    // as much as the peer: 70/s of both are its level
  CHECK(among.Of(1, now).level == Approx(70).epsilon(0.05));
}

// Three hosts, the first of which owns the tag and is asked for nothing; each second they tell it, and it answers.
class OwnedTenant {
 public:
  static constexpr double kRate = 100;

  OwnedTenant() : charge_{.divided = {tag_, 1, Among::kLevel, 3, 1s, 1}, .member = 0, .cost = 1} {}

  // Asks the host for the member, if its turn has come.
  void Ask(std::size_t host, std::uint64_t member, int per_second) {
    if (ms_ % (1000 / per_second) != 0) return;
    charge_.member = member;
    const bool within = hosts_[host].Would(charge_, shape_, prng_, now());
    hosts_[host].Count(charge_, within, shape_, shape_.burst() / 2, now());
    served_[{host, member}] += within, hits_[host] += within;
  }
  void Pass() {
    if (++ms_ % 1000 != 0 || !connected) return;
    for (std::size_t host = 1; host < hosts_.size(); ++host) {
      std::vector<std::uint64_t> named;
      const Speaker speaker(static_cast<std::uint32_t>(host));
      hosts_[0].HearHits(1, std::exchange(hits_[host], 0), speaker, now());
      const auto tell = [&](const Tag&, const MemberWord& word, int&) {
        hosts_[0].HearPeer(charge_.divided, word, speaker, shape_, shape_.burst() / 2, now());
        named.push_back(word.member);
        return true;
      };
      CHECK_FALSE(hosts_[host].TellSome([](std::uint64_t) { return 0; }, now(), tell));
      for (const std::uint64_t member : named) {
        if (const auto word = hosts_[0].WordOf(1, member, now())) hosts_[host].HearOwner(1, *word, now());
      }
    }
  }
  Instant now() const { return FromNanoseconds(0) + ms_ * 1ms; }
  AmongTags& host(std::size_t host) { return hosts_[host]; }
  const Shape& shape() const { return shape_; }
  const AmongTags::Divided& divided() const { return charge_.divided; }
  // How many a second since this was asked.
  double TakeServed(std::size_t host, std::uint64_t member, int seconds) {
    return std::exchange(served_[{host, member}], 0) / seconds;
  }

  bool connected = true;

 private:
  const Tag tag_{"acme", false};
  const Shape shape_ = Shape::From(kRate, kRate);
  AmongTags::Charge charge_;
  std::array<AmongTags, 3> hosts_;
  std::array<std::uint64_t, 3> hits_{};    // that the owner has not heard of
  Prng prng_{1};
  int ms_ = 0;
  std::map<std::pair<std::size_t, std::uint64_t>, double> served_;
};

TEST_CASE("among: the owner of a tag says how much of it each member may have on each host") {
  OwnedTenant tenant;
  for (int seconds = 0; seconds < 60; ++seconds) {
    if (seconds == 20) tenant.TakeServed(1, 2, 1), tenant.TakeServed(2, 2, 1), tenant.TakeServed(2, 3, 1);
    for (int ms = 0; ms < 1000; ++ms, tenant.Pass()) {
      tenant.Ask(1, 2, 500);    // a hog, on two hosts
      tenant.Ask(2, 2, 100);
      tenant.Ask(2, 3, 20);     // a tag of one host
    }
  }
  CHECK(tenant.host(0).Of(1, tenant.now()).level == Approx(80).epsilon(0.05));
  CHECK(tenant.TakeServed(2, 3, 40) == Approx(20));
  CHECK(tenant.TakeServed(1, 2, 40) + tenant.TakeServed(2, 2, 40) == Approx(80).epsilon(0.1));
}

TEST_CASE("among: where a frame has no room for all members, each is told once, some of them later") {
  AmongTags among;
  const Tag tag{"acme", false};
  const Shape shape = Shape::From(100, 100);
  Instant now = FromNanoseconds(0) + 1s;
  AmongTags::Charge charge{.divided = {tag, 1, Among::kLevel, 3, 1s}, .member = 0, .cost = 2};
  for (charge.member = 1; charge.member <= 10; ++charge.member) among.Count(charge, true, shape, 50, now);
  now += 1s;
  std::map<std::uint64_t, int> told;
  for (int frames = 1; frames <= 3; ++frames, now += 5ms) {
    int room = 4;
    const auto tell = [&](const Tag&, const MemberWord& word, int&) {
      if (room-- == 0) return false;
      CHECK((word.asked == 2 && word.served == 2));
      ++told[word.member];
      return true;
    };
    CHECK(among.TellSome([](std::uint64_t) { return 0; }, now, tell) == (frames < 3));
  }
  CHECK(told.size() == 10);
  for (const auto& [member, times] : told) CHECK(times == 1);
  const auto none = [](const Tag&, const MemberWord&, int&) -> bool { FAIL("there is nothing new"); return true; };
  CHECK_FALSE(among.TellSome([](std::uint64_t) { return 0; }, now + 1s, none));
}

TEST_CASE("among: hosts go on for a while by what a silent owner said, and then by what they know") {
  OwnedTenant tenant;
  const auto run = [&](int seconds) {
    for (int ms = 0; ms < 1000 * seconds; ++ms, tenant.Pass()) {
      tenant.Ask(1, 2, 500);
      tenant.Ask(2, 2, 500);
      tenant.Ask(2, 3, 20);
    }
  };
  run(30);
  tenant.connected = false;
  tenant.TakeServed(1, 2, 1), tenant.TakeServed(2, 2, 1);
  run(4);
  CHECK(tenant.TakeServed(1, 2, 4) + tenant.TakeServed(2, 2, 4) == Approx(80).epsilon(0.15));
  run(30);
  tenant.TakeServed(1, 2, 1), tenant.TakeServed(2, 2, 1), tenant.TakeServed(2, 3, 1);
  run(10);
  CHECK(tenant.TakeServed(1, 2, 10) == Approx(100).epsilon(0.1));    // all that its bucket gives
  CHECK(tenant.TakeServed(2, 2, 10) == Approx(80).epsilon(0.1));
  CHECK(tenant.TakeServed(2, 3, 10) == Approx(20));
}

// What a tag is served of 40/s that it asks for, of 100/s, while each second peer 9 lies to the owner.
double ServedBesideLies(const std::function<void(AmongTags& owner, const OwnedTenant& tenant)>& lie) {
  OwnedTenant tenant;
  for (int seconds = 0; seconds < 30; ++seconds) {
    if (seconds == 10) tenant.TakeServed(1, 3, 1);
    for (int ms = 0; ms < 1000; ++ms, tenant.Pass()) tenant.Ask(1, 3, 40), tenant.Ask(2, 2, 500);
    lie(tenant.host(0), tenant);
  }
  return tenant.TakeServed(1, 3, 20);
}

constexpr std::uint64_t kMost = MemberWord::kMost;

TEST_CASE("among: members of a peer that has served nothing take no more than its part, whatever it says of them") {
  CHECK(ServedBesideLies([](AmongTags&, const OwnedTenant&) {}) == Approx(40));
  for (const std::uint64_t served : {std::uint64_t{0}, kMost}) {
    for (const std::uint64_t members : {1, 1000}) {
      CAPTURE(served, members);
      CHECK(ServedBesideLies([&](AmongTags& owner, const OwnedTenant& tenant) {
              for (std::uint64_t i = 0; i < members; ++i) {
                owner.HearPeer(tenant.divided(), {1000 + i, kMost, served, members == 1 ? kMost : 1000}, Speaker(9),
                               tenant.shape(), 50, tenant.now());
              }
              if (served > 0) CHECK(owner.counts().disbelieved > kMost / 2);
            }) >= 33 * 0.95);    // two thirds are left to two of the same weight
    }
  }
}

TEST_CASE("among: members take what their peer has served of the divided tag, and as much once more") {
  AmongPeerParts parts;
  const AmongPeerParts::Bounds bounds{.rate = 10, .hits_max = 300, .lately = 2s};
  const Instant now = FromNanoseconds(0) + 1s;
  MemberUse sum;
  const auto hear = [&](std::uint32_t peer, MemberUse said) {
    const MemberUse use = parts.Believed(1, peer, said, bounds, now);
    sum.asked += use.asked, sum.served += use.served;
  };
  hear(7, {300, 300});    // once for what it can have served before it was known
  CHECK(sum.served == 300);
  sum = {};
  parts.AddHits(1, 7, 100, bounds, now);
  for (int i = 0; i < 50; ++i) hear(7, {1000, 40});
  CHECK(sum.served == 100);
  CHECK(sum.asked == Approx(200 + 20));
  sum = {};
  hear(7, {5, 5});
  CHECK(sum.served == 0);
  parts.AddHits(1, 7, 1000, bounds, now);
  sum = {};
  hear(7, {1000, 1000});
  CHECK(sum.served == 300);
}

TEST_CASE("among: a peer can give no member a weight above all weights here, nor make it less than others say") {
  OwnedTenant tenant;
  for (int seconds = 0; seconds < 30; ++seconds) {
    if (seconds == 10) tenant.TakeServed(1, 3, 1);
    for (int ms = 0; ms < 1000; ++ms, tenant.Pass()) tenant.Ask(1, 3, 200), tenant.Ask(2, 2, 200);
    tenant.host(0).HearPeer(tenant.divided(), {2, 1, 0, kMost}, Speaker(9), tenant.shape(), 50, tenant.now());
    tenant.host(0).HearPeer(tenant.divided(), {3, 1, 0, 1}, Speaker(9), tenant.shape(), 50, tenant.now());
  }
  CHECK(tenant.TakeServed(1, 3, 20) == Approx(50).epsilon(0.1));
}

TEST_CASE("among: in a mesh, members count as far as their peer has reported hits of the divided tag") {
  AmongTags among;
  Prng prng(1);
  const Shape shape = Shape::From(100, 100);
  const Tag tenant{"acme", false};
  AmongTags::Charge user{.divided = {tenant, 1, Among::kLevel, 2, 1s}, .member = 3, .cost = 1};
  Instant now = FromNanoseconds(0);
  int served = 0;
  for (int ms = 0; ms < 30'000; ++ms, now += 1ms) {
    if (ms % 20 == 0) {
      const bool within = among.Would(user, shape, prng, now);
      among.Count(user, within, shape, 50, now);
      served += within && ms >= 10'000;
    }
    if (ms % 500 != 0) continue;
    among.HearHits(1, 5, Speaker(9), now);
    for (std::uint64_t lie = 0; lie < 400; ++lie) among.Hear(1, 1000 + lie, 1, 100, Speaker(9), now);
  }
  CHECK(served == 1000);
  CHECK(among.counts().disbelieved > 0);
}

TEST_CASE("among: members beyond what is measured are counted, and words of tags that nobody divides here change nothing") {
  AmongTags among;
  const Tag tag{"acme", false};
  const Shape shape = Shape::From(100, 100);
  const Instant now = FromNanoseconds(0) + 1s;
  among.HearOwner(1, {.member = 2, .asked = 1, .served = 1, .fair = 1}, now);
  CHECK_FALSE(among.WordOf(1, 2, now));
  const AmongTags::Divided divided{tag, 1, Among::kLevel, 3, 1s};
  for (std::uint64_t member = 0; member < 3 * AmongMembers::kMostOfOne; ++member) {
    among.HearHits(1, 1, Speaker(), now);
    among.HearPeer(divided, {.member = member, .asked = 1, .served = 1, .fair = 1000}, Speaker(), shape, 50, now);
  }
  CHECK(among.counts().crowded >= 2 * AmongMembers::kMostOfOne);
  CHECK_FALSE(among.WordOf(1, 3 * AmongMembers::kMostOfOne, now));
}

}    // namespace
}    // namespace dthrottle::testing
