#include <sodium/crypto_shorthash_siphash24.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/parted_map.h"
#include "base/prng.h"
#include "base/side_table.h"
#include "base/siphash.h"
#include "base/state.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

TEST_CASE("SipHash-2-4 agrees with the library at every length") {
  Prng prng(1);
  for (std::size_t n = 0; n < 70; ++n) {
    SipKey key{prng.Next(), prng.Next()};
    std::string bytes(n, '\0');
    for (char& c : bytes) c = static_cast<char>(prng.Next());
    std::uint64_t expected;
    crypto_shorthash_siphash24(reinterpret_cast<unsigned char*>(&expected),
                               reinterpret_cast<const unsigned char*>(bytes.data()), n,
                               reinterpret_cast<const unsigned char*>(key.data()));
    CAPTURE(n);
    CHECK(SipHash<2, 4>(key, bytes) == expected);
  }
}

TEST_CASE("the hash depends on the key") {
  CHECK(SipHash<1, 3>({1, 2}, "tag") != SipHash<1, 3>({1, 3}, "tag"));
  CHECK(SipHash<1, 3>({1, 2}, "tag") != SipHash<1, 3>({0, 2}, "tag"));
}

TEST_CASE("a side table is bounded, and its owner chooses what makes room") {
  SideTable<int, 4> table(1);
  REQUIRE(table.places() == table.kSetsMin * 4);
  const auto smallest = [&](std::size_t place) {
    return table[place] < 100 ? std::optional(table[place]) : std::nullopt;
  };
  const auto add = [&](std::uint64_t hash, int value) {
    const std::size_t place = table.RoomFor(hash, smallest);
    if (place == table.kNone) return false;
    table[place] = value;
    table.Put(place, hash);
    return true;
  };
  CHECK_FALSE(add(0, 1));
  CHECK(table.Find(0) == table.kNone);
  for (const int value : {300, 5, 3, 4}) REQUIRE(add(static_cast<std::uint64_t>(value), value));    // all of one set
  CHECK(table.UsedNear(7) == 4);
  CHECK(add(7, 100));
  CHECK(table.Find(3) == table.kNone);
  CHECK(table[table.Find(7)] == 100);
  CHECK(table.used() == 4);
  table.Remove(table.Find(300));
  CHECK(table.used() == 3);
  CHECK(add(8, 100));    // where there is room, nothing goes
  CHECK(table.Find(4) != table.kNone);
  REQUIRE((add(9, 100) && add(10, 100)));
  CHECK_FALSE(add(11, 1000));
  CHECK(add(~std::uint64_t{0}, 1));    // of another set
  CHECK(table.HashAt(table.Find(~std::uint64_t{0})) == ~std::uint64_t{0});
}

TEST_CASE("a side table makes entries only in the sets that are used") {
  static int made;
  struct Counted {
    Counted() { ++made; }
    ~Counted() { --made; }
  };
  made = 0;
  {
    SideTable<Counted, 4> table(1 << 20);
    CHECK(made == 0);
    const auto none = [](std::size_t) { return std::optional<int>(); };
    for (const std::uint64_t hash : {1, 2, 3}) table.Put(table.RoomFor(hash, none), hash);    // all of one set
    CHECK(made == 4);
    table.Put(table.RoomFor(~std::uint64_t{0}, none), ~std::uint64_t{0});
    CHECK(made == 8);
  }
  CHECK(made == 0);
}

