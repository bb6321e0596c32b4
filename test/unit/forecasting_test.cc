// Tags whose forecasts decide: which are watched, and when peers hear of them.
#include "share/forecast/forecasting.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "base/prng.h"
#include "share/forecast/watches.h"
#include "share/ways.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

Instant At(double seconds) {
  return FromNanoseconds(static_cast<std::int64_t>(std::llround(seconds * 1e9)));
}

TEST_CASE("watches have bounds, and the one that rests longest makes room") {
  Watches watches(1);    // sets enough for the shards of a table
  const auto hash = [](std::uint64_t i) { return (std::uint64_t{5} << 58) | (i + 1); };    // all of one set
  const auto add = [&](std::uint64_t i, Instant now) { return watches.Add(hash(i), {"tag", false}, 1, 0, 2s, now); };
  for (std::uint64_t i = 0; i < Watches::kWays; ++i) REQUIRE(add(i, At(static_cast<double>(i) / 10)) != nullptr);
  CHECK(add(100, At(1)) == nullptr);
  CHECK(watches.crowded() == 1);
  REQUIRE(watches.Find(hash(0)) != nullptr);
  CHECK(add(100, At(2.05)) != nullptr);    // the first has rested for two seconds
  CHECK(watches.Find(hash(0)) == nullptr);
  CHECK(watches.Find(hash(1)) != nullptr);
  CHECK(watches.used() == Watches::kWays);
  watches.Remove(watches.Find(hash(100)));
  CHECK(watches.Find(hash(100)) == nullptr);
  CHECK(watches.used() == Watches::kWays - 1);
}

TEST_CASE("a watch that only a peer has asked for makes room for tags served here, and for a peer with fewer there") {
  Watches watches(1);
  const auto hash = [](std::uint64_t i) { return (std::uint64_t{5} << 58) | (i + 1); };    // all of one set
  const Instant now = At(1);
  const auto hear = [&](std::uint64_t i, std::uint32_t peer) {
    return watches.AddHeard(hash(i), {"tag", false}, peer, 1, 2s, now);
  };
  for (std::uint64_t i = 0; i < Watches::kWays; ++i) REQUIRE(hear(i, 7) != nullptr);
  CHECK(hear(10, 7) == nullptr);
  CHECK(watches.crowded() == 1);
  for (std::uint64_t i = 20; i < 24; ++i) CHECK(hear(i, 3) != nullptr);
  CHECK(hear(24, 3) == nullptr);    // half is theirs
  CHECK(hear(30, 4) != nullptr);
  CHECK(hear(11, 7) == nullptr);
  const auto serve = [&](std::uint64_t i) { return watches.Add(hash(i), {"tag", false}, 1, 0, 2s, now); };
  for (std::uint64_t i = 40; i < 40 + Watches::kWays; ++i) CHECK(serve(i) != nullptr);
  CHECK(serve(50) == nullptr);
  CHECK(hear(31, 4) == nullptr);
  for (std::uint64_t i = 40; i < 40 + Watches::kWays; ++i) CHECK(watches.Find(hash(i)) != nullptr);
  CHECK(watches.used() == Watches::kWays);
}

TEST_CASE("what was noted is found by its word until that is taken, and again if it was not looked at") {
  Watches watches(8192);
  REQUIRE(watches.words() == 128);
  std::vector<Watch*> added;
  for (const std::uint64_t set : {0, 9, 1023}) {    // eight places each
    Watch* const watch = watches.Add(set << 54 | 1, {"tag", false}, 1, 0, 2s, At(0));
    REQUIRE(watch != nullptr);
    added.push_back(watch);
  }
  std::vector<std::size_t> words;
  for (const Watch* watch : added) words.push_back(watch->place / Watches::kWordPlaces);
  std::sort(words.begin(), words.end());
  REQUIRE(std::adjacent_find(words.begin(), words.end()) == words.end());
  CHECK(watches.NextWord(0) == watches.words());
  for (const Watch* watch : added) watches.Note(watch);
  CHECK(watches.NextWord(0) == words[0]);
  CHECK(watches.NextWord(words[0] + 1) == words[1]);
  CHECK(watches.NextWord(words[1] + 1) == words[2]);
  CHECK(watches.NextWord(words[2] + 1) == watches.words());

  const std::uint64_t due = watches.TakeWord(words[1]);
  CHECK(std::popcount(due) == 1);
  CHECK(watches.NextWord(words[0] + 1) == words[2]);
  watches.NoteWord(words[1]);    // there was no room to look at it
  CHECK(watches.NextWord(words[0] + 1) == words[1]);
  CHECK(watches.TakeWord(words[1]) == due);
  watches.TakeDue(words[1] * Watches::kWordPlaces + static_cast<std::size_t>(std::countr_zero(due)));
  CHECK(watches.TakeWord(words[1]) == 0);

  CHECK_FALSE(watches.any_active());
  watches.SetActive(added[0], true);
  watches.SetActive(added[0], true);
  watches.SetActive(added[1], true);
  watches.SetActive(added[0], false);
  CHECK(watches.any_active());
  watches.Remove(added[1]);
  CHECK_FALSE(watches.any_active());
}

