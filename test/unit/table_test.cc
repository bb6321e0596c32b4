#include "bucket/table_lookup.h"

#include <catch2/catch.hpp>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/prng.h"
#include "test/support/debit.h"
#include "test/support/resident.h"
#include "test/support/sanitized.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Instant kNow = FromNanoseconds(1'000'000'000);
constexpr TableKeys kKeys{{1, 2}, {}};
const Shape kShape = Shape::From(10, 1);

class OneShape final : public SlotPolicy {
 public:
  Claim ClaimOf(const Slot& slot, Instant now) const override {
    return {slot.limit, slot.bucket.Drained(kShape, now) > 0.5};
  }
  void Forgot(const Slot& slot, unsigned earned) override { ++forgotten[slot.limit][earned]; }
  bool Reshape(const Tag&, Slot& slot, WrittenFor, Instant) const override {
    slot.limit = new_limit & kLimitIndexMax;
    return !forget;
  }
  bool Restore(const Tag&, Slot& slot, WrittenFor, Instant now) const override {
    return slot.bucket.Drained(kShape, now) < 100 && slot.limit < 8;
  }

  std::map<LimitIndex, std::map<unsigned, std::size_t>> forgotten;    // by limit and merit
  LimitIndex new_limit = 0;
  bool forget = false;
};

Bucket Spent(Cost tokens, Instant now = kNow) {
  Bucket bucket;
  testing::Debit(bucket, kShape, tokens, now, 1e6, now);
  return bucket;
}

class Fixture {
 public:
  explicit Fixture(std::size_t bytes = Table::kRegionBytesMin, bool shared = false)
      : shared_(shared), memory_(bytes + 64), region_(Aligned()) {
    Reopen();
  }

  struct Reopened {
    std::string_view discarded;
    std::uint64_t dropped;
  };
  Reopened Reopen(TableIdentity identity = {}, Instant now = kNow, std::string_view notes = {}) {
    table_.reset();
    Table::Opened opened = Table::Open(region_, identity, kKeys, shared_, policy_, now, notes);
    table_ = std::move(opened.table);
    return {opened.discarded, table_->counts().dropped};
  }

  // Does what Open has left to do.
  void Finish() {
    while (table_->ReshapeSome(100, kNow)) {
    }
  }

  Slot* Find(const Tag& tag, Instant now = kNow) {
    Table::Shard shard(*table_, table_->Hash(tag));
    return shard.Find(tag, now);
  }
  Slot* Find(std::string_view tag, Instant now = kNow) { return Find(Tag{tag, false}, now); }

  bool Insert(const Tag& tag, Bucket bucket, Instant now = kNow, LimitIndex limit = 0, Source source = Source::kQuery) {
    Table::Shard shard(*table_, table_->Hash(tag));
    REQUIRE(shard.Find(tag, now) == nullptr);
    return shard.Insert(tag, bucket, limit, source, now) != nullptr;
  }
  bool Insert(std::string_view tag, Bucket bucket, Instant now = kNow, LimitIndex limit = 0) {
    return Insert(Tag{tag, false}, bucket, now, limit);
  }
  bool Hear(std::string_view tag, Bucket bucket, std::uint32_t peer = 0) {
    return Insert(Tag{tag, false}, bucket, kNow, 0, Source::Peer(peer));
  }

  void Refuse(std::string_view tag, int times) {
    Table::Shard shard(*table_, table_->Hash({tag, false}));
    for (int i = 0; i < times; ++i) shard.Refused(shard.Find({tag, false}, kNow));
  }

  void Erase(std::string_view tag) {
    Table::Shard shard(*table_, table_->Hash({tag, false}));
    shard.Erase(shard.Find({tag, false}, kNow));
  }

  Table& table() { return *table_; }
  std::span<std::byte> region() { return region_; }
  OneShape& policy() { return policy_; }

 private:
  std::span<std::byte> Aligned() {
    const auto at = (reinterpret_cast<std::uintptr_t>(memory_.data()) + 63) / 64 * 64;
    return {reinterpret_cast<std::byte*>(at), memory_.size() - 64};
  }

  bool shared_;
  OneShape policy_;
  std::vector<std::byte> memory_;
  std::span<std::byte> region_;
  std::unique_ptr<Table> table_;
};

std::string Name(std::size_t i) {
  return "tag-" + std::to_string(i);
}

TEST_CASE("what was recorded is found, and nothing else") {
  Fixture f;
  CHECK(f.Find("C") == nullptr);
  REQUIRE(f.Insert("C", Spent(3)));
  REQUIRE(f.Find("C") != nullptr);
  CHECK(f.Find("C")->bucket.Level(kShape, kNow) == 7);
  CHECK(f.Find("c") == nullptr);
  CHECK(f.Find("C ") == nullptr);
  CHECK(f.Find("") == nullptr);
  f.Erase("C");
  CHECK(f.Find("C") == nullptr);
  CHECK(f.table().counts().tags == 0);
  CHECK(f.table().counts().cells_used == 0);
}

