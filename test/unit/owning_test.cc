// What an owner tells of its tags, and to whom (protocol/owners.md).
#include "share/owners/owning.h"

#include <fmt/format.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/quota_word.h"
#include "quota/quotas.h"
#include "share/debit/debits.h"
#include "share/debit/ownership.h"
#include "share/owners/tag_room.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

Instant At(double seconds) {
  return FromNanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

// An owner of "t" that hears of hosts by their numbers.
class Owner {
 public:
  explicit Owner(const std::string& rule) : host_("[[rule]]\nname=\"r\"\nshare=\"forecast\"\n" + rule) {
    ways().Get<Debits>().ShareWith(3, 1s);
    ways().WatchTags(4096, [] {});
    ways().SetHeard(true);
  }

  // The host says so.
  void Names(std::uint32_t peer, std::uint64_t hits, double demand, Instant now) {
    Entries said;
    Besides besides;
    if (demand > 0) besides.demand = static_cast<std::uint64_t>(1000 * demand);
    said.Add({"t", false}, hits, 0, besides);
    Says(peer, said, now);
  }
  // The same of `count` tags of its own, beginning with that number.
  void NamesMany(std::uint32_t peer, std::size_t first, std::size_t count, std::uint64_t hits, Instant now) {
    Entries said;
    for (std::size_t i = first; i < first + count; ++i) {
      REQUIRE(said.Add({fmt::format("{}-{}", peer, i), false}, hits, 0));
      if (said.size() < 256 && i + 1 < first + count) continue;
      Says(peer, said, now);
      said.Clear();
    }
  }
  // Returns how many entries the answer to what it has said has.
  std::size_t Answers(std::uint32_t peer, Instant now) {
    owning_.Counted(peer, ++reports_, now);
    return Told(peer, now);
  }
  std::size_t Hears(std::uint32_t peer, std::uint64_t hits, double demand, Instant now) {
    Names(peer, hits, demand, now);
    return Answers(peer, now);
  }

  Owning& owning() { return owning_; }
  Ways& ways() { return host_.limiter->ways(); }
  std::size_t cells() const { return host_.limiter->table().cells(); }

 private:
  void Says(std::uint32_t peer, const Entries& said, Instant now) {
    ways().Get<Debits>().Debit(said, 0, said.size(), now - 10ms, now, now, peer);
    owning_.Named(said, 0, said.size(), peer, now, now);
  }

  std::size_t Told(std::uint32_t peer, Instant now) {
    while (owning_.next() < now + 500ms) owning_.Tell(now = std::max(now, owning_.next()));
    std::optional<std::size_t> told;
    for (ToPeers item; ring_.TryPop(item);) {
      if (item.kind == ToPeers::Kind::kLevels && item.peer == peer && item.counted == reports_) {
        told = told.value_or(0) + item.entries.size();
      }
    }
    REQUIRE(told);    // each report is answered
    return *told;
  }

  testing::Host host_;
  ToPeersRing ring_{64};
  Owning owning_{ways(), ring_};
  std::uint64_t reports_ = 0;
};

TEST_CASE("a tag whose bucket is nearly full is left out of answers, until it is not and once after that") {
  Owner owner("burst=1000\nrate=1000\n");
  owner.Hears(0, 1, 0, At(1));                    // not looked at yet
  CHECK(owner.Hears(1, 10, 0, At(2)) == 0);
  CHECK(owner.Hears(0, 40, 0, At(3)) == 0);       // a twentieth is missing now, and refilled at once
  CHECK(owner.Hears(1, 300, 0, At(4)) == 0);      // it was so when the report came
  CHECK(owner.Hears(0, 1, 0, At(4.01)) == 1);
  CHECK(owner.Hears(1, 1, 0, At(10)) == 1);
  CHECK(owner.Hears(0, 1, 0, At(11)) == 1);       // it is full again, which the host may not believe
  CHECK(owner.Hears(1, 1, 0, At(12)) == 0);
  CHECK(owner.Hears(0, 1, 0, At(13)) == 0);
  CHECK(owner.Hears(1, 1, 0, At(14)) == 0);
}

TEST_CASE("an owner tells nothing more of a tag that another host owns by now, until it is named again") {
  Owner owner("burst=1000\nrate=1000\n");
  const std::vector<std::string> names = {"a", "b"};
  const auto keep = [&](std::uint64_t number, bool ours) {
    const auto owners = std::make_shared<Owners>(names, number, std::vector<std::string>{"a"});
    const std::size_t of = owners->Of({"t", false});
    owner.owning().KeepOwned(owners, owners->name(ours ? of : 1 - of));
  };
  owner.Hears(0, 300, 0, At(1));
  owner.Names(1, 300, 0, At(2));
  keep(2, true);
  CHECK(owner.Answers(1, At(2)) == 1);
  owner.Names(1, 300, 0, At(3));
  keep(3, false);
  CHECK(owner.owning().counts().tags == 1);
  CHECK(owner.Answers(1, At(3)) == 0);
  CHECK(owner.owning().counts().tags == 0);
  CHECK(owner.Hears(1, 300, 0, At(3.1)) == 1);
  CHECK(owner.owning().counts().tags == 1);
}

TEST_CASE("a bucket that fills slowly is nearly full with no more missing than flows in during a period") {
  Owner owner("burst=1000\nrate=2\n");
  owner.Hears(0, 1, 0, At(1));
  owner.Hears(1, 1, 0, At(100));
  CHECK(owner.Hears(0, 3, 0, At(200)) == 0);
  CHECK(owner.Hears(1, 1, 0, At(200.1)) == 1);
}

TEST_CASE("a host that was told a level is told again three periods later, because that may be lost") {
  Owner owner("burst=1000\nrate=1\n");
  owner.Hears(0, 300, 0, At(1));
  CHECK(owner.Hears(0, 10, 0, At(5)) == 0);       // it was told nothing
  owner.Hears(1, 10, 0, At(6));
  CHECK(owner.Hears(0, 10, 0, At(7)) == 1);
  CHECK(owner.Hears(0, 10, 0, At(8)) == 0);
  CHECK(owner.Hears(0, 10, 0, At(9.9)) == 0);
  CHECK(owner.Hears(0, 10, 0, At(10.1)) == 1);
  CHECK(owner.Hears(0, 10, 0, At(11)) == 0);
}

TEST_CASE("a tag that is watched is told of, however full its bucket is") {
  Owner owner("burst=1000\nrate=1000\n");
  owner.Hears(0, 1, 0, At(1));
  CHECK(owner.Hears(1, 1, 0, At(2)) == 0);
  owner.Hears(0, 50, 50, At(3));
  owner.Hears(0, 10, 50, At(3.4));
  CHECK(owner.Hears(1, 1, 0, At(3.8)) == 1);
}

// ---- What everybody is told ----

// It owns all tags: those with a "-" have buckets, those that begin with "pay" quotas, and with "job" places.
class Announcer {
 public:
  Announcer() {
    ways().Get<Debits>().ShareWith(3, 1s);
    ways().KeepQuotas(std::make_unique<Quotas>(
        std::as_writable_bytes(std::span(counted_)), std::array<std::byte, 16>{}, kHostCounters + 1,
        [this](const Tag& tag) { return host_.limiter->table().Hash(tag); },
        [](const QuotaCalendar&) { return QuotaPeriods{0, 86'400, 2 * 86'400, At(86'400)}; }, At(0)));
    ownership_.Call("me");
    ownership_.Change(std::make_shared<const Owners>(std::vector<std::string>{"me"}));
    ways().core().ownership = &ownership_;
    for (std::uint32_t peer = 0; peer < 3; ++peer) owning().Counted(peer, 1, At(0));
  }

  // The host says so.
  void Says(std::uint32_t peer, const Entries& said, Instant now) {
    ways().Get<Debits>().Debit(said, 0, said.size(), now - 10ms, now, now, peer);
    owning().Named(said, 0, said.size(), peer, now, now);
  }
  void Says(std::uint32_t peer, const std::string& tag, const Besides& said, Instant now) {
    Entries entries;
    REQUIRE(entries.Add({tag, false}, 0, 0, said));
    Says(peer, entries, now);
  }
  // Drains the buckets of so many tags that nobody has named before.
  void Drains(std::uint32_t peer, int tags, Instant now) {
    while (tags > 0) {
      Entries said;
      for (; tags > 0 && said.Add({fmt::format("fresh-{}", ++drained_), false}, 10, 0); --tags) continue;
      Says(peer, said, now);
    }
  }
  // Tells what is due, and counts how often everybody was told of each tag, which the frames say so.
  void Tell(Instant now) {
    owning().Tell(now);
    for (ToPeers item; ring_.TryPop(item);) {
      if (item.kind != ToPeers::Kind::kNear || item.to_one) continue;
      ++frames_;
      for (const Entry& e : item.entries.list()) ++told_[std::string(item.entries.tag(e).bytes)];
    }
  }

  Owning& owning() { return *ownership_.owning(); }
  Ways& ways() { return host_.limiter->ways(); }
  int told(const std::string& tag) { return told_[tag]; }
  std::size_t told_in_all() const { return told_.size(); }
  int frames() const { return frames_; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> counted_ = std::vector<Line>(Quotas::RegionBytes(1 << 16) / sizeof(Line));
  testing::Host host_{
      "[[rule]]\nname = \"pay\"\nmatch = \"pay*\"\nburst = 1000\nrate = 1000\nquota = 1000\nper = \"day\"\n"
      "[[rule]]\nname = \"job\"\nmatch = \"job*\"\nburst = 1000\nrate = 1000\nin_flight = 10\n"
      "[[rule]]\nname = \"r\"\nburst = 10\nrate = 0.001\n",
      1, std::size_t{16} << 20};
  ToPeersRing ring_{64};
  Ownership ownership_{ways(), ring_};
  std::map<std::string, int> told_;
  int drained_ = 0, frames_ = 0;
};

TEST_CASE("everybody hears of quotas, places and penalties in a second beside any number of tags near their limit") {
  Announcer owner;
  owner.ways().Get<Debits>().peers().SetNewTagsMax(1'000'000);
  Instant now = At(100);
  const auto run = [&](Duration time) {
    for (const Instant end = now + time; now < end; owner.Tell(now += 5ms)) {
      if (now.time_since_epoch() % 50ms == 0s) owner.Drains(0, 800, now);
    }
  };
  run(3s);
  for (int i = 0; i < 20; ++i) {
    const std::string pay = fmt::format("pay{}", i), job = fmt::format("job{}", i), login = fmt::format("login{}", i);
    owner.Says(1, pay, {.quota = QuotaWord{kHostCounters + 7, 0, 900, 0}}, now);
    owner.Says(1, job, {.places = 9}, now);
    owner.owning().penalties().Began({login, false}, 60'000, now);
    run(1s);
    CAPTURE(i);
    CHECK(owner.told(pay) > 0);
    CHECK(owner.told(job) > 0);
    CHECK(owner.told(login) > 0);
  }
  CHECK(owner.told_in_all() > 20 * 3000);    // tags near their limit are told of as well
  const NearCounts counts = owner.owning().counts().near;
  CHECK(counts.cut > 0);
  CHECK(owner.frames() <= 40 + 4 * 25 + 3 * 20);
}

TEST_CASE("quotas that everybody is to hear of wait for the next frame, are counted, and leave others theirs") {
  Announcer owner;
  owner.ways().Get<Debits>().peers().SetNewTagsMax(1'000'000);
  const std::string tail(200, 'x');    // a frame has room for some 280 such tags
  Instant now = At(100);
  owner.Tell(now);
  for (int i = 0; i < 1000; ++i) {
    owner.Says(1, fmt::format("pay{}{}", i, tail), {.quota = QuotaWord{kHostCounters + 7, 0, 900, 0}}, now);
  }
  owner.Says(1, "job", {.places = 9}, now);
  owner.Drains(0, 1, now);
  CHECK(owner.owning().counts().near.waiting >= 1000);
  for (int i = 0; i < 40; ++i) owner.Tell(now += 5ms);    // some three frames
  CHECK(owner.told("job") == 1);
  CHECK(owner.told("fresh-1") == 1);
  CHECK(owner.owning().counts().near.waiting > 0);
  for (int i = 0; i < 60; ++i) owner.Tell(now += 5ms);
  CHECK(owner.owning().counts().near.waiting == 0);
  for (int i = 0; i < 1000; ++i) CHECK(owner.told(fmt::format("pay{}{}", i, tail)) == 1);
  CHECK(owner.owning().counts().near.cut == 0);
}

// ---- Hosts that name too much ----

TEST_CASE("an owner notes nothing of tags that it has dropped, because a host has named too many") {
  Owner owner("burst=10\nrate=0.01\n");
  owner.ways().Get<Debits>().peers().SetNewTagsMax(100);    // a thousand at once
  owner.NamesMany(0, 0, 4000, 5, At(1));
  CHECK(owner.owning().counts().tags == 1000);
  owner.NamesMany(0, 4000, 4000, 0, At(1));    // hosts may say of any tag that they served nothing
  CHECK(owner.owning().counts().tags == 1000);
}

TEST_CASE("an owner notes no more tags than its table has cells, and a host that names more leaves the others theirs") {
  Owner owner("burst=10\nrate=0.01\n");
  const std::size_t most = owner.cells();
  owner.NamesMany(1, 0, 100, 5, At(1));
  for (std::size_t i = 0; i < 4 * most; i += 1000) owner.NamesMany(0, i, 1000, 5, At(1));
  const OwningCounts counts = owner.owning().counts();
  CHECK(counts.tags <= most);
  CHECK(counts.crowded > 0);

  owner.Names(1, 5, 0, At(2));
  CHECK(owner.Hears(2, 1, 0, At(2)) == 1);
  CHECK(owner.Hears(1, 1, 0, At(2.1)) == 1);
  CHECK(owner.owning().counts().tags <= most);
}

TEST_CASE("where an owner has no room a tag of the host gives way that brought most") {
  TagRoom room(4);
  std::map<std::uint64_t, TagRoom::Place> places;
  const auto place_of = [&](std::uint64_t hash) -> TagRoom::Place& { return places.at(hash); };
  // Returns the tag that gives way; 0: none.
  const auto add = [&](std::uint64_t hash, std::uint32_t peer) {
    const std::uint64_t gone = room.full() ? room.GivesWay(peer).value() : 0;
    if (gone != 0) {
      room.Remove(places.at(gone), place_of);
      places.erase(gone);
    }
    places[hash] = room.Add(hash, peer);
    return gone;
  };
  for (const std::uint64_t hash : {1, 2, 3}) CHECK(add(hash, 0) == 0);
  CHECK(add(11, 1) == 0);
  CHECK(add(21, kNobody) == 1);
  CHECK(add(12, 1) == 2);     // that brought two, as the other
  CHECK(add(13, 1) == 11);    // its own, as it has more than any
  CHECK(add(14, 1) == 13);
  CHECK(places.size() == 4);
  CHECK(places.count(3) == 1);
  CHECK(places.count(21) == 1);
}

}    // namespace
}    // namespace dthrottle