// ---- With a limiter ----

struct Fixture {
  explicit Fixture(const std::string& more) : host("[[rule]]\nname=\"r\"\nburst=100\nrate=100\n" + more) {
    host.limiter->ways().Get<Debits>().ShareWith(3, 1s);
    host.limiter->ways().WatchTags(4096, [this] { ++woken; });
    host.limiter->ways().SetHeard(true);
  }
  int Ask(int n, Instant now) {
    int served = 0;
    for (int i = 0; i < n; ++i) served += host.Serves("t", now);
    return served;
  }
  Entries Urgent(Instant now) {
    Draft out;
    CHECK_FALSE(host.limiter->ways().ReportUrgent(At(0), now, out));
    return out.entries;
  }

  int woken = 0;
  testing::Host host;
};

TEST_CASE("a tag whose hits matter is reported at once, with its demand, and its hits once") {
  Fixture f("share=\"forecast\"\n");
  CHECK(f.Ask(5, At(1)) == 5);
  CHECK(f.woken == 0);
  CHECK(f.Ask(20, At(1.01)) == 20);
  CHECK(f.woken == 1);
  const Entries first = f.Urgent(At(1.02));
  REQUIRE(first.size() == 1);
  CHECK(first.list()[0].value == 25);
  CHECK(first.demand(first.list()[0]).has_value());
  CHECK(f.Urgent(At(1.03)).empty());
  CHECK(f.Ask(10, At(1.04)) == 10);
  const Entries second = f.Urgent(At(1.05));
  REQUIRE(second.size() == 1);
  CHECK(second.list()[0].value == 10);
}

TEST_CASE("hits of a tag that is asked for seldom wait, until a peer tells at once of hits of its own") {
  Fixture f("share=\"forecast\"\n");
  const auto hear = [&](std::uint64_t hits, Instant now) {
    Entries said;
    said.Add({"t", false}, hits, 0);
    f.host.limiter->ways().Get<Debits>().Debit(said, 0, 1, now - 10ms, now, now, 7);
  };
  CHECK(f.Ask(18, At(1)) == 18);    // four such hosts would leave a few tokens of 100
  hear(10, At(1.01));               // no more than a report at the end of a period says
  CHECK(f.woken == 0);
  CHECK(f.Urgent(At(1.02)).empty());
  hear(17, At(1.03));
  CHECK(f.woken == 1);
  const Entries told = f.Urgent(At(1.04));
  REQUIRE(told.size() == 1);
  CHECK(told.list()[0].value == 18);
}

TEST_CASE("a tag that rests is watched until a peer tells of a hit, if nothing of it is unreported") {
  Fixture f("share=\"forecast\"\n");
  const auto watched = [&] { return f.host.limiter->ways().Status().watched.tags; };
  const auto hear = [&](Instant now) {
    Entries said;
    said.Add({"t", false}, 1, 0);
    f.host.limiter->ways().Get<Debits>().Debit(said, 0, 1, now - 10ms, now, now, 7);
  };
  f.Ask(60, At(1));
  Instant now = At(1.01);
  f.Urgent(now);
  hear(now);
  CHECK(watched() == 1);
  while (f.host.limiter->ways().urgent_at() != Instant::max()) f.Urgent(now += 200ms);
  CHECK(f.Ask(1, now += 10s) == 1);
  hear(now += 10s);
  CHECK(watched() == 1);
  CHECK(f.Urgent(now).size() == 1);
  CHECK(watched() == 1);
  hear(now += 10s);
  CHECK(watched() == 0);
}

