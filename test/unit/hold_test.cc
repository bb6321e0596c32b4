#include "hold/holds.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/state.h"
#include "limiter/inspect.h"
#include "share/debit/debits.h"
#include "share/ways.h"
#include "test/support/ask.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::AskHost;
using testing::Host;

constexpr Instant kNow = FromNanoseconds(5'000'000'000);
constexpr const char* kRules = "[[rule]]\nname=\"all\"\nburst=1000\nrate=0.001\n";

// A host with holds, which outlive the process that has them.
struct Holding {
  explicit Holding(const char* rules = kRules, std::size_t max = 8)
      : host(rules), rules_(rules), max_(max), region_(HoldTable::RegionBytes(max) / sizeof(Line)) {
    Open(1);
  }

  void Open(std::uint64_t fresh, std::byte boot = {}) {
    holds.emplace([this](const Payment& paid, Cost actual, Instant now) { host.limiter->Settle(paid, actual, now); },
                  std::as_writable_bytes(std::span(region_)), max_, Boot(boot), fresh);
  }
  void Kill() {
    host.Start(testing::Rules(rules_), kNow);
    Open(77);
  }

  // Another start, with room for another number of holds.
  void Resize(std::size_t max) {
    const auto held = std::as_bytes(std::span(region_));
    const std::size_t bytes = std::max(HoldTable::RegionBytes(max), HoldTable::BytesInUse(held, Boot({})));
    region_.resize(bytes / sizeof(Line));
    max_ = max;
    Kill();
  }
  std::size_t region_bytes() const { return region_.size() * sizeof(Line); }

  // Takes from the bucket what it holds.
  HoldId Hold(const std::string& tag, Cost cost, Duration ttl = 1min, Holder* holder = nullptr) {
    REQUIRE(host.Serves(tag, kNow, cost));
    const Query paid{{tag, false}, cost};
    const std::vector<Payment> payments = PaymentsOf(*host.limiter, {&paid, 1}, kNow);
    debits().MayComeBack(host.limiter->table().Hash(paid.tag), kNow);
    return holds->Keep(payments, holder, kNow + ttl);
  }
  HoldState Commit(HoldId id, Cost actual, Instant now = kNow) {
    const HoldRecord* const record = holds->Commit(id, {&actual, 1}, now);
    return record != nullptr ? record->state : HoldState::kNone;
  }
  HoldState Release(HoldId id, Instant now = kNow) {
    const HoldRecord* const record = holds->Release(id, now);
    return record != nullptr ? record->state : HoldState::kNone;
  }
  Debits& debits() { return host.limiter->ways().Get<Debits>(); }
  // What the next report says.
  Entries Report() {
    struct Collector final : SlotVisitor {
      explicit Collector(Debits& its) : debits(its) {}
      bool Visit(const Tag& tag, const Slot& slot, const Waste& waste) override {
        return debits.AddHits(tag, slot, waste, kNow - 1s, kNow, draft);
      }
      Debits& debits;
      Draft draft;
    } collector(debits());
    while (host.limiter->table().TakeUnreported(100, collector, {})) continue;
    return collector.draft.entries;
  }
  void Hear(const Entries& entries, const Speaker& peer = 0) {
    debits().Debit(entries, 0, entries.size(), kNow - 1s, kNow, kNow, peer);
  }
  double Level(const std::string& tag) { return host.Level(tag, kNow); }

  static std::array<std::byte, 16> Boot(std::byte first) {
    std::array<std::byte, 16> id{};
    id[0] = first;
    return id;
  }
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  Host host;
  std::optional<Holds> holds;

 private:
  const char* rules_;
  std::size_t max_;
  std::vector<Line> region_;
};

TEST_CASE("hold: what was not used comes back, and what was used beyond it is charged") {
  Holding h;
  const HoldId less = h.Hold("a", 500), more = h.Hold("b", 500), none = h.Hold("c", 500);
  CHECK(h.Level("a") == 500);
  CHECK(h.Commit(less, 371) == HoldState::kCommitted);
  CHECK(h.Commit(more, 1200) == HoldState::kCommitted);
  CHECK(h.Release(none) == HoldState::kReleased);
  CHECK(h.Level("a") == 629);
  CHECK(h.Level("b") == -200);
  CHECK(h.Level("c") == 1000);
  CHECK(h.holds->counts().returned == 129 + 500);
  CHECK(h.holds->counts().exceeded == 700);
  CHECK(h.holds->counts().open == 0);
}

TEST_CASE("hold: debt has the floor that debts of peers have") {
  Holding h("[[rule]]\nname=\"all\"\nburst=1000\nrate=0.001\nmax_debt=50\n");
  CHECK(h.Commit(h.Hold("a", 1000), 0xffffffff) == HoldState::kCommitted);
  CHECK(h.Level("a") == Approx(-50));
}

TEST_CASE("hold: tags that rules charge by now, and did not when it was taken, get nothing back") {
  const char* const with = "[[rule]]\nname=\"user\"\nmatch=\"*/*\"\nburst=100\nrate=0.001\nalso=[\"before /\"]\n"
                           "[[rule]]\nname=\"tenant\"\nburst=10\nrate=0.001\n";
  const char* const without = "[[rule]]\nname=\"user\"\nmatch=\"*/*\"\nburst=100\nrate=0.001\n"
                              "[[rule]]\nname=\"tenant\"\nburst=10\nrate=0.001\n";
  const auto adopt = [](Holding& h, const char* rules) {
    h.host.limiter->Adopt(testing::Rules(rules));
    while (h.host.limiter->Tick(kNow)) continue;
  };
  Holding paid(with);
  const HoldId both = paid.Hold("acme/a", 4);
  CHECK(paid.Level("acme") == 6);
  paid.Kill();
  CHECK(paid.Release(both) == HoldState::kReleased);
  CHECK(paid.Level("acme") == 10);
  Holding h(without);
  const HoldId alone = h.Hold("acme/a", 4);
  CHECK(h.Level("acme") == 10);
  REQUIRE(h.host.Serves("acme", kNow, 6));
  adopt(h, with);
  CHECK(h.Release(alone) == HoldState::kReleased);
  CHECK(h.Level("acme") == 4);
  CHECK(h.Level("acme/a") == 100);
}

// In mode shadow a question passes also where a tag has not what it costs.
TEST_CASE("hold: a tag that has paid nothing is not settled") {
  AskHost h("[[rule]]\nmatch=\"tried\"\nburst=10\nrate=0.001\nmode=\"shadow\"\n");
  CHECK(h.Send("hold 60000 8 tried\nhold 60000 8 tried\nhold 60000 8 tried\n") == "OK 80000 2\nOK 100001 2\nOK 180002 2\n");
  CHECK(h.Send("commit 100001 1\nrelease 180002\npeek 0 tried\n") == "OK committed 1\nOK released\nOK 2\n");
  CHECK(h.holds.counts().returned == 0);
  CHECK(h.Send("commit 80000 3\npeek 0 tried\n") == "OK committed 3\nOK 7\n");
}

TEST_CASE("hold: of tags that are charged together those are settled that have paid") {
  const std::string user = "[[rule]]\nmatch=\"*/*\"\nrate=0.001\nalso=[\"before /\"]\n";
  const std::string tenant = "[[rule]]\nrate=0.001\n", shadow = "mode=\"shadow\"\nburst=10\n", large = "burst=100\n";
  const char* const hold_twice = "hold 60000 8 acme/a\nhold 60000 8 acme/a\ncommit 100001 3\n";
  AskHost tried_tenant(user + large + tenant + shadow);
  tried_tenant.Send(hold_twice);
  CHECK(tried_tenant.host.Level("acme/a", kNow) == Approx(89).margin(0.01));
  CHECK(tried_tenant.host.Level("acme", kNow) == Approx(2).margin(0.01));
  AskHost tried_user(user + shadow + tenant + large);
  tried_user.Send(hold_twice);
  CHECK(tried_user.host.Level("acme/a", kNow) == Approx(2).margin(0.01));
  CHECK(tried_user.host.Level("acme", kNow) == Approx(89).margin(0.01));
}

constexpr const char* kTenants = "[[rule]]\nname=\"user\"\nmatch=\"*/*\"\nburst=100\nrate=0.001\nalso=[\"before /\"]\n"
                                 "[[rule]]\nname=\"tenant\"\nburst=1000\nrate=0.001\n";

TEST_CASE("hold: tags that are charged with an over-long one are settled with it, however the hold ends") {
  AskHost h(kTenants);
  const std::string user = "acme/" + std::string(300, 'x');
  CHECK(h.Send("hold 60000 50 " + user + "\nrelease 80000\npeek 0 acme\n") == "OK 80000 50\nOK released\nOK 1000\n");
  CHECK(h.Send("hold 60000 50 " + user + "\ncommit 100001 30\npeek 0 acme\n") ==
        "OK 100001 50\nOK committed 30\nOK 970\n");
  CHECK(h.Send("hold 60000 10 " + user + "\ncommit 180002 40\npeek 0 acme 0 " + user + "\n") ==
        "OK 180002 60\nOK committed 40\nOK 930 30\n");
  h.Send("hold 1000 30 " + user + "\n");
  CHECK(h.Send("peek 0 acme 0 " + user + "\n") == "OK 900 0\n");
  h.holds.EndSome(kNow, 8);
  CHECK(h.host.Level("acme", kNow) == Approx(930).margin(0.01));
  CHECK(h.host.Level(user, kNow) == Approx(30).margin(0.01));
}

TEST_CASE("hold: a wait of an over-long tag gives back to tags charged with it, too, also in another process") {
  AskHost h("[[rule]]\nmatch=\"*/*\"\nburst=5\nrate=0.1\ndelay=\"60s\"\nalso=[\"before /\"]\n"
            "[[rule]]\nburst=100\nrate=0.001\n");
  const std::string user = "acme/" + std::string(300, 'x');
  const std::string waits = h.Send("take 5 " + user + "\ntake wait=60000 3 " + user + "\n");
  REQUIRE(waits.starts_with("OK 0\nWAIT 30000 "));
  CHECK(h.Send("peek 0 acme\nrelease " + waits.substr(16, 16) + "\npeek 0 acme\n") == "OK 92\nOK released\nOK 95\n");
  h.Send("take wait=60000 3 " + user + "\n");
  Holder read;
  REQUIRE(ReadState(WriteState(Holder::kVersion, h.holder), Holder::kVersion, read));
  AskReturns there(*h.host.limiter, nullptr, 1, kTagBytesMax, nullptr);
  there.TakeUp(read);
  there.Leave(read, FromNanoseconds(1'000'000'000));
  CHECK(h.Send("peek 0 acme\n") == "OK 95\n");
}

TEST_CASE("hold: a commit charges an over-long tag that no bucket is recorded for") {
  AskHost h(kRules);
  const std::string tag(300, 'x');
  CHECK(h.Send("hold 60000 0 " + tag + "\ncommit 80000 50\npeek 0 " + tag + "\n") ==
        "OK 80000 1000\nOK committed 50\nOK 950\n");
}

TEST_CASE("hold: a question that its limit refuses is told so where there is hardly room for another hold") {
  AskHost h("[[rule]]\nname=\"all\"\nburst=10\nrate=0.001\n", kTagBytesMax, 2);
  const std::string asks = "hold 60000 9 a\n", refused = "NO limit 8000000 1 all a\n";
  CHECK(h.Send(asks + asks + asks + asks) == "OK 80000 1\n" + refused + refused + refused);
  CHECK(h.holds.counts().full == 0);
  const std::string full = "ERR no room for another hold: hold.max_holds is 2\n";
  CHECK(h.Send("hold 60000 9 b\nhold 60000 9 c\nrelease 80000\nhold 60000 1 c\nhold 60000 1 c\n") ==
        "OK 100001 1\n" + full + "OK released\nOK 180002 9\n" + full);
  CHECK(h.holds.counts().full == 2);
  CHECK(h.turn.counts().questions == 6);
  CHECK(h.turn.counts().errors == 2);
  CHECK(h.Send("hold 60000 1\n") == "ERR a TAG is missing behind 1\n");
  CHECK(h.Send("peek 0 a 0 c\n") == "OK 10 9\n");
}

TEST_CASE("hold: a wait that is given up gives back what its tags have paid") {
  AskHost h("[[rule]]\nname=\"paced\"\nmatch=\"p\"\nburst=1\nrate=0.1\ndelay=\"50s\"\n"
            "[[rule]]\nmatch=\"tried\"\nburst=10\nrate=0.001\nmode=\"shadow\"\n");
  h.Send("take 1 p 10 tried\n");
  const std::string waits = h.Send("take wait=60000 1 p 5 tried\n");
  REQUIRE(waits.starts_with("WAIT 10000 "));
  CHECK(h.Send("release " + waits.substr(11, 16) + "\n") == "OK released\n");
  CHECK(h.Send("peek 0 tried\n") == "OK 0\n");
}

TEST_CASE("hold: an end without settlement gives everything back") {
  Holding h;
  Holder holder;
  h.Hold("a", 10, 2s);
  h.Hold("b", 20, 1s);
  h.Hold("c", 30, 3s, &holder);
  CHECK(h.holds->next() == kNow + 1s);
  CHECK_FALSE(h.holds->EndSome(kNow + 1s - 1ns, 8));
  CHECK(h.holds->counts().expired == 0);
  CHECK_FALSE(h.holds->EndSome(kNow + 1s, 8));
  CHECK(h.host.Level("b", kNow + 1s) == 1000);
  CHECK(h.holds->next() == kNow + 2s);
  h.holds->Leave(holder);
  CHECK(h.holds->next() == Instant());
  CHECK_FALSE(h.holds->EndSome(kNow + 1s, 8));
  CHECK(h.holds->next() == kNow + 2s);
  CHECK(h.host.Level("c", kNow + 1s) == 1000);
  CHECK(h.Level("a") == 990);
  CHECK_FALSE(h.holds->EndSome(kNow + 2s, 8));
  CHECK(h.Level("a") == Approx(1000));
  CHECK(h.holds->next() == Instant::max());
}

TEST_CASE("hold: whoever has to wake earlier is told") {
  Holding h;
  int woken = 0;
  h.holds->OnEarlier([&] { ++woken; });
  h.Hold("a", 1, 2s);
  h.Hold("a", 1, 3s);
  CHECK(woken == 1);
  h.Hold("a", 1, 1s);
  CHECK(woken == 2);
  Holder holder;
  h.holds->Leave(holder);
  CHECK(woken == 2);
  h.Hold("a", 1, 3s, &holder);
  h.holds->Leave(holder);
  CHECK(woken == 3);
}

TEST_CASE("hold: where many end at once, some end at a time, and what has run out settles nothing") {
  Holding h(kRules, 40);
  Holder holder;
  std::vector<HoldId> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(h.Hold("out", 10, 1s));
  for (int i = 0; i < 20; ++i) h.Hold("left", 10, 1min, &holder);
  h.holds->Leave(holder);
  CHECK(holder.holds.empty());
  const Instant now = kNow + 1s;
  CHECK(h.holds->EndSome(now, 5));
  CHECK(h.holds->counts().expired == 5);
  CHECK(h.Commit(ids[19], 10, now) == HoldState::kExpired);
  CHECK(h.Release(ids[18], now) == HoldState::kExpired);
  CHECK(h.holds->counts().expired == 7);
  CHECK(h.holds->counts().repeated == 2);
  CHECK(h.Level("out") == Approx(870));
  CHECK(h.holds->EndSome(now, 20));
  CHECK(h.holds->counts().expired == 20);
  CHECK(h.holds->counts().released == 7);
  CHECK(h.holds->EndSome(now, 12));
  CHECK_FALSE(h.holds->EndSome(now, 1));
  CHECK(h.holds->counts().released == 20);
  CHECK(h.host.Level("out", now) == 1000);
  CHECK(h.host.Level("left", now) == 1000);
  CHECK(h.holds->next() == Instant::max());
}

TEST_CASE("hold: settlements that come late or again change nothing and say what the first did") {
  Holding h;
  const HoldId a = h.Hold("a", 500, 1s);
  CHECK(h.Commit(a, 100) == HoldState::kCommitted);
  CHECK(h.Commit(a, 400) == HoldState::kCommitted);
  CHECK(h.Release(a) == HoldState::kCommitted);
  CHECK(h.holds->Commit(a, std::vector<Cost>{7}, kNow)->actual[0] == 100);
  CHECK(h.Level("a") == 900);
  const HoldId late = h.Hold("b", 500, 1s);
  h.holds->EndSome(kNow + 1s, 8);
  CHECK(h.Commit(late, 100, kNow + 2s) == HoldState::kExpired);
  CHECK(h.host.Level("b", kNow + 1s) == 1000);
  CHECK(h.Commit(a + (HoldId{1} << 40), 1) == HoldState::kNone);
  CHECK(h.holds->counts().repeated == 4);
  CHECK(h.holds->counts().unknown == 1);
}

TEST_CASE("hold: as many settlements are remembered as may be open, the latest ones") {
  constexpr std::size_t kMax = 8;
  Holding h(kRules, kMax);
  std::vector<HoldId> ids;
  for (std::size_t round = 0; round < 5 * kMax; ++round) {
    ids.push_back(h.Hold("a", 1));
    REQUIRE(h.Commit(ids.back(), 1) == HoldState::kCommitted);
    for (std::size_t ago = 1; ago <= std::min(kMax, ids.size()); ++ago) {
      REQUIRE(h.Commit(ids[ids.size() - ago], 9) == HoldState::kCommitted);
    }
  }
  CHECK(h.Level("a") == 1000 - 5.0 * kMax);
  CHECK(h.Commit(ids[0], 1) == HoldState::kNone);
  std::vector<HoldId> open;
  while (h.holds->room() > 0) open.push_back(h.Hold("b", 1));
  CHECK(open.size() == kMax);
  for (const HoldId id : open) CHECK(h.Release(id) == HoldState::kReleased);
}

TEST_CASE("hold: holds and what became of them outlive a kill, and a boot ends them") {
  Holding h;
  Holder holder;
  const HoldId open = h.Hold("a", 100), ended = h.Hold("a", 100), bound = h.Hold("b", 100, 1min, &holder);
  CHECK(h.Commit(ended, 30) == HoldState::kCommitted);
  h.Kill();
  CHECK(h.Level("a") == 870);
  CHECK(h.holds->counts().open == 2);
  CHECK(h.holds->next() == kNow + 1min);
  CHECK(h.Commit(ended, 99) == HoldState::kCommitted);
  h.holds->ReleaseBound(kNow);
  CHECK(h.Level("b") == 1000);
  CHECK(h.Release(bound) == HoldState::kReleased);
  CHECK(h.Commit(open, 60) == HoldState::kCommitted);
  CHECK(h.Level("a") == 910);
  h.Open(5000, std::byte{1});
  CHECK(h.Commit(open, 60) == HoldState::kNone);
  CHECK(h.holds->room() == 8);
}

TEST_CASE("hold: a tag that a record has no room for comes back, and keeps what it paid where the daemon was killed") {
  Holding h;
  const std::array<std::string, 3> tags = {std::string(200, 'a'), std::string(200, 'b'), "c"};
  const auto hold = [&] {
    std::vector<Query> paid;
    for (const std::string& tag : tags) {
      REQUIRE(h.host.Serves(tag, kNow, 100));
      paid.push_back({{tag, false}, 100});
    }
    return h.holds->Keep(PaymentsOf(*h.host.limiter, paid, kNow), nullptr, kNow + 1min);
  };
  const auto levels = [&] { return std::array{h.Level(tags[0]), h.Level(tags[1]), h.Level(tags[2])}; };
  CHECK(h.Commit(hold(), 130) == HoldState::kCommitted);
  CHECK(levels() == std::array{870.0, 870.0, 870.0});
  const HoldId killed = hold();
  h.Kill();
  CHECK(h.Release(killed) == HoldState::kReleased);
  CHECK(levels() == std::array{870.0, 770.0, 870.0});
  CHECK(h.Release(hold()) == HoldState::kReleased);
  CHECK(levels() == std::array{870.0, 770.0, 870.0});
}

TEST_CASE("hold: open holds outlive a change of how many there may be, to more and to fewer") {
  Holding h;
  std::vector<HoldId> ids;
  for (int i = 0; i < 8; ++i) ids.push_back(h.Hold("a", 10));
  h.Resize(16);
  CHECK(h.holds->room() == 8);
  CHECK(h.Release(ids[0]) == HoldState::kReleased);
  CHECK(h.Commit(ids[1], 4) == HoldState::kCommitted);
  h.Resize(2);
  CHECK(h.holds->counts().open == 6);
  CHECK(h.holds->room() == 0);
  for (int i = 2; i < 7; ++i) CHECK(h.Release(ids[i]) == HoldState::kReleased);
  CHECK(h.holds->room() == 1);
  CHECK(h.Level("a") == 986);
  h.Resize(1);    // where the last open one is, is far behind
  CHECK(h.Commit(ids[7], 1) == HoldState::kCommitted);
  h.Resize(1);
  CHECK(h.region_bytes() == HoldTable::RegionBytes(1));
  const HoldId next = h.Hold("a", 1);
  CHECK(h.holds->room() == 0);
  CHECK(h.Release(next) == HoldState::kReleased);
}

TEST_CASE("hold: a region full of anything is opened without harm") {
  Prng prng(7);
  for (int i = 0; i < 200; ++i) {
    std::vector<std::uint64_t> region(HoldTable::RegionBytes(4) / 8);
    { HoldTable(std::as_writable_bytes(std::span(region)), 4, {}, 1); }
    for (std::size_t k = 64; k < region.size(); ++k) region[k] = prng.Below(prng.Below(3) == 0 ? 8 : UINT64_MAX);
    HoldTable table(std::as_writable_bytes(std::span(region)), 4, {}, 1);
    std::size_t open = 0;
    table.ForEachOpen([&](const HoldRecord& record) {
      ++open;
      record.ForEachTag([](std::size_t, const Tag& tag) { REQUIRE(tag.bytes.size() <= kTagBytesMax); });
    });
    REQUIRE(open == table.open());
    REQUIRE(open <= 8);    // records; as many may be open where there were more holds once
  }
}

// A ledger that never saw a hold table: what every tag should have left.
TEST_CASE("hold: 100,000 commits, doubled and reordered over kills, charge nothing twice") {
  constexpr std::size_t kHolds = 100'000, kOpenMax = 64;
  Holding h("[[rule]]\nname=\"all\"\nburst=1e9\nrate=1000\nshare=\"local\"\n", kOpenMax);
  Prng prng(11);
  std::map<std::string, double> spent;
  struct Commit {
    HoldId id;
    Cost actual;
  };
  std::vector<Commit> waiting;    // some of them sent already
  std::size_t committed = 0;
  for (std::size_t taken = 0; committed < kHolds;) {
    if (taken < kHolds && h.holds->room() > 0 && prng.Below(2) == 0) {
      const std::string tag(1, static_cast<char>('a' + prng.Below(7)));
      const auto cost = static_cast<Cost>(prng.Below(100)), actual = static_cast<Cost>(prng.Below(150));
      waiting.push_back({h.Hold(tag, cost), actual});
      spent[tag] += actual;
      ++taken;
    } else if (!waiting.empty()) {
      const std::size_t chosen = prng.Below(waiting.size());
      const Commit commit = waiting[chosen];
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(chosen));
      REQUIRE(h.Commit(commit.id, commit.actual) == HoldState::kCommitted);
      ++committed;
      for (std::size_t again = 1 + prng.Below(2); again > 0; --again) {
        REQUIRE(h.Commit(commit.id, static_cast<Cost>(prng.Below(200))) == HoldState::kCommitted);
      }
    }
    if (prng.Below(5000) == 0) h.Kill();
  }
  for (const auto& [tag, tokens] : spent) CHECK(h.Level(tag) == Approx(1e9 - tokens).epsilon(0).margin(0.01));
}

TEST_CASE("hold: peers do not hear of tokens that came back before a report") {
  Holding h;
  h.host.limiter->ways().Get<Debits>().ShareWith(3, 1s);
  const HoldId a = h.Hold("a", 500), b = h.Hold("b", 100);
  CHECK(h.Commit(a, 371) == HoldState::kCommitted);
  CHECK(h.Commit(b, 150) == HoldState::kCommitted);
  struct Taken final : SlotVisitor {
    bool Visit(const Tag& tag, const Slot& slot, const Waste&) override {
      hits[std::string(tag.bytes)] = slot.unreported.hits();
      return true;
    }
    std::map<std::string, std::uint32_t> hits;
  } taken;
  while (h.host.limiter->table().TakeUnreported(100, taken, {})) continue;
  CHECK(taken.hits == std::map<std::string, std::uint32_t>{{"a", 371}, {"b", 150}});
}

TEST_CASE("hold: what peers have heard of and comes back is told once, and nobody gives back what it has not taken") {
  Holding a, b;
  a.debits().ShareWith(1, 1s);
  b.debits().ShareWith(1, 1s);
  const HoldId hold = a.Hold("a", 500);
  b.Hear(a.Report());
  CHECK(b.Level("a") == Approx(500));
  CHECK(a.Commit(hold, 371) == HoldState::kCommitted);
  const Entries told = a.Report();
  REQUIRE(told.size() == 1);
  CHECK((told.list()[0].value == 0 && told.back(told.list()[0]) == 129));
  CHECK(a.Report().empty());
  b.Hear(told);
  CHECK(b.Level("a") == Approx(629));
  CHECK(b.debits().peers().counts().returned == 129);

  b.Hear(told, 7);    // another peer has taken nothing here
  CHECK(b.Level("a") == Approx(629));
  CHECK(b.debits().peers().counts().returns_disbelieved == 129);
  Entries lie;
  REQUIRE(lie.Add({"a", false}, 0, 0, {.back = 1000}));
  b.Hear(lie);
  CHECK(b.Level("a") == Approx(1000));    // of the 500 that it was charged with, 371 were left
  CHECK(b.debits().peers().counts().returns_disbelieved == 129 + 629);
}

TEST_CASE("hold: what comes back counts as well where the report of its hits was missing and comes behind it") {
  const std::string rules = kRules + std::string(GENERATE("", "share=\"forecast\"\n"));
  Holding a, b(rules.c_str());
  a.debits().ShareWith(1, 1s);
  b.debits().ShareWith(1, 1s);
  const auto hear = [&](const Entries& told, std::uint64_t sequence, std::uint64_t missing) {
    Speaker peer;
    peer.place = {1, sequence, missing};
    b.Hear(told, peer);
  };
  const HoldId hold = a.Hold("a", 500);
  const Entries held = a.Report();
  CHECK(a.Commit(hold, 371) == HoldState::kCommitted);
  hear(a.Report(), 2, 1);
  CHECK(b.Level("a") == Approx(1000));
  hear(held, 1, 0);
  CHECK(b.Level("a") == Approx(629));
  CHECK(b.debits().peers().counts().returned == 129);
  CHECK(b.debits().peers().counts().returns_disbelieved == 0);

  Entries lie;
  REQUIRE(lie.Add({"lie", false}, 0, 0, {.back = 1000}));
  hear(lie, 5, 4);
  Entries hits;
  REQUIRE(hits.Add({"lie", false}, 300, 0, {.returnable = 300}));
  hear(hits, 4, 0);
  hear(hits, 6, 0);
  CHECK(b.Level("lie") == Approx(700));
}

TEST_CASE("hold: hits that the floor of debt forgives do not come back") {
  const std::string rules = "[[rule]]\nburst=10\nrate=0.001\n" + std::string(GENERATE("", "share=\"forecast\"\n"));
  Holding b(rules.c_str());
  b.debits().ShareWith(1, 1s);
  REQUIRE(b.host.Serves("a", kNow, 10));
  Entries lie, back;
  REQUIRE(lie.Add({"a", false}, 10, 0, {.returnable = 10}));
  for (int i = 0; i < 8; ++i) b.Hear(lie);
  CHECK(b.Level("a") == Approx(-20).margin(0.01));
  REQUIRE(back.Add({"a", false}, 0, 0, {.back = 80}));
  b.Hear(back);
  CHECK(b.Level("a") == Approx(0).margin(0.01));
  CHECK(b.debits().peers().counts().returned == 20);
  CHECK(b.debits().peers().counts().returns_disbelieved == 60);
}

TEST_CASE("hold: from the first tokens of a rule that come back on, those of every tag may, and no more") {
  Holding b;
  b.debits().ShareWith(1, 1s);
  const auto hear = [&](std::string_view tag, std::uint64_t hits, std::uint64_t back) {
    Entries told;
    REQUIRE(told.Add({tag, false}, hits, 0, {.back = back}));
    b.Hear(told);
  };
  hear("a", 100, 0);
  hear("a", 0, 10);
  CHECK(b.Level("a") == Approx(900));    // nobody had said that hits of this rule might come back
  hear("a", 100, 0);
  hear("b", 50, 0);
  hear("a", 0, 150);
  hear("b", 0, 20);
  CHECK(b.Level("a") == Approx(900));
  CHECK(b.Level("b") == Approx(970));
  CHECK(b.debits().peers().counts().returned == 120);
  CHECK(b.debits().peers().counts().returns_disbelieved == 10 + 50);

  Entries abroad;
  REQUIRE(abroad.Add({"b", false}, 0, 0, {.back = 30}));
  b.Hear(abroad, Speaker::Site(0, 3, 5s));    // a site of the same number has taken nothing
  CHECK(b.Level("b") == Approx(970));
}

}    // namespace
}    // namespace dthrottle
