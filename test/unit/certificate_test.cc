// How accurate shared limits are, as a host sees it: the account of one tag and of many, and what the theory says.
#include "limiter/certificate.h"

#include <catch2/catch.hpp>

#include "test/support/host.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;

constexpr Instant kNow = FromNanoseconds(3'600'000'000'000);

TEST_CASE("what is served below zero is over-admitted, and what is refused until it is made up for is under-admitted") {
  Tokens ahead = 0;
  // 30 tokens are served beyond an empty bucket, while others are refused.
  Deviation d = LookAgain(ahead, {.level = -30, .burst = 100, .refused = 50});
  CHECK(d.over == Approx(30));
  CHECK(d.under == 0);
  CHECK(ahead == Approx(30));
  // Nothing is served for two looks, in which one bucket would have served what flowed in.
  d = LookAgain(ahead, {.level = -20, .burst = 100, .refused = 50});
  CHECK(d.over == 0);
  CHECK(d.under == Approx(10));
  d = LookAgain(ahead, {.level = 0, .burst = 100, .refused = 50});
  CHECK(d.under == Approx(20));
  CHECK(ahead == Approx(0).margin(1e-9));
}

TEST_CASE("debt that is paid while nobody is refused is nobody's loss") {
  Tokens ahead = 0;
  CHECK(LookAgain(ahead, {.level = -30, .burst = 100, .refused = 10}).over == Approx(30));
  CHECK(LookAgain(ahead, {.level = 40, .burst = 100, .refused = 0}).under == 0);
  CHECK(ahead == Approx(30));    // one bucket has 70 where this one has 40
  CHECK(LookAgain(ahead, {.level = 90, .burst = 100, .refused = 0}).under == 0);
  CHECK(ahead == Approx(10));    // it is full: the rest of its refill is lost
  CHECK(LookAgain(ahead, {.level = 100, .burst = 100, .refused = 0}).over == 0);
  CHECK(ahead == 0);
}

TEST_CASE("no more was under-admitted than was refused, and than one bucket has") {
  Tokens ahead = 0;
  CHECK(LookAgain(ahead, {.level = 50, .burst = 100, .refused = 5}).under == Approx(5));
  CHECK(LookAgain(ahead, {.level = 50, .burst = 100, .refused = 500}).under == Approx(45));
  CHECK(ahead == Approx(-50));
}

TEST_CASE("the bound is a burst and what refills until it is heard, for each peer") {
  const BoundTerms debit{.burst = 100, .rate = 100, .unheard_max = {}, .period = 1s};
  const PeerAge near{0s, 10ms};
  CHECK(ExcessBound(debit, {}) == 0);
  CHECK(ExcessBound(debit, std::vector(1, near)) == Approx(201 + 200));      // 2 hosts: B + r (T + d), and 2 r T
  CHECK(ExcessBound(debit, std::vector(15, near)) == Approx(3015 + 200));    // accuracy of 16 hosts
  CHECK(ExcessBound(debit, std::vector{PeerAge{30s, 10ms}}) == Approx(100 + 3001 + 200));    // cut off for 30 s
  const BoundTerms forecast{.burst = 100, .rate = 100, .unheard_max = 6, .period = 1s};
  CHECK(ExcessBound(forecast, std::vector(15, near)) == Approx(90));
  CHECK(ExcessBound(forecast, std::vector{PeerAge{0s, 50ms}}) == Approx(18));
  CHECK(ExcessBound(forecast, std::vector{PeerAge{30s, 10ms}}) == Approx(100 + 3001 + 200));
}

// A host whose peer served hits of a tag.
struct Shared : Host {
  explicit Shared(std::string_view more = "") : Host("[[rule]]\nname=\"r\"\nburst=10\nrate=1\n" + std::string(more)) {
    limiter->ShareWith(1, 1s);
    limiter->Certify(kNow);
  }
  void Hear(std::string_view tag, std::uint64_t hits, Instant now) {
    Entries entries;
    entries.Add({tag}, hits, 0);
    limiter->Debit(entries, 0, 1, now, now, now);
  }
  const RuleAccuracy& rule() const { return limiter->accuracy(0); }
};

TEST_CASE("a peer's late hits are seen as over-admitted, under their rule and of their tag") {
  Shared host;
  for (int i = 0; i < 15; ++i) host.Serves("x", kNow);
  host.Hear("x", 10, kNow);
  host.limiter->Certify(kNow + 1s);
  CHECK(host.rule().served == Approx(20));
  CHECK(host.rule().debt == Approx(9));
  CHECK(host.rule().observed.over == Approx(9));    // one flowed in meanwhile
  CHECK(host.rule().over_percent() == Approx(100 * 9.0 / 11));
  CHECK(host.limiter->certificate().Hottest(5).at(0).tag().bytes == "x");
  host.Serves("x", kNow + 1s);    // refused; the peer's refusals are taken for as many
  host.limiter->Certify(kNow + 2s);
  CHECK(host.rule().observed.under == Approx(1));
  CHECK(host.rule().served == Approx(20 * std::exp(-1.0 / 60)));
}

