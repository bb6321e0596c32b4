#include "bucket/forget.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/prng.h"

namespace dthrottle {
namespace {

constexpr std::uint32_t kRule = 3, kOther = 4;

// One tag in each cell; a cell's tag is known by the cell. A tag that is forgotten is replaced, as the table does it,
// by one that was asked once.
class Group {
 public:
  struct Tag {
    std::uint32_t rule;
    unsigned merit;
    bool half_spent;
  };

  explicit Group(const std::vector<Tag>& tags) : tags_(tags) {
    for (std::size_t i = 0; i < tags_.size(); ++i) merits.Set(i, tags_[i].merit);
  }

  // The cell whose tag goes for a newcomer.
  std::size_t Choose(std::uint32_t newcomers_rule, std::size_t newcomers_cells = 1) {
    return CrowdFor(newcomers_rule, newcomers_cells).Choose(merits).first;
  }
  Sacrifice Cost(std::uint32_t newcomers_rule, std::size_t newcomers_cells = 1, std::size_t free = 0) const {
    return CrowdFor(newcomers_rule, newcomers_cells).Cost(merits, free);
  }
  std::size_t Replace(std::uint32_t newcomers_rule, bool half_spent = false) {
    const std::size_t cell = Choose(newcomers_rule);
    tags_[cell] = {newcomers_rule, merit::kAsked, half_spent};
    merits.Set(cell, merit::kAsked);
    return cell;
  }
  std::size_t CellsOf(std::uint32_t rule) const {
    std::size_t n = 0;
    for (const Tag& tag : tags_) n += tag.rule == rule;
    return n;
  }

  Merits merits;

 private:
  Crowd CrowdFor(std::uint32_t newcomers_rule, std::size_t newcomers_cells) const {
    Crowd crowd(newcomers_rule, newcomers_cells);
    for (std::size_t i = 0; i < tags_.size(); ++i) crowd.Add(i, 1, {tags_[i].rule, tags_[i].half_spent});
    return crowd;
  }

  std::vector<Tag> tags_;
};

std::vector<Group::Tag> All(const Group::Tag& tag) {
  return std::vector<Group::Tag>(kCellsPerGroup, tag);
}

TEST_CASE("merits of all cells and the hand are kept apart") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Prng prng(seed);
    Merits merits;
    std::array<unsigned, kCellsPerGroup> expected{};
    std::size_t hand = 0;
    CAPTURE(seed);
    for (int step = 0; step < 1000; ++step) {
      const std::size_t cell = prng.Below(kCellsPerGroup);
      const auto value = static_cast<unsigned>(prng.Below(merit::kMax + 1));
      merits.Set(cell, expected[cell] = value);
      if (prng.Below(4) == 0) merits.SetHand(hand = prng.Below(kCellsPerGroup));
      for (std::size_t i = 0; i < kCellsPerGroup; ++i) REQUIRE(merits.at(i) == expected[i]);
      REQUIRE(merits.hand() == hand);
    }
  }
}

TEST_CASE("a refusal raises the merit by one, from two on; above five every fourth does, to seven and no further") {
  Merits merits;
  merits.SetHand(23);
  merits.Refused(5);
  CHECK(merits.at(5) == merit::kRefused);    // only peers had spoken of it
  merits.Set(5, merit::kAsked);
  for (const unsigned expected : {2u, 3u, 4u, 5u, 5u, 5u, 5u, 6u, 6u, 6u, 6u, 7u, 7u}) {
    merits.Refused(5);
    CHECK(merits.at(5) == expected);
  }
  merits.Set(8, merit::kOften);
  for (int i = 0; i < 3; ++i) merits.Refused(8);
  merits.SetHand(11);    // keeps the count
  merits.Refused(8);
  CHECK(merits.at(8) == 6);
  CHECK(merits.hand() == 11);
  merits.Asked(5);
  CHECK(merits.at(5) == merit::kMax);
  merits.Asked(6);
  CHECK(merits.at(6) == merit::kAsked);
  CHECK(merits.at(4) == merit::kHeard);
}

