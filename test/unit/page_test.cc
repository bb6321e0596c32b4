// Pages of workers: what an entry promises, and what the daemon makes of counts that anybody may have written.
#include "limiter/worker_entries.h"

#include <catch2/catch.hpp>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/siphash.h"
#include "limiter/asking.h"
#include "limiter/inspect.h"
#include "share/ways.h"
#include "tally/tally.h"
#include "test/support/host.h"
#include "test/support/page_worker.h"
#include "test/support/parts.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::Host;

Instant At(Duration since) {
  return FromNanoseconds(0) + since;
}

using testing::LendingHost;
using Worker = testing::PageWorker;

constexpr auto kSlow = "[[rule]]\nburst=100\nrate=\"1/h\"";
constexpr auto kRule = "[[rule]]\nname=\"all\"\nburst=3\nrate=2.0\n";

void Adopt(Host& host, const char* rules) {
  host.limiter->Adopt(testing::Rules(rules));
  while (host.limiter->Tick(At(1s))) continue;
  host.limiter->TakeRetired();
}

std::uint64_t Throttled(Host& host) {
  return host.limiter->tally().GrandTotals().throttled;
}
std::uint64_t Served(Host& host) {
  return host.limiter->tally().GrandTotals().served;
}

TEST_CASE("both sides of a page call a tag by its keyed SipHash") {
  const std::uint64_t key[] = {1, 2};
  for (const std::string tag : {"", "a", "1234567", "12345678", "a tag of more than two words"}) {
    CHECK(dthrottle_page_hash(key, tag.data(), tag.size()) == SipHash<1, 3>({1, 2}, tag));
  }
}

TEST_CASE("what the limiter says until when a tag is refused is exact") {
  Prng prng(5);
  for (int run = 0; run < 300; ++run) {
    Host host("[[rule]]\nburst=" + std::to_string(1 + prng.Below(5)) +
              "\nrate=" + std::to_string(0.5 + static_cast<double>(prng.Below(2000)) / 7));
    Instant now = At(1s);
    for (int i = 0; i < 60; ++i) {
      now += Duration(prng.Below(100'000'000));
      const Instant until = host.lending().RefusedUntil({{"C", false}}, now);
      if (until > now) {
        CHECK_FALSE(host.Serves("C", now));
        CHECK_FALSE(host.Serves("C", until - 1ns));
        now = until;
      }
      CHECK(host.Serves("C", now));
    }
  }
}

TEST_CASE("a worker that looks at its clock once in a while is served what is lent") {
  LendingHost host("[[rule]]\nburst=1000\nrate=100.0");
  Worker worker(host);
  for (int i = 0; i < 3; ++i) CHECK(worker.Asks("C", At(1s)));
  for (Instant now = At(1s); now < At(2s); now += 100ms) {
    CHECK(worker.Decide("C", now - 49ms) == DTHROTTLE_PAGE_SERVE);
    CHECK(worker.Decide("C", now) == DTHROTTLE_PAGE_SERVE);
    CHECK(worker.Decide("C", now + 50ms) == DTHROTTLE_PAGE_SERVE);
    worker.entries.Look(now + 100ms);
  }
}

TEST_CASE("a tag is refused without asking, and served at the instant at which it would be if it asked") {
  Host with(kRule), without(kRule);
  Worker worker(with);
  Prng prng(6);
  std::uint64_t refused = 0;
  Instant look = At(0s);
  for (Instant now = At(1s); now < At(60s); now += Duration(1 + prng.Below(3'000'000))) {
    if (now >= look) worker.entries.Look(now), look = now + 100ms;
    const bool serves = without.Serves("C", now);
    REQUIRE(worker.Serves("C", now) == serves);
    refused += !serves;
  }
  worker.entries.Look(At(60s));
  worker.entries.Recall(At(60s));
  CHECK(worker.asked < refused / 50);
  CHECK(Throttled(with) == Throttled(without));
  CHECK(Throttled(with) == refused);
}

TEST_CASE("an entry says at most a second ahead, and one that is not used ends by itself") {
  Host host("[[rule]]\nburst=1\nrate=\"1/h\"");
  Worker worker(host);
  worker.Serves("C", At(1s));
  worker.Serves("C", At(1s));
  CHECK(worker.Refuses("C", At(1999ms)));
  CHECK_FALSE(worker.Refuses("C", At(2s)));
  worker.entries.Look(At(1100ms));    // it was used
  CHECK(worker.Refuses("C", At(2099ms)));
  worker.entries.Look(At(2100ms));
  worker.entries.Look(At(2200ms));    // it was not
  CHECK_FALSE(worker.Refuses("C", At(3100ms)));
  worker.entries.Look(At(3200ms));
  worker.entries.Look(At(3300ms));
  CHECK(worker.entries.live() == 0);
}