TEST_CASE("a tag that rests is forgotten, and a certificate looks at so many tags and no more") {
  Shared host;
  for (int i = 0; i < 2000; ++i) host.Hear("tag-" + std::to_string(i), 12, kNow);    // each two beyond its burst
  CHECK(host.limiter->certificate().tags() <= Certificate::kSets * Certificate::kWays);
  CHECK(host.limiter->certificate().crowded() > 1000);
  host.limiter->Certify(kNow + 1ms);
  host.limiter->Certify(kNow + 1s);
  // Nothing is left out: those without an account count in full, the others as they stand a second later.
  CHECK(host.rule().ever.over <= 4000);
  CHECK(host.rule().ever.over > 3500);
  for (int i = 2; i < 600; ++i) host.limiter->Certify(kNow + i * 1s);
  CHECK(host.limiter->certificate().tags() == 0);
}

TEST_CASE("a tag has one account, also when another one makes room") {
  Certificate certificate(1);
  const auto drained = [&](std::uint64_t hash) { certificate.Drained(hash, {"t"}, 0, 5, 5); };
  for (std::uint64_t hash = 1; hash <= Certificate::kWays; ++hash) drained(hash);    // all of one set
  certificate.Forget(0, 0);
  drained(Certificate::kWays);
  CHECK(certificate.tags() == Certificate::kWays - 1);
  drained(9);
  CHECK(certificate.tags() == Certificate::kWays);
  CHECK(certificate.crowded() == 0);
  certificate.Drained(10, {"u"}, 0, 3, 3);    // lighter than all: counted, and not looked at
  CHECK(certificate.crowded() == 1);
  CHECK(certificate.Find(10) == nullptr);
  CHECK(certificate.rule(0).ever.over == Approx(3));
  certificate.Drained(11, {"u"}, 0, 30, 30);
  CHECK(certificate.Find(11) != nullptr);
  CHECK(certificate.rule(0).ever.over == Approx(8));    // what it displaced is not forgotten
}

TEST_CASE("what a tag owed before it was looked at does not count as new") {
  Certificate certificate(1);
  certificate.Drained(1, {"t"}, 0, 20, 5);
  certificate.Begin(kNow, 1s);
  CHECK(certificate.Look(0, 0, 0, -20, 10, 2));
  CHECK(certificate.rule(0).ever.over == Approx(5));
  CHECK(certificate.rule(0).debt == Approx(20));
}

TEST_CASE("where nobody else serves, nothing is over- or under-admitted") {
  Shared host;
  for (int i = 0; i < 100; ++i) {
    for (int k = 0; k < 20; ++k) host.Serves("x", kNow + i * 1s);
    host.limiter->Certify(kNow + i * 1s);
  }
  CHECK(host.rule().ever.over == 0);
  CHECK(host.rule().ever.under == 0);
  CHECK(host.rule().served > 0);
}

TEST_CASE("an alert begins above the tolerance, is over below it, and is told once") {
  Shared host("tolerance=25\n");
  for (int i = 0; i < 10; ++i) host.Serves("x", kNow);
  host.Hear("x", 10, kNow);
  host.limiter->Certify(kNow + 1s);
  auto news = host.limiter->TakeAccuracyNews();
  REQUIRE(news.size() == 1);
  CHECK(news[0].began);
  CHECK(news[0].over_percent > 25);
  CHECK(news[0].tolerance_percent == 25);
  CHECK(host.limiter->certificate().alerts() == 1);
  CHECK(host.limiter->TakeAccuracyNews().empty());
  Instant now = kNow + 1s;
  for (int i = 0; i < 600 && news[0].began; ++i) {
    host.Serves("y" + std::to_string(i), now += 1s);    // what is within the limit makes the part smaller
    host.limiter->Certify(now);
    if (auto more = host.limiter->TakeAccuracyNews(); !more.empty()) news = more;
  }
  CHECK(!news[0].began);
  CHECK(news[0].over_percent <= 0.8 * 25);
  CHECK(host.limiter->certificate().alerts() == 1);
  Shared silent;
  silent.Hear("x", 30, kNow);
  silent.limiter->Certify(kNow + 1s);
  CHECK(silent.rule().over_percent() > 50);
  CHECK(silent.limiter->TakeAccuracyNews().empty());
}

TEST_CASE("a rule keeps its account over a reload, and another rule does not get it") {
  Shared host;
  host.Hear("x", 30, kNow);
  host.limiter->Certify(kNow + 1s);
  const double over = host.rule().ever.over;
  CHECK(over > 15);
  host.limiter->Adopt(Rules("[[rule]]\nname=\"r\"\nburst=10\nrate=2\n"));
  while (host.limiter->Tick(kNow + 1s)) continue;
  CHECK(host.rule().ever.over == over);
  host.limiter->Adopt(Rules("[[rule]]\nname=\"other\"\nburst=10\nrate=2\n"));
  while (host.limiter->Tick(kNow + 1s)) continue;
  CHECK(host.rule().ever.over == 0);
  host.limiter->Certify(kNow + 2s);    // its tags are the other rule's now, with what they owe
  CHECK(host.rule().ever.over <= 1);
  host.limiter->Adopt(Rules("[[rule]]\nname=\"other\"\nburst=10\nrate=2\nshare=\"local\"\n"));
  while (host.limiter->Tick(kNow + 2s)) continue;
  host.limiter->Certify(kNow + 3s);
  CHECK(host.limiter->certificate().tags() == 0);
}

}    // namespace
}    // namespace dthrottle::testing
