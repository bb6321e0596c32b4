#include "limiter/inspect.h"
#include "limiter/limiter.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <map>
#include <string>

#include "base/prng.h"
#include "lab/sampling.h"
#include "tally/tally.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::Host;
using testing::Rules;

constexpr Instant kNow = FromNanoseconds(5'000'000'000);
constexpr const char* kDefault = "[[rule]]\nname=\"default\"\nburst=10\nrate=1\n";

int Served(Host& host, std::string_view tag, int queries, Instant now) {
  int served = 0;
  for (int i = 0; i < queries; ++i) served += host.Serves(tag, now);
  return served;
}

TEST_CASE("each tag has a bucket of its own") {
  Host host(kDefault);
  CHECK(Served(host, "a", 15, kNow) == 10);
  CHECK(Served(host, "b", 15, kNow) == 10);
  CHECK(Served(host, "", 15, kNow) == 10);
  CHECK(Served(host, "a", 15, kNow + 3s) == 3);
}

TEST_CASE("without a rule that fits every query is served and nothing is kept") {
  Host host("[[rule]]\nmatch=\"x*\"\nburst=1\nrate=1\n");
  CHECK(Served(host, "a", 100, kNow) == 100);
  CHECK(host.limiter->table().counts().tags == 0);
  CHECK(host.limiter->tally().Totals(Lane::kUnmatched).served == 100);
}

TEST_CASE("shadow mode decides and counts but always serves") {
  Host host("[[rule]]\nname=\"s\"\nburst=10\nrate=1\nmode=\"shadow\"\n");
  CHECK(Served(host, "a", 25, kNow) == 25);
  const RuleTotals totals = host.limiter->tally().Totals(0);
  CHECK(totals.served == 10);
  CHECK(totals.shadowed == 15);
  CHECK(totals.throttled == 0);
  CHECK(host.Level("a", kNow) == 0);
}

TEST_CASE("mode off serves and keeps nothing") {
  Host host("[[rule]]\nburst=1\nrate=1\nmode=\"off\"\n[[override]]\ntag=\"v\"\nburst=1\nrate=1\nmode=\"enforce\"\n");
  CHECK(Served(host, "a", 25, kNow) == 25);
  CHECK(host.limiter->table().counts().tags == 0);
  CHECK(Served(host, "v", 25, kNow) == 1);
}

TEST_CASE("a cost above one and a peek exist in the core") {
  Host host(kDefault);
  CHECK(host.Serves("a", kNow, 7));
  CHECK_FALSE(host.Serves("a", kNow, 4));
  CHECK(host.Serves("a", kNow, 0));
  CHECK(host.Serves("a", kNow, 3));
  CHECK(host.Serves("a", kNow, 0));
  CHECK_FALSE(host.Serves("never", kNow, 11));
  CHECK(host.Serves("peeked", kNow, 0));
  CHECK(host.limiter->table().counts().tags == 1);    // a peek records nothing
}

TEST_CASE("a batch is answered as if its queries came one by one") {
  Host together(kDefault), apart(kDefault);
  Prng prng(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> tags;
    for (std::size_t i = 0; i < prng.Below(300); ++i) tags.push_back("t" + std::to_string(prng.Below(20)));
    std::vector<Query> queries;
    for (const auto& tag : tags) queries.push_back({{tag, false}});
    std::vector<Verdict> verdicts(queries.size());
    const Instant now = kNow + round * 100ms;
    together.limiter->Answer(queries, verdicts, 0, together.prng, now);
    for (std::size_t i = 0; i < tags.size(); ++i) {
      REQUIRE((verdicts[i] == Verdict::kServe) == apart.Serves(tags[i], now));
    }
  }
}

TEST_CASE("an over-long tag has a bucket under the rule that its ends match") {
  Host host("[[rule]]\nmatch=\"login:*\"\nburst=2\nrate=1\n[[rule]]\nmatch=\"*:export\"\nburst=3\nrate=1\n" +
            std::string(kDefault));
  const std::string filler(1000, 'x');
  CHECK(Served(host, "login:" + filler, 20, kNow) == 2);
  CHECK(Served(host, "login:" + filler + "y", 20, kNow) == 2);
  CHECK(Served(host, filler + ":export", 20, kNow) == 3);
  CHECK(Served(host, filler, 20, kNow) == 10);
}

TEST_CASE("a reload keeps the tokens that were spent") {
  Host host(kDefault);
  Served(host, "a", 8, kNow);
  Served(host, "vip", 8, kNow);
  host.limiter->Adopt(Rules("[[rule]]\nburst=20\nrate=4\n[[override]]\ntag=\"vip\"\nburst=100\nrate=1\n"));
  CHECK(host.limiter->reshaping());
  CHECK(host.Level("a", kNow) == Approx(12).margin(1e-6));
  CHECK(host.Level("vip", kNow) == Approx(92).margin(1e-6));
  CHECK(Served(host, "a", 100, kNow) == 12);
  while (host.limiter->Tick(kNow)) {
  }
  CHECK_FALSE(host.limiter->reshaping());
  CHECK(host.Level("vip", kNow) == Approx(92).margin(1e-6));
  CHECK(Served(host, "a", 100, kNow + 1s) == 4);
  CHECK(host.limiter->TakeRetired() != nullptr);
}

TEST_CASE("a tag that kept to a limit is served by a smaller one as soon as that has gained a token") {
  const std::string small = "[[rule]]\nname=\"default\"\nburst=50\nrate=0.01\n";
  const std::string large = small + "[[override]]\ntag=\"kept\"\nburst=500\nrate=100\n"
                                    "[[override]]\ntag=\"owed\"\nburst=500\nrate=100\n";
  for (const bool killed : {false, true}) {
    Host host(large);
    CHECK(Served(host, "kept", 450, kNow) == 450);
    CHECK(Served(host, "owed", 500, kNow) == 500);
    host.limiter->Settle({{{"owed"}, 1}, kNow}, 21, kNow);
    killed ? host.Start(Rules(small), kNow, Rules(large)) : host.limiter->Adopt(Rules(small));
    CHECK(host.Level("kept", kNow) == Approx(0).margin(1e-6));
    CHECK(host.Level("owed", kNow) == Approx(-20).margin(1e-6));
    CHECK(host.Serves("kept", kNow + 100s));
  }
}

TEST_CASE("a reload to the same rules rewrites nothing") {
  Host host(kDefault);
  Served(host, "a", 8, kNow);
  host.limiter->Adopt(Rules(kDefault));
  CHECK_FALSE(host.limiter->reshaping());
  CHECK(host.Level("a", kNow) == 2);
}

TEST_CASE("a reload keeps the counters of a rule by its name") {
  Host host("[[rule]]\nname=\"x\"\nmatch=\"x*\"\nburst=5\nrate=1\n" + std::string(kDefault));
  Served(host, "x1", 7, kNow);
  Served(host, "a", 4, kNow);
  host.limiter->Adopt(Rules(std::string(kDefault) + "[[rule]]\nname=\"y\"\nmatch=\"y*\"\nburst=5\nrate=1\n"));
  while (host.limiter->Tick(kNow)) {
  }
  CHECK(host.limiter->tally().Totals(0).served == 4);
  CHECK(host.limiter->tally().Totals(1).served == 0);
  Served(host, "y1", 3, kNow);
  CHECK(host.limiter->tally().Totals(1).served == 3);
  CHECK(host.limiter->tally().Totals(1).throttled == 0);
  const RuleTotals all = host.limiter->tally().GrandTotals();
  CHECK(all.served == 5 + 4 + 3);
  CHECK(all.throttled == 2);
}

TEST_CASE("rules that no longer know a tag forget it") {
  Host host(kDefault);
  Served(host, "a", 8, kNow);
  host.limiter->Adopt(Rules("[[rule]]\nmatch=\"z*\"\nburst=5\nrate=1\n"));
  while (host.limiter->Tick(kNow)) {
  }
  CHECK(host.limiter->table().counts().tags == 0);
}

TEST_CASE("an over-long tag stays with the rule of the same name through a reload") {
  Host host(kDefault);
  const std::string tag(1000, 'x');
  Served(host, tag, 8, kNow);
  host.limiter->Adopt(
      Rules("[[rule]]\nname=\"new\"\nmatch=\"n*\"\nburst=5\nrate=1\n[[rule]]\nname=\"default\"\nburst=20\nrate=1\n"));
  CHECK(host.Level(tag, kNow) == Approx(12).margin(1e-6));
}

TEST_CASE("a killed limiter's successor finds every bucket as it was") {
  Host host(kDefault);
  for (int i = 0; i < 1000; ++i) Served(host, "tag-" + std::to_string(i), i % 12, kNow);
  host.Start(Rules(kDefault), kNow);
  CHECK(host.limiter->discarded().empty());
  CHECK(host.limiter->table().counts().dropped == 0);
  for (int i = 0; i < 1000; ++i) CHECK(host.Level("tag-" + std::to_string(i), kNow) == 10 - std::min(i % 12, 10));
}

TEST_CASE("a limiter killed in the middle of a reload gives no token away that its successor knows of") {
  Host host(kDefault);
  for (int i = 0; i < 3000; ++i) Served(host, "tag-" + std::to_string(i), 10, kNow);
  const char* const after = "[[rule]]\nname=\"default\"\nburst=10\nrate=2\n";
  host.limiter->Adopt(Rules(after));
  host.limiter->Tick(kNow);
  host.Start(Rules(after), kNow);
  CHECK(host.limiter->discarded().empty());
  for (int i = 0; i < 3000; ++i) CHECK_FALSE(host.Serves("tag-" + std::to_string(i), kNow));
}

TEST_CASE("a start under other rules that knows those of its table rewrites every bucket, as a reload does") {
  const std::string rule = "[[rule]]\nname=\"default\"\nburst=10\nrate=1\n";
  const char* const kPartner = "[[override]]\ntag=\"p\"\nburst=40\nrate=0.001\n";
  const bool large = GENERATE(false, true);    // then most of it is rewritten by Tick
  Host host(rule + kPartner, 1, large ? std::size_t{80} << 20 : Table::kRegionBytesMin);
  const std::string over_long(1000, 'x');
  const auto name = [](int i) { return "tag-" + std::to_string(i); };
  for (int i = 0; i < 1000; ++i) Served(host, name(i), i % 12, kNow);
  Served(host, "p", 7, kNow);
  Served(host, over_long, 4, kNow);
  const std::size_t tags = host.limiter->table().counts().tags;
  host.Start(Rules(rule), kNow, Rules(rule + kPartner));
  CHECK(host.limiter->discarded().empty());
  for (int i = 0; i < 500; ++i) CHECK(host.Level(name(i), kNow) == 10 - std::min(i % 12, 10));
  while (host.limiter->Tick(kNow)) continue;
  CHECK(host.limiter->table().counts().tags == tags);
  CHECK(host.limiter->table().counts().dropped == 0);
  for (int i = 0; i < 1000; ++i) CHECK(host.Level(name(i), kNow) == 10 - std::min(i % 12, 10));
  CHECK(host.Level("p", kNow) == Approx(3).margin(1e-6));
  CHECK(host.Level(over_long, kNow) == 6);
  host.Start(Rules(rule), kNow);
  CHECK(host.limiter->discarded().empty());
  CHECK(host.Level("p", kNow) == Approx(3).margin(1e-6));
}

TEST_CASE("a start that is killed before it has rewritten its table gives no token away at the next") {
  const std::string rule = "[[rule]]\nname=\"default\"\nburst=10\nrate=1\n";
  const std::string other = rule + "[[override]]\ntag=\"p\"\nburst=40\nrate=1\n";
  Host host(rule, 1, std::size_t{80} << 20);
  for (int i = 0; i < 3000; ++i) Served(host, "tag-" + std::to_string(i), 10, kNow);
  host.Start(Rules(other), kNow, Rules(rule));
  host.Start(Rules(rule), kNow, Rules(other));
  host.Start(Rules(other), kNow, Rules(rule));
  CHECK(host.limiter->discarded().empty());
  for (int i = 0; i < 3000; ++i) CHECK_FALSE(host.Serves("tag-" + std::to_string(i), kNow));
}

TEST_CASE("other rules at a start discard the table, and say so") {
  Host host(kDefault);
  Served(host, "a", 10, kNow);
  host.Start(Rules("[[rule]]\nburst=11\nrate=1\n"), kNow);
  CHECK(host.limiter->discarded() == "it was made under other rules");
  CHECK(host.Serves("a", kNow));
}

TEST_CASE("forgiving a tag fills its bucket") {
  Host host(kDefault);
  Served(host, "a", 10, kNow);
  const std::string name = "a";
  const Query query{{name, false}};
  CHECK(Forgive(*host.limiter, query, kNow));
  CHECK_FALSE(Forgive(*host.limiter, query, kNow));
  CHECK(Served(host, "a", 15, kNow) == 10);
}

// ---- Frequent tags ----

std::vector<TopEntry> Sums(const TopTags& top, Instant now) {
  TopSums sums;
  top.AddTo(sums, now);
  return Largest(sums, 3);
}

TEST_CASE("few tags are counted exactly and the most frequent comes first") {
  TopTags top;
  for (int i = 0; i < 7; ++i) top.Add({"a", false}, 1, 1, kNow);
  for (int i = 0; i < 9; ++i) top.Add({"b", false}, 2, 1, kNow);
  const auto sums = Sums(top, kNow);
  REQUIRE(sums.size() == 2);
  CHECK(sums[0].tag == "b");
  CHECK(sums[0].count == 9);
  CHECK(sums[0].error == 0);
  CHECK(sums[1].count == 7);
}

TEST_CASE("a heavy tag is found among a million strangers, and its error is stated") {
  TopTags top;
  Prng prng(1);
  std::uint64_t heavy = 0;
  for (int i = 0; i < 200'000; ++i) {
    if (i % 50 == 0) {
      top.Add({"heavy", false}, 1, 1, kNow);
      ++heavy;
    }
    top.Add({std::to_string(prng.Below(1'000'000)), false}, 2 + prng.Next() / 2, 1, kNow);
  }
  const auto sums = Sums(top, kNow);
  CHECK(sums[0].tag == "heavy");
  CHECK(sums[0].count >= heavy);
  CHECK(sums[0].count - sums[0].error <= heavy);
}

TEST_CASE("counts of frequent tags add up to what was seen, and bound what was seen of each") {
  TopTags top;
  Prng prng(2);
  std::map<std::string, std::uint64_t> seen;
  std::uint64_t total = 0;
  for (int i = 0; i < 50'000; ++i) {
    const auto tag = static_cast<std::uint64_t>(std::pow(2000, lab::Uniform(prng)));    // the most frequent a ninth of all
    const std::string name = std::to_string(tag);
    const std::uint64_t weight = prng.Below(4);
    top.Add({name, false}, tag * 256, weight, kNow);    // as many hashes as tags, all in few chains
    seen[name] += weight;
    total += weight;
  }
  TopSums sums;
  top.AddTo(sums, kNow);
  CHECK(sums.size() == TopTags::kEntries);
  std::uint64_t counted = 0;
  std::size_t wrong = 0;
  for (const auto& [key, entry] : sums) {
    counted += entry.count;
    wrong += entry.count < seen[entry.tag] || entry.count - entry.error > seen[entry.tag];
    seen.erase(entry.tag);
  }
  CHECK(counted == total);
  CHECK(wrong == 0);
  for (const auto& [name, weight] : seen) wrong += weight > total / TopTags::kEntries;
  CHECK(wrong == 0);
}

TEST_CASE("what was frequent is forgotten after two windows") {
  TopTags top;
  top.Add({"a", false}, 1, 1, kNow);
  CHECK(Sums(top, kNow + 61s).size() == 1);
  top.Add({"b", false}, 2, 1, kNow + 61s);
  CHECK(Sums(top, kNow + 62s).size() == 2);
  CHECK(Sums(top, kNow + 125s).size() == 1);
  CHECK(Sums(top, kNow + 300s).empty());
}

TEST_CASE("a busy lane samples, and its counts stay right on average") {
  Host host("[[rule]]\nburst=1000000\nrate=1\n");
  std::vector<std::string> tags = {"half", "rest-1", "half", "rest-2"};
  std::vector<Query> queries;
  for (int i = 0; i < 1000; ++i) queries.push_back({{tags[static_cast<std::size_t>(i) % 4], false}});
  std::vector<Verdict> verdicts(queries.size());
  for (int i = 0; i < 400; ++i) host.limiter->Answer(queries, verdicts, 0, host.prng, kNow + i * 1ms);
  TopSums sums, throttled;
  host.limiter->tally().lane(0).AddTop(sums, throttled, kNow + 1s);
  const std::vector<TopEntry> served = Largest(sums, 3);
  REQUIRE(served.size() == 3);
  CHECK(served[0].tag == "half");
  CHECK(static_cast<double>(served[0].count) == Approx(200'000).epsilon(0.1));
}

}    // namespace
}    // namespace dthrottle