TEST_CASE("tags of every length are kept byte by byte") {
  Fixture f;
  for (std::size_t n = 0; n <= kTagBytesMax; ++n) {
    REQUIRE(f.Insert(std::string(n, static_cast<char>(n)), Spent(1 + static_cast<Cost>(n % 9))));
  }
  for (std::size_t n = 0; n <= kTagBytesMax; ++n) {
    std::string tag(n, static_cast<char>(n));
    CAPTURE(n);
    REQUIRE(f.Find(tag) != nullptr);
    CHECK(f.Find(tag)->bucket.Level(kShape, kNow) == 9 - static_cast<double>(n % 9));
    if (n == 0) continue;
    tag.back() = static_cast<char>(tag.back() ^ 1);
    CHECK(f.Find(tag) == nullptr);
  }
}

TEST_CASE("a digest and a tag of the same bytes are different") {
  Fixture f;
  const std::string bytes(16, 'd');
  REQUIRE(f.Insert(Tag{bytes, true}, Spent(1)));
  CHECK(f.Find(Tag{bytes, false}) == nullptr);
  REQUIRE(f.Insert(Tag{bytes, false}, Spent(2)));
  CHECK(f.Find(Tag{bytes, true})->bucket.Level(kShape, kNow) == 9);
  CHECK(f.Find(Tag{bytes, false})->bucket.Level(kShape, kNow) == 8);
}

TEST_CASE("a tag of 15 bytes takes at most 64 bytes of table before anything that is not full is forgotten") {
  Fixture f(16 << 20);
  std::size_t n = 0;
  char tag[16];
  while (f.table().counts().evicted == 0) {
    std::snprintf(tag, sizeof tag, "tag-%011zu", n++);
    REQUIRE(f.Insert(std::string_view(tag, 15), Spent(1)));
  }
  CHECK(static_cast<double>(f.region().size()) / static_cast<double>(n) <= 64);
}

TEST_CASE("tags of all lengths together fill two fifths of the table before anything is forgotten") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Prng prng(seed);
    Fixture f(8 << 20);
    constexpr std::size_t kLengths[] = {12, 12, 12, 40, 120, 250, 16};
    for (std::size_t i = 0; f.table().counts().evicted == 0; ++i) {
      std::string tag = Name(i);
      tag.resize(kLengths[prng.Below(std::size(kLengths))], 't');
      REQUIRE(f.Insert(tag, Spent(1)));
    }
    CAPTURE(seed);
    const double fill = static_cast<double>(f.table().counts().cells_used) / static_cast<double>(f.table().cells());
    CHECK(fill > 0.42);    // thirty cells hold three of the longest and no more
  }
}

TEST_CASE("a full bucket makes room before any other") {
  Fixture f;
  const std::size_t cells = f.table().cells();
  std::size_t n = 0;
  for (; n < cells; ++n) REQUIRE(f.Insert(Name(n), Spent(n % 2 == 0 ? 1 : 9)));    // half will be full after 1 s
  const auto before = f.table().counts();
  std::size_t kept = 0, drained = 0;
  for (std::size_t i = 0; i < cells / 8; ++i) REQUIRE(f.Insert(Name(n + i), Spent(2, kNow + 2s), kNow + 2s));
  CHECK(f.table().counts().evicted == before.evicted);
  for (std::size_t i = 1; i < cells; i += 2) {
    ++drained;
    kept += f.Find(Name(i), kNow + 2s) != nullptr;
  }
  CHECK(drained - kept <= before.evicted);    // what filling it to the brim had cost already
}

TEST_CASE("a flood of fresh tags does not wash out a bucket that keeps refusing") {
  Fixture f;
  constexpr std::size_t kRefusing = 500;
  for (std::size_t i = 0; i < kRefusing; ++i) {
    REQUIRE(f.Insert("r-" + Name(i), Spent(15)));
    f.Refuse("r-" + Name(i), 20);
  }
  for (std::size_t i = 0; i < 10 * f.table().cells(); ++i) REQUIRE(f.Insert(Name(i), Spent(i % 2 == 0 ? 1 : 12)));
  for (std::size_t i = 0; i < kRefusing; ++i) {
    REQUIRE(f.Find("r-" + Name(i)) != nullptr);
    CHECK(f.Find("r-" + Name(i))->bucket.Level(kShape, kNow) == -5);
  }
  CHECK(f.table().counts().evicted > 8 * f.table().cells());
  CHECK(f.table().counts().evicted_refusing == 0);
}

