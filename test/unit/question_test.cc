#include "query/question.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/prng.h"
#include "limiter/limiter.h"
#include "limiter/shedder.h"
#include "share/ways.h"
#include "tally/tally.h"
#include "test/support/host.h"
#include "test/support/sanitized.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::Host;

constexpr Instant kNow = FromNanoseconds(5'000'000'000);
constexpr const char* kRules =
    "[[rule]]\nname=\"user\"\nmatch=\"user:*\"\nburst=10\nrate=1\n"
    "[[rule]]\nname=\"net\"\nmatch=\"net:*\"\nburst=3\nrate=0.5\n"
    "[[rule]]\nname=\"seen\"\nmatch=\"seen:*\"\nburst=1\nrate=1\nmode=\"shadow\"\n"
    "[[rule]]\nname=\"off\"\nmatch=\"off:*\"\nburst=1\nrate=1\nmode=\"off\"\n";

struct Named {
  std::string tag;
  Cost cost = 1;
};

// Asks one question at a time.
struct Asker {
  explicit Asker(Host& its) : host(its) {}

  Outcome Ask(Verb verb, const std::vector<Named>& tags, Instant now = kNow) {
    questions.Clear();
    questions.Begin(verb, patience);
    for (const Named& named : tags) questions.Name({{named.tag, false}, named.cost});
    Outcome outcome;
    standings.assign(questions.queries().size(), Standing());
    host.limiter->Ask(questions, {&outcome, 1}, standings, 0, host.prng, now);
    return outcome;
  }
  bool Takes(const std::vector<Named>& tags, Instant now = kNow) {
    return Ask(Verb::kTake, tags, now).verdict == Verdict::kServe;
  }
  double Left(std::size_t i, Instant now = kNow) const { return standings[i].bucket.Level(standings[i].shape, now); }

  Host& host;
  Duration patience{};    // of questions
  Questions questions;
  std::vector<Standing> standings;
};

struct Slots final : SlotVisitor {
  bool Visit(const Tag& tag, const Slot& slot, const Waste&) override {
    unreported[std::string(tag.bytes)] += slot.unreported.hits();
    return true;
  }
  std::map<std::string, std::uint64_t> unreported;
};

TEST_CASE("question: all tags pay, or none does") {
  Host host(kRules);
  Asker asker(host);
  for (int i = 0; i < 3; ++i) CHECK(asker.Takes({{"user:a"}, {"net:1"}}));
  CHECK(asker.Left(0) == 7);
  CHECK(asker.Left(1) == 0);
  const Outcome refused = asker.Ask(Verb::kTake, {{"user:a"}, {"net:1"}});
  CHECK(refused.verdict == Verdict::kThrottle);
  CHECK(refused.tag == 1);
  CHECK(refused.wait == 2s);
  CHECK(asker.Left(0) == 7);
  CHECK(host.Level("user:a", kNow) == 7);
  CHECK(asker.Takes({{"user:a"}, {"net:1"}}, kNow + 2s));
}

TEST_CASE("question: of several tags that refuse, the one that takes longest says how long to wait") {
  Host host(kRules);
  Asker asker(host);
  CHECK(asker.Takes({{"user:a", 10}, {"net:1", 2}}));
  const Outcome refused = asker.Ask(Verb::kTake, {{"net:1", 2}, {"user:a", 4}, {"user:b"}});
  CHECK(refused.tag == 1);
  CHECK(refused.wait == 4s);
  CHECK(host.limiter->tally().Totals(0).throttled == 1);
  CHECK(host.limiter->tally().Totals(1).throttled == 0);
  CHECK(asker.Takes({{"net:1", 2}, {"user:a", 4}, {"user:b"}}, kNow + 4s));
  const Outcome never = asker.Ask(Verb::kTake, {{"user:c"}, {"net:2", 4}}, kNow + 4s);
  CHECK(never.tag == 1);
  CHECK(never.wait == Outcome::kNever);
}

TEST_CASE("question: a tag that is named twice pays both costs") {
  Host host(kRules);
  Asker asker(host);
  CHECK(asker.Takes({{"user:a", 4}, {"net:1"}, {"user:a", 6}}));
  CHECK(asker.questions.queries().size() == 2);
  CHECK(host.Level("user:a", kNow) == 0);
  CHECK_FALSE(asker.Takes({{"net:2", 2}, {"net:2", 2}}));
  CHECK_FALSE(asker.Takes({{"net:2", 0xffffffff}, {"net:2", 1}}));
  CHECK(host.Level("net:2", kNow) == 3);
}

TEST_CASE("question: a peek says what a take would be told and changes nothing") {
  Host host(kRules);
  Asker asker(host);
  CHECK(asker.Ask(Verb::kPeek, {{"user:a", 10}, {"net:1", 3}}).verdict == Verdict::kServe);
  CHECK(asker.Left(0) == 10);
  CHECK(host.limiter->table().counts().tags == 0);
  CHECK(asker.Takes({{"user:a", 10}}));
  const Outcome refused = asker.Ask(Verb::kPeek, {{"user:a", 3}, {"net:1"}});
  CHECK(refused.verdict == Verdict::kThrottle);
  CHECK(refused.wait == 3s);
  CHECK(host.limiter->table().counts().tags == 1);
  const RuleTotals totals = host.limiter->tally().GrandTotals();
  CHECK(totals.served == 1);
  CHECK(totals.throttled == 0);
}

TEST_CASE("question: what never refuses takes part in what it may") {
  Host host(kRules);
  Asker asker(host);
  CHECK(asker.Takes({{"seen:a"}, {"off:a"}, {"free"}, {"user:a"}}));
  CHECK(asker.standings[0].limited());
  CHECK_FALSE(asker.standings[1].limited());
  CHECK_FALSE(asker.standings[2].limited());
  CHECK(asker.Takes({{"seen:a"}, {"user:a"}}));
  CHECK(host.limiter->tally().Totals(2).shadowed == 1);
  CHECK(host.limiter->tally().Totals(3).served == 1);
  CHECK(host.limiter->tally().Totals(Lane::kUnmatched).served == 1);
  CHECK(host.Level("user:a", kNow) == 8);
  CHECK_FALSE(asker.Takes({{"seen:b"}, {"user:a", 9}}));
  CHECK(host.Level("seen:b", kNow) == 1);
}

TEST_CASE("question: a cost of nothing is asked of debt only, and recorded nowhere") {
  Host host(kRules);
  Asker asker(host);
  CHECK(asker.Takes({{"user:a", 0}, {"net:1", 0}}));
  CHECK(host.limiter->table().counts().tags == 0);
  CHECK(asker.Takes({{"net:1", 3}}));
  CHECK(asker.Takes({{"user:a", 0}, {"net:1", 0}}));
}

TEST_CASE("question: a hot host refuses it as one") {
  Host host("[[rule]]\nname=\"a\"\nmatch=\"a*\"\nburst=1e6\nrate=1\nshed=true\n"
            "[[rule]]\nname=\"b\"\nburst=1e6\nrate=1\n");
  host.limiter->shedder().Shed(host.limiter->rules().shed_priorities(), ShedCurve(0, 100), 50);
  Asker asker(host);
  int shed = 0;
  for (int i = 0; i < 10'000; ++i) {
    const Outcome outcome = asker.Ask(Verb::kTake, {{"b1"}, {"a1"}, {"a2"}, {"a3"}, {"a4"}});
    shed += outcome.verdict == Verdict::kShed;
    if (outcome.verdict == Verdict::kShed) CHECK(outcome.tag == 1);
  }
  CHECK(std::abs(shed - 5000) < 250);
  CHECK(host.limiter->tally().Totals(0).shed == static_cast<std::uint64_t>(shed));
  CHECK(host.Level("b1", kNow) == 1e6 - (10'000 - shed));
}

TEST_CASE("question: an answer under a divided limit is by the part of this host") {
  Host host("[[rule]]\nname=\"c\"\nmatch=\"c*\"\nburst=100\nrate=10\nshare=\"capacity\"\n"
            "[[rule]]\nname=\"l\"\nburst=3\nrate=1\nshare=\"local\"\n");
  host.limiter->ways().Get<Division>().ChangeParts([](PartTable& parts) { parts.Lend({0.25, 0.25}); });
  Asker asker(host);
  CHECK(asker.Ask(Verb::kPeek, {{"c1", 25}, {"l"}}).verdict == Verdict::kServe);
  CHECK(asker.Left(0) == Approx(25));
  CHECK(asker.Ask(Verb::kTake, {{"c1", 26}, {"l"}}).wait == Outcome::kNever);
  CHECK(asker.Takes({{"c1", 25}, {"l"}}));
  const Outcome refused = asker.Ask(Verb::kTake, {{"l", 2}, {"c1", 5}});    // at a quarter of 10 tokens a second
  CHECK(refused.tag == 1);
  CHECK(std::abs((refused.wait - 2s).count()) < 1000);
  CHECK(host.Level("l", kNow) == 2);
}

TEST_CASE("question: a forecast that refuses leaves the other tags alone, and a peek leaves the forecast alone") {
  Host host("[[rule]]\nname=\"f\"\nmatch=\"f*\"\nburst=100\nrate=10\nshare=\"forecast\"\nmax_unheard=5\n[[rule]]\n"
            "name=\"l\"\nburst=1000\nrate=1\nshare=\"local\"\n");
  host.limiter->ways().Get<Debits>().ShareWith(3, 1s);
  int woken = 0;
  host.limiter->ways().WatchTags(64, [&] { ++woken; });
  host.limiter->ways().SetHeard(true);
  Asker asker(host);
  int served = 0;
  while (served < 100 && asker.Ask(Verb::kPeek, {{"f1"}, {"l"}}).verdict == Verdict::kServe) {
    REQUIRE(asker.Takes({{"f1"}, {"l"}}));
    ++served;
  }
  CHECK((served > 0 && served <= 5));
  CHECK(host.Level("l", kNow) == 1000 - served);
  const std::uint64_t held = host.limiter->ways().Status().watched.held;
  const Outcome refused = asker.Ask(Verb::kTake, {{"l"}, {"f1"}});
  CHECK(refused.tag == 1);
  CHECK(refused.wait == 1ms);
  CHECK(host.limiter->ways().Status().watched.held == held + 1);
  CHECK(host.Level("l", kNow) == 1000 - served);
}

// Exact leaky buckets, in ticks, which no limiter has touched.
struct Model {
  __extension__ using Wide = __int128;
  struct Level {
    Wide ticks;
    Instant at;
  };

  Level& Of(const std::string& tag, const Shape& shape, Instant now) {
    Level& level = levels.try_emplace(tag, Level{shape.depth, now}).first->second;
    level.ticks = std::min<Wide>(level.ticks + Wide{(now - level.at).count()} * kTicksPerNanosecond, shape.depth);
    level.at = now;
    return level;
  }

  std::map<std::string, Level> levels;
};

TEST_CASE("question: in a million of them no tag pays for another one's refusal, over kills too") {
  const std::string rules =
      "[[rule]]\nname=\"user\"\nmatch=\"user:*\"\nburst=20\nrate=40\n"
      "[[rule]]\nname=\"net\"\nmatch=\"net:*\"\nburst=50\nrate=90\n"
      "[[rule]]\nname=\"all\"\nburst=2000\nrate=4000\nshare=\"local\"\n";
  constexpr int kQuestions = testing::Fewer(1'000'000), kKillEvery = testing::Fewer(50'000);
  Host host(rules);
  const auto share = [&] { host.limiter->ways().Get<Debits>().ShareWith(2, 1s); };
  share();
  Asker asker(host);
  Model model;
  Prng prng(20261123);
  std::map<std::string, std::uint64_t> paid;
  const Shape shapes[] = {Shape::From(20, 40), Shape::From(50, 90), Shape::From(2000, 4000)};
  const char* const kinds[] = {"user:", "net:", "all:"};
  const std::uint64_t counts[] = {200, 90, 2};
  Instant now = kNow;
  int refused = 0;
  for (int i = 0; i < kQuestions; ++i) {
    if (i % kKillEvery == kKillEvery - 1) {
      host.Start(testing::Rules(rules), now);
      share();
    }
    now += Duration(prng.Below(300'000));
    std::vector<Named> tags;
    std::map<std::string, std::pair<Cost, std::size_t>> asked;    // tag: cost in all, kind
    for (std::size_t n = 1 + prng.Below(6); tags.size() < n;) {
      const std::size_t kind = prng.Below(10) < 5 ? 0 : prng.Below(5) < 4 ? 1 : 2;
      const Named named{kinds[kind] + std::to_string(prng.Below(counts[kind])), static_cast<Cost>(prng.Below(4))};
      tags.push_back(named);
      auto& [cost, its] = asked[named.tag];
      cost += named.cost;
      its = kind;
    }
    bool all = true;
    for (const auto& [tag, what] : asked) {
      const Shape& shape = shapes[what.second];
      all = all && model.Of(tag, shape, now).ticks >= Model::Wide{what.first} * shape.interval;
    }
    if (prng.Below(10) == 0) {
      REQUIRE((asker.Ask(Verb::kPeek, tags, now).verdict == Verdict::kServe) == all);
      continue;
    }
    REQUIRE(asker.Takes(tags, now) == all);
    refused += !all;
    if (!all) continue;
    for (const auto& [tag, what] : asked) {
      model.Of(tag, shapes[what.second], now).ticks -= Model::Wide{what.first} * shapes[what.second].interval;
      if (what.second != 2) paid[tag] += what.first;
    }
  }
  CHECK(refused > kQuestions / 10);
  CHECK(refused < kQuestions * 9 / 10);
  for (const auto& [tag, level] : model.levels) {
    const std::size_t kind = tag[0] == 'u' ? 0 : tag[0] == 'n' ? 1 : 2;
    const double expected =
        static_cast<double>(model.Of(tag, shapes[kind], now).ticks) / static_cast<double>(shapes[kind].interval);
    CHECK(host.Level(tag, now) == Approx(expected).margin(1e-9));
  }
  Slots slots;    // peers hear of exactly what was paid
  while (host.limiter->table().TakeUnreported(64, slots, {})) continue;
  std::erase_if(paid, [](const auto& its) { return its.second == 0; });
  std::erase_if(slots.unreported, [](const auto& its) { return its.second == 0; });
  CHECK(slots.unreported == paid);
}

constexpr const char* kDelayed = "[[rule]]\nname=\"paced\"\nmatch=\"p:*\"\nburst=2\nrate=10\ndelay=\"500ms\"\n";

TEST_CASE("question: what is within the delay has its tokens at once and is told when to go on") {
  Host host(kDelayed);
  Asker asker(host);
  asker.patience = 1min;
  for (int i = 0; i < 2; ++i) CHECK(asker.Ask(Verb::kTake, {{"p:a"}}).wait == 0ns);
  for (int i = 1; i <= 5; ++i) {
    const Outcome granted = asker.Ask(Verb::kTake, {{"p:a"}});
    CHECK(granted.verdict == Verdict::kServe);
    CHECK(granted.wait == i * 100ms);
  }
  const Outcome refused = asker.Ask(Verb::kTake, {{"p:a"}});
  CHECK(refused.verdict == Verdict::kThrottle);
  CHECK(refused.wait == 600ms);    // for a question that does not wait
  CHECK(asker.Ask(Verb::kTake, {{"p:a"}}, kNow + 100ms).wait == 500ms);
}

TEST_CASE("question: it waits no longer than it says, and a query of three bytes not at all") {
  Host host(kDelayed);
  Asker asker(host);
  CHECK(asker.Takes({{"p:a", 2}}));
  CHECK_FALSE(asker.Takes({{"p:a"}}));
  CHECK_FALSE(host.Serves("p:a", kNow));
  asker.patience = 150ms;
  CHECK(asker.Ask(Verb::kPeek, {{"p:a"}}).wait == 100ms);
  CHECK(host.Level("p:a", kNow) == 0);
  CHECK(asker.Takes({{"p:a"}}));
  CHECK_FALSE(asker.Takes({{"p:a"}}));
  CHECK(asker.Ask(Verb::kTake, {{"p:b", 3}}).wait == Outcome::kNever);    // more than a bucket holds
  CHECK(asker.Ask(Verb::kTake, {{"p:a"}, {"user:b"}}).verdict == Verdict::kThrottle);
  CHECK(asker.Ask(Verb::kTake, {{"p:c"}, {"p:a"}}, kNow + 100ms).wait == 100ms);
  CHECK(host.Level("p:c", kNow + 100ms) == 1);
}

TEST_CASE("question: waiting keeps to the rate and gives back what is given back") {
  Host host(kDelayed);
  Asker asker(host);
  asker.patience = 1s;
  int granted = 0;
  Instant last = kNow;
  for (Instant now = kNow; now < kNow + 60s; now += 7ms) {
    const Outcome outcome = asker.Ask(Verb::kTake, {{"p:a"}}, now);
    if (outcome.verdict != Verdict::kServe) continue;
    const Instant at = now + outcome.wait;
    if (granted > 2) CHECK(at - last >= 99ms);    // spaced at the rate, once the burst is spent
    last = at;
    ++granted;
  }
  CHECK(granted <= 2 + 600 + 5);
  CHECK(granted >= 2 + 600 + 4);
  host.limiter->GiveBack({{"p:a", false}}, 0, kNow + 60s);
  CHECK(asker.Takes({{"p:a"}}, kNow + 60s));
}

}    // namespace
}    // namespace dthrottle
