// Rules that are tried beside those in force: what they would have refused and served otherwise, and what of them can be
// put in force on all hosts.
#include "feature/candidate/comparison.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "config/calendar.h"
#include "limiter/asking.h"
#include "limiter/inspect.h"
#include "limiter/places.h"
#include "quota/quotas.h"
#include "share/ways.h"
#include "test/support/host.h"

using namespace dthrottle;
using dthrottle::testing::Host;
using dthrottle::testing::Rules;
using namespace std::chrono_literals;

namespace {

constexpr Instant kStart = Instant(1000s);

class Tried {
 public:
  Tried(std::string_view in_force, std::string_view candidate, double share = 1, std::size_t hosts = 1)
      : host(in_force) {
    if (hosts > 1) host.limiter->ways().Get<Debits>().ShareWith(hosts - 1, 1s);
    rules_ = Rules(candidate);
    share_ = share, hosts_ = hosts;
  }

  void Begin(Instant now) {
    auto memory = MappedRegion::Open("", Comparison::BytesFor(Table::kRegionBytesMin, share_), Table::IsTable);
    REQUIRE(memory);
    comparison = std::make_shared<Comparison>(std::move(*memory), *host.limiter, AsCompared(*rules_, hosts_), share_,
                                              nullptr, now);
    comparison->FollowPeers();
    while (comparison->CopySome(now)) {}
    host.limiter->Observe(comparison, comparison->sample());
  }

  // Asks so often at once; how often it was served.
  int Ask(std::string_view tag, int times, Instant now) {
    int served = 0;
    for (int i = 0; i < times; ++i) served += host.Serves(tag, now);
    return served;
  }

  Differences All() const {
    Differences all;
    for (const Differences& its : comparison->ByRule()) all += its;
    return all;
  }

  Host host;
  std::shared_ptr<Comparison> comparison;

 private:
  std::shared_ptr<const Rulebook> rules_;
  double share_;
  std::size_t hosts_;
};

std::string RuleOf(double burst, double rate, std::string_view more = "") {
  return fmt::format("[[rule]]\nname = \"all\"\nburst = {}\nrate = {}\n{}\n", burst, rate, more);
}

}    // namespace

TEST_CASE("a candidate that is what is in force differs in nothing, whatever was spent before it began") {
  const std::string rules = RuleOf(5, 1) + "[[override]]\ntag = \"t1\"\nburst = 2\nrate = 3.0\n";
  Tried tried(rules, rules);
  Prng prng(7);
  Instant now = kStart;
  const auto ask = [&](int queries) {
    for (int i = 0; i < queries; ++i) {
      now += Duration(static_cast<std::int64_t>(prng.Below(50'000'000)));
      tried.host.Serves(fmt::format("t{}", prng.Below(20)), now);
    }
  };
  ask(2000);
  tried.Begin(now);
  ask(5000);
  const Differences all = tried.All();
  CHECK(all.queries == 5000);
  CHECK(all.refused > 500);
  CHECK(all.candidate_refused == all.refused);
  CHECK(all.newly_refused + all.newly_served == 0);
  CHECK(tried.comparison->TopTags(10).empty());
}

TEST_CASE("a tag that is forgiven begins anew under the candidate too, and a penalty goes on there") {
  const std::string rules = RuleOf(5, 0.01, "penalty = { after = 3, within = \"1m\", lasts = \"10m\" }");
  Tried tried(rules, rules);
  CHECK(tried.Ask("a", 8, kStart) == 5);
  tried.Begin(kStart + 5min);
  CHECK(tried.Ask("a", 5, kStart + 5min) == 0);    // with three tokens in its bucket
  CHECK(tried.All().newly_served == 0);
  for (const char* tag : {"a", "b"}) {
    Forgive(*tried.host.limiter, {{tag, false}}, kStart + 301s);
    CHECK(tried.Ask(tag, 5, kStart + 301s) == 5);
    Forgive(*tried.host.limiter, {{tag, false}}, kStart + 301s);
    CHECK(tried.Ask(tag, 8, kStart + 301s) == 5);
  }
  CHECK(tried.All().newly_refused + tried.All().newly_served == 0);
  CHECK(tried.All().candidate_refused == tried.All().refused);
}