TEST_CASE("a round of looks may be made in parts, and comes to each entry once") {
  Host host("[[rule]]\nburst=1\nrate=\"1/h\"");
  Worker worker(host);
  const std::vector<std::string> tags = {"a", "b", "c", "d", "e", "f", "g"};
  for (const std::string& tag : tags) worker.Serves(tag, At(1s)), worker.Serves(tag, At(1s));
  REQUIRE(worker.entries.live() == tags.size());
  for (const std::string& tag : tags) CHECK(worker.Refuses(tag, At(1s)));
  CHECK(worker.entries.Look(At(1100ms), 3) == 3);
  CHECK(worker.entries.looking());
  CHECK(worker.entries.Look(At(1105ms), 3) == 3);
  CHECK(worker.entries.looking());
  CHECK(worker.entries.Look(At(1110ms), 3) == 1);
  CHECK_FALSE(worker.entries.looking());
  CHECK(worker.entries.refused() == tags.size());
  for (const std::string& tag : tags) CHECK(worker.Refuses(tag, At(2050ms)));    // each was prolonged
  // Those that end meanwhile are missed by no other.
  for (const std::string_view tag : {"a", "d"}) Forgive(*host.limiter, {{tag, false}}, At(2060ms));
  std::size_t looks = 0;
  do looks += worker.entries.Look(At(2100ms), 2);
  while (worker.entries.looking());
  CHECK(looks == tags.size());
  for (const std::string_view tag : {"b", "c", "e", "f", "g"}) CHECK(worker.Refuses(tag, At(3000ms)));
  CHECK(worker.entries.Recall(At(3s), 2) == 2);
  CHECK(worker.entries.live() == tags.size() - 4);
  CHECK(worker.entries.Recall(At(3s)) == tags.size() - 4);
}

TEST_CASE("forgive, other rules and a debit reach a page with the next look") {
  Host host("[[rule]]\nname=\"all\"\nburst=1\nrate=\"1/h\"");
  Worker worker(host);
  const auto refuse = [&](Instant now) {
    worker.Serves("C", now);
    worker.Serves("C", now);
    REQUIRE(worker.Refuses("C", now));
  };
  refuse(At(1s));
  Forgive(*host.limiter, {{"C", false}}, At(1s));
  worker.entries.Look(At(1s));
  CHECK_FALSE(worker.Refuses("C", At(1s)));

  for (const char* rules : {"[[rule]]\nname=\"all\"\nburst=1\nrate=\"1/h\"\nmode=\"shadow\"",
                            "[[rule]]\nname=\"all\"\nburst=1\nrate=\"1/h\"\nmode=\"off\"",
                            "[[rule]]\nname=\"all\"\nburst=5\nrate=\"1/h\"", ""}) {
    CAPTURE(rules);
    Forgive(*host.limiter, {{"C", false}}, At(2s));
    refuse(At(2s));
    Adopt(host, rules);
    worker.entries.Look(At(2s));
    CHECK_FALSE(worker.Refuses("C", At(2s)));
    Adopt(host, "[[rule]]\nname=\"all\"\nburst=1\nrate=\"1/h\"");
    worker.entries.Look(At(2s));
  }
}

TEST_CASE("what only asking can tell is asked") {
  Host host(R"(
    [[rule]]
    name = "penalty"
    match = "p*"
    burst = 1
    rate = "1/h"
    penalty = { after = 3, within = "1m", lasts = "1m" }
    [[rule]]
    name = "user"
    match = "*/*"
    burst = 1
    rate = "1/h"
    also = ["before /"]
    [[rule]]
    name = "net"
    burst = 1
    rate = "1/h"
  )");
  Worker worker(host);
  const auto refused_until = [&](std::string_view tag) { return host.lending().RefusedUntil({{tag, false}}, At(1s)); };
  host.Serves("net/bob", At(1s));
  CHECK_FALSE(host.Serves("net/bob", At(1s)));
  CHECK(refused_until("net/bob") == At(1s));
  CHECK(refused_until("net") > At(1s));
  host.Serves("p", At(1s));
  CHECK_FALSE(host.Serves("p", At(1s)));
  CHECK(refused_until("p") == At(1s));    // each refusal counts towards the penalty
  for (int i = 0; i < 3; ++i) host.Serves("p", At(1s));
  CHECK(refused_until("p") == At(61s));
}

TEST_CASE("a full set forgets the tag that was refused least") {
  Host host("[[rule]]\nburst=1\nrate=\"1/h\"");
  Worker worker(host, 4);    // one set
  for (const char* tag : {"a", "b", "c", "d"}) {
    worker.Serves(tag, At(1s));
    worker.Serves(tag, At(1s));
    for (int i = 0; tag[0] != 'c' && i < 10; ++i) CHECK(worker.Refuses(tag, At(1s)));
  }
  worker.entries.Look(At(1s));
  worker.Serves("e", At(1s));
  worker.Serves("e", At(1s));
  CHECK(worker.entries.live() == 4);
  for (const char* tag : {"a", "b", "d", "e"}) CHECK(worker.Refuses(tag, At(1s)));
  CHECK_FALSE(worker.Refuses("c", At(1s)));
}

TEST_CASE("a worker to which few tags come again tells of fewer refusals") {
  Host host("[[rule]]\nburst=1\nrate=\"1/h\"");
  Worker worker(host);
  const auto one_in = [&] { return worker.page().head.note_one_in; };
  worker.entries.Look(At(1s));
  for (int i = 0; i < 100; ++i) worker.entries.Note("t" + std::to_string(i), At(1500ms));
  worker.entries.Look(At(2s));
  CHECK(one_in() == 2);
  worker.Serves("C", At(3s));
  worker.Serves("C", At(3s));
  for (int i = 0; i < 100; ++i) CHECK(worker.Refuses("C", At(3s)));
  worker.entries.Look(At(3s));
  CHECK(one_in() == 1);
}

TEST_CASE("a count that wraps is a count") {
  Host host("[[rule]]\nburst=1\nrate=\"1/h\"");
  Worker worker(host);
  for (auto& count : worker.counts()) count.refused = 0xfffffffe;
  worker.Serves("C", At(1s));
  worker.Serves("C", At(1s));
  for (int i = 0; i < 5; ++i) CHECK(worker.Refuses("C", At(1s)));
  worker.entries.Look(At(1s));
  CHECK(Throttled(host) == 6);
  CHECK(worker.entries.clamped() == 0);
}