TEST_CASE(
    "a tag that is asked always finds room, however deep in debt all others are, and fills the table to the brim") {
  Fixture f;
  std::size_t n = 0;
  for (; f.table().counts().evicted == 0; ++n) REQUIRE(f.Insert(Name(n), Spent(30)));
  CHECK(f.table().counts().moved > 0);
  CHECK(static_cast<double>(n) > 0.95 * static_cast<double>(f.table().cells()));
  for (std::size_t i = 0; i < 2 * f.table().cells(); ++i) {
    const std::string tag = "new-" + Name(i);
    REQUIRE(f.Insert(tag, Spent(30)));
    REQUIRE(f.Find(tag) != nullptr);
  }
  CHECK(f.table().counts().cells_used == f.table().cells());
}

TEST_CASE("what a peer speaks of takes free cells and full buckets, and nothing else") {
  Fixture f;
  std::size_t n = 0;
  for (; f.table().counts().evicted == 0; ++n) REQUIRE(f.Insert(Name(n), Spent(1)));
  while (f.table().counts().cells_used < f.table().cells()) REQUIRE(f.Insert(Name(n++), Spent(1)));
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < n; ++i) {
    if (f.Find(Name(i)) != nullptr) kept.push_back(Name(i));
  }
  const TableCounts before = f.table().counts();
  for (std::size_t i = 0; i < 3 * f.table().cells(); ++i) {
    REQUIRE_FALSE(f.Hear("p-" + Name(i), Spent(50), static_cast<std::uint32_t>(i % 3)));
  }
  CHECK(f.table().counts().evicted == before.evicted);
  for (const std::string& tag : kept) REQUIRE(f.Find(tag) != nullptr);

  std::size_t heard = 0;
  for (std::size_t i = 0; i < f.table().cells(); ++i) {
    heard +=
        f.Insert(Tag{"p-" + Name(i), false}, Spent(50, kNow + 2s), kNow + 2s, 0, Source::kPeer);    // all are full now
  }
  CHECK(heard > f.table().cells() / 2);
  CHECK(f.table().counts().evicted == before.evicted);
}

TEST_CASE("a peer that tells of a table full of tags leaves the other peers their part, and all of it to one alone") {
  const std::size_t bytes = GENERATE(8, 40);    // of a tag: one cell or two
  Fixture f;
  const auto name = [&](std::uint32_t peer, std::size_t i) {
    std::string tag = std::to_string(peer) + "-" + Name(i);
    tag.resize(std::max(bytes, tag.size()), '.');
    return tag;
  };
  const std::size_t cells_each = bytes > 16 ? 2 : 1, room = f.table().cells() / cells_each;
  const auto kept = [&](std::uint32_t peer, std::size_t n) {
    std::size_t found = 0;
    for (std::size_t i = 0; i < n; ++i) found += f.Find(name(peer, i)) != nullptr;
    return found;
  };
  // Some were asked here; then one peer floods, and others tell of a few tags meanwhile.
  for (std::size_t i = 0; i < room / 8; ++i) REQUIRE(f.Insert(name(99, i), Spent(5)));
  const std::size_t honest = room / 20;
  std::size_t told = 0;
  for (std::size_t i = 0; i < 5 * room; ++i) {
    f.Hear(name(0, i), Spent(50), 0);
    if (i % 20 != 0 || told == honest) continue;
    for (const std::uint32_t peer : {1u, 2u, 3u}) REQUIRE(f.Hear(name(peer, told), Spent(50), peer));
    ++told;
  }
  REQUIRE(told == honest);
  // But where those that tell of few have a group to themselves.
  for (const std::uint32_t peer : {1u, 2u, 3u}) CHECK(kept(peer, honest) >= honest - honest / 100);
  CHECK(kept(99, room / 8) == room / 8);
  CHECK(f.table().counts().evicted == 0);
  CHECK(f.table().counts().hearsay_forgotten > 3 * room);
  CHECK(kept(0, 5 * room) > room / 2);    // what nobody else wants
  // Those that are asked here go on finding room, and take the flood's.
  for (std::size_t i = 0; i < room / 20; ++i) REQUIRE(f.Insert(name(98, i), Spent(1)));
  for (const std::uint32_t peer : {1u, 2u, 3u}) CHECK(kept(peer, honest) > honest - honest / 20);
}