TEST_CASE("a stricter candidate says what it would have refused, by rule and tag") {
  const std::string other = "[[rule]]\nname = \"login\"\nmatch = \"login:*\"\nburst = 3\nrate = 0.001\n";
  Tried tried(other + RuleOf(10, 0.001), other + RuleOf(4, 0.001));
  tried.Begin(kStart);
  CHECK(tried.Ask("a", 12, kStart) == 10);
  CHECK(tried.Ask("b", 5, kStart) == 5);
  CHECK(tried.Ask("login:c", 5, kStart) == 3);
  const auto by_rule = tried.comparison->ByRule();
  REQUIRE(by_rule.size() == 3);
  CHECK(by_rule[0].queries == 5);
  CHECK(by_rule[0].newly_refused + by_rule[0].newly_served == 0);
  CHECK(by_rule[1].queries == 17);
  CHECK(by_rule[1].refused == 2);
  CHECK(by_rule[1].candidate_refused == 9);
  CHECK(by_rule[1].newly_refused == 7);
  const auto top = tried.comparison->TopTags(10);
  REQUIRE(top.size() == 2);
  CHECK(top[0].tag == "a");
  CHECK(top[0].seen.newly_refused == 6);
  CHECK(top[1].tag == "b");
  CHECK(top[1].seen.newly_refused == 1);
}

TEST_CASE("a looser candidate says what it would have served, and nothing is decided otherwise") {
  Tried tried(RuleOf(4, 0.001), RuleOf(10, 0.001));
  tried.Begin(kStart);
  CHECK(tried.Ask("a", 12, kStart) == 4);
  CHECK(tried.All().newly_served == 6);
  tried.host.limiter->Observe(nullptr, {});
  CHECK(tried.Ask("a", 12, kStart) == 0);
  CHECK(tried.All().queries == 12);
}

TEST_CASE("a tag is compared whole or not at all, and a tenth of all tags is a tenth") {
  Tried tried(RuleOf(10, 1), RuleOf(1, 0.001), 0.1);
  tried.Begin(kStart);
  for (int tag = 0; tag < 10'000; ++tag) {
    const std::uint64_t before = tried.All().queries;
    const std::string name = fmt::format("tag {}", tag);
    tried.Ask(name, 3, kStart);
    const std::uint64_t seen = tried.All().queries - before;
    const bool sampled = tried.comparison->sample().Has(tried.host.limiter->table().Hash({name}));
    if (seen != (sampled ? 3u : 0u)) FAIL(name);
  }
  CHECK(tried.All().queries / 3 > 800);
  CHECK(tried.All().queries / 3 < 1200);
  CHECK(tried.All().newly_refused == tried.All().queries / 3 * 2);
}

TEST_CASE("a tag that peers serve too is refused as often as it would be if they had the candidate") {
  // 10/s come to four hosts, of which this one sees a quarter; the rules in force serve all, the candidate serves 5/s.
  Tried tried(RuleOf(200, 100), RuleOf(10, 5), 1, 4);
  tried.Begin(kStart);
  Prng prng(3);
  Instant now = kStart;
  Differences before;
  for (int second = 0; second < 400; ++second) {
    if (second == 100) before = tried.All();
    const Instant from = now;
    for (int i = 0; i < 5; ++i) {
      now += 200ms;
      tried.Ask("a", static_cast<int>(prng.Below(2)), now);
    }
    Entries entries;
    entries.Add({"a"}, 7 + prng.Below(2), 0);
    tried.comparison->Heard(entries, 0, 1, from, now, 1, now);
  }
  const Differences all = tried.All();
  const double refused = static_cast<double>(all.newly_refused - before.newly_refused);
  const double share = refused / static_cast<double>(all.queries - before.queries);
  CAPTURE(share);
  CHECK(share > 0.4);
  CHECK(share < 0.6);
}