// ---- Loans ----

constexpr auto kHot = "[[rule]]\nname=\"all\"\nburst=100\nrate=1000.0\n";

TEST_CASE("a tag that is asked for again is served without asking, and all is counted") {
  LendingHost host(kHot);
  {
    Worker worker(host);
    Instant look = At(1s);
    for (Instant now = At(1s); now < At(11s); now += 2ms) {    // half of the rate
      if (now >= look) worker.entries.Look(now), look += 100ms;
      REQUIRE(worker.Serves("C", now));
    }
    CHECK(worker.asked < 200);
  }
  CHECK(Served(host) == 5000);
  CHECK(host.lending().served() > 4800);
}

TEST_CASE("a ticket that was taken when the entry had ended counts for the first token that the entry lends next") {
  LendingHost host(kSlow);
  Worker worker(host, DTHROTTLE_PAGE_WAYS);
  const auto spend_two = [&] {
    for (int i = 0; i < 2; ++i) CHECK(worker.Asks("C", At(1s)));
    for (int i = 0; i < 2; ++i) CHECK(worker.Decide("C", At(1s)) == DTHROTTLE_PAGE_SERVE);
    worker.entries.Recall(At(1s));
    CHECK(worker.entries.live() == 0);
  };
  spend_two();
  worker.counts()[0].taken++;
  spend_two();
  CHECK(host.limiter->tally().GrandTotals().served == 4 + 5);
}

TEST_CASE("what is lent is charged at once, and what is not spent comes back when the worker goes") {
  LendingHost host("[[rule]]\nburst=100\nrate=\"1/h\"");
  {
    Worker worker(host);
    worker.Serves("C", At(1s));
    worker.Serves("C", At(1s));
    CHECK(host.Level("C", At(1s)) == Approx(82).margin(0.01));    // 16 are lent
    for (int i = 0; i < 5; ++i) CHECK(worker.Decide("C", At(1s)) == DTHROTTLE_PAGE_SERVE);
    worker.entries.Recall(At(1s));
    CHECK(worker.Decide("C", At(1s)) == DTHROTTLE_PAGE_ASK);
  }
  CHECK(host.Level("C", At(1s)) == Approx(93).margin(0.01));
  CHECK(Served(host) == 7);
}

TEST_CASE("what a worker has spent and gives back is there again") {
  LendingHost host("[[rule]]\nburst=100\nrate=\"1/h\"\nshare=\"debit\"");
  host.limiter->ways().Get<Debits>().ShareWith(1, 1s);
  struct Sum final : SlotVisitor {
    std::int64_t hits = 0;
    bool Visit(const Tag&, const Slot& slot, const Waste&) override {
      hits += static_cast<std::int64_t>(slot.unreported.hits()) - static_cast<std::int64_t>(slot.unreported.back());
      return true;
    }
  } sum;
  {
    Worker worker(host);
    for (int i = 0; i < 2; ++i) CHECK(worker.Asks("C", At(1s)));
    for (int i = 0; i < 40; ++i) {
      REQUIRE(worker.Serves("C", At(1s)));
      host.limiter->GiveBack({{"C"}, 1}, 0, At(1s));
    }
    for (int i = 0; i < 3; ++i) REQUIRE(worker.Serves("C", At(1s)));
    host.limiter->Settle({{{"C"}, 3}, At(1s)}, 1, At(1s));
    worker.entries.Look(At(1100ms));
  }
  CHECK(host.Level("C", At(1100ms)) == Approx(100 - 2 - 1).margin(0.01));
  while (host.limiter->table().TakeUnreported(1 << 20, sum, {})) continue;
  CHECK(sum.hits == 2 + 1);
}

TEST_CASE("tokens that lie unused with a worker are there for who asks, and go back by themselves") {
  LendingHost host("[[rule]]\nburst=10\nrate=\"1/h\"");
  Worker worker(host), other(host);
  worker.Serves("C", At(1s));
  worker.Serves("C", At(1s));
  const auto level = host.Level("C", At(1s));
  CHECK(level < 8);
  std::size_t served = 2;
  for (int i = 0; i < 20; ++i) served += host.Serves("C", At(1s));
  CHECK(served == 10);
  worker.Serves("D", At(2s));
  worker.Serves("D", At(2s));
  CHECK(host.Level("D", At(2s)) < 8);
  worker.entries.Look(At(2100ms));
  worker.entries.Look(At(2800ms));
  CHECK(host.Level("D", At(2800ms)) < 8);
  worker.entries.Look(At(2900ms));
  CHECK(host.Level("D", At(2900ms)) == Approx(8).margin(0.01));
  CHECK(worker.entries.live() == 0);
}

TEST_CASE("tokens of a tag that is contended stay with a worker for 20 ms") {
  LendingHost host("[[rule]]\nburst=20\nrate=\"1/h\"");
  Worker worker(host), other(host);
  for (int i = 0; i < 10; ++i) host.Serves("C", At(1s));    // the bucket is not nearly full, and never was
  worker.Serves("C", At(1s));
  worker.Serves("C", At(1s));
  const auto level = host.Level("C", At(1s));
  CHECK(level < 8);
  std::size_t served = 2;
  for (int i = 0; i < 20; ++i) served += host.Serves("C", At(1010ms));
  CHECK(served == 2 + static_cast<std::size_t>(level));
  for (int i = 0; i < 20; ++i) served += host.Serves("C", At(1030ms));
  CHECK(served == 10);
}