TEST_CASE("what peers spoke of goes before what was asked, that before what is half spent, and that before a refusal") {
  const Group::Tag order[] = {{kRule, merit::kHeard, false},
                              {kRule, merit::kHeard, true},
                              {kRule, merit::kAsked, false},
                              {kRule, merit::kAsked, true},
                              {kRule, merit::kRefused, false},
                              {kRule, merit::kRefused, true},
                              {kRule, 3, true},
                              {kRule, merit::kMax, true}};
  for (std::size_t low = 0; low + 1 < std::size(order); ++low) {
    for (std::size_t high = low + 1; high < std::size(order); ++high) {
      // A quarter of the cells is of the lower kind, so the pool is these alone.
      std::vector<Group::Tag> tags = All(order[high]);
      for (std::size_t i = 2; i < kCellsPerGroup; i += 4) tags[i] = order[low];
      for (std::size_t hand = 0; hand < kCellsPerGroup; ++hand) {
        Group group(tags);
        group.merits.SetHand(hand);
        CAPTURE(low, high, hand);
        CHECK(group.Choose(kRule) % 4 == 2);
      }
    }
  }
}

TEST_CASE("the rule with most cells gives one, the newcomer's own in a tie") {
  const auto with = [](std::size_t cells_of_rule) {
    std::vector<Group::Tag> tags = All({kOther, merit::kAsked, false});
    for (std::size_t i = 0; i < cells_of_rule; ++i) tags[i].rule = kRule;
    return tags;
  };
  const auto gives = [&](std::size_t cells_of_rule, std::uint32_t newcomers_rule, std::size_t cells = 1) {
    Group group(with(cells_of_rule));
    return group.Choose(newcomers_rule, cells) < cells_of_rule ? kRule : kOther;
  };
  CHECK(gives(12, kRule) == kRule);
  CHECK(gives(12, kOther) == kOther);
  CHECK(gives(11, kRule) == kOther);      // 12 with the newcomer, against 13
  CHECK(gives(10, kRule, 4) == kRule);    // 14 against 14
  CHECK(gives(9, kRule, 4) == kOther);
  CHECK(gives(1, 99) == kOther);    // of a rule that has none here
  CHECK(gives(23, kOther) == kRule);
}

TEST_CASE("a rule that has no tag in the group takes from the one with most, however much it wants") {
  const std::vector<Group::Tag> tags = All({kOther, merit::kMax, true});
  CHECK(Group(tags).Choose(kRule, 9) == 0);
}

TEST_CASE("no rule loses a cell to one that has more, whatever is asked") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Prng prng(seed);
    const std::size_t rules = 2 + prng.Below(6);
    std::vector<Group::Tag> tags;
    for (std::size_t i = 0; i < kCellsPerGroup; ++i) {
      tags.push_back(
          {static_cast<std::uint32_t>(prng.Below(rules)), static_cast<unsigned>(prng.Below(8)), prng.Below(2) == 0});
    }
    Group group(tags);
    CAPTURE(seed, rules);
    for (int step = 0; step < 2000; ++step) {
      // A flood of rule 0, with some of the other rules' tags between, which are refused at times.
      const auto rule = static_cast<std::uint32_t>(prng.Below(8) != 0 ? 0 : prng.Below(rules));
      if (prng.Below(3) == 0) group.merits.Refused(prng.Below(kCellsPerGroup));
      std::map<std::uint32_t, std::size_t> before;
      for (std::uint32_t r = 0; r < rules; ++r) before[r] = group.CellsOf(r);
      group.Replace(rule, prng.Below(2) == 0);
      for (std::uint32_t r = 0; r < rules; ++r) {
        if (r != rule && group.CellsOf(r) < before[r]) REQUIRE(before[r] > before[rule] + 1);
      }
    }
  }
}