TEST_CASE("what a peer told of has no hits, and who told is forgotten with the first hit of this host") {
  Fixture f;
  REQUIRE(f.Hear("C", Spent(3), 6));
  const Slot* slot = f.Find("C");
  CHECK(slot->unreported.teller() == TellerOf(6));
  CHECK(slot->unreported.hits() == 0);
  class Taken final : public SlotVisitor {
   public:
    bool Visit(const Tag&, const Slot& slot, const Waste&) override {
      hits.push_back(slot.unreported.hits());
      return true;
    }
    std::vector<std::uint32_t> hits;
  } taken;
  f.Reopen();
  CHECK(f.Find("C")->unreported.teller() == TellerOf(6));
  CHECK_FALSE(f.table().TakeUnreported(1000, taken, {}));
  CHECK(taken.hits.empty());
  const auto hit = [&](Cost n) {
    Table::Shard shard(f.table(), f.table().Hash({"C", false}));
    shard.AddUnreported(shard.Find({"C", false}, kNow), n);
  };
  hit(2);
  hit(3);
  CHECK(f.Find("C")->unreported.teller() == kNoTeller);
  for (int i = 0; i < 2; ++i) hit(std::numeric_limits<Cost>::max());
  CHECK(f.Find("C")->unreported.hits() == Unreported::kMax);
  CHECK_FALSE(f.table().TakeUnreported(1000, taken, {}));
  CHECK(taken.hits == std::vector<std::uint32_t>{Unreported::kMax});
  CHECK(f.Find("C")->unreported.hits() == 0);
  const auto take_back = [&](Cost n) {
    Table::Shard shard(f.table(), f.table().Hash({"C", false}));
    shard.TakeBack(shard.Find({"C", false}, kNow), n);
  };
  hit(5);
  take_back(7);
  CHECK(f.Find("C")->unreported.back() == 2);
  CHECK(f.Find("C")->unreported.hits() == 0);
  f.Reopen();
  hit(6);
  CHECK(f.Find("C")->unreported.back() == 0);
  CHECK(f.Find("C")->unreported.hits() == 4);
  for (int i = 0; i < 2; ++i) take_back(std::numeric_limits<Cost>::max());
  CHECK(f.Find("C")->unreported.back() == Unreported::kBackMax);
  CHECK(f.Find("C")->unreported.teller() == kNoTeller);
  CHECK(TellerOf(0) == TellerOf(255));
  CHECK(TellerOf(254) != kNoTeller);
}

TEST_CASE("what only peers spoke of goes before what was asked here") {
  Fixture f;
  const std::size_t part = f.table().cells() / 10;
  for (std::size_t i = 0; i < 5 * part; ++i) REQUIRE(f.Hear("p-" + Name(i), Spent(50)));
  for (std::size_t i = 0; i < 4 * part; ++i) REQUIRE(f.Insert(Name(i), Spent(9)));
  for (std::size_t i = 0; i < 3 * part; ++i) REQUIRE(f.Insert("new-" + Name(i), Spent(1)));
  CHECK(f.table().counts().evicted > part);
  auto& forgotten = f.policy().forgotten[0];
  CHECK(forgotten.size() <= 2);
  CHECK(forgotten[merit::kHeard] > 50 * forgotten[merit::kAsked]);    // a group may have none of them
  std::size_t kept = 0;
  for (std::size_t i = 0; i < 4 * part; ++i) kept += f.Find(Name(i)) != nullptr;
  CHECK(kept > 4 * part - part / 100);
}

TEST_CASE("a tag that a peer spoke of first counts as asked here once a hit of this host waits for a report") {
  Fixture f;
  REQUIRE(f.Hear("C", Spent(3)));
  const auto forget = [&] {
    f.policy().forgotten.clear();
    for (std::size_t i = 0; f.Find("C") != nullptr; ++i) {
      if (f.Find(Name(i)) == nullptr) REQUIRE(f.Insert(Name(i), Spent(1)));
    }
    return f.policy().forgotten[0];
  };
  CHECK(forget()[merit::kHeard] == 1);
  Fixture g;
  REQUIRE(g.Hear("C", Spent(3)));
  {
    Table::Shard shard(g.table(), g.table().Hash({"C", false}));
    shard.AddUnreported(shard.Find({"C", false}, kNow), 1);
  }
  for (std::size_t i = 0; g.Find("C") != nullptr; ++i) REQUIRE(g.Insert(Name(i), Spent(1)));
  CHECK(g.policy().forgotten[0][merit::kHeard] == 0);
}