TEST_CASE("a query of several tokens gets those that lie with a worker, also of a tag that is contended") {
  LendingHost host("[[rule]]\nburst=20\nrate=\"1/h\"");
  Worker worker(host);
  for (int i = 0; i < 10; ++i) host.Serves("C", At(1s));    // as above
  worker.Serves("C", At(1s));
  worker.Serves("C", At(1s));
  const auto level = host.Level("C", At(1s));
  CHECK(level < 8);
  CHECK_FALSE(host.Serves("C", At(1010ms), 9));
  CHECK(host.Level("C", At(1010ms)) == Approx(level).margin(0.01));    // it would not have been enough
  CHECK(host.Serves("C", At(1010ms), 8));
  CHECK_FALSE(worker.Decide("C", At(1010ms)) == DTHROTTLE_PAGE_SERVE);
}

TEST_CASE("a look at a tag that is contended sees tokens that lie with a worker") {
  LendingHost host("[[rule]]\nburst=20\nrate=\"1/h\"");
  Worker worker(host);
  for (int i = 0; i < 10; ++i) host.Serves("C", At(1s));
  worker.Serves("C", At(1s));
  worker.Serves("C", At(1s));
  while (host.Serves("C", At(1010ms))) continue;
  const std::int64_t left = [&] {
    Asking asking(*host.limiter, 0, Prng(1), kTagBytesMax);
    asking.Begin(Verb::kPeek);
    REQUIRE(asking.Name("C", 1).has_value());
    asking.Answer(At(1010ms));
    CHECK_FALSE(asking.refusal(0));
    return asking.tag(0, 0).left.value();
  }();
  CHECK(left > 0);
  std::int64_t served = 0;
  while (host.Serves("C", At(1010ms))) ++served;
  CHECK(served == left);
}

TEST_CASE("a tag that is asked for about as often as it may be is not refused because its tokens are elsewhere") {
  struct Case {
    double burst, rate, load, lost, asked;    // the last two at most, of what one bucket serves and of all
  };
  for (const Case its : {Case{10, 20, 1, 0.0002, 1}, {20, 100, 1, 0.002, 0.6}, {50, 1000, 1, 0.0005, 0.5},
                         {100, 1000, 1, 0.0005, 0.4}, {100, 1000, 1.2, 0.001, 0.5}}) {
    CAPTURE(its.burst, its.load);
    constexpr std::size_t kWorkers = 8, kDecisions = 60'000;
    const Shape shape = Shape::From(its.burst, its.rate);
    LendingHost host("[[rule]]\nburst=" + std::to_string(its.burst) + "\nrate=" + std::to_string(its.rate));
    std::vector<std::unique_ptr<Worker>> workers;
    for (std::size_t i = 0; i < kWorkers; ++i) workers.push_back(std::make_unique<Worker>(host));
    Bucket central, strict;
    Prng prng(3);
    std::uint64_t wished = 0, served = 0, asked = 0, turns = 0;
    Instant now = At(1s), look = now;
    for (std::size_t i = 0; i < kDecisions; ++i) {
      now += Duration(prng.Below(static_cast<std::uint64_t>(2e9 / (its.rate * its.load))));
      for (; look <= now; look += 5ms, ++turns) {
        for (auto& worker : workers) {
          if (turns % 20 == 0) {
            worker->entries.Look(look);
          } else {
            worker->entries.Settle(look);
          }
        }
      }
      wished += central.Take(shape, 1, now);
      if (!workers[prng.Below(kWorkers)]->Serves("C", now)) continue;
      served += 1;
      CHECK(strict.Take(shape, 1, now));
    }
    for (auto& worker : workers) asked += worker->asked, worker->entries.Recall(now);
    CHECK(static_cast<double>(wished - served) < its.lost * static_cast<double>(wished));
    CHECK(static_cast<double>(asked) < its.asked * kDecisions);
  }
}

// Several workers ask for a few tags in turns, some by the page and some not; each serve is held against a bucket that
// is charged when it happens.
struct Ledger {
  std::uint64_t decided = 0, served = 0, violations = 0, asked = 0, wished = 0;    // wished: one bucket for all serves
  double burst = 0, rate = 0, lost = 0;
};

// `share`: of the rule; `part`: this host's, where the limit is divided.
Ledger RunWorkers(std::uint64_t seed, std::size_t decisions, double load, Duration hop,
                  const std::string& share = "local", double part = 1) {
  Prng prng(seed);
  const auto burst = static_cast<double>(1 + prng.Below(60));
  const double rate = 5 + static_cast<double>(prng.Below(prng.Below(3) == 0 ? 3000 : 300));
  const std::string rule = "[[rule]]\nname=\"all\"\nburst=" + std::to_string(burst / part) +
                           "\nrate=" + std::to_string(rate / part) + "\nshare=\"" + share + "\"";
  constexpr std::size_t kWorkers = 4, kTags = 3;
  const Shape shape = PartOf(Shape::From(burst / part, rate / part), part);
  LendingHost host(rule);
  testing::LendParts(host, part);
  std::array<Bucket, kTags> strict, central;
  Ledger ledger;
  ledger.burst = burst, ledger.rate = rate;
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::size_t i = 0; i < kWorkers; ++i) workers.push_back(std::make_unique<Worker>(host));
  Instant now = At(1s), look = now;
  const auto between = static_cast<std::uint64_t>(2e9 / (load * rate * kTags));
  for (std::size_t i = 0; i < decisions; ++i) {
    now += Duration(prng.Below(between));
    if (prng.Below(20'000) == 0) now += Duration(prng.Below(2'000'000'000));    // everybody rests
    for (; look <= now; look += 100ms) {
      for (auto& worker : workers) worker->entries.Look(look);
    }
    const std::size_t t = prng.Below(kTags);
    std::size_t w = prng.Below(kWorkers);
    if (hop != Duration::zero()) w = static_cast<std::size_t>((now.time_since_epoch() / hop)) % kWorkers;
    const std::string tag(1, static_cast<char>('a' + t));
    const bool serves = prng.Below(20) == 0 ? host.Serves(tag, now) : workers[w]->Serves(tag, now);
    ledger.decided++;
    ledger.wished += central[t].Take(shape, 1, now);
    if (!serves) continue;
    ledger.served++;
    ledger.violations += !strict[t].Take(shape, 1, now);
  }
  for (auto& worker : workers) ledger.asked += worker->asked, worker->entries.Recall(now);
  for (std::size_t t = 0; t < kTags; ++t) {    // what is still there is not lost
    const double level = host.Level(std::string(1, static_cast<char>('a' + t)), now);
    ledger.lost += central[t].Level(shape, now) - std::min(level, burst);
  }
  ledger.lost = static_cast<double>(ledger.wished) - static_cast<double>(ledger.served) + ledger.lost;
  CHECK(Served(host) == ledger.served);
  CHECK(Served(host) + Throttled(host) == ledger.decided);
  return ledger;
}