TEST_CASE("a map in parts has what was added, and never moves more than a small part of it") {
  PartedMap<int> map;
  Prng prng(1);
  std::vector<std::uint64_t> hashes;
  std::vector<std::size_t> buckets(map.kParts);
  std::size_t moved_max = 0;
  for (int step = 0; step < 1000; ++step) {
    for (int i = 0; i < 256; ++i) map.Add(hashes.emplace_back(prng.Next())) = i;
    std::size_t moved = 0;
    for (std::size_t i = 0; i < map.kParts; ++i) {
      const std::size_t before = std::exchange(buckets[i], map.part(i).bucket_count());
      if (buckets[i] != before) moved += map.part(i).size();
    }
    if (step >= 100) moved_max = std::max(moved_max, moved);
  }
  CHECK(map.size() == hashes.size());
  CHECK(moved_max < map.size() / 100);
  std::size_t found = 0;
  for (const std::uint64_t hash : hashes) found += map.Find(hash) != nullptr;
  CHECK(found == hashes.size());
  map.Erase(hashes[0]);
  map.Erase(hashes[0]);
  CHECK(map.Find(hashes[0]) == nullptr);
  for (std::size_t i = 0; i < map.kParts; ++i) map.EraseIf(i, [](int entry) { return entry < 128; });
  std::size_t left = 0;
  map.ForEach([&](int entry) { left += entry >= 128; });
  CHECK(map.size() == left);
  CHECK(left == hashes.size() / 2);
}

TEST_CASE("a seed decides everything a generator says") {
  Prng a(7), b(7), c(8);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t x = a.Next();
    CHECK(x == b.Next());
    differs |= x != c.Next();
  }
  CHECK(differs);
}

TEST_CASE("numbers below a bound are evenly spread") {
  Prng prng(3);
  std::array<int, 10> seen{};
  for (int i = 0; i < 100'000; ++i) ++seen.at(prng.Below(10));
  for (const int n : seen) CHECK(std::abs(n - 10'000) < 500);    // five standard deviations
}

enum class Colour : std::uint8_t { kRed, kBlue };

struct Everything {
  bool flag = false;
  std::uint8_t small = 0;
  std::int64_t negative = 0;
  Colour colour{};
  float real = 0;
  Instant at{};
  BootInstant boot{};
  std::optional<std::string> name;
  std::vector<std::pair<int, std::string>> list;
  std::map<std::string, std::set<int>> sets;

  static void Fields(auto& state, auto& self) {
    state(self.flag, self.small, self.negative, self.colour, self.real, self.at, self.boot, self.name, self.list,
          self.sets);
    state.Check(self.colour <= Colour::kBlue);
  }
  friend bool operator==(const Everything&, const Everything&) = default;
};

TEST_CASE("state reads back as it was written, and cut off anywhere not at all") {
  const Everything all{true,
                       200,
                       -(std::int64_t{1} << 62),
                       Colour::kBlue,
                       0.5F,
                       Instant::max(),
                       BootInstant(5s),
                       "a",
                       {{-1, ""}, {7, "x"}},
                       {{"s", {1, 2}}, {"", {}}}};
  const std::string bytes = WriteState(3, all);
  Everything read;
  REQUIRE(ReadState(bytes, 3, read));
  CHECK(read == all);
  CHECK_FALSE(ReadState(bytes, 4, read));
  CHECK_FALSE(ReadState(bytes + "x", 3, read));
  for (std::size_t size = 0; size < bytes.size(); ++size) CHECK_FALSE(ReadState(bytes.substr(0, size), 3, read));
  Everything none;
  REQUIRE(ReadState(WriteState(3, none), 3, read));
  CHECK(read == none);
}

TEST_CASE("state that cannot be is refused: numbers that do not fit, counts without elements, what a type checks") {
  std::uint8_t small = 0;
  CHECK_FALSE(ReadState(WriteState(1, 256), 1, small));
  bool flag = false;
  CHECK_FALSE(ReadState(WriteState(1, 2u), 1, flag));
  std::vector<std::string> list;
  CHECK_FALSE(ReadState(WriteState(1, std::uint64_t{1} << 40), 1, list));
  Everything odd, read;
  odd.colour = static_cast<Colour>(9);
  CHECK_FALSE(ReadState(WriteState(1, odd), 1, read));
}

}    // namespace
}    // namespace dthrottle
