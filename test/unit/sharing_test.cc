#include "share/debit/sharing.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/prng.h"
#include "limiter/shedder.h"
#include "rule/rulebook.h"
#include "share/ways.h"
#include "test/support/host.h"
#include "test/support/sanitized.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Instant At(double seconds) {
  return FromNanoseconds(static_cast<Duration::rep>(seconds * 1e9));
}

std::string Rule(double burst, double rate, std::string_view more = "") {
  return fmt::format("[[rule]]\nname = \"r\"\nburst = {}\nrate = {}\n{}", burst, rate, more);
}

// A host whose peers are whoever the test hands its reports to: what the exchange does, without loss or delay.
class Sharer {
 public:
  // The first report is due `phase` of a period after 0.
  Sharer(const std::string& toml, std::size_t peers, Duration period, double phase = 0) : host_(toml) {
    Prng draw(1), again(1);
    const auto drawn = Duration(static_cast<Duration::rep>(draw.Below(static_cast<std::uint64_t>(period.count()))));
    const auto first = At(phase * Seconds(period));
    sharing_ = std::make_unique<Sharing>(host_.limiter->ways(), out_, in_, peers, period, again, first - drawn);
    REQUIRE(sharing_->next() == first);
  }

  void RunAt(Instant now) {
    while (sharing_->Work(now)) {
    }
  }

  // Everything handed over so far, reports only.
  std::vector<ToPeers> Drain() {
    std::vector<ToPeers> items;
    for (ToPeers item; out_.TryPop(item);) items.push_back(std::move(item));
    return items;
  }

  void Hear(const ToPeers& hits, Instant now) {
    FromPeers debits;
    debits.kind = FromPeers::Kind::kDebits;
    debits.from = hits.from;
    debits.to = std::min(hits.to, now);
    debits.entries = hits.entries;
    REQUIRE(in_.TryPush(std::move(debits)));
    RunAt(now);
  }

  void Push(FromPeers item, Instant now) {
    REQUIRE(in_.TryPush(std::move(item)));
    RunAt(now);
  }

  bool Serves(std::string_view tag, Instant now) { return host_.Serves(tag, now); }
  double Level(std::string_view tag, Instant now) { return host_.Level(tag, now); }
  Instant next() const { return sharing_->next(); }
  Sharing& sharing() { return *sharing_; }
  Limiter& limiter() { return *host_.limiter; }
  testing::Host& host() { return host_; }

 private:
  testing::Host host_;
  ToPeersRing out_{256};
  FromPeersRing in_{256};
  std::unique_ptr<Sharing> sharing_;
};

// Everything of `items` that is a report's.
std::vector<ToPeers> Hits(std::vector<ToPeers> items) {
  std::erase_if(items, [](const ToPeers& item) { return item.kind != ToPeers::Kind::kHits; });
  return items;
}

TEST_CASE("a report goes out each period, empty or not, and carries a hit once") {
  Sharer a(Rule(10, 1), 1, 5s);
  a.RunAt(At(0));
  auto items = a.Drain();
  REQUIRE(items.size() == 1);
  CHECK(items[0].kind == ToPeers::Kind::kPeriodEnd);
  CHECK(a.next() == At(5));

  REQUIRE(a.Serves("C", At(1)));
  REQUIRE(a.Serves("C", At(2)));
  REQUIRE(a.Serves("D", At(3)));
  a.RunAt(At(5));
  items = a.Drain();
  REQUIRE(items.size() == 2);
  REQUIRE(items[0].kind == ToPeers::Kind::kHits);
  CHECK(items[0].from == At(0));
  CHECK(items[0].to == At(5));
  std::map<std::string, std::pair<std::uint64_t, int>> said;
  for (const Entry& e : items[0].entries.list()) {
    said[std::string(items[0].entries.tag(e).bytes)] = {e.value, e.phase};
  }
  CHECK(said == std::map<std::string, std::pair<std::uint64_t, int>>{{"C", {2, 26}}, {"D", {1, 77}}});
  CHECK(items[1].kind == ToPeers::Kind::kPeriodEnd);

  a.RunAt(At(10));
  CHECK(a.Drain().size() == 1);
}