TEST_CASE("questions are compared as one, and what a hold gives back comes back to both") {
  const std::string rules = "[[rule]]\nname = \"a\"\nmatch = \"a\"\nburst = 4\nrate = 0.001\n" + RuleOf(10, 0.001);
  const std::string candidate = "[[rule]]\nname = \"a\"\nmatch = \"a\"\nburst = 4\nrate = 0.001\n" + RuleOf(2, 0.001);
  Tried tried(rules, candidate);
  tried.Begin(kStart);
  const auto ask = [&](Cost cost) {
    Questions questions;
    questions.Begin(Verb::kHold);
    questions.Name({{"a"}, 1});
    questions.Name({{"b"}, cost});
    Outcome outcome;
    std::array<Standing, 2> standings;
    tried.host.limiter->Ask(questions, {&outcome, 1}, standings, 0, tried.host.prng, kStart);
    return outcome.verdict == Verdict::kServe;
  };
  CHECK(ask(2));
  CHECK(ask(1));    // the candidate's b has nothing left, so its a does not pay
  CHECK(tried.All().queries == 2);
  CHECK(tried.All().newly_refused == 1);
  CHECK(tried.comparison->ByRule()[1].newly_refused == 1);
  tried.host.limiter->Settle({{{"b"}, 2}, kStart}, 0, kStart);
  CHECK(ask(2));
  CHECK(tried.All().newly_refused == 1);
}