TEST_CASE("a group whose own rule gives comes before one where another's does, and what was not refused before both") {
  const auto cost = [](std::size_t cells_of_rule, unsigned merit_of_rule, unsigned merit_of_other) {
    std::vector<Group::Tag> tags = All({kOther, merit_of_other, false});
    for (std::size_t i = 0; i < cells_of_rule; ++i) tags[i] = {kRule, merit_of_rule, false};
    return Group(tags).Cost(kRule);
  };
  CHECK(cost(20, merit::kAsked, merit::kHeard) == Sacrifice{merit::kAsked, false});
  CHECK(cost(4, merit::kAsked, merit::kRefused) == Sacrifice{merit::kRefused, true});
  CHECK(cost(20, merit::kAsked, 0) < cost(4, merit::kHeard, merit::kAsked));
  CHECK(cost(4, 0, merit::kAsked) < cost(20, merit::kRefused, 0));
}

TEST_CASE("what a long newcomer costs is the dearest of all that go, and free cells cost nothing") {
  std::vector<Group::Tag> tags = All({kOther, merit::kRefused, false});
  for (std::size_t i = 0; i < 11; ++i) tags[i] = {kRule, merit::kAsked, false};
  CHECK(Group(tags).Cost(kRule, 2) == Sacrifice{merit::kRefused, true});    // one of each rule
  CHECK(Group(tags).Cost(kRule, 2, 1) == Sacrifice{merit::kAsked, false});
  for (std::size_t i = 11; i < 16; ++i) tags[i] = {kRule, merit::kAsked, false};
  CHECK(Group(tags).Cost(kRule, 9) == Sacrifice{merit::kAsked, false});
  CHECK(Group(tags).Cost(kRule, 9, 9) == Sacrifice{merit::kHeard, false});
}

TEST_CASE("a newcomer is the last of its pool to go, and the hand goes round") {
  Group group(All({kRule, merit::kAsked, false}));
  group.merits.SetHand(20);
  for (std::size_t i = 0; i < 100; ++i) CHECK(group.Replace(kRule) == (20 + i) % kCellsPerGroup);
}

