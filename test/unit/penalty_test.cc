// Penalties: tags that were refused too often are refused at once (penalty/penalties.h).
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "config/load.h"
#include "limiter/inspect.h"
#include "limiter/kept_penalties.h"
#include "penalty/penalties.h"
#include "query/question.h"
#include "share/debit/ownership.h"
#include "share/debit/sharing.h"
#include "share/ways.h"
#include "tally/tally.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::Host;

constexpr Instant kNow = FromNanoseconds(5'000'000'000);
constexpr const char* kLogins =
    "[[rule]]\nname=\"login\"\nmatch=\"login:*\"\nburst=2\nrate=1\n"
    "penalty={ after = 3, within = \"10s\", lasts = \"1m\", doubling = true }\n"
    "[[rule]]\nname=\"default\"\nburst=2\nrate=1\n";

// Asks until the tag is refused `refusals` times at `now`.
void Refuse(Host& host, std::string_view tag, int refusals, Instant now) {
  while (refusals > 0) refusals -= !host.Serves(tag, now);
}

Duration Left(Host& host, std::string_view tag, Instant now) {
  return Inspect(*host.limiter, {{tag, false}}, now).penalty;
}

TEST_CASE("penalty: so many refusals within the time, and the tag is refused as long as it lasts, and no longer") {
  Host host(kLogins);
  Refuse(host, "login:a", 2, kNow);
  CHECK(host.Serves("login:a", kNow + 1s));
  Refuse(host, "login:a", 1, kNow + 1s);
  CHECK(Left(host, "login:a", kNow + 1s) == 60s);
  for (Duration t = 2s; t < 61s; t += 1s) CHECK_FALSE(host.Serves("login:a", kNow + t));
  CHECK(host.Serves("login:a", kNow + 61s));
  CHECK(host.Serves("login:b", kNow + 30s));
  const RuleTotals totals = host.limiter->tally().Totals(0);
  CHECK(totals.penalized == 59);
  CHECK(totals.throttled == 62);
}

TEST_CASE("penalty: refusals that are further apart, and those of rules without one, bring none") {
  Host host(kLogins);
  for (int round = 0; round < 5; ++round) Refuse(host, "login:a", 2, kNow + round * 10s);
  CHECK(Left(host, "login:a", kNow + 40s) == 0s);
  Refuse(host, "other", 50, kNow);
  CHECK(host.Serves("other", kNow + 1s));
}

TEST_CASE("penalty: one that follows soon is twice as long, and one that follows later is not") {
  Host host(kLogins);
  Refuse(host, "login:a", 3, kNow);
  Refuse(host, "login:a", 3, kNow + 100s);
  CHECK(Left(host, "login:a", kNow + 100s) == 120s);
  Refuse(host, "login:a", 3, kNow + 300s);
  CHECK(Left(host, "login:a", kNow + 300s) == 240s);
  Refuse(host, "login:a", 3, kNow + 800s);    // ended at 540 s, forgotten 240 s later
  CHECK(Left(host, "login:a", kNow + 800s) == 60s);
}

TEST_CASE("penalty: no penalty is longer than a week, however often it doubles") {
  Penalties penalties;
  penalties.Enable();
  const Penalty terms{1, 1min, 24h, true};
  Instant now = kNow;
  for (int i = 0; i < 70; ++i) {
    penalties.Refused({"t"}, 7, terms, 1, now);
    CHECK(penalties.Left(7, now) <= Penalties::kLongest);
    now += penalties.Left(7, now);
  }
  penalties.Refused({"t"}, 7, terms, 1, now);
  CHECK(penalties.Left(7, now) == Penalties::kLongest);
}

TEST_CASE("penalty: a question is told how long it lasts, also by the refusal that begins it, and a peek adds nothing") {
  Host host(kLogins);
  const auto ask = [&](Verb verb, Instant now) {
    Questions questions;
    questions.Begin(verb);
    questions.Name({{"other", false}, 0});
    questions.Name({{"login:a", false}, 1});
    Outcome outcome;
    std::array<Standing, 2> standings;
    host.limiter->Ask(questions, {&outcome, 1}, standings, 0, host.prng, now);
    return outcome;
  };
  Refuse(host, "login:a", 2, kNow);
  for (int i = 0; i < 5; ++i) CHECK(ask(Verb::kPeek, kNow).wait == 1s);
  CHECK(ask(Verb::kTake, kNow).wait == 60s);
  const Outcome refused = ask(Verb::kTake, kNow + 20s);
  CHECK(refused.verdict == Verdict::kThrottle);
  CHECK(refused.tag == 1);
  CHECK(refused.wait == 40s);
  CHECK(ask(Verb::kPeek, kNow + 30s).wait == 30s);
}

TEST_CASE("penalty: the network of an address is penalized, not the address that it refuses") {
  Host host(
      "[[rule]]\nname=\"nets\"\nmatch=\"*/48\"\nburst=1\nrate=1\nshare=\"local\"\npenalty={ after = 1 }\n"
      "[[rule]]\nname=\"ips\"\nmatch=\"ip:*\"\nburst=5\nrate=1\nshare=\"local\"\nalso=[\"ipv6/48\"]\n"
      "penalty={ after = 1 }\n");
  CHECK(host.Serves("ip:2001:db8:7:1::9", kNow));
  CHECK_FALSE(host.Serves("ip:2001:db8:7:1::9", kNow));
  CHECK(Left(host, "ip:2001:db8:7::/48", kNow) == 10min);
  CHECK(Left(host, "ip:2001:db8:7:1::9", kNow) == 0s);
  CHECK_FALSE(host.Serves("ip:2001:db8:7:2::9", kNow + 5min));
  CHECK(host.Serves("ip:2001:db8:8:2::9", kNow + 5min));
}

TEST_CASE("penalty: in shadow mode one begins, is counted and told, and refuses nothing") {
  Host host(std::string(kLogins) + "[[rule]]\nname=\"try\"\nmatch=\"try:*\"\nburst=1\nrate=0.1\nmode=\"shadow\"\npenalty={ after = 3 }\n");
  for (int i = 0; i < 10; ++i) CHECK(host.Serves("try:a", kNow));
  CHECK(Left(host, "try:a", kNow) == 10min);
  CHECK(CountsOf(*host.limiter).penalties.begun == 1);
  CHECK(host.limiter->tally().Totals(2).penalized == 6);
  CHECK(host.limiter->tally().Totals(2).shadowed == 9);
  Questions questions;
  questions.Begin(Verb::kTake);
  questions.Name({{"other", false}, 1});
  questions.Name({{"try:a", false}, 1});
  Outcome outcome;
  std::array<Standing, 2> standings;
  host.limiter->Ask(questions, {&outcome, 1}, standings, 0, host.prng, kNow);
  CHECK(outcome.verdict == Verdict::kServe);
}

TEST_CASE("penalty: one that a process has left goes on, under a limit of this host alone too") {
  const std::string rules = "[[rule]]\nname=\"login\"\nburst=1\nrate=1\nshare=\"local\"\npenalty={ after = 1 }\n";
  Host before(rules), after(rules), without("[[rule]]\nname=\"login\"\nburst=1\nrate=1\n");
  Refuse(before, "a", 1, kNow);
  const std::string kept = KeepPenalties(*before.limiter, kNow + 1s);
  RestorePenalties(*after.limiter, kept, kNow + 1s);
  RestorePenalties(*without.limiter, kept, kNow + 1s);
  CHECK(Left(after, "a", kNow + 1s) == 10min - 1s);
  CHECK(without.Serves("a", kNow + 1s));
  CHECK(KeepPenalties(*without.limiter, kNow + 1s).empty());
}

TEST_CASE("penalty: all that a process has left go on, as its own, for what peers say has no part in it") {
  const std::string rules = "[[rule]]\nname=\"login\"\nburst=1\nrate=1\npenalty={ after = 1 }\n";
  Host before(rules), after(rules);
  for (int i = 0; i < 6000; ++i) Refuse(before, std::to_string(i), 1, kNow);
  REQUIRE(Penalized(*before.limiter, kNow).size() > 5900);
  RestorePenalties(*after.limiter, KeepPenalties(*before.limiter, kNow), kNow);
  const auto kept = Penalized(*after.limiter, kNow);
  CHECK(kept.size() == Penalized(*before.limiter, kNow).size());
  CHECK(std::ranges::none_of(kept, &PenalizedTag::heard));
  CHECK(CountsOf(*after.limiter).penalties.heard == 0);
}

TEST_CASE("penalty: one that a process has left, in force or over, doubles as without a restart, within the rule") {
  Host before(kLogins);
  Refuse(before, "login:a", 3, kNow);
  Refuse(before, "login:a", 3, kNow + 100s);    // 120 s long
  for (const Duration restart : {150s, 221s, 339s, 341s}) {
    CAPTURE(restart.count());
    Host after(kLogins);
    RestorePenalties(*after.limiter, KeepPenalties(*before.limiter, kNow + restart), kNow + restart);
    CHECK(Left(after, "login:a", kNow + restart) == std::max<Duration>(220s - restart, 0s));
    const Instant next = kNow + std::max<Duration>(restart, 220s);
    Refuse(after, "login:a", 3, next);
    CHECK(Left(after, "login:a", next) == (restart < 340s ? 240s : 60s));
  }
  Host shorter("[[rule]]\nname=\"login\"\nburst=1\nrate=1\npenalty={ after = 1, lasts = \"5s\" }\n");
  RestorePenalties(*shorter.limiter, KeepPenalties(*before.limiter, kNow + 150s), kNow + 150s);
  CHECK(Left(shorter, "login:a", kNow + 150s) == 5s);
}

TEST_CASE("penalty: under other rules one in force lasts no longer than they say") {
  const auto rules = [](const char* lasts) {
    return fmt::format("[[rule]]\nname=\"login\"\nmatch=\"login:*\"\nburst=1\nrate=1\n"
                       "penalty={{ after = 1, lasts = \"{}\" }}\n[[rule]]\nname=\"default\"\nburst=1\nrate=1\n",
                       lasts);
  };
  Host host(rules("1h"));
  Refuse(host, "login:a", 1, kNow);
  Refuse(host, "login:b", 1, kNow);
  const auto adopt = [&](const std::string& toml, Instant now) {
    host.limiter->Adopt(testing::Rules(toml));
    ShortenPenalties(*host.limiter, now);
    while (host.limiter->Tick(now)) {
    }
  };
  adopt(rules("2h"), kNow + 1s);
  CHECK(Left(host, "login:a", kNow + 1s) == 1h - 1s);
  adopt(rules("5s"), kNow + 2s);
  CHECK(Left(host, "login:a", kNow + 2s) == 5s);
  CHECK(Penalized(*host.limiter, kNow + 2s).front().length == 5s);
  adopt("[[rule]]\nname=\"default\"\nburst=1\nrate=1\n", kNow + 3s);    // none any more
  CHECK(Penalized(*host.limiter, kNow + 3s).empty());
  adopt(rules("1h"), kNow + 4s);
  CHECK(Left(host, "login:b", kNow + 4s) == 0s);
  CHECK(host.Serves("login:a", kNow + 7s));
}

TEST_CASE("penalty: one that a reload took away does not come back when a later one brings penalties again") {
  const auto rules = [](int after) {
    return fmt::format("[[rule]]\nname=\"login\"\nmatch=\"login:*\"\nburst=2\nrate=1\n"
                       "penalty={{ after = {}, doubling = true }}\n[[rule]]\nname=\"default\"\nburst=1\nrate=1\n",
                       after);
  };
  Host host(rules(3));
  Refuse(host, "login:a", 3, kNow);
  for (const int after : {0, 3}) {
    host.limiter->Adopt(testing::Rules(rules(after)));
    ShortenPenalties(*host.limiter, kNow + 1s);
    CHECK(Penalized(*host.limiter, kNow + 1s).empty());
    CHECK(host.Serves("login:a", kNow + 5s));
  }
  Refuse(host, "login:a", 3, kNow + 5s);
  CHECK(Left(host, "login:a", kNow + 5s) == 10min);    // the default, which nothing has doubled
}

TEST_CASE("penalty: of a process that says nothing sound none is taken over") {
  Host host(kLogins);
  Refuse(host, "login:a", 3, kNow);
  const std::string kept = KeepPenalties(*host.limiter, kNow);
  for (const std::string& junk : {std::string("x"), std::string(), kept.substr(1), "\x01" + kept.substr(1)}) {
    Host other(kLogins);
    RestorePenalties(*other.limiter, junk, kNow);
    CHECK(Penalized(*other.limiter, kNow).empty());
  }
}

TEST_CASE("penalty: what people forgive ends at once, and begins no longer next time") {
  Host host(kLogins);
  Refuse(host, "login:a", 3, kNow);
  CHECK(Forgive(*host.limiter, {{"login:a", false}}, kNow + 1s));
  CHECK(host.Serves("login:a", kNow + 1s));
  Refuse(host, "login:a", 3, kNow + 2s);
  CHECK(Left(host, "login:a", kNow + 2s) == 60s);
}

TEST_CASE("penalty: what people lifted does not come back by a host that has not heard of it, and a new one counts") {
  Penalties penalties;
  penalties.Enable();
  int wakes = 0;
  penalties.SetWake([&] { ++wakes; });
  const Penalty terms{1, 1min, 10min, false};
  const auto hear = [&](Duration ends, Duration at) {
    penalties.Hear({"t"}, 77, 0, terms, kNow + ends, kNow + at);
    return penalties.Left(77, kNow + at);
  };
  CHECK(hear(10min, 0s) == 10min);
  CHECK(penalties.Lift(77, kNow + 1min));
  CHECK(wakes == 1);
  CHECK(hear(10min, 2min) == 0s);                    // a host that was away
  CHECK(hear(10min + 3ms, 2min) == 0s);
  CHECK(hear(12min, 2min) == 10min);                 // begun since
  CHECK(hear(0s, 3min) == 0s);                       // a peer says that it was lifted
  CHECK(hear(12min, 3min) == 0s);
  penalties.TellLifted({"u"}, 78, terms, kNow + 1min);    // none is known here
  penalties.Hear({"u"}, 78, 0, terms, kNow + 9min, kNow + 2min);
  CHECK(penalties.Left(78, kNow + 2min) == 0s);

  std::vector<Duration> told;
  const auto lock = [](std::uint64_t) { return 0; };
  penalties.TellAgain(lock, kNow + 4min);
  penalties.TellSome(lock, kNow + 4min, [&](const Tag&, Duration left, int) { return told.push_back(left), true; });
  CHECK(told == std::vector<Duration>{0s, 0s});      // who comes hears of both
  told.clear();
  penalties.TellAgain(lock, kNow + 30min);
  penalties.TellSome(lock, kNow + 30min, [&](const Tag&, Duration left, int) { return told.push_back(left), true; });
  CHECK(told.empty());
}

TEST_CASE("penalty: a flood neither ends a penalty nor keeps a set from those that have one") {
  Penalties penalties;
  penalties.Enable();
  const Penalty terms{1, 1min, 10min, false};
  Prng prng(5);
  penalties.Refused({"mine"}, 12345, terms, 1, kNow);
  for (int i = 0; i < 200'000; ++i) penalties.Refused({"theirs"}, prng.Next() | 1, terms, 1, kNow + 1s);
  CHECK(penalties.Left(12345, kNow + 1s) == 10min - 1s);
  const PenaltyCounts counts = penalties.counts();
  CHECK(counts.crowded > 0);
  CHECK(counts.begun + counts.crowded == 200'001);
  CHECK(counts.tags == counts.begun);
}

TEST_CASE("penalty: what a peer says takes less than half of the places, and no longer than the rule says") {
  Penalties penalties;
  penalties.Enable();
  const Penalty terms{1, 1min, 10min, false};
  Prng prng(5);
  for (int i = 0; i < 200'000; ++i) penalties.Hear({"lie"}, prng.Next() | 1, 0, terms, kNow + 240h, kNow);
  CHECK(penalties.counts().tags < Penalties::kTags / 2);
  std::uint64_t hash = prng.Next() | 1;
  penalties.Refused({"mine"}, hash, terms, 1, kNow);
  CHECK(penalties.Left(hash, kNow) == 10min);
  Penalties other;
  other.Enable();
  other.Hear({"lie"}, hash, 0, terms, kNow + 240h, kNow);
  CHECK(other.Left(hash, kNow) == 10min);
}

TEST_CASE("penalty: a peer that tells of ever more leaves other peers their part of the places") {
  Penalties penalties;
  penalties.Enable();
  const Penalty terms{1, 1min, 10min, false};
  Prng prng(5);
  const auto lie = [&] {
    for (int i = 0; i < 200'000; ++i) penalties.Hear({"lie"}, prng.Next() | 1, 0, terms, kNow + 240h, kNow);
  };
  lie();
  std::vector<std::uint64_t> theirs(200);
  for (std::uint64_t& hash : theirs) penalties.Hear({"theirs"}, hash = prng.Next() | 1, 1, terms, kNow + 10min, kNow);
  lie();
  CHECK(std::ranges::count_if(theirs, [&](std::uint64_t hash) { return penalties.Left(hash, kNow) == 10min; }) > 180);
  CHECK(penalties.counts().tags < Penalties::kTags / 2);
}

// ---- Peers ----

struct Peer {
  explicit Peer(std::string_view toml) : host(toml), sharing(host.limiter->ways(), out, in, 1, 5s, host.prng, kNow) {
    host.limiter->ways().WatchTags(64, [this] { ++woken; });
  }
  std::vector<ToPeers> Said(Instant now) {
    while (sharing.Work(now)) {
    }
    std::vector<ToPeers> said;
    for (ToPeers item; out.TryPop(item);) {
      if (item.kind == ToPeers::Kind::kUrgent) said.push_back(std::move(item));
    }
    return said;
  }
  void Hear(const std::vector<ToPeers>& items, Instant now) {
    for (const ToPeers& item : items) {
      FromPeers debits;
      debits.kind = FromPeers::Kind::kDebits;
      debits.from = item.from;
      debits.to = item.to;
      debits.entries = item.entries;
      REQUIRE(in.TryPush(std::move(debits)));
    }
    while (sharing.Work(now)) {
    }
  }

  Host host;
  ToPeersRing out{64};
  FromPeersRing in{64};
  Sharing sharing;
  int woken = 0;
};

TEST_CASE("penalty: peers are told at once and refuse from then on, and are told when it is forgiven") {
  Peer a(kLogins), b(kLogins);
  Refuse(a.host, "login:a", 3, kNow);
  CHECK(a.woken == 2);    // for refusals, and for the penalty
  CHECK(a.sharing.next() <= kNow);
  const auto said = a.Said(kNow);
  REQUIRE(said.size() == 1);
  b.Hear(said, kNow + 20ms);
  CHECK(Left(b.host, "login:a", kNow + 20ms) == 60s - 20ms);
  CHECK_FALSE(b.host.Serves("login:a", kNow + 20ms));
  CHECK(CountsOf(*b.host.limiter).penalties.heard == 1);
  CHECK(b.Said(kNow + 1s).empty());    // what was heard is not told

  Forgive(*a.host.limiter, {{"login:a", false}}, kNow + 2s);
  b.Hear(a.Said(kNow + 2s), kNow + 2s);
  CHECK(Left(b.host, "login:a", kNow + 2s) == 0s);
}

TEST_CASE("penalty: a host that comes back hears of all that are in force") {
  Peer a(kLogins), b(kLogins);
  Refuse(a.host, "login:a", 3, kNow);
  a.Said(kNow);
  FromPeers wanted;
  wanted.kind = FromPeers::Kind::kSnapshotWanted;
  wanted.snapshot = 1;
  REQUIRE(a.in.TryPush(std::move(wanted)));
  b.Hear(a.Said(kNow + 10s), kNow + 10s);
  CHECK(Left(b.host, "login:a", kNow + 10s) == 50s);
}

TEST_CASE("penalty: a rule of each host alone, and one without a penalty here, hears of none") {
  Peer local("[[rule]]\nname=\"login\"\nburst=2\nrate=1\nshare=\"local\"\npenalty={ after = 1 }\n");
  Refuse(local.host, "login:a", 1, kNow);
  CHECK(local.Said(kNow).empty());

  Peer a(kLogins), b("[[rule]]\nname=\"all\"\nburst=2\nrate=1\n");
  Refuse(a.host, "login:a", 3, kNow);
  b.Hear(a.Said(kNow), kNow);
  CHECK(b.host.Serves("login:a", kNow));
  CHECK(b.host.limiter->ways().Get<Debits>().peers().counts().unmatched == 1);
}

// ---- Refusals by other hosts ----

constexpr const char* kMany =
    "[[rule]]\nname=\"login\"\nmatch=\"login:*\"\nburst=1\nrate=0.1\n"
    "penalty={ after = 40, within = \"1m\", lasts = \"1h\" }\n";

// How often peers are told that a tag was refused.
std::uint64_t RefusalsIn(const std::vector<ToPeers>& items) {
  std::uint64_t sum = 0;
  for (const ToPeers& item : items) {
    for (const Beside& refusals : item.entries.refusals()) sum += refusals.number;
  }
  return sum;
}

TEST_CASE("penalty: refusals by all hosts count, and the next one anywhere begins it") {
  Peer a(kMany), b(kMany);
  Refuse(a.host, "login:a", 25, kNow);
  b.Hear(a.Said(kNow + 50ms), kNow + 50ms);
  Refuse(b.host, "login:a", 14, kNow + 60ms);
  CHECK(Left(b.host, "login:a", kNow + 60ms) == 0s);
  Refuse(b.host, "login:a", 1, kNow + 60ms);
  CHECK(Left(b.host, "login:a", kNow + 60ms) == 1h);
  CHECK(CountsOf(*a.host.limiter).penalties.begun == 0);
}

TEST_CASE("penalty: peers hear soon of a quarter of what is missing, of two hosts, and of the rest with the period") {
  Peer a(kMany);
  Refuse(a.host, "login:a", 7, kNow);
  CHECK(a.woken == 0);
  CHECK(RefusalsIn(a.Said(kNow + 1s)) == 0);
  Refuse(a.host, "login:a", 1, kNow + 1s);    // 8, and 32 are missing
  CHECK(a.woken == 1);
  CHECK(RefusalsIn(a.Said(kNow + 1s)) == 8);
  Refuse(a.host, "login:a", 3, kNow + 2s);
  CHECK(RefusalsIn(a.Said(kNow + 2s)) == 0);
  CHECK(RefusalsIn(a.Said(kNow + 7s)) == 3);
  CHECK(RefusalsIn(a.Said(kNow + 20s)) == 0);
}

const auto kMay = [] { return true; };

TEST_CASE("penalty: what peers say of refusals begins none by itself, and takes less than half of the places") {
  Penalties penalties;
  penalties.Enable();
  const Penalty terms{5, 1min, 10min, false};
  CHECK_FALSE(penalties.HearRefusals(7, 1, 4, terms, kNow, kMay));
  CHECK(penalties.HearRefusals(7, 1, 1'000'000, terms, kNow, kMay));
  CHECK(penalties.Left(7, kNow) == 0s);
  penalties.Refused({"t"}, 7, terms, 1, kNow);
  CHECK(penalties.Left(7, kNow) == 10min);
  penalties.BeginHeard({"t"}, 8, 0, terms, kNow);
  CHECK(penalties.Left(8, kNow) == 10min);
  Prng prng(5);
  for (int i = 0; i < 200'000; ++i) penalties.BeginHeard({"lie"}, prng.Next() | 1, 0, terms, kNow);
  CHECK(penalties.counts().tags < Penalties::kTags / 2);
}

TEST_CASE("penalty: refusals from before it began, and those told too long ago, count for nothing") {
  Penalties penalties;
  penalties.Enable();
  const Penalty terms{5, 1min, 2min, false};
  penalties.Hear({"t"}, 7, 0, terms, kNow + 30s, kNow);
  penalties.HearRefusals(7, 1, 4, terms, kNow + 10s, kMay);
  penalties.Refused({"t"}, 7, terms, 1, kNow + 31s);
  CHECK(penalties.Left(7, kNow + 31s) == 0s);
  penalties.HearRefusals(8, 1, 4, terms, kNow, kMay);
  penalties.Refused({"t"}, 8, terms, 1, kNow + 1min);
  CHECK(penalties.Left(8, kNow + 1min) == 0s);
  for (int i = 0; i < 4; ++i) penalties.Refused({"t"}, 9, terms, 1, kNow);
  penalties.Hear({"t"}, 9, 0, terms, kNow + 10s, kNow);    // a peer was the first to find out
  penalties.Refused({"t"}, 9, terms, 1, kNow + 11s);
  CHECK(penalties.Left(9, kNow + 11s) == 0s);
}

TEST_CASE("penalty: what peers say of refusals makes room for nothing, and leaves room for what is refused here") {
  Penalties penalties;
  penalties.Enable();
  const Penalty terms{3, 1min, 10min, false};
  Prng prng(5);
  std::vector<std::uint64_t> mine(1000);
  for (std::uint64_t& hash : mine) {
    hash = prng.Next() | 1;
    penalties.Refused({"mine"}, hash, terms, 1, kNow);
  }
  for (int i = 0; i < 1'000'000; ++i) penalties.HearRefusals(prng.Next() | 1, 1, 2, terms, kNow, kMay);
  const std::uint64_t fresh = prng.Next() | 1;
  for (const std::uint64_t hash : {mine[0], mine[500], mine[999]}) {
    penalties.Refused({"mine"}, hash, terms, 1, kNow);
    penalties.Refused({"mine"}, hash, terms, 1, kNow);
    CHECK(penalties.Left(hash, kNow) == 10min);
  }
  for (int i = 0; i < 3; ++i) penalties.Refused({"mine"}, fresh, terms, 1, kNow);
  CHECK(penalties.Left(fresh, kNow) == 10min);
}

TEST_CASE("penalty: a peer that tells of any number of refusals leaves other peers room, and what is lost is counted") {
  Penalties penalties;
  penalties.Enable();
  const Penalty terms{21, 5min, 10min, false};
  Prng prng(5);
  const auto lie = [&] {
    for (int i = 0; i < 400'000; ++i) penalties.HearRefusals(prng.Next() | 1, 1, 1, terms, kNow, kMay);
  };
  lie();
  const std::uint64_t crowded = penalties.counts().refusals_crowded;
  CHECK(crowded > 300'000);
  CHECK(penalties.counts().refusals_heard + crowded == 400'000);
  std::vector<std::uint64_t> honest(1000);
  for (std::uint64_t& hash : honest) penalties.HearRefusals(hash = prng.Next() | 1, 2, 10, terms, kNow, kMay);
  CHECK(penalties.counts().refusals_crowded > crowded);    // refusals that made room
  CHECK(penalties.counts().refusals_crowded <= crowded + 1000);
  lie();
  for (const std::uint64_t hash : honest) {
    for (int i = 0; i < 10; ++i) penalties.Refused({"t"}, hash, terms, 1, kNow);
    CHECK(penalties.Left(hash, kNow) == 0s);
    penalties.Refused({"t"}, hash, terms, 1, kNow);
    CHECK(penalties.Left(hash, kNow) == 10min);
  }
}

TEST_CASE("penalty: a flood of tags that are refused is told in so many entries a second, and counted beyond") {
  Peer a(kMany);
  std::vector<ToPeers> said;
  std::size_t entries = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string tag = "login:" + std::to_string(i);
    Refuse(a.host, tag, 8, kNow + i * 50us);
    for (const ToPeers& item : a.Said(kNow + i * 50us)) entries += item.entries.refusals().size();
  }
  CHECK(entries >= 5000);
  CHECK(entries <= 21 * 400);
  CHECK(CountsOf(*a.host.limiter).penalties.refusals_untold > 0);
}

// ---- Settings ----

std::string Problems(std::string_view toml) {
  std::string problems;
  for (const Problem& p : ParseSettings(toml, "f").problems) problems += Format(p) + "\n";
  return problems;
}

TEST_CASE("penalty: the settings are one table or four keys, and what is wrong in it is named") {
  CHECK(Problems("[[rule]]\nburst=5\nrate=1\npenalty={ after = 20, within = \"1m\", lasts = \"10m\" }\n").empty());
  CHECK(Problems("[[rule]]\nburst=5\nrate=1\npenalty.after=20\npenalty.doubling=true\n").empty());
  CHECK(Problems("[[rule]]\nburst=5\nrate=1\npenalty={ after = -1 }\n") ==
        "f:4:19: error: rule.penalty.after = -1: must be a whole number from 0 to 1000000\n");
  CHECK(Problems("[[rule]]\nburst=5\nrate=1\npenalty={ for = 1 }\n").find("unknown key rule.penalty.for") !=
        std::string::npos);
  CHECK(Problems("[[rule]]\nburst=5\nrate=1\npenalty=3\n").find("unknown key rule.penalty;") != std::string::npos);
}

// Says so of so many tags, as peer 0, in parts that a ring has room for.
void Lie(Peer& host, int tags, Instant now, const Besides& lie = {.penalty = 600'000}) {
  for (int i = 0; i < tags;) {
    ToPeers lies;
    lies.from = lies.to = now;
    for (; i < tags && lies.entries.Add({"login:" + std::to_string(i), false}, 0, 0, lie); ++i) continue;
    host.Hear({lies}, now);
  }
}

TEST_CASE("penalty: a peer that lies penalizes so many tags a second, and none of a limit of this host alone") {
  Peer victim(kLogins);
  Debits& debits = victim.host.limiter->ways().Get<Debits>();
  Lie(victim, 5000, kNow);
  CHECK(CountsOf(*victim.host.limiter).penalties.heard <= 1000);    // ten seconds' worth
  CHECK(debits.peers().counts_of(0).penalties_cut == 4000);
  const std::uint64_t before = CountsOf(*victim.host.limiter).penalties.heard + CountsOf(*victim.host.limiter).penalties.crowded;
  Lie(victim, 5000, kNow + 1s);
  CHECK(CountsOf(*victim.host.limiter).penalties.heard + CountsOf(*victim.host.limiter).penalties.crowded <= before + 100);
  CHECK(debits.peers().counts().penalties_cut >= 4000 + 4900);

  Peer alone("[[rule]]\nname=\"login\"\nburst=2\nrate=1\nshare=\"local\"\npenalty={ after = 3 }\n");
  Lie(alone, 50, kNow);
  CHECK(CountsOf(*alone.host.limiter).penalties.heard == 0);
  CHECK(alone.host.Serves("login:7", kNow));
}

TEST_CASE("penalty: a peer that lies of refusals brings few tags beyond half of a penalty, and leaves others theirs") {
  Peer victim(kMany);    // 40 refusals
  Lie(victim, 5000, kNow, {.refusals = 1'000'000});
  Debits& debits = victim.host.limiter->ways().Get<Debits>();
  CHECK(debits.peers().counts_of(0).penalties_cut == 4000);
  int penalized = 0;
  for (int i = 0; i < 5000; ++i) {
    Refuse(victim.host, "login:" + std::to_string(i), 1, kNow);
    penalized += Left(victim.host, "login:" + std::to_string(i), kNow) != 0s;
  }
  CHECK(penalized <= 1000);    // ten seconds' worth
  CHECK(penalized > 500);
  Refuse(victim.host, "login:4999", 20, kNow);
  CHECK(Left(victim.host, "login:4999", kNow) == 1h);
}

TEST_CASE("penalty: a refusal of a tag that is new here counts for its peer's new tags, as a hit does") {
  Peer victim(kMany);
  PeerEntries& peers = victim.host.limiter->ways().Get<Debits>().peers();
  peers.SetNewTagsMax(10);    // 100 at once
  Lie(victim, 5000, kNow, {.refusals = 1});
  CHECK(CountsOf(*victim.host.limiter).penalties.refusals_heard == 100);
  CHECK(peers.counts_of(0).new_tags_cut == 4900);
  Lie(victim, 100, kNow, {.refusals = 1});    // these have counts
  CHECK(CountsOf(*victim.host.limiter).penalties.refusals_heard == 200);
  CHECK(peers.counts_of(0).new_tags_cut == 4900);
}

TEST_CASE("penalty: an owner begins one by what hosts say, and believes one host as little as about penalties") {
  Peer owner(kLogins);
  Ownership ownership(owner.host.limiter->ways(), owner.out);
  ownership.Call("owner-1");
  ownership.Change(std::make_shared<const Owners>(std::vector<std::string>{"owner-1"}));
  owner.host.limiter->ways().core().ownership = &ownership;
  Lie(owner, 1, kNow, {.refusals = 2});
  CHECK(Left(owner.host, "login:0", kNow) == 0s);
  Lie(owner, 1, kNow, {.refusals = 1});
  CHECK(Left(owner.host, "login:0", kNow) == 60s);
  Lie(owner, 5000, kNow, {.refusals = 3});
  CHECK(CountsOf(*owner.host.limiter).penalties.begun <= 1000);
  CHECK(owner.host.limiter->ways().Get<Debits>().peers().counts_of(0).penalties_cut == 4001);    // two words went before
}

}    // namespace
}    // namespace dthrottle