TEST_CASE("workers that decide by their pages never serve more than one bucket would, and hardly less") {
  Ledger all, lent;
  const auto burst_s = [](const Ledger& its) { return its.burst / its.rate; };
  std::uint64_t seed = 1;
  for (const double load : {0.3, 0.9, 1.2, 2.0, 5.0}) {
    for (const Duration hop : {Duration(0), Duration(500ms), Duration(60ms)}) {
      for (int run = 0; run < 4; ++run, ++seed) {
        const Ledger its = RunWorkers(seed, 17'000, load, hop);
        CAPTURE(seed, load, hop.count(), its.burst, its.rate, its.asked);
        CHECK(its.violations == 0);
        CHECK(its.lost < 0.02 * static_cast<double>(its.wished));
        all.lost += its.lost;
        if (burst_s(its) >= 0.1 && its.burst > 10) lent.decided += its.decided, lent.asked += its.asked;
        all.decided += its.decided, all.served += its.served, all.wished += its.wished, all.asked += its.asked;
      }
    }
  }
  CAPTURE(all.decided, all.served, all.wished, all.lost, lent.asked, lent.decided);
  CHECK(all.decided >= 1'000'000);
  CHECK(all.lost < 0.001 * static_cast<double>(all.wished));
  CHECK(lent.asked < lent.decided * 27 / 100);
}

TEST_CASE("workers serve this host's part of a divided limit") {
  Ledger all;
  std::uint64_t seed = 100;
  for (const double load : {0.3, 0.9, 1.2, 2.0, 5.0}) {
    for (const Duration hop : {Duration(0), Duration(500ms)}) {
      for (const double part : {0.5, 0.07}) {
        const Ledger its = RunWorkers(++seed, 17'000, load, hop, "capacity", part);
        CAPTURE(seed, load, hop.count(), part, its.burst, its.rate, its.asked);
        CHECK(its.violations == 0);
        CHECK(its.lost < 0.02 * static_cast<double>(its.wished));
        all.lost += its.lost;
        all.decided += its.decided, all.wished += its.wished, all.asked += its.asked;
      }
    }
  }
  CAPTURE(all.decided, all.wished, all.lost, all.asked);
  CHECK(all.lost < 0.002 * static_cast<double>(all.wished));
  CHECK(all.asked < all.decided * 40 / 100);
}

TEST_CASE("what workers spend and refuse is demand for a divided limit") {
  LendingHost host("[[rule]]\nname=\"all\"\nburst=100\nrate=100\nshare=\"capacity\"");
  auto& division = host.limiter->ways().Get<Division>();
  testing::LendParts(host, 0.5);
  const CapacityKey key = division.KeyOf({"C", false}, host.limiter->rules().limit(0));
  division.ChangeParts([&](PartTable& parts) {
    parts.Reset(10, {1, 2});
    parts.Add(key);
  });
  Worker worker(host);
  std::uint64_t asked = 0;
  for (Instant now = At(1s), look = now; now < At(11s); now += 5ms) {
    if (now >= look) worker.entries.Look(now), look = now + 100ms;
    worker.Serves("C", now);
    ++asked;
  }
  worker.entries.Recall(At(11s));
  CHECK(worker.asked < asked / 4);
  division.ChangeParts([&](PartTable& parts) { CHECK(parts.Find(key)->arrivals == asked); });
}

TEST_CASE("tokens come back at the price at which they were lent when the part changes") {
  LendingHost host("[[rule]]\nname=\"all\"\nburst=100\nrate=\"1/h\"\nshare=\"capacity\"");
  Host asking("[[rule]]\nname=\"all\"\nburst=100\nrate=\"1/h\"\nshare=\"capacity\"");
  Prng prng(8);
  Worker worker(host);
  Instant now = At(1s);
  const auto both_have = [&](double part) {
    testing::LendParts(host, part);
    testing::LendParts(asking, part);
    worker.entries.Look(now += 100ms);
  };
  for (int round = 0; round < 200; ++round) {
    both_have(0.05 + static_cast<double>(prng.Below(1'000'003)) / 1'111'111);
    for (std::uint64_t i = prng.Below(8); i > 0; --i) {
      const bool serves = worker.Serves("C", now);
      REQUIRE(serves == asking.Serves("C", now));
    }
    if (prng.Below(20) > 0) continue;
    Forgive(*host.limiter, {{"C", false}}, now);
    Forgive(*asking.limiter, {{"C", false}}, now);
  }
  CHECK(worker.asked < 700);
  both_have(0.5);
  worker.entries.Recall(now);
  CHECK(host.Level("C", now) == Approx(asking.Level("C", now)).margin(0.01));
}

TEST_CASE("a host lends no token of a part that others may have before the token ends") {
  LendingHost host("[[rule]]\nname=\"all\"\nburst=100\nrate=\"1/h\"\nshare=\"capacity\"");
  Worker worker(host);
  testing::LendParts(host, 1, 0.01, At(10s));
  worker.Serves("C", At(8s));
  worker.Serves("C", At(8s));
  CHECK(worker.Decide("C", At(8s)) == DTHROTTLE_PAGE_SERVE);
  worker.entries.Look(At(8500ms));
  CHECK(worker.Decide("C", At(8500ms)) == DTHROTTLE_PAGE_ASK);
  CHECK(host.Level("C", At(8500ms)) == Approx(97).margin(0.1));
}

TEST_CASE("tokens are lent while no penalty is in force, refusals are asked for, and a penalty takes tokens back") {
  LendingHost host(
      "[[rule]]\nname=\"all\"\nburst=100\nrate=\"1/h\"\n"
      "penalty = { after = 3, within = \"1m\", lasts = \"1m\" }");
  Worker worker(host), other(host);
  for (int i = 0; i < 100; ++i) CHECK(worker.Serves("C", At(1s)));
  CHECK(worker.asked < 10);
  for (int i = 0; i < 2; ++i) CHECK(worker.Decide("C", At(1s)) == DTHROTTLE_PAGE_ASK);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(worker.Serves("C", At(1s)));
  CHECK(worker.Refuses("C", At(1s)));
  for (int i = 0; i < 2; ++i) other.Serves("D", At(1s));
  CHECK(other.Decide("D", At(1s)) == DTHROTTLE_PAGE_SERVE);
  LimiterCore& core = host.limiter->ways().core();
  const std::uint64_t hash = core.table->Hash({"D", false});
  {
    const Table::Shard shard(*core.table, hash);
    core.penalties.Hear({"D", false}, hash, 0, {3, 1min, 1min, false}, At(60s), At(1s));
  }
  other.entries.Look(At(1100ms));
  CHECK(other.Refuses("D", At(1100ms)));
}

TEST_CASE("tokens are lent in shadow mode, and a query beyond them is asked, served and counted") {
  LendingHost host("[[rule]]\nname=\"all\"\nburst=100\nrate=\"1/h\"\nmode=\"shadow\"");
  Worker worker(host), other(host);
  for (int i = 0; i < 100; ++i) CHECK((i % 2 == 0 ? worker : other).Serves("C", At(1s)));
  CHECK(worker.asked + other.asked < 20);
  worker.entries.Look(At(1100ms));
  CHECK(Served(host) == 100);
  CHECK(host.Level("C", At(1100ms)) < 0.1);
  for (int i = 0; i < 50; ++i) {
    CHECK(worker.Decide("C", At(1100ms)) == DTHROTTLE_PAGE_ASK);
    CHECK(worker.Serves("C", At(1100ms)));
    if (i % 10 == 0) worker.entries.Look(At(1100ms));
  }
  CHECK(host.limiter->tally().GrandTotals().shadowed == 50);
  CHECK(Throttled(host) == 0);
}

TEST_CASE("the daemon behind one that was killed serves no token that a worker may have of it") {
  const std::string rules = "[[rule]]\nname=\"all\"\nburst=100\nrate=100";
  const Shape shape = Shape::From(100, 100);
  for (const bool asks_first : {false, true}) {
    LendingHost host(rules);
    Bucket strict;
    Worker worker(host);
    std::size_t violations = 0, served = 0, by_page = 0;
    const auto count = [&](bool serves, Instant now) {
      served += serves;
      violations += serves && !strict.Take(shape, 1, now);
      return serves;
    };
    Instant now = At(1s), look = now;
    for (; now < At(3s); now += 15ms) {
      if (now >= look) worker.entries.Look(now), look = now + 100ms;
      count(worker.Serves("C", now), now);
    }
    worker.entries.Abandon();
    host.Start(testing::Rules(rules), now);
    host.lending().Enable(now + Loan::kLast);
    const Instant then = now;
    const auto ask = [&](Duration since) {
      for (now = then + since; count(host.Serves("C", now), now);) continue;
    };
    const auto look_up = [&](Duration since) {
      for (now = then + since; count(worker.Decide("C", now) == DTHROTTLE_PAGE_SERVE, now);) ++by_page;
    };
    if (asks_first) ask(300ms);
    look_up(400ms);
    ask(500ms);
    for (Duration since = 600ms; since < 1700ms; since += 50ms) ask(since);
    look_up(1700ms);
    ask(2600ms);
    CAPTURE(asks_first, by_page, served);
    CHECK(by_page > 0);
    CHECK(violations == 0);
    CHECK(strict.Level(shape, now) <= 50);    // which is the least that a killed daemon costs: nobody knows what is out
  }
}

TEST_CASE("a killed daemon costs a limit that hardly refills only what is lent") {
  LendingHost host(kSlow);
  Worker worker(host);
  for (int i = 0; i < 10; ++i) CHECK(worker.Serves("C", At(1s)));
  const auto level = host.Level("C", At(1s));
  worker.entries.Abandon();
  host.Start(testing::Rules(kSlow), At(1100ms));
  host.lending().Enable(At(1100ms) + Loan::kLast);
  std::size_t served = 0;
  for (Instant now = At(1100ms); now < At(3s); now += 10ms) served += host.Serves("C", now);
  CHECK(served >= static_cast<std::size_t>(level) - 1);
  CHECK(served <= static_cast<std::size_t>(level));
  CHECK(served > 60);
}

TEST_CASE("a worker that scribbles over its counts gains no token, and others are served as if it asked") {
  LendingHost host("[[rule]]\nname=\"all\"\nburst=50\nrate=100.0");
  Worker scribbler(host), honest(host);
  const Shape shape = Shape::From(50, 100);
  std::map<std::string, Bucket> strict;
  Bucket central;
  std::uint64_t served = 0, wished = 0;
  Prng prng(7);
  for (int i = 0; i < 20'000; ++i) {
    const Instant now = At(1s) + i * 1ms;
    for (auto& count : scribbler.counts()) {
      const auto any = [&] { return static_cast<std::uint32_t>(prng.Next()); };
      if (prng.Below(3) == 0) count = {any(), any(), any(), any()};
      if (prng.Below(3) == 0) count = {};
    }
    if (i % 100 == 0) scribbler.entries.Look(now), honest.entries.Look(now);
    for (const char* tag : {"a", "b"}) {
      if (honest.Serves(tag, now)) CHECK(strict[tag].Take(shape, 1, now));
      if (scribbler.Asks(tag, now)) CHECK(strict[tag].Take(shape, 1, now));
    }
    wished += central.Take(shape, 1, now);
    if (!honest.Serves("h", now)) continue;
    ++served;
    CHECK(strict["h"].Take(shape, 1, now));
  }
  CHECK(static_cast<double>(served) > 0.995 * static_cast<double>(wished));
  CHECK(scribbler.entries.refused() <= static_cast<std::uint64_t>(21 * WorkerEntries::kPlausible) + 1);
  CHECK(scribbler.entries.clamped() > 0);
}

TEST_CASE("a worker that asks and never looks into its page is soon lent no more") {
  LendingHost host(kHot);
  Worker blind(host);
  std::uint64_t served = 0;
  for (int i = 0; i < 20'000; ++i) {    // twice the rate
    const Instant now = At(1s) + i * 500us;
    if (i % 200 == 0) blind.entries.Look(now);
    served += blind.Asks("C", now);
  }
  CHECK(served >= 10'000);
}

TEST_CASE("a query of several tokens that a worker serves counts once, and its tokens are spent") {
  LendingHost host("[[rule]]\nburst=1000\nrate=\"1/h\"");
  Worker worker(host);
  for (int i = 0; i < 3; ++i) CHECK(worker.Asks("C", At(1s)));
  const double level = host.Level("C", At(1s));
  CHECK(worker.Spends("C", 5, At(1s)));
  CHECK(worker.Spends("C", 1, At(1s)));
  CHECK(worker.Spends("C", 3, At(1s)));
  worker.entries.Look(At(1100ms));
  worker.entries.Recall(At(1100ms));
  CHECK(Served(host) == 3 + 3);
  CHECK(host.lending().served() == 3);
  CHECK(host.Level("C", At(1100ms)) == Approx(1000 - 3 - 9).margin(0.01));
  CHECK(level < 1000 - 3 - 9);    // what was lent and not spent has come back
}

TEST_CASE("hits are reported when they are spent, and only these") {
  LendingHost host("[[rule]]\nburst=100\nrate=\"1/h\"\nshare=\"debit\"");
  host.limiter->ways().Get<Debits>().ShareWith(1, 1s);
  struct Sum final : SlotVisitor {
    std::uint64_t hits = 0;
    bool Visit(const Tag&, const Slot& slot, const Waste&) override { return hits += slot.unreported.hits(), true; }
  };
  const auto reported = [&] {
    Sum sum;
    while (host.limiter->table().TakeUnreported(1 << 20, sum, {})) continue;
    return sum.hits;
  };
  Worker worker(host);
  worker.Serves("C", At(1s));
  worker.Serves("C", At(1s));
  worker.entries.Look(At(1050ms));
  CHECK(reported() == 2);
  for (int i = 0; i < 5; ++i) CHECK(worker.Decide("C", At(1060ms)) == DTHROTTLE_PAGE_SERVE);
  worker.entries.Look(At(1100ms));
  CHECK(reported() == 5);
  worker.entries.Recall(At(1200ms));
  CHECK(reported() == 0);
  CHECK(host.Level("C", At(1200ms)) == Approx(93).margin(0.01));
}

TEST_CASE("of a tag that is foretold no more is lent than a host may keep to itself, and nothing near the limit") {
  constexpr double kHosts = 4;
  LendingHost host("[[rule]]\nname=\"all\"\nburst=1000\nrate=100\nshare=\"forecast\"");
  Ways& ways = host.limiter->ways();
  ways.Get<Debits>().ShareWith(3, 1s);
  ways.WatchTags(64, [] {});
  ways.SetHeard(true);
  Worker worker(host);
  const std::uint64_t hash = host.limiter->table().Hash({"C", false});
  const auto out = [&] { return static_cast<double>(Loans::Out(ways.core().loans.Of(hash))); };
  const auto untold = [&](Instant now) {
    Table::Shard shard(host.limiter->table(), hash);
    return static_cast<double>(shard.Find({"C", false}, now)->unreported.hits());
  };
  struct Report final : SlotVisitor {
    bool Visit(const Tag&, const Slot&, const Waste&) override { return true; }
  };
  for (int i = 0; i < 300; ++i) CHECK(host.Serves("C", At(0s)));    // so many at once are watched
  double most = 0;
  for (Duration at = 10ms; at < 4s; at += 10ms) {
    worker.Serves("C", At(at));
    worker.entries.Look(At(at));
    Report report;
    while (at % 200ms == 0ms && host.limiter->table().TakeUnreported(1 << 20, report, {})) continue;
    CHECK(Inspect(*host.limiter, {{"C", false}}, At(at)).watched);
    CAPTURE(at.count(), out(), untold(At(at)));
    CHECK(out() <= std::max(0.9 / kHosts * 1000 - untold(At(at)), 0.0) + 32);    // it was lent before the latest hits
    most = std::max(most, out());
  }
  CHECK(most > 10);
  Entries entries;
  REQUIRE(entries.Add({"C", false}, 700, 0));
  ways.Get<Debits>().Debit(entries, 0, 1, At(3900ms), At(4s), At(4s));
  worker.entries.Look(At(4050ms));
  CHECK(out() == 0);
}

TEST_CASE("what peers have served is not lent any more") {
  LendingHost host("[[rule]]\nburst=100\nrate=\"1/h\"\nshare=\"debit\"");
  auto& debits = host.limiter->ways().Get<Debits>();
  debits.ShareWith(1, 1s);
  Worker worker(host);
  worker.Serves("C", At(1s));
  worker.Serves("C", At(1s));
  CHECK(worker.Decide("C", At(1s)) == DTHROTTLE_PAGE_SERVE);
  Entries entries;
  REQUIRE(entries.Add({"C", false}, 90, 0));
  debits.Debit(entries, 0, 1, At(0s), At(1s), At(1s));
  worker.entries.Look(At(1050ms));
  std::size_t served = 3;
  for (int i = 0; i < 50; ++i) served += worker.Serves("C", At(1100ms));
  CHECK(served == 10);
}

TEST_CASE("workers spend a quota to the token, mostly by their pages, and what is not spent is not used") {
  constexpr std::uint64_t kQuota = 5000;
  LendingHost host("[[rule]]\nname=\"all\"\nburst=200\nrate=1000\nquota=5000\nper=\"day\"");
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> region(Quotas::RegionBytes(Quotas::kSlotsMin) / sizeof(Line));
  Ways& ways = host.limiter->ways();
  ways.KeepQuotas(std::make_unique<Quotas>(
      std::as_writable_bytes(std::span(region)), std::array<std::byte, 16>{}, 1,
      [&](const Tag& tag) { return ways.core().table->Hash(tag); },
      [](const QuotaCalendar&) { return QuotaPeriods{0, 86400, 2 * 86400, At(24h)}; }, At(0h)));
  const auto used = [&](Instant now) { return Inspect(*host.limiter, {{"C", false}}, now).quota->used; };
  std::uint64_t served = 0, asked = 0;
  const auto run = [&](Duration from, std::uint64_t until) {
    Worker one(host), other(host);
    Prng prng(7);
    Duration at = from;
    for (; served < until && at < from + 30s; at += 2ms) {
      served += (prng.Below(2) == 0 ? one : other).Serves("C", At(at));
      if (at % 10ms == 0ms) one.entries.Look(At(at)), other.entries.Look(At(at));
      REQUIRE(used(At(at)) <= kQuota);
    }
    asked += one.asked + other.asked;
    for (Worker* const its : {&one, &other}) its->entries.Recall(At(at));
    return at;
  };
  const Duration then = run(1s, kQuota / 2);
  CHECK(used(At(then)) == served);    // both have gone, with what they had not spent
  CHECK(served == kQuota / 2);
  const Duration last = run(then, kQuota);
  CHECK(served == kQuota);
  CHECK(used(At(last)) == kQuota);
  CHECK(asked < kQuota / 2);
  Worker late(host);
  for (int i = 0; i < 300; ++i) CHECK_FALSE(late.Serves("C", At(last + i * 10ms)));
}

TEST_CASE("forgive takes back what is lent at once, and other rules with the next look") {
  LendingHost host("[[rule]]\nname=\"all\"\nburst=100\nrate=\"1/h\"");
  Worker worker(host);
  worker.Serves("C", At(1s));
  worker.Serves("C", At(1s));
  CHECK(worker.Decide("C", At(1s)) == DTHROTTLE_PAGE_SERVE);
  Forgive(*host.limiter, {{"C", false}}, At(1s));
  CHECK(worker.Decide("C", At(1s)) == DTHROTTLE_PAGE_ASK);
  CHECK(host.Level("C", At(1s)) == 100);
  for (const char* rules : {"", "[[rule]]\nname=\"all\"\nburst=100\nrate=\"1/h\"\nmode=\"off\"",
                            "[[rule]]\nname=\"all\"\nburst=100\nrate=\"1/h\"\nin_flight=5",
                            "[[rule]]\nname=\"all\"\nburst=100\nrate=\"1/h\"\nquota=1000\nper=\"day\"",
                            "[[rule]]\nname=\"all\"\nburst=100\nrate=\"1/h\"\nalso=[\"before /\"]"}) {
    CAPTURE(rules);
    worker.Serves("C", At(1s));
    worker.Serves("C", At(1s));
    CHECK(worker.Decide("C", At(1s)) == DTHROTTLE_PAGE_SERVE);
    const auto before = Served(host);
    Adopt(host, rules);
    worker.entries.Look(At(1s));
    CHECK(worker.Decide("C", At(1s)) == DTHROTTLE_PAGE_ASK);
    if (rules[0] != '\0') CHECK(Served(host) == before + 2);    // both by the page
    Adopt(host, "[[rule]]\nname=\"all\"\nburst=100\nrate=\"1/h\"");
    Forgive(*host.limiter, {{"C", false}}, At(1s));
  }
}

}    // namespace
}    // namespace dthrottle