TEST_CASE("a flood of tags that ask once never reaches those that were refused, and does not age them") {
  std::vector<Group::Tag> tags = All({kRule, merit::kAsked, false});
  for (std::size_t i = 0; i < 18; ++i) tags[i] = {kRule, 3, true};
  Group group(tags);
  for (int i = 0; i < 10'000; ++i) REQUIRE(group.Replace(kRule, true) >= 18);
  for (std::size_t i = 0; i < 18; ++i) CHECK(group.merits.at(i) == 3);
}

TEST_CASE("what only peers spoke of goes first, however little of it there is") {
  std::vector<Group::Tag> tags = All({kRule, merit::kAsked, false});
  tags[9] = {kRule, merit::kHeard, true};
  tags[3] = tags[20] = {kRule, merit::kHeard, false};
  Group group(tags);
  group.merits.SetHand(5);
  CHECK(group.Replace(kRule) == 20);
  CHECK(group.Replace(kRule) == 3);
  CHECK(group.Replace(kRule) == 9);
  CHECK(group.Replace(kRule) == 10);
}

TEST_CASE("of what only peers spoke of, the peer that told of most gives way to a tag that was asked") {
  Merits merits;
  for (const std::size_t hand : {0, 3, 8, 20}) {
    Crowd crowd(kRule, 1);
    for (std::size_t i = 0; i < kCellsPerGroup; ++i) {
      const Teller teller = i % 4 == 1 ? 7 : i % 4 == 2 ? 9 : kNoTeller;
      merits.Set(i, i % 4 == 0 ? merit::kAsked : merit::kHeard);
      crowd.Add(i, 1, {i < 20 ? kRule : kOther, false},
                i == 2 ? 7 : teller);    // 7 has told of six of the rule, others of 5 and 4
    }
    merits.SetHand(hand);
    const std::size_t gone = crowd.Choose(merits).first;
    CHECK((gone % 4 == 1 || gone == 2));
  }
}

// One tag in each cell, of the peer that told of it.
class Heard {
 public:
  explicit Heard(std::vector<Teller> tellers) : tellers_(std::move(tellers)) {}

  // Records a tag that `teller` tells of, if there is room for it.
  bool Tell(Teller teller, std::uint32_t chance, std::size_t cells = 1) {
    Hearsay hearsay(teller, cells);
    for (std::size_t i = 0; i < tellers_.size(); ++i) hearsay.Add(i, 1, tellers_[i]);
    const std::optional<std::size_t> gone = hearsay.Choose(chance);
    if (gone.has_value()) tellers_[*gone] = teller;
    return gone.has_value();
  }
  std::size_t CellsOf(Teller teller) const {
    return static_cast<std::size_t>(std::count(tellers_.begin(), tellers_.end(), teller));
  }

 private:
  std::vector<Teller> tellers_;
};

TEST_CASE("one peer may tell of all tags, and gives way to the others until each has as many") {
  Heard group(std::vector<Teller>(kCellsPerGroup, 1));
  Prng prng(1);
  for (int i = 0; i < 100; ++i) REQUIRE(group.Tell(1, static_cast<std::uint32_t>(prng.Next())));
  for (std::size_t i = 1; i <= 12; ++i) {
    REQUIRE(group.Tell(2, static_cast<std::uint32_t>(prng.Next())));
    CHECK(group.CellsOf(2) == i);
    // However often the other one tells of more meanwhile.
    for (int k = 0; k < 20; ++k) REQUIRE(group.Tell(1, static_cast<std::uint32_t>(prng.Next())));
    CHECK(group.CellsOf(2) == i);
  }
  for (int i = 0; i < 20; ++i) REQUIRE(group.Tell(2, static_cast<std::uint32_t>(prng.Next())));
  CHECK(group.CellsOf(1) == 12);
}

TEST_CASE("no peer takes from one that has as many as it, its newcomer counted") {
  Heard group({1, 1, 2, 3});
  CHECK_FALSE(group.Tell(4, 0, 2));    // 2 against 2
  CHECK(group.Tell(4, 0));
  CHECK(group.CellsOf(1) == 1);
  CHECK_FALSE(group.Tell(5, 0));
  CHECK(group.Tell(2, 0));    // its own
  CHECK(group.CellsOf(2) == 1);
  CHECK_FALSE(Heard({}).Tell(1, 0));
}

TEST_CASE("a flood of one peer's tags takes no cell of a peer that has fewer, whatever is told") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Prng prng(seed);
    const std::uint64_t peers = 2 + prng.Below(6);
    std::vector<Teller> tellers;
    for (std::size_t i = 0; i < kCellsPerGroup; ++i) tellers.push_back(static_cast<Teller>(prng.Below(peers)));
    Heard group(tellers);
    CAPTURE(seed, peers);
    for (int step = 0; step < 2000; ++step) {
      const auto teller = static_cast<Teller>(prng.Below(8) != 0 ? 0 : prng.Below(peers));
      std::map<Teller, std::size_t> before;
      for (Teller t = 0; t < peers; ++t) before[t] = group.CellsOf(t);
      group.Tell(teller, static_cast<std::uint32_t>(prng.Next()));
      for (Teller t = 0; t < peers; ++t) {
        if (t != teller && group.CellsOf(t) < before[t]) REQUIRE(before[t] > before[teller] + 1);
      }
    }
    for (Teller t = 1; t < peers; ++t) REQUIRE(group.CellsOf(t) <= group.CellsOf(0) + 1);
  }
}

TEST_CASE("a pool is at least a quarter of the rule's cells, whole values at a time") {
  // Five are at the bottom, one too few: the next value joins them, all eight of it.
  std::vector<Group::Tag> tags = All({kRule, merit::kMax, true});
  for (std::size_t i = 0; i < 5; ++i) tags[i] = {kRule, merit::kAsked, false};
  for (std::size_t i = 10; i < 18; ++i) tags[i] = {kRule, merit::kAsked, true};
  const auto chosen_from = [&](std::size_t hand) {
    Group group(tags);
    group.merits.SetHand(hand);
    return group.Choose(kRule);
  };
  CHECK(chosen_from(0) == 0);
  CHECK(chosen_from(5) == 10);
  CHECK(chosen_from(17) == 17);
  CHECK(chosen_from(18) == 0);
  tags[5] = tags[0];
  CHECK(chosen_from(6) == 0);    // six are enough
}