TEST_CASE("a tag that moves takes its merit along, and a tag in cells that were used before begins anew") {
  Fixture f;
  // To the brim, so that tags have been moved; all have been refused twice.
  std::size_t n = 0;
  for (; f.table().counts().evicted == 0; ++n) {
    REQUIRE(f.Insert(Name(n), Spent(12)));
    if (f.Find(Name(n)) != nullptr) f.Refuse(Name(n), 2);
  }
  CHECK(f.table().counts().moved > 100);
  CHECK(f.policy().forgotten[0][merit::kRefused + 1] == 1);
  f.policy().forgotten.clear();
  for (std::size_t i = 0; i < n; ++i) {
    if (f.Find(Name(i)) != nullptr) f.Erase(Name(i));
  }
  CHECK(f.table().counts().cells_used == 0);
  for (std::size_t i = 0; i < 2 * f.table().cells(); ++i) REQUIRE(f.Insert("new-" + Name(i), Spent(1)));
  CHECK(f.policy().forgotten[0].size() == 1);
  CHECK(f.policy().forgotten[0][merit::kAsked] > f.table().cells() / 2);
}

TEST_CASE("merits survive that the region is opened again") {
  Fixture f;
  for (std::size_t i = 0; i < 1000; ++i) {
    REQUIRE(f.Insert("r-" + Name(i), Spent(12)));
    f.Refuse("r-" + Name(i), 20);
  }
  f.Reopen();
  for (std::size_t i = 0; i < 5 * f.table().cells(); ++i) REQUIRE(f.Insert(Name(i), Spent(1)));
  for (std::size_t i = 0; i < 1000; ++i) REQUIRE(f.Find("r-" + Name(i)) != nullptr);
}

TEST_CASE("a flood under one rule leaves the cells of rules with less than their share alone") {
  for (std::uint64_t seed = 1; seed <= testing::Fewer(5); ++seed) {
    Prng prng(seed);
    Fixture f;
    const std::size_t quiet = f.table().cells() / 4;    // of three rules
    const auto name = [](std::size_t i) { return "q-" + Name(i) + std::string(i % 5 == 0 ? 30 : 0, 'q'); };
    for (std::size_t i = 0; i < quiet / 2; ++i) REQUIRE(f.Insert(name(i), Spent(1), kNow, 1 + i % 2));
    REQUIRE(f.table().counts().evicted == 0);
    for (std::size_t i = 0; i < 10 * f.table().cells(); ++i) {
      std::string tag = Name(i);
      if (prng.Below(20) == 0) tag.resize(1 + prng.Below(kTagBytesMax), 'x');
      if (f.Find(tag) != nullptr) continue;
      REQUIRE(f.Insert(tag, Spent(1 + static_cast<Cost>(prng.Below(15)))));
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < quiet / 2; ++i) kept += f.Find(name(i)) != nullptr;
    CAPTURE(seed);
    CHECK(kept == quiet / 2);
    std::size_t forgotten = 0;
    for (const LimitIndex rule : {1, 2}) {
      for (const auto& [merit, tags] : f.policy().forgotten[rule]) forgotten += tags;
    }
    CHECK(forgotten == quiet / 2 - kept);    // and the policy was told of it
  }
}

TEST_CASE("a long tag finds room between short ones that may stay, and loses none of them to do so") {
  Fixture f;
  // Two rules share every group evenly, cell by cell, so no nine cells of one of them lie together.
  for (std::size_t i = 0; i < 3 * f.table().cells(); ++i) {
    REQUIRE(f.Insert(Name(i), Spent(2), kNow, 1 + static_cast<LimitIndex>(i % 2)));
  }
  const std::size_t cells = f.table().cells();
  CHECK(f.table().counts().cells_used > cells * 99 / 100);
  f.policy().forgotten.clear();
  std::size_t forgotten = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    std::string tag = "long-" + Name(i);
    tag.resize(kTagBytesMax, 'l');
    const TableCounts before = f.table().counts();
    REQUIRE(f.Insert(tag, Spent(2), kNow, 1));
    REQUIRE(f.Find(tag) != nullptr);
    forgotten += f.table().counts().evicted - before.evicted;
  }
  CHECK(forgotten <= 9 * 1000);    // as many cells as it needs
  std::size_t others = 0;
  for (const auto& [earned, n] : f.policy().forgotten[2]) others += n;
  CHECK(others < 9 * 1000 / 10);    // where rule 2 had more cells than rule 1
}

TEST_CASE("the table agrees with a map through any history of insertions and removals") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Prng prng(seed);
    Fixture f;
    std::map<std::string, Cost> map;
    CAPTURE(seed);
    for (int step = 0; step < 60'000; ++step) {
      const std::string tag = Name(prng.Below(15'000)) + std::string(prng.Below(4) * 20, 'x');
      if (const auto it = map.find(tag); it != map.end()) {
        REQUIRE(f.Find(tag) != nullptr);
        REQUIRE(f.Find(tag)->bucket.Level(kShape, kNow) == 10 - static_cast<double>(it->second));
        if (prng.Below(2) == 0) {
          f.Erase(tag);
          map.erase(it);
        }
      } else {
        REQUIRE(f.Find(tag) == nullptr);
        if (map.size() < 6000) {                                        // few enough that nothing has to go
          const auto spent = static_cast<Cost>(11 + prng.Below(20));    // in debt: nothing may go
          if (f.Insert(tag, Spent(spent))) map[tag] = spent;
        }
      }
      REQUIRE(f.table().counts().tags == map.size());
    }
  }
}

