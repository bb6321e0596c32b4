// How accurate shared limits are, as a host sees it: the account of one tag and of many, and what the theory says.
#include "share/accuracy/certificate.h"

#include <catch2/catch.hpp>

#include "share/ways.h"
#include "test/support/host.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;

constexpr Instant kNow = FromNanoseconds(3'600'000'000'000);

// One tag under burst 100 and rate 100/s, period 1 s, told in whole bins; seconds after kNow.
struct Past {
  Retrospect retrospect{0, 1s, kNow};

  static Instant At(double seconds) { return kNow + Duration(static_cast<Duration::rep>(seconds * 1e9)); }
  void Serve(Tokens hits, double from, double to) { retrospect.Served(hits, 0, At(from), At(from), At(to)); }
  void Refuse(Tokens tokens, double from, double to) { retrospect.Refused(tokens, At(from), At(to)); }
  Deviation Settle(double now) { return retrospect.Settle(100, 100, At(now)); }
};

TEST_CASE("what hosts serve in a second beyond one bucket is over-admitted, what they serve less under-admitted") {
  Past past;    // empty; 100 flow in each second
  past.Serve(130, 0, 1);
  past.Refuse(300, 0, 1);
  past.Serve(70, 1, 2);
  past.Refuse(300, 1, 2);
  const Deviation d = past.Settle(10);
  CHECK(d.over == Approx(30).epsilon(0.05));
  CHECK(d.under == Approx(30).epsilon(0.05));
  CHECK(past.retrospect.ahead() == Approx(0).margin(2));
}

TEST_CASE("debt that is paid while nobody is refused is nobody's loss") {
  Past past;
  past.Serve(150, 0, 1);    // one bucket has no more than 100 to give
  CHECK(past.Settle(4.25).over == Approx(50).epsilon(0.05));
  CHECK(past.retrospect.ahead() == Approx(50).epsilon(0.05));
  past.Serve(20, 3, 4);
  const Deviation d = past.Settle(8);
  CHECK(d.over == 0);
  CHECK(d.under == 0);
  CHECK(past.retrospect.ahead() == 0);
}

TEST_CASE("no more was under-admitted than was refused") {
  Past past;
  past.Serve(10, 2, 3);
  past.Refuse(5, 2, 3);
  CHECK(past.Settle(8).under == Approx(5).epsilon(0.01));
}

TEST_CASE("a second is replayed when no report can add to it any more, and later hits come too late") {
  Past past;
  past.Serve(150, 0, 1);
  CHECK(past.Settle(3).over == 0);
  CHECK_FALSE(past.retrospect.complete());
  CHECK(past.Settle(5).over > 0);
  CHECK(past.retrospect.complete());
  CHECK(past.retrospect.Served(9, 0, Past::At(0.5), Past::At(0.5), Past::At(0.9)) == Approx(9));
  CHECK(past.retrospect.Served(9, 0, Past::At(4), Past::At(4), Past::At(5)) == 0);
}

TEST_CASE("the end of a burst is blurred by the interval of reports, and steady overload is not") {
  Past past;
  for (int i = 0; i < 10; ++i) {
    past.Serve(100, i, i + 0.99);
    past.Refuse(300, i, i + 0.99);
    CHECK(past.Settle(i + 4).blurred == 0);
  }
  const Deviation d = past.Settle(16);
  CHECK(d.blurred == Approx(50).epsilon(0.1));    // half of what flows in within such an interval
  CHECK_FALSE(d.clear());
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
    limiter->ways().Get<Debits>().ShareWith(1, 1s);
    limiter->ways().Get<Debits>().Certify(kNow);
  }
  // In entries of as much as one host can have served.
  void Hear(std::string_view tag, std::uint64_t hits, Instant now) {
    for (std::uint64_t left = hits, some; left > 0; left -= some) {
      some = std::min<std::uint64_t>(left, 12);
      Entries entries;
      entries.Add({tag}, some, 0);
      limiter->ways().Get<Debits>().Debit(entries, 0, 1, now, now, now);
    }
  }
  // Looks once a second until all that is heard of by now is replayed.
  Instant CertifyAll(Instant now) {
    for (int i = 0; i < 8; ++i) limiter->ways().Get<Debits>().Certify(now += 1s);
    return now;
  }
  const RuleAccuracy& rule() const { return limiter->ways().Get<Debits>().accuracy(0); }
};