TEST_CASE("refused queries and rules that are not shared stay at home") {
  Sharer a(Rule(2, 1, "match = \"s*\"\n") + "[[rule]]\nname = \"l\"\nburst = 2\nrate = 1\nshare = \"local\"\n", 1, 5s);
  a.RunAt(At(0));
  a.Drain();
  for (int i = 0; i < 5; ++i) a.Serves("shared", At(1));
  for (int i = 0; i < 5; ++i) a.Serves("local", At(1));
  a.RunAt(At(5));
  const auto hits = Hits(a.Drain());
  REQUIRE(hits.size() == 1);
  REQUIRE(hits[0].entries.size() == 1);
  CHECK(hits[0].entries.list()[0].value == 2);

  FromPeers debits;
  debits.kind = FromPeers::Kind::kDebits;
  debits.from = debits.to = At(5);
  debits.entries.Add({"local", false}, 1, 0);
  a.Push(std::move(debits), At(5));
  CHECK(a.limiter().ways().Get<Debits>().peers().counts().unmatched == 1);
}

TEST_CASE("hits from before other rules came are reported under these, also before the table is rewritten for them") {
  const std::string shared = Rule(9, 1, "match = \"s*\"\n");
  const std::string local = "[[rule]]\nname = \"l\"\nmatch = \"l*\"\nburst = 9\nrate = 1\nshare = \"local\"\n";
  Sharer a(shared + local + "[[rule]]\nname = \"d\"\nburst = 9\nrate = 1\n", 1, 5s);
  for (const char* const tag : {"s1", "l1", "d1"}) REQUIRE(a.Serves(tag, At(1)));
  a.limiter().Adopt(testing::Rules(local + shared));
  REQUIRE(a.limiter().reshaping());
  a.RunAt(At(5));
  const auto hits = Hits(a.Drain());
  REQUIRE(hits.size() == 1);
  REQUIRE(hits[0].entries.size() == 1);
  CHECK(hits[0].entries.tag(hits[0].entries.list()[0]).bytes == "s1");
}

TEST_CASE("what is shed is not a hit that peers hear of") {
  Sharer a(Rule(1000, 0.01, "shed = true\n"), 1, 5s);
  a.RunAt(At(0));
  a.Drain();
  a.limiter().shedder().Shed(a.limiter().rules().shed_priorities(), ShedCurve(0, 2), 1);
  std::uint64_t served = 0;
  for (int i = 0; i < 500; ++i) served += a.Serves("C", At(1));
  CHECK((served > 150 && served < 350));
  a.limiter().shedder().Shed(a.limiter().rules().shed_priorities(), ShedCurve(0, 2), 2);
  for (int i = 0; i < 500; ++i) REQUIRE_FALSE(a.Serves("D", At(1)));
  a.RunAt(At(5));
  const auto hits = Hits(a.Drain());
  REQUIRE(hits.size() == 1);
  REQUIRE(hits[0].entries.size() == 1);
  CHECK(hits[0].entries.list()[0].value == served);
}