// ---- The region as a file that outlives us ----

TEST_CASE("a region that is opened again has every bucket as it was") {
  Fixture f;
  for (std::size_t i = 0; i < 20'000; ++i) REQUIRE(f.Insert(Name(i), Spent(1 + static_cast<Cost>(i % 9))));
  const TableCounts before = f.table().counts();
  const auto opened = f.Reopen();
  CHECK(opened.discarded.empty());
  CHECK(opened.dropped == 0);
  CHECK(f.table().counts().tags == before.tags);
  CHECK(f.table().counts().cells_used == before.cells_used);
  for (std::size_t i = 0; i < 20'000; ++i) {
    REQUIRE(f.Find(Name(i)) != nullptr);
    CHECK(f.Find(Name(i))->bucket.Level(kShape, kNow) == 9 - static_cast<double>(i % 9));
  }
}

TEST_CASE("a region that is opened with the notes of its table is as it was, hits that wait for a report included") {
  Fixture f;
  for (std::size_t i = 0; i < 5'000; ++i) {
    REQUIRE(f.Insert(Name(i), Spent(1)));
    if (i % 3 != 0) continue;
    Table::Shard shard(f.table(), f.table().Hash({Name(i), false}));
    shard.AddUnreported(shard.Find({Name(i), false}, kNow), 1);
  }
  const TableCounts before = f.table().counts();
  const std::string notes = f.table().Notes();
  const auto opened = f.Reopen({}, kNow, notes);
  CHECK(opened.discarded.empty());
  CHECK(f.table().counts().tags == before.tags);
  CHECK(f.table().counts().cells_used == before.cells_used);
  CHECK(f.table().Notes() == notes);
  class Count final : public SlotVisitor {
   public:
    bool Visit(const Tag&, const Slot&, const Waste&) override { return ++n > 0; }
    int n = 0;
  } dirty;
  while (f.table().TakeUnreported(100, dirty, {})) {
  }
  CHECK(dirty.n == 1667);
}

TEST_CASE("notes of another table, or a part of them, are ignored") {
  Fixture f, other(2 * Table::kRegionBytesMin);
  REQUIRE(f.Insert("C", Spent(1)));
  std::string another_key = f.table().Notes();
  another_key[0] = static_cast<char>(another_key[0] ^ 1);
  for (const std::string& notes : {another_key, other.table().Notes(), f.table().Notes().substr(1), std::string()}) {
    CHECK(f.Reopen({}, kNow, notes).dropped == 0);
    CHECK(f.table().counts().tags == 1);
  }
}

TEST_CASE("a region of another boot, other rules, another size or another version is started afresh") {
  Fixture f;
  const auto discarded = [&](TableIdentity identity) {
    f.Reopen();
    REQUIRE((f.Find("C") != nullptr || f.Insert("C", Spent(1))));
    const auto opened = f.Reopen(identity);
    CHECK((f.Find("C") == nullptr) == !opened.discarded.empty());
    return std::string(opened.discarded);
  };
  TableIdentity other_boot{}, other_rules{};
  other_boot.boot_id[3] = std::byte{1};
  other_rules.rules = 1;
  CHECK(discarded({}) == "");
  CHECK(discarded(other_boot) == "the host has booted since");
  CHECK(discarded(other_rules) == "it was made under other rules");
  f.Reopen();
  f.region()[8] = std::byte{99};
  CHECK(discarded({}) == "");    // Reopen within has cleared it already
  f.region()[8] = std::byte{99};
  CHECK(std::string(f.Reopen().discarded) == "its format is another version's");
  f.region()[17] = std::byte{99};
  CHECK(std::string(f.Reopen().discarded) == "its size was another");
}

TEST_CASE("entries that are torn or impossible are dropped and the rest is kept") {
  for (std::uint64_t seed = 1; seed <= testing::Fewer(60); ++seed) {
    Prng prng(seed);
    Fixture f;
    for (std::size_t i = 0; i < 10'000; ++i) REQUIRE(f.Insert(Name(i) + std::string(i % 70, 'x'), Spent(1)));
    const std::size_t tags = f.table().counts().tags;
    const std::size_t hits = 1 + prng.Below(500);
    for (std::size_t i = 0; i < hits; ++i) {    // behind the header, which has tests of its own
      f.region()[4096 + prng.Below(f.region().size() - 4096)] = static_cast<std::byte>(prng.Next());
    }
    CAPTURE(seed, hits);
    const auto opened = f.Reopen();
    CHECK(opened.discarded.empty());
    CHECK(f.table().counts().tags + 3 * hits >= tags);
    // The table is sound again: it takes and finds tags as ever.
    for (std::size_t i = 0; i < 3000; ++i) {
      const std::string tag = "new-" + Name(i);
      REQUIRE(f.Insert(tag, Spent(12)));
      REQUIRE(f.Find(tag) != nullptr);
    }
  }
}

TEST_CASE("garbage behind a good header is survived") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Prng prng(seed);
    Fixture f;
    for (std::size_t i = 4096; i + 8 <= f.region().size(); i += 8) {
      const std::uint64_t word = prng.Next();
      std::memcpy(&f.region()[i], &word, 8);
    }
    CAPTURE(seed);
    CHECK(f.Reopen().discarded.empty());
    CHECK(f.table().counts().tags < 10);
    for (std::size_t i = 0; i < 3000; ++i) REQUIRE(f.Insert(Name(i), Spent(1)));
  }
}