namespace {

// Asks the question about one tag, and settles what it has paid with `used`. Whether it was served.
bool AskAndSettle(Host& host, Verb verb, const Query& query, Cost used, Instant now, Duration patience = {}) {
  Asking asking(*host.limiter, 0, Prng(1), kTagBytesMax);
  asking.Begin(verb, patience);
  REQUIRE(asking.Name(query.tag.bytes, query.cost));
  asking.Answer(now);
  if (asking.refusal(0)) return false;
  for (const Payment& paid : asking.payments(0)) {
    verb == Verb::kHold ? void(host.limiter->Settle(paid, used, now)) : host.limiter->GiveUp(paid, now);
  }
  return true;
}

// The host counts quotas, of one period that does not end.
void KeepQuotas(Host& host, std::span<std::byte> region) {
  const auto hash = [&host](const Tag& tag) { return host.limiter->table().Hash(tag); };
  const auto calendar = [](const QuotaCalendar& c) {
    QuotaPeriods periods = PeriodsAt(c, 1'800'000'000);
    periods.ends = kStart + 24h;
    return periods;
  };
  host.limiter->ways().KeepQuotas(
      std::make_unique<Quotas>(region, std::array<std::byte, 16>{}, 1, hash, calendar, kStart));
}

}    // namespace

TEST_CASE("what comes back of a hold or a wait that the candidate has refused does not come back to it") {
  const std::string candidate = RuleOf(30, 0.001);
  Tried tried(RuleOf(1e6, 1), candidate);
  tried.Begin(kStart);
  Host alone(candidate);
  std::uint64_t refused = 0;
  for (int i = 0; i < 200; ++i) {
    CHECK(AskAndSettle(tried.host, Verb::kHold, {{"a"}, 20}, 8, kStart + i * 1ms));
    refused += !AskAndSettle(alone, Verb::kHold, {{"a"}, 20}, 8, kStart + i * 1ms);
  }
  CHECK(refused == 198);
  CHECK(tried.All().candidate_refused == refused);
  CHECK_FALSE(tried.comparison->any_refunds());

  Tried waiting(RuleOf(1, 100, "delay = \"1m\""), RuleOf(1, 0.001));
  waiting.Begin(kStart);
  CHECK(waiting.Ask("a", 1, kStart) == 1);
  for (int i = 0; i < 100; ++i) CHECK(AskAndSettle(waiting.host, Verb::kTake, {{"a"}, 1}, 0, kStart, 1min));
  CHECK(waiting.All().newly_refused == 100);
}

TEST_CASE("of two holds of one instant the candidate settles as many as it has served") {
  Tried tried(RuleOf(100, 0.001), RuleOf(30, 0.001));
  tried.Begin(kStart);
  for (int i = 0; i < 3; ++i) {
    Questions questions;
    questions.Begin(Verb::kHold);
    questions.Name({{"a"}, 20});
    Outcome outcome;
    Standing standing;
    tried.host.limiter->Ask(questions, {&outcome, 1}, {&standing, 1}, 0, tried.host.prng, kStart);
  }
  CHECK(tried.All().newly_refused == 2);
  for (int i = 0; i < 3; ++i) tried.host.limiter->Settle({{{"a"}, 20}, kStart}, 0, kStart);
  CHECK(tried.Ask("a", 31, kStart) == 31);
  CHECK(tried.All().newly_refused == 3);    // 30 are there again, and no more
}

TEST_CASE("a hold that was served by mode shadow alone is settled as the candidate took it") {
  Tried tried(RuleOf(10, 0.001, "mode = \"shadow\""), RuleOf(10, 0.001));
  tried.Begin(kStart);
  Host alone(RuleOf(10, 0.001));
  std::uint64_t refused = 0;
  for (int i = 0; i < 30; ++i) {
    CHECK(AskAndSettle(tried.host, Verb::kHold, {{"a"}, 10}, 9, kStart + i * 1ms));
    refused += !AskAndSettle(alone, Verb::kHold, {{"a"}, 10}, 9, kStart + i * 1ms);
  }
  CHECK(refused == 29);
  CHECK(tried.All().candidate_refused == refused);
}

TEST_CASE("a refund comes back to the candidate whatever it has refused, which is said from the first one on") {
  Tried tried(RuleOf(100, 0.001), RuleOf(2, 0.001));
  tried.Begin(kStart);
  CHECK(tried.Ask("a", 4, kStart) == 4);
  tried.host.limiter->GiveBack({{"a"}, 0}, 0, kStart);
  CHECK_FALSE(tried.comparison->any_refunds());
  tried.host.limiter->GiveBack({{"a"}, 2}, 0, kStart);
  CHECK(tried.comparison->any_refunds());
  CHECK(tried.Ask("a", 2, kStart) == 2);
  CHECK(tried.All().newly_refused == 2);
  CHECK(NotCompared(*Rules(RuleOf(2, 0.001)), 1, true).size() == 1);
}

TEST_CASE("refusals for want of a place or by a quota are left out, however they are asked for") {
  const auto differs = [](const Tried& tried) { return tried.All().newly_refused + tried.All().newly_served; };
  const auto question = [](Host& host, Verb verb) { return AskAndSettle(host, verb, {{"a"}, 1}, 1, kStart); };
  SECTION("places") {
    const std::string rules = RuleOf(8, 0.001, "in_flight = 1");
    Tried tried(rules, rules);
    tried.Begin(kStart);
    Asking asking(*tried.host.limiter, 0, Prng(1), kTagBytesMax);
    asking.Begin(Verb::kEnter);
    REQUIRE(asking.Name("a", 1));
    asking.Answer(kStart);
    CHECK(tried.Ask("a", 20, kStart) == 0);
    CHECK_FALSE(question(tried.host, Verb::kTake));
    CHECK(tried.All().queries == 1);
    GivePlaces(*tried.host.limiter, tried.host.limiter->table().Hash({"a"}), 1);
    CHECK(tried.Ask("a", 20, kStart) == 7);
    CHECK(tried.All().queries == 21);
    CHECK(tried.All().refused == 13);
    CHECK(differs(tried) == 0);
  }
  SECTION("places of a tag that is charged with the query") {
    const std::string rules = "[[rule]]\nmatch = \"*/*\"\nburst = 8\nrate = 0.001\nalso = [\"before /\"]\n" +
                              RuleOf(100, 0.001, "in_flight = 1");
    Tried tried(rules, rules);
    tried.Begin(kStart);
    Asking asking(*tried.host.limiter, 0, Prng(1), kTagBytesMax);
    asking.Begin(Verb::kEnter);
    REQUIRE(asking.Name("a/b", 1));
    asking.Answer(kStart);
    CHECK(tried.Ask("a/b", 20, kStart) == 0);
    CHECK(tried.All().queries == 1);
  }
  SECTION("a quota") {
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    std::vector<Line> region(Quotas::RegionBytes(1024) / sizeof(Line));
    const std::string rules = RuleOf(20, 0.001, "quota = 5");
    Tried tried(rules, rules);
    KeepQuotas(tried.host, std::as_writable_bytes(std::span(region)));
    tried.Begin(kStart);
    CHECK(tried.Ask("a", 9, kStart) == 5);
    CHECK_FALSE(question(tried.host, Verb::kTake));
    tried.host.lending().CountRefused({{"a"}}, 100, 0, kStart);
    CHECK(tried.All().queries == 5);
    CHECK(differs(tried) == 0);
  }
  SECTION("mode shadow refuses nothing, so all is compared") {
    const std::string rules = RuleOf(4, 0.001, "in_flight = 1\nmode = \"shadow\"");
    Tried tried(rules, rules);
    tried.Begin(kStart);
    CHECK(tried.Ask("a", 9, kStart) == 9);
    CHECK(tried.All().queries == 9);
  }
}

TEST_CASE("refusals that a worker gave in the daemon's stead are compared too") {
  Tried tried(RuleOf(1, 0.001), RuleOf(3, 0.001));
  tried.Begin(kStart);
  CHECK(tried.Ask("a", 1, kStart) == 1);
  tried.host.lending().CountRefused({{"a"}}, 100, 0, kStart);
  CHECK(tried.All().queries == 101);
  CHECK(tried.All().newly_served == 2);
}

TEST_CASE("whatever a worker has decided by itself is compared, however much it is at once") {
  Tried tried(RuleOf(200'000, 0.1), RuleOf(50'000, 0.1));
  tried.Begin(kStart);
  for (int look = 0; look < 10; ++look) tried.comparison->Decided({{"a"}}, true, 10'007, 0, kStart);
  CHECK(tried.All().queries == 100'070);
  CHECK(tried.All().newly_refused >= 50'070);
  CHECK(tried.All().newly_refused < 50'080);    // a query stands for ten at most
  tried.comparison->Decided({{"b"}}, false, 100'000, 0, kStart);
  CHECK(tried.All().refused == 100'000);
  CHECK(tried.All().newly_served > 49'900);
  CHECK(tried.All().newly_served <= 50'000);
}

TEST_CASE("what one host cannot compare is said, and a divided limit is compared as an equal part") {
  const auto candidate = Rules(RuleOf(8, 8, "share = \"capacity\"\nquota = 5\nin_flight = 3"));
  CHECK(NotCompared(*candidate, 1).size() == 3);
  const auto compared = AsCompared(*candidate, 4);
  CHECK(compared->rules()[0].rate == 2);
  CHECK(compared->rules()[0].burst == 2);
  CHECK(compared->rules()[0].in_flight == 0);
  CHECK_FALSE(compared->any_quota());
  CHECK(NotCompared(*Rules(RuleOf(8, 8)), 0.1).empty());
  const std::string penalty = "penalty = { after = 3, within = \"1m\", lasts = \"10m\" }\n";
  CHECK(NotCompared(*Rules(RuleOf(8, 8, penalty)), 1).size() == 1);
  CHECK(NotCompared(*Rules(RuleOf(8, 8, penalty + "share = \"local\"")), 1).empty());
}

TEST_CASE("a part of the slowest limit that is divided can be compared") {
  for (const double burst : {1.0, 1.1, 10.0, 300.0}) {    // a host's part of 1 is a whole token
    const double rate = RateMin(burst);
    const auto candidate = Rules(RuleOf(burst, rate, "share = \"capacity\"") +
                                 fmt::format("[[override]]\ntag = \"x\"\nburst = {}\nrate = {}\n", burst, rate));
    for (const std::size_t hosts : {2, 3, 7}) {
      const auto compared = AsCompared(*candidate, hosts);
      CHECK(compared->rules()[0].burst / compared->rules()[0].rate <= kRefillSecondsMax);
      CHECK(compared->overrides()[0].rate == compared->rules()[0].rate);
    }
  }
}