TEST_CASE("hits served before a snapshot has come are debited on top of it, and reported after it") {
  Sharer a(Rule(1000, 0.01), 1, 5s);
  a.sharing().HoldHits();
  a.RunAt(At(0));
  for (int i = 0; i < 8; ++i) REQUIRE(a.Serves("C", At(1)));
  a.RunAt(At(5));
  const auto items = a.Drain();
  REQUIRE(items.size() == 2);
  for (const ToPeers& item : items) CHECK(item.kind == ToPeers::Kind::kPeriodEnd);

  FromPeers buckets;    // ten were served elsewhere
  buckets.kind = FromPeers::Kind::kBuckets;
  buckets.from = buckets.to = At(6);
  buckets.entries.Add({"C", false}, 1'000'000'000, 0);
  a.Push(std::move(buckets), At(6));
  CHECK(a.Level("C", At(6)) == Approx(982).margin(0.1));
  a.RunAt(At(10));
  CHECK(Hits(a.Drain()).empty());

  FromPeers joined;
  joined.kind = FromPeers::Kind::kJoined;
  a.Push(std::move(joined), At(11));
  a.RunAt(At(15));
  const auto hits = Hits(a.Drain());
  REQUIRE(hits.size() == 1);
  CHECK(hits[0].entries.list()[0].value == 8);
  CHECK(hits[0].from <= At(0));
  CHECK(hits[0].to == At(15));
}

TEST_CASE("a host that leaves before a snapshot has come reports what it served") {
  Sharer a(Rule(10, 1), 1, 5s);
  a.sharing().HoldHits();
  REQUIRE(a.Serves("C", At(1)));
  a.sharing().ReportNow(At(2));
  a.RunAt(At(2));
  CHECK(Hits(a.Drain()).size() == 1);
}

TEST_CASE("hits of a watched tag that waited for longer than a period say when they began") {
  Sharer a(Rule(100, 200, "share = \"forecast\"\n"), 1, 1s);
  a.limiter().ways().WatchTags(4096, [] {});
  a.RunAt(At(0));
  // Enough to be watched, and reported often enough that a few hits can wait.
  Instant now = At(0);
  for (int i = 0; i < 3000; ++i) {
    a.Serves("C", now += 10ms);
    a.RunAt(now);
  }
  std::vector<ToPeers> hits = a.Drain();
  std::erase_if(hits, [](const ToPeers& item) { return item.entries.empty(); });
  REQUIRE(hits.size() > 5);
  bool waited = false;
  for (std::size_t i = 1; i < hits.size(); ++i) {
    const Entry& entry = hits[i].entries.list()[0];
    const Instant begun = hits[i].from + (hits[i].to - hits[i].from) / kPhases * entry.phase;
    CAPTURE(i, Seconds(begun - hits[i - 1].to));
    // The first hit after the report before; a phase is rounded up.
    CHECK(begun >= hits[i - 1].to);
    CHECK(begun <= hits[i - 1].to + 20ms + (hits[i].to - hits[i].from) / kPhases);
    waited = waited || hits[i].to - begun > 1500ms;
  }
  CHECK(waited);
}

// How long a question has to wait for its turn.
Duration Turn(Sharer& host, std::string_view tag, Instant now) {
  Questions questions;
  questions.Begin(Verb::kTake, 10s);
  questions.Name({{tag, false}, 1});
  Outcome outcome;
  Standing standing;
  host.limiter().Ask(questions, {&outcome, 1}, {&standing, 1}, 0, host.host().prng, now);
  REQUIRE(outcome.verdict == Verdict::kServe);
  return outcome.wait;
}

TEST_CASE("turns that questions wait for are told at once, so that no other host gives them") {
  const std::string rule = Rule(1, 10, "delay = \"10s\"\n");
  Sharer a(rule, 1, 5s), b(rule, 1, 5s);
  for (Sharer* host : {&a, &b}) host->RunAt(At(0)), host->Drain();
  REQUIRE(Turn(a, "C", At(1)) == 0s);
  CHECK(a.next() == At(5));    // that can wait for the report
  REQUIRE(Turn(a, "C", At(1)) >= 100ms);
  CHECK(a.next() <= At(1));
  a.RunAt(At(1));
  const auto told = a.Drain();
  REQUIRE(told.size() == 1);
  CHECK(told[0].kind == ToPeers::Kind::kUrgent);
  REQUIRE(told[0].entries.size() == 1);
  CHECK(told[0].entries.list()[0].value == 2);

  b.Hear(told[0], At(1.001));
  const Duration wait = Turn(b, "C", At(1.05));
  CHECK(wait > 140ms);    // behind both, of which a report says the instant to 128ths of its interval
  CHECK(wait < 151ms);
  a.RunAt(At(5));
  CHECK(Hits(a.Drain()).empty());    // nothing is told twice
}

TEST_CASE("turns count at other hosts however many wait") {
  const std::string rule = Rule(1, 10, "delay = \"10s\"\n");
  Sharer a(rule, 1, 1s), b(rule, 1, 1s);
  for (Sharer* host : {&a, &b}) host->RunAt(At(0)), host->Drain();
  for (int i = 0; i < 81; ++i) Turn(a, "C", At(0.5));
  a.RunAt(At(0.5));
  for (const ToPeers& told : a.Drain()) b.Hear(told, At(0.5));
  CHECK(b.Level("C", At(0.5)) == Approx(-80).margin(0.1));
  CHECK(b.limiter().ways().Get<Debits>().peers().counts().hits_disbelieved == 0);
}

// Hosts hear of each other's turns `delay` later. Callers of each ask again when they may go on. Returns by how much
// the turns of the last ten seconds of 15 are off their distance, sorted.
std::vector<Duration> Spacing(std::size_t n, double rate, Duration delay, std::size_t callers) {
  struct Word {
    Instant at;
    ToPeers said;
  };
  struct Host {
    std::unique_ptr<Sharer> its;
    std::deque<Word> words;    // on their way to it
    std::vector<Instant> asks;
  };
  std::vector<Host> hosts(n);
  for (std::size_t i = 0; i < n; ++i) {
    hosts[i] = {std::make_unique<Sharer>(Rule(1, rate, "delay = \"10s\"\n"), n - 1, 1s), {},
                std::vector<Instant>(callers, At(0.5))};
    hosts[i].its->host().prng = Prng(i + 1);
    hosts[i].its->RunAt(At(0)), hosts[i].its->Drain();
  }
  std::vector<Instant> turns;
  for (Instant now = At(0.5); now < At(15); now += 50us) {
    for (Host& host : hosts) {
      for (auto& words = host.words; !words.empty() && words.front().at <= now; words.pop_front()) {
        host.its->Hear(words.front().said, now);
      }
      for (Instant& ask : host.asks) {
        if (ask > now) continue;
        ask = now + Turn(*host.its, "C", now);
        if (ask >= At(5)) turns.push_back(ask);
      }
      if (host.its->next() <= now) host.its->RunAt(now);
      for (const ToPeers& said : host.its->Drain()) {
        if (said.entries.size() == 0) continue;
        for (Host& other : hosts) {
          if (&other != &host) other.words.push_back({now + delay, said});
        }
      }
    }
  }
  std::ranges::sort(turns);
  const Duration distance = At(1 / rate) - At(0);
  std::vector<Duration> off;
  for (std::size_t i = 1; i < turns.size(); ++i) off.push_back(abs(turns[i] - turns[i - 1] - distance));
  std::ranges::sort(off);
  return off;
}

TEST_CASE("hosts that gave one turn twice do not meet again, though they take a while to hear of each other") {
  for (const std::size_t hosts : {2u, 3u, 4u}) {
    if (testing::kSanitized && hosts > 2) continue;
    for (const double rate : {20.0, 100.0}) {
      for (const Duration delay : {Duration(300us), Duration(1ms), Duration(2ms)}) {
        if (testing::kSanitized && (rate > 20 || delay != 1ms)) continue;
        for (const std::size_t callers : {1u, 3u}) {
          CAPTURE(hosts, rate, Seconds(delay), callers);
          const std::vector<Duration> off = Spacing(hosts, rate, delay, callers);
          CHECK(off[off.size() * 99 / 100] < 1ms);
        }
      }
    }
  }
}

TEST_CASE("hits are too old when their interval is, and stand for no time before the horizon") {
  Sharer a(Rule(100, 1, "horizon = \"10s\"\n"), 1, 5s);
  a.RunAt(At(0));
  ToPeers hits;
  hits.from = At(0), hits.to = At(15);
  hits.entries.Add({"C", false}, 20, 0);
  a.Hear(hits, At(20));    // they began 20 s ago, and ended 5 s ago
  CHECK(a.Level("C", At(20)) == Approx(90));
  a.Hear(hits, At(26));
  CHECK(a.limiter().ways().Get<Debits>().peers().counts().expired == 20);
}

TEST_CASE("an owner tells every host of its own tags that fall below half of a burst by what it serves itself") {
  for (const std::string share : {"debit", "forecast"}) {
    CAPTURE(share);
    Sharer owner(Rule(10, 0.01, "share = \"" + share + "\"\n"), 2, 1s, 99);
    owner.sharing().OwnedBy(std::make_shared<const Owners>(std::vector<std::string>{"me"}), "me");
    ToPeers other;
    other.from = At(99), other.to = At(100);
    REQUIRE(other.entries.Add({"of another host", false}, 1, 0));
    owner.Hear(other, At(100));
    for (int i = 0; i < 4; ++i) REQUIRE(owner.Serves("far", At(100)));
    for (int i = 0; i < 8; ++i) REQUIRE(owner.Serves("near", At(100)));
    std::vector<std::string> told;
    for (int ms = 100'000; ms < 102'000; ms += 5) {
      owner.RunAt(At(ms / 1e3));
      for (const ToPeers& item : owner.Drain()) {
        if (item.kind != ToPeers::Kind::kNear) continue;
        for (const Entry& e : item.entries.list()) told.emplace_back(item.entries.tag(e).bytes);
      }
    }
    CHECK(told == std::vector<std::string>{"near"});
    CHECK(owner.sharing().owning()->counts().tags == 2);
  }
}

TEST_CASE("hits of peers count where a bucket takes months to fill, however many hosts there are") {
  for (const std::size_t peers : {1, 99, 4095}) {
    CAPTURE(peers);
    Sharer a(Rule(1e6, 0.1), peers, 1s);
    a.RunAt(At(0));
    ToPeers hits;
    hits.from = At(0), hits.to = At(1);
    hits.entries.Add({"C", false}, 20, 0);
    a.Hear(hits, At(1));
    CHECK(a.Level("C", At(1)) == Approx(1e6 - 20).margin(0.2));
  }
}

TEST_CASE("the README's two hosts") {
  Sharer a(Rule(10, 1), 1, 5s), b(Rule(10, 1), 1, 5s);
  for (Sharer* host : {&a, &b}) {
    host->RunAt(At(0));
    host->Drain();
  }
  for (int i = 0; i < 10; ++i) REQUIRE(a.Serves("C", At(0.1)));
  for (int i = 0; i < 8; ++i) REQUIRE(b.Serves("C", At(0.1)));
  a.RunAt(At(5));
  b.RunAt(At(5));
  const auto from_a = Hits(a.Drain()), from_b = Hits(b.Drain());
  REQUIRE(from_a.size() == 1);
  REQUIRE(from_b.size() == 1);
  a.Hear(from_b[0], At(5.1));
  b.Hear(from_a[0], At(5.1));
  for (Sharer* host : {&a, &b}) {
    CHECK(host->Level("C", At(5.1)) == Approx(-3.0).margin(1e-9));
    CHECK_FALSE(host->Serves("C", At(5.2)));
    CHECK_FALSE(host->Serves("C", At(9)));
    CHECK(host->Level("C", At(9)) == Approx(0.9).margin(1e-9));
  }
  CHECK(a.Serves("C", At(9.1)));
}

// One client over several hosts, evenly spaced, each query to a host drawn by lot; reports take 10 ms.
double ServedShare(std::size_t hosts, double burst, double rate, Duration period, bool in_phase, double load,
                   std::uint64_t seed) {
  Prng prng(seed);
  std::vector<std::unique_ptr<Sharer>> fleet;
  for (std::size_t i = 0; i < hosts; ++i) {
    const double phase = in_phase ? 0 : static_cast<double>(prng.Below(1000)) / 1000;
    fleet.push_back(std::make_unique<Sharer>(Rule(burst, rate), hosts - 1, period, phase));
  }
  struct Report {
    Instant at;
    std::size_t from;
    ToPeers hits;
  };
  std::deque<Report> wire;
  std::size_t asked = 0, served = 0;
  const Duration gap(static_cast<Duration::rep>(1e9 / (rate * load)));
  const Instant end = At(0) + std::max<Duration>(60 * period, 300 * gap);
  for (Instant query = At(0.2); query < end; query += gap) {
    for (;;) {    // what happens before it, in order
      std::size_t next = 0;
      for (std::size_t i = 1; i < hosts; ++i) {
        if (fleet[i]->next() < fleet[next]->next()) next = i;
      }
      const Instant report = fleet[next]->next(), arrival = wire.empty() ? Instant::max() : wire.front().at;
      if (std::min(report, arrival) > query) break;
      if (report < arrival) {
        fleet[next]->RunAt(report);
        for (ToPeers& item : Hits(fleet[next]->Drain())) wire.push_back({report + 10ms, next, std::move(item)});
      } else {
        const Report due = std::move(wire.front());
        wire.pop_front();
        for (std::size_t i = 0; i < hosts; ++i) {
          if (i != due.from) fleet[i]->Hear(due.hits, due.at);
        }
      }
    }
    ++asked;
    served += fleet[prng.Below(hosts)]->Serves("client", query);
  }
  return static_cast<double>(served) / static_cast<double>(asked);
}

TEST_CASE("a client within its rate is served, however late reports are") {
  for (const bool in_phase : {true, false}) {
    for (const std::size_t hosts : {2, 10, 50}) {
      if (testing::kSanitized && hosts > 10) continue;
      for (const double burst : {2.0, 5.0, 20.0, 100.0}) {
        for (const Duration period : {Duration(1s), Duration(5s)}) {
          for (const double rate : {1.0, 20.0}) {
            const double share = ServedShare(hosts, burst, rate, period, in_phase, 0.9, 7);
            INFO(hosts << " hosts, burst " << burst << ", rate " << rate << ", period " << Seconds(period) << " s, "
                       << (in_phase ? "in phase" : "not in phase"));
            CHECK(share >= 0.995);
          }
        }
      }
    }
  }
}

TEST_CASE("a client beyond its rate gets its rate") {
  for (const bool in_phase : {true, false}) {
    for (const std::size_t hosts : {2, 10}) {
      const double share = ServedShare(hosts, 10, 10, 1s, in_phase, 3, 7);
      INFO(hosts << " hosts, " << (in_phase ? "in phase" : "not in phase") << ": " << share);
      CHECK(share * 3 < 1.1);
      CHECK(share * 3 > 0.97);
    }
  }
}

}    // namespace
}    // namespace dthrottle