TEST_CASE("a tag that was being moved when the process died is there once") {
  Fixture f;
  REQUIRE(f.Insert("C", Spent(4)));
  // The one group in use holds "C" in its first cell. A move would have left a copy in its other group; here every
  // group gets one.
  const std::vector<std::byte> before(f.region().begin(), f.region().end());
  std::size_t copies = 0;
  for (std::size_t group = 4096; group < 4096 + f.table().cells() / 24 * 1024; group += 1024) {
    if (std::memcmp(&before[group], std::vector<std::byte>(60).data(), 60) != 0) continue;
    for (std::size_t from = 4096; from + 1024 <= before.size(); from += 1024) {
      std::uint16_t fingerprint;
      std::memcpy(&fingerprint, &before[from], 2);
      if (fingerprint == 0) continue;
      std::memcpy(&f.region()[group], &before[from], 2);
      std::memcpy(&f.region()[group + 64], &before[from + 64], 32);
      ++copies;
    }
  }
  REQUIRE(copies > 500);
  REQUIRE(copies == f.table().cells() / 24 - 1);
  const auto opened = f.Reopen();
  CHECK(opened.dropped == copies);
  CHECK(f.table().counts().tags == 1);
  CHECK(f.Find("C")->bucket.Level(kShape, kNow) == 6);
}

// ---- What Open leaves for later ----

constexpr std::size_t kLarge = std::size_t{72} << 20;    // 64 MiB are put right at once

TEST_CASE("a table of any size opens at once, and its groups are put right when they are touched") {
  Fixture f(kLarge);
  f.Finish();
  constexpr std::size_t kTags = 200'000;
  for (std::size_t i = 0; i < kTags; ++i)
    REQUIRE(f.Insert(Name(i) + std::string(i % 7 * 10, 'x'), Spent(static_cast<Cost>(1 + i % 9))));
  const TableCounts before = f.table().counts();
  CHECK(f.Reopen().discarded.empty());
  REQUIRE(f.table().reshaping());
  CHECK(f.table().counts().tags < before.tags);
  for (std::size_t i = 0; i < kTags; i += 3) {
    const std::string tag = Name(i) + std::string(i % 7 * 10, 'x');
    REQUIRE(f.Find(tag) != nullptr);
    CHECK(f.Find(tag)->bucket.Level(kShape, kNow) == 9 - static_cast<double>(i % 9));
  }
  f.Finish();
  CHECK_FALSE(f.table().reshaping());
  CHECK(f.table().counts().tags == before.tags);
  CHECK(f.table().counts().cells_used == before.cells_used);
  CHECK(f.table().counts().dropped == 0);
}

TEST_CASE("memory that was never written to takes no room when a table is opened in it") {
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(mapped != MAP_FAILED);
  const std::span region(static_cast<std::byte*>(mapped), kBytes);
  OneShape policy;
  const std::size_t before = testing::ResidentBytes();
  {
    const Table::Opened opened = Table::Open(region, TableIdentity{}, kKeys, false, policy, kNow);
    CHECK_FALSE(opened.table->reshaping());    // all of it has been looked at
    CHECK(testing::ResidentBytes() - before < kBytes / 8);
  }
  std::ranges::fill(region, std::byte{0x55});    // what is there can be read as anything
  {
    const Table::Opened opened = Table::Open(region, TableIdentity{}, kKeys, false, policy, kNow);
    CHECK(testing::ResidentBytes() - before >= kBytes);
    CHECK(opened.table->counts().tags == 0);
  }
  ::munmap(mapped, kBytes);
}