TEST_CASE("a peer's late hits are seen as over-admitted, under their rule and of their tag") {
  Shared host;
  for (int i = 0; i < 15; ++i) host.Serves("x", kNow);
  host.Hear("x", 10, kNow);
  host.limiter->ways().Get<Debits>().Certify(kNow + 1s);
  CHECK(host.rule().served == Approx(20));
  CHECK(host.rule().debt == Approx(9));
  CHECK(host.rule().observed.over == Approx(10));
  CHECK(host.limiter->ways().Get<Debits>().certificate().Hottest(5).at(0).kept.tag().bytes == "x");
  CHECK_FALSE(host.Serves("x", kNow + 1500ms));    // one bucket has a token by then
  for (int i = 2; i < 8; ++i) host.limiter->ways().Get<Debits>().Certify(kNow + i * 1s);
  CHECK(host.rule().ever.under == Approx(1));
  CHECK(host.rule().ever.over == Approx(10));
}

TEST_CASE("hits beyond the limit that refill has paid for when they are heard of are blurred") {
  const auto heard_after = [](Duration delay, int served_here) {
    Shared host;
    for (int i = 0; i < served_here; ++i) host.Serves("x", kNow);
    Entries entries;
    entries.Add({"x"}, 10, 0);
    host.limiter->ways().Get<Debits>().Debit(entries, 0, 1, kNow, kNow, kNow + delay);
    host.limiter->ways().Get<Debits>().Certify(kNow + delay + 1s);
    return host.rule().observed;
  };
  CHECK(heard_after(0s, 10).over == Approx(10));
  CHECK(heard_after(0s, 10).blurred == 0);
  CHECK(heard_after(8s, 10).over == Approx(2));
  CHECK(heard_after(8s, 10).blurred == Approx(8));
  CHECK(heard_after(1s, 0).over + heard_after(1s, 0).blurred == 0);    // one bucket has as much
}

TEST_CASE("a tag that rests is forgotten, and a certificate looks at so many tags and no more") {
  Shared host;
  for (int i = 0; i < 2000; ++i) host.Hear("tag-" + std::to_string(i), 12, kNow);    // each two beyond its burst
  CHECK(host.limiter->ways().Get<Debits>().certificate().tags() <= Certificate::kTags);
  CHECK(host.limiter->ways().Get<Debits>().certificate().crowded() > 1000);
  host.limiter->ways().Get<Debits>().Certify(kNow + 1ms);
  host.limiter->ways().Get<Debits>().Certify(kNow + 1s);
  CHECK(host.rule().ever.over == Approx(4000));    // nothing is left out
  for (int i = 2; i < 600; ++i) host.limiter->ways().Get<Debits>().Certify(kNow + i * 1s);
  CHECK(host.limiter->ways().Get<Debits>().certificate().tags() == 0);
}

TagLook Owing(Tokens debt) {
  return {.counter = 0, .level = -debt, .burst = 10, .rate = 1};
}

// Hits that made so much debt.
Certificate::Hits Made(Tokens debt) {
  return {.hits = debt, .first = kNow, .from = kNow, .to = kNow, .made = debt};
}

TEST_CASE("a tag has one account, also when another one makes room") {
  Certificate certificate(1);
  const auto drained = [&](std::uint64_t hash) { certificate.Drained(hash, {"t"}, Owing(5), Made(5), 0, kNow); };
  for (std::uint64_t hash = 1; hash <= Certificate::kWays; ++hash) drained(hash);    // all of one set
  certificate.Forget(0);
  drained(Certificate::kWays);
  CHECK(certificate.tags() == Certificate::kWays - 1);
  drained(9);
  CHECK(certificate.tags() == Certificate::kWays);
  CHECK(certificate.crowded() == 0);
  certificate.Drained(10, {"u"}, Owing(3), Made(3), 0, kNow);    // lighter than all: counted, and not looked at
  CHECK(certificate.crowded() == 1);
  CHECK(certificate.Find(10) == nullptr);
  CHECK(certificate.rule(0).ever.over == 0);    // until what was served is known too
  certificate.Close(0, 0, 40, 0);
  const Tokens before = certificate.rule(0).ever.over;
  CHECK(before == Approx(28));    // five of 5 and this one
  certificate.Drained(11, {"u"}, Owing(30), Made(30), 0, kNow);
  CHECK(certificate.Find(11) != nullptr);
  certificate.Close(0, 0, 80, 0);
  CHECK(certificate.rule(0).ever.over == Approx(before + 30));    // what it displaced is not forgotten
}

