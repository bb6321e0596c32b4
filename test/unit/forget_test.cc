#include "bucket/forget.h"

#include <catch2/catch.hpp>

#include <map>
#include <string>
#include <vector>

#include "base/prng.h"

namespace dthrottle {
namespace {

constexpr std::uint32_t kRule = 3, kOther = 4;

// One tag in each cell; a cell's tag is known by the cell. Whoever is forgotten is replaced, as the table does it, by a
// tag that was asked once.
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
    Crowd crowd(newcomers_rule, newcomers_cells);
    for (std::size_t i = 0; i < tags_.size(); ++i) crowd.Add(i, 1, {tags_[i].rule, tags_[i].half_spent});
    return crowd.Choose(merits).first;
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

TEST_CASE("a refusal raises the merit by one, from two on, to seven and no further") {
  Merits merits;
  merits.Refused(5);
  CHECK(merits.at(5) == merit::kRefused);    // only peers had spoken of it
  merits.Set(5, merit::kAsked);
  for (const unsigned expected : {2u, 3u, 4u, 5u, 6u, 7u, 7u, 7u}) {
    merits.Refused(5);
    CHECK(merits.at(5) == expected);
  }
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

TEST_CASE("ageing takes from each what the pool's best was above asked") {
  std::vector<Group::Tag> tags = All({kRule, 6, true});
  for (std::size_t i = 0; i < 6; ++i) tags[i] = {kRule, 4, false};
  tags[20] = {kOther, 7, true};
  tags[21] = {kRule, 7, true};
  tags[22] = {kRule, merit::kAsked, true};
  Group group(tags);
  group.Choose(kRule);
  CHECK(group.merits.at(0) == merit::kAsked);
  CHECK(group.merits.at(10) == 3);
  CHECK(group.merits.at(20) == 7);    // another rule's
  CHECK(group.merits.at(21) == 4);
  CHECK(group.merits.at(22) == merit::kAsked);
}

TEST_CASE("what a victim had earned is said as it was before the ageing") {
  Merits merits;
  merits.Set(4, 5);
  Crowd crowd(kRule, 1);
  crowd.Add(4, 9, {kRule, true});
  const Crowd::Victim victim = crowd.Choose(merits);
  CHECK(victim.first == 4);
  CHECK(victim.merit == 5);
  CHECK(merits.at(4) == merit::kAsked);
  CHECK(merits.hand() == 13);    // behind all of its cells
}

// Groups in which two cells of 24 were refused to the utmost. Queries of a flood, for each cell, until half of those
// are gone; each tag of the flood asks k times, and is refused all but the first.
TEST_CASE("washing out what was refused costs at least seven queries for each of the rule's cells") {
  constexpr std::size_t kGroups = 200, kRefusing = 2;
  for (unsigned k = 2; k <= 20; ++k) {
    Prng prng(k);
    std::vector<Group> groups;
    std::vector<std::uint32_t> kept;
    for (std::size_t i = 0; i < kGroups; ++i) {
      std::vector<Group::Tag> tags = All({kRule, merit::kAsked, true});
      const std::size_t a = prng.Below(kCellsPerGroup), b = (a + 1 + prng.Below(kCellsPerGroup - 1)) % kCellsPerGroup;
      tags[a].merit = tags[b].merit = merit::kMax;
      groups.emplace_back(tags).merits.SetHand(prng.Below(kCellsPerGroup));
      kept.push_back(1u << a | 1u << b);
    }
    std::size_t queries = 0, gone = 0;
    for (; gone < kGroups * kRefusing / 2; queries += k) {
      const std::size_t i = prng.Below(kGroups), cell = groups[i].Replace(kRule, true);
      gone += kept[i] >> cell & 1;
      kept[i] &= ~(1u << cell);
      for (unsigned times = 1; times < k; ++times) groups[i].merits.Refused(cell);
    }
    CAPTURE(k);
    CHECK(static_cast<double>(queries) / static_cast<double>(kGroups * kCellsPerGroup) >= 7);
  }
}

}    // namespace
}    // namespace dthrottle