TEST_CASE("hits that wait for a report in groups that Open has left are reported when these are put right") {
  Fixture f(kLarge);
  f.Finish();
  constexpr std::size_t kTags = 20'000;
  for (std::size_t i = 0; i < kTags; ++i) {
    REQUIRE(f.Insert(Name(i), Spent(1)));
    Table::Shard shard(f.table(), f.table().Hash({Name(i), false}));
    shard.AddUnreported(shard.Find({Name(i), false}, kNow), 1);
  }
  f.Reopen();
  f.Finish();
  class Count final : public SlotVisitor {
   public:
    bool Visit(const Tag&, const Slot&, const Waste&) override { return ++n > 0; }
    std::size_t n = 0;
  } dirty;
  while (f.table().TakeUnreported(100, dirty, {})) {
  }
  CHECK(dirty.n == kTags);
}

TEST_CASE("of a table that is discarded nothing is found, in groups that have not been cleared yet either") {
  Fixture f(kLarge);
  f.Finish();
  for (std::size_t i = 0; i < 100'000; ++i) REQUIRE(f.Insert(Name(i), Spent(1)));
  TableIdentity other{};
  other.rules = 1;
  CHECK(!f.Reopen(other).discarded.empty());
  REQUIRE(f.table().reshaping());
  for (std::size_t i = 0; i < 100'000; ++i) REQUIRE(f.Find(Name(i)) == nullptr);
  f.Finish();
  CHECK(f.table().counts().tags == 0);
}

TEST_CASE("damage in groups that Open has left is mended when these are touched, in any order") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Prng prng(seed);
    Fixture f(kLarge);
    f.Finish();
    for (std::size_t i = 0; i < 100'000; ++i) REQUIRE(f.Insert(Name(i) + std::string(i % 70, 'x'), Spent(1)));
    for (std::size_t i = 0; i < 20'000; ++i) {
      f.region()[4096 + prng.Below(f.region().size() - 4096)] = static_cast<std::byte>(prng.Next());
    }
    CAPTURE(seed);
    f.Reopen();
    for (std::size_t i = 0; i < 20'000; ++i) {
      const std::string tag = "new-" + Name(prng.Below(1'000'000));
      if (f.Find(tag) == nullptr) REQUIRE(f.Insert(tag, Spent(12)));
      REQUIRE(f.Find(tag) != nullptr);
    }
    f.Finish();
    CHECK(f.table().counts().tags > 80'000);
  }
}

// ---- Generations ----

TEST_CASE("a new generation rewrites slots when they are touched or visited") {
  Fixture f;
  for (std::size_t i = 0; i < 5000; ++i) REQUIRE(f.Insert(Name(i), Spent(1)));
  f.table().Exclusively([&] {
    f.policy().new_limit = 5;
    f.table().StartGeneration(7);
  });
  CHECK(f.table().reshaping());
  CHECK(f.Find(Name(17))->limit == 5);
  std::size_t slices = 1;
  while (f.table().ReshapeSome(10, kNow)) ++slices;
  CHECK(slices > 50);
  CHECK_FALSE(f.table().reshaping());
  for (std::size_t i = 0; i < 5000; ++i) CHECK(f.Find(Name(i))->limit == 5);
  CHECK(f.Reopen({{}, 7}).discarded.empty());
  CHECK_FALSE(f.Reopen({{}, 8}).discarded.empty());
}

TEST_CASE("a generation that was cut off is finished when the region is opened") {
  Fixture f;
  for (std::size_t i = 0; i < 5000; ++i) REQUIRE(f.Insert(Name(i), Spent(1)));
  f.table().Exclusively([&] {
    f.policy().new_limit = 5;
    f.table().StartGeneration(7);
  });
  f.table().ReshapeSome(100, kNow);
  f.policy().new_limit = 6;    // tells what Open has rewritten
  const auto opened = f.Reopen({{}, 7});
  CHECK(opened.discarded.empty());
  CHECK(opened.dropped == 0);
  std::map<LimitIndex, int> limits;
  for (std::size_t i = 0; i < 5000; ++i) ++limits[f.Find(Name(i))->limit];
  CHECK(limits.size() == 2);
  CHECK(limits[5] > 0);
  CHECK(limits[6] > 0);
}

TEST_CASE("slots that the new rules do not know are forgotten") {
  Fixture f;
  for (std::size_t i = 0; i < 5000; ++i) REQUIRE(f.Insert(Name(i), Spent(1)));
  f.table().Exclusively([&] {
    f.policy().forget = true;
    f.table().StartGeneration(7);
  });
  CHECK(f.Find(Name(1)) == nullptr);
  while (f.table().ReshapeSome(100, kNow)) {
  }
  CHECK(f.table().counts().tags == 0);
  CHECK(f.table().counts().cells_used == 0);
}

}    // namespace
}    // namespace dthrottle