TEST_CASE("a watch ends with a report of few hits while the tag's owner says that its bucket is nearly full") {
  Fixture f("share=\"forecast\"\n");
  Ways& ways = f.host.limiter->ways();
  const auto watched = [&] { return ways.Status().watched.tags; };
  const auto owner_says = [&](std::uint64_t micros, std::uint64_t demand, Instant now) {
    Entries said;
    said.Add({"t", false}, micros, 0, {.demand = 1000 * demand});
    ways.Get<Debits>().buckets().Adopt(said, 0, 1, now, now, now, now, 0);
  };
  // Hits of the report, and its demand.
  const auto report = [&](Instant now) {
    Draft out;
    Table::Shard shard(*ways.core().table, ways.core().table->Hash({"t"}));
    Slot* const slot = shard.Find({"t"}, now);
    ways.Get<Debits>().AddHits({"t"}, *slot, shard.waste(slot), now - 1s, now, out);
    shard.TakeUnreported(slot);
    const Entry& entry = out.entries.list().at(0);
    return std::pair(entry.value, out.entries.demand(entry).value_or(0));
  };
  f.Ask(60, At(1));
  f.Urgent(At(1.01));
  CHECK(watched() == 1);
  f.Ask(1, At(3));
  report(At(3));
  CHECK(watched() == 1);    // no owner has said so
  owner_says(500'000, 10, At(4));
  f.Ask(1, At(4));
  report(At(4));
  CHECK(watched() == 1);
  owner_says(0, 10, At(5));
  f.Ask(12, At(5));
  report(At(5));
  CHECK(watched() == 1);
  owner_says(0, 10, At(6));
  f.Ask(3, At(6));
  CHECK(report(At(6)) == std::pair<std::uint64_t, std::uint64_t>(3, 0));
  CHECK(watched() == 0);
  owner_says(0, 10, At(6.1));
  CHECK(watched() == 0);
  owner_says(500'000, 10, At(6.2));
  CHECK(watched() == 1);
}

TEST_CASE("plain debit watches nothing") {
  Fixture f("");
  CHECK(f.Ask(100, At(1)) == 100);
  CHECK(f.woken == 0);
  CHECK(f.Urgent(At(1.01)).empty());
  CHECK(f.host.limiter->ways().Status().watched.tags == 0);
}

TEST_CASE("where nobody can hear, forecast is debit: U refuses nothing") {
  Fixture f("share=\"forecast\"\nmax_unheard=4\n");
  CHECK(f.Ask(50, At(1)) == 4);
  CHECK(f.host.limiter->ways().Status().watched.held > 0);
  f.host.limiter->ways().SetHeard(false);
  CHECK(f.Ask(200, At(1.01)) == 96 + 1);
}

TEST_CASE("a peer's demand makes a host ration before it has heard of the hits") {
  Fixture f("share=\"forecast\"\n");
  f.Ask(60, At(1));
  f.Urgent(At(1.01));
  Entries said;
  said.Add({"t", false}, 30, 0, {5'000'000});    // 5000/s
  f.host.limiter->ways().Get<Debits>().Debit(said, 0, 1, At(1), At(1.02), At(1.03), 7);
  CHECK(f.Ask(100, At(1.1)) < 8);                                              // alone it would have 20 left
  CHECK(f.host.limiter->ways().urgent_at() <= At(1.1) + Way::kUrgentEvery);    // it asks to be looked at again
}

TEST_CASE("a peer that announces the largest demand and serves nothing stops no tag") {
  Fixture f("share=\"forecast\"\n");
  int served = 0;
  Instant now = At(1);
  for (int i = 0; i < 300; ++i) {    // 60 times a second, and the lie once a second from the second second on
    if (i >= 60 && i % 60 == 0) {
      Entries lie;
      lie.Add({"t", false}, 0, 0, {kDemandMax});
      f.host.limiter->ways().Get<Debits>().Debit(lie, 0, 1, now - 10ms, now - 5ms, now, 7);
    }
    served += f.Ask(1, now);
    f.Urgent(now += Duration(1s) / 60);
  }
  CHECK(served == 300);
  CHECK(f.host.limiter->ways().Get<Debits>().peers().counts().disbelieved == 4);
}

// Says that so many tags of these names are asked for at that rate, and that nothing was served.
void Announce(Fixture& f, const std::string& name, int tags, std::uint64_t demand, Instant now) {
  for (int i = 0; i < tags;) {
    Entries lie;
    for (; i < tags && lie.Add({name + std::to_string(i), false}, 0, 0, {.demand = demand}); ++i) continue;
    f.host.limiter->ways().Get<Debits>().Debit(lie, 0, lie.size(), now - 10ms, now - 5ms, now, 7);
  }
}

// Asks sixty times for each of so many tags.
void AskEach(Fixture& f, const std::string& name, int tags, Instant now) {
  for (int i = 0; i < tags; ++i) {
    for (int n = 0; n < 60; ++n) f.host.Serves(name + std::to_string(i), now);
  }
}

int WatchedOf(Fixture& f, const std::string& name, int tags, Instant now) {
  int watched = 0;
  for (int i = 0; i < tags; ++i) {
    const std::string tag = name + std::to_string(i);
    watched += Inspect(*f.host.limiter, {{tag, false}}, now).watched;
  }
  return watched;
}

TEST_CASE("a peer that announces demands for any number of tags takes no watch from those that are served here") {
  Fixture f("share=\"forecast\"\n");
  for (Instant now = At(1); now < At(3); now += 250ms) Announce(f, "invented", 8192, kDemandMax, now);
  AskEach(f, "here", 200, At(3));
  CHECK(WatchedOf(f, "here", 200, At(3)) == 200);
  Announce(f, "invented", 8192, kDemandMax, At(3));
  CHECK(WatchedOf(f, "here", 200, At(3)) == 200);
}

TEST_CASE("a watch of a tag that nobody asks for here any more is the peer's that still announces a demand") {
  Fixture f("share=\"forecast\"\n");
  AskEach(f, "before", 8192, At(1));
  const std::uint64_t full = f.host.limiter->ways().Status().watched.tags;
  CHECK(full > 4000);
  for (Instant now = At(1); now < At(20); now += 5ms) {
    Draft out;
    while (f.host.limiter->ways().ReportUrgent(At(0), now, out)) out.Clear();
    if (now.time_since_epoch() % 250ms == 0s) Announce(f, "before", 8192, 1000, now);
  }
  CHECK(f.host.limiter->ways().Status().watched.tags == full);
  AskEach(f, "here", 200, At(20));
  CHECK(WatchedOf(f, "here", 200, At(20)) == 200);
}

TEST_CASE("a demand for a tag that is new here counts for its peer's new tags, as hits do") {
  Fixture f("share=\"forecast\"\n");
  Debits& debits = f.host.limiter->ways().Get<Debits>();
  debits.peers().SetNewTagsMax(10);    // 100 at once
  Announce(f, "invented", 500, kDemandMax, At(1));
  CHECK(f.host.limiter->ways().Status().watched.tags == 100);
  CHECK(debits.peers().counts_of(7).new_tags_cut == 400);
  Announce(f, "invented", 100, kDemandMax, At(1));    // these are watched
  CHECK(debits.peers().counts_of(7).new_tags_cut == 400);
  Announce(f, "other", 100, 0, At(1));    // and these say nothing
  CHECK(debits.peers().counts_of(7).new_tags_cut == 400);
}

TEST_CASE("a cost that the bucket never holds is no demand, and the largest demand can be told") {
  Fixture f("share=\"forecast\"\n");
  CHECK(f.Ask(25, At(1)) == 25);
  const auto announced = [&](Instant now) {
    const Entries said = f.Urgent(now);
    REQUIRE(said.size() == 1);
    return said.demand(said.list()[0]).value();
  };
  const std::uint64_t before = announced(At(1.02));
  for (int i = 0; i < 3000; ++i) CHECK_FALSE(f.host.Serves("t", At(1.02), std::numeric_limits<Cost>::max()));
  CHECK(f.Ask(20, At(1.03)) == 20);
  CHECK(announced(At(1.04)) < before + 2'000'000);    // of 45 queries in a hundredth of a second
}

TEST_CASE("a few early reports go at once, and more gather, the longer the more hosts hear them") {
  for (const std::size_t hosts : {3, 60, 400}) {
    CAPTURE(hosts);
    Fixture f("share=\"forecast\"\n");
    Ways& ways = f.host.limiter->ways();
    ways.Get<Debits>().ShareWith(hosts - 1, 1s);
    int frames = 0;
    std::uint64_t told = 0, served = 0;
    for (int i = 0; i < 400; ++i) {    // another tag every 5 ms becomes busy
      const Instant now = At(1 + 0.005 * i);
      for (int hit = 0; hit < 60; ++hit) served += f.host.Serves("t" + std::to_string(i), now);
      if (ways.urgent_at() > now) continue;
      const Entries entries = f.Urgent(now);
      frames += !entries.empty();
      for (const Entry& e : entries.list()) told += e.value;
    }
    const Entries rest = f.Urgent(At(3.25));
    for (const Entry& e : rest.list()) told += e.value;
    CHECK(told == served);
    CHECK(ways.urgent_at() > At(3.25));
    const double most = std::min(400., 20 + 2 * std::max(4., 1500. / static_cast<double>(hosts)));
    CHECK(std::abs(frames - most) <= 2);
  }
}

TEST_CASE("what there is no room for in one frame is in the next ones") {
  Fixture f("share=\"forecast\"\n");
  for (int tag = 0; tag < 1500; ++tag) {
    for (int i = 0; i < 20; ++i) f.host.Serves(std::string(200, 'x') + std::to_string(tag), At(1));
  }
  std::size_t reported = 0;
  for (bool more = true; more;) {
    Draft out;
    more = f.host.limiter->ways().ReportUrgent(At(0), At(1.01), out);
    REQUIRE((!more || !out.entries.empty()));
    reported += out.entries.size();
  }
  CHECK(f.host.limiter->ways().Status().watched.tags > 1000);
  CHECK(reported == f.host.limiter->ways().Status().watched.tags);
}

TEST_CASE("a watch is looked at the more often the more its tag is asked for, and no more once nobody asks") {
  Fixture f("share=\"forecast\"\n");
  CHECK(f.host.limiter->ways().urgent_at() == Instant::max());
  Instant now = At(1);
  const auto say = [&](double demand) {
    Entries said;
    said.Add({"t", false}, 1, 0, {static_cast<std::uint64_t>(1000 * demand)});
    f.host.limiter->ways().Get<Debits>().Debit(said, 0, 1, now - 10ms, now, now, 1);
  };
  // The time between two looks, once rounds have got used to it.
  const auto looks = [&] {
    Duration between{};
    for (int i = 0; i < 20; ++i) {
      f.Urgent(now);
      between = f.host.limiter->ways().urgent_at() - now;
      now += between;
    }
    return between;
  };
  say(1);
  CHECK(looks() == 100ms);
  say(1000);
  CHECK(looks() == Way::kUrgentEvery);
  say(0.3);
  CHECK(looks() == 200ms);
  const Instant silent = now;
  while (f.host.limiter->ways().urgent_at() != Instant::max() && now < silent + 10s) f.Urgent(now += 5ms);
  CHECK(now > silent);    // what was announced is believed for three periods
  CHECK(now < silent + 4s);
}

TEST_CASE("a rule that is forecast no more takes its watches along") {
  Fixture f("share=\"forecast\"\n");
  f.Ask(60, At(1));
  CHECK(f.host.limiter->ways().Status().watched.tags == 1);
  f.host.limiter->Adopt(testing::Rules("[[rule]]\nname=\"r\"\nburst=100\nrate=100\n"));
  CHECK(f.Urgent(At(1.01)).empty());
  CHECK(f.host.limiter->ways().Status().watched.tags == 0);
}

}    // namespace
}    // namespace dthrottle