TEST_CASE("what a tag owed before it was looked at does not count as new") {
  Certificate certificate(1);
  certificate.SetPeriod(1s);
  certificate.Drained(1, {"t"}, Owing(20), Made(5), 0, kNow);
  certificate.Begin(kNow);
  CHECK(certificate.Look(0, Owing(20), kNow));
  certificate.Close(0, 0, 20, 0);
  CHECK(certificate.rule(0).ever.over == Approx(5));
  CHECK(certificate.rule(0).debt == Approx(20));
}

TEST_CASE("where nobody else serves, nothing is over- or under-admitted") {
  Shared host;
  for (int i = 0; i < 100; ++i) {
    for (int k = 0; k < 20; ++k) host.Serves("x", kNow + i * 1s);
    host.limiter->ways().Get<Debits>().Certify(kNow + i * 1s);
  }
  CHECK(host.rule().ever.over == 0);
  CHECK(host.rule().ever.under == 0);
  CHECK(host.rule().served > 0);
}

TEST_CASE("an alert begins above the tolerance, is over below it, and is told once") {
  Shared host("tolerance=25\n");
  for (int i = 0; i < 10; ++i) host.Serves("x", kNow);
  host.Hear("x", 10, kNow);
  host.limiter->ways().Get<Debits>().Certify(kNow + 1s);
  auto news = host.limiter->ways().Get<Debits>().certificate().TakeNews();
  REQUIRE(news.size() == 1);
  CHECK(news[0].began);
  CHECK(news[0].over_percent > 25);
  CHECK(news[0].tolerance_percent == 25);
  CHECK(host.limiter->ways().Get<Debits>().certificate().alerts() == 1);
  CHECK(host.limiter->ways().Get<Debits>().certificate().TakeNews().empty());
  Instant now = kNow + 1s;
  for (int i = 0; i < 600 && news[0].began; ++i) {
    host.Serves("y" + std::to_string(i), now += 1s);    // what is within the limit makes the part smaller
    host.limiter->ways().Get<Debits>().Certify(now);
    if (auto more = host.limiter->ways().Get<Debits>().certificate().TakeNews(); !more.empty()) news = more;
  }
  CHECK(!news[0].began);
  CHECK(news[0].over_percent <= 0.8 * 25);
  CHECK(host.limiter->ways().Get<Debits>().certificate().alerts() == 1);
  Shared silent;
  silent.Hear("x", 30, kNow);
  silent.CertifyAll(kNow);
  CHECK(silent.rule().over_percent() > 50);
  CHECK(silent.limiter->ways().Get<Debits>().certificate().TakeNews().empty());
}

TEST_CASE("a rule keeps its account over a reload, and another rule does not get it") {
  Shared host;
  host.Hear("x", 30, kNow);
  const Instant then = host.CertifyAll(kNow);
  const double over = host.rule().ever.over;
  CHECK(over > 15);
  host.limiter->Adopt(Rules("[[rule]]\nname=\"r\"\nburst=10\nrate=2\n"));
  while (host.limiter->Tick(then)) continue;
  CHECK(host.rule().ever.over == over);
  host.limiter->Adopt(Rules("[[rule]]\nname=\"other\"\nburst=10\nrate=2\n"));
  while (host.limiter->Tick(then)) continue;
  CHECK(host.rule().ever.over == 0);
  host.limiter->ways().Get<Debits>().Certify(then + 1s);    // its tags are the other rule's now, with what they owe
  CHECK(host.rule().ever.over <= 1);
  host.limiter->Adopt(Rules("[[rule]]\nname=\"other\"\nburst=10\nrate=2\nshare=\"local\"\n"));
  while (host.limiter->Tick(then + 1s)) continue;
  host.limiter->ways().Get<Debits>().Certify(then + 2s);
  CHECK(host.limiter->ways().Get<Debits>().certificate().tags() == 0);
}

}    // namespace
}    // namespace dthrottle::testing