TEST_CASE("merits begin anew when every tag of the rule has the highest, and not before") {
  std::vector<Group::Tag> tags = All({kRule, merit::kMax, true});
  tags[20] = {kOther, merit::kMax, true};
  for (const unsigned least : {merit::kAsked, merit::kMax - 1, merit::kMax}) {
    CAPTURE(least);
    tags[22] = {kRule, least, true};
    Group group(tags);
    group.Choose(kRule);
    for (const std::size_t i : {0, 10, 21}) {
      CHECK(group.merits.at(i) == (least == merit::kMax ? merit::kAsked : merit::kMax));
    }
    CHECK(group.merits.at(20) == merit::kMax);    // another rule's
  }
}

TEST_CASE("what a victim had earned is said as it was before merits began anew") {
  Merits merits;
  merits.Set(4, merit::kMax);
  Crowd crowd(kRule, 1);
  crowd.Add(4, 9, {kRule, true});
  const Crowd::Victim victim = crowd.Choose(merits);
  CHECK(victim.first == 4);
  CHECK(victim.merit == merit::kMax);
  CHECK(merits.at(4) == merit::kAsked);
  CHECK(merits.hand() == 13);    // behind all of its cells
}

// Queries of a flood, for each cell, until half of the tags are gone that were refused before it, `refused` of them in
// each group of 24, `times` each. A tag of the flood asks k times, and is refused all but the first. No more than
// kMost.
double CostOfWashing(std::size_t refused, int times, unsigned k) {
  constexpr std::size_t kGroups = 200;
  constexpr double kMost = 10;
  Prng prng(k);
  std::vector<Group> groups;
  std::vector<std::uint32_t> kept;
  for (std::size_t i = 0; i < kGroups; ++i) {
    std::uint32_t cells = 0;
    while (static_cast<std::size_t>(std::popcount(cells)) < refused) cells |= 1u << prng.Below(kCellsPerGroup);
    Group& group = groups.emplace_back(All({kRule, merit::kAsked, true}));
    for (std::size_t c = 0; c < kCellsPerGroup; ++c) {
      for (int n = cells >> c & 1 ? times : 0; n > 0; --n) group.merits.Refused(c);
    }
    group.merits.SetHand(prng.Below(kCellsPerGroup));
    kept.push_back(cells);
  }
  const auto most = static_cast<std::size_t>(kMost * kGroups * kCellsPerGroup);
  std::size_t queries = 0, gone = 0;
  for (; gone < kGroups * refused / 2 && queries < most; queries += k) {
    const std::size_t i = prng.Below(kGroups), cell = groups[i].Replace(kRule, true);
    gone += kept[i] >> cell & 1;
    kept[i] &= ~(1u << cell);
    for (unsigned asked = 1; asked < k; ++asked) groups[i].merits.Refused(cell);
  }
  return static_cast<double>(queries) / static_cast<double>(kGroups * kCellsPerGroup);
}

TEST_CASE(
    "washing out what was refused twenty times costs seven queries for each of the rule's cells, up to 16 of 24") {
  const std::size_t refused = GENERATE(1, 2, 4, 8, 12, 16);
  for (unsigned k = 1; k <= 40; ++k) {
    CAPTURE(refused, k);
    CHECK(CostOfWashing(refused, 20, k) >= 7);
  }
}

TEST_CASE("washing out what was refused six times costs seven queries for each cell, less where half were refused") {
  const auto [refused, least] = GENERATE(std::pair<std::size_t, double>(2, 7.3), std::pair<std::size_t, double>(8, 7.3),
                                         std::pair<std::size_t, double>(12, 6.5));
  for (unsigned k = 1; k <= 40; ++k) {
    CAPTURE(refused, k);
    CHECK(CostOfWashing(refused, 6, k) >= least);
  }
}

}    // namespace
}    // namespace dthrottle
