// Chooses the tag to forget when a group of the table is full and a tag that asks needs its cells.
//
// The obvious choices fail. A bucket in debt that is never forgotten can be used to fill the table: then newcomers find
// no room, and a newcomer without a bucket has no limit. The least drained bucket first thrashes: the newcomer is the
// least drained, so it is the next to go. A random bucket washes out, sooner or later, the very tag that the limiter is
// there for, because a flood draws often. Refusing newcomers lets a flood of a few hundred tags a second deny everybody
// else a first burst.
//
// The idea has three parts. *Rules share fairly*: the rule with most cells in the group gives them, and the newcomer
// takes from its own rule when that has as many, so a flood under one rule consumes the cells of that rule. *What never
// had to be refused goes first*: each cell has a merit, which a refusal by its bucket raises and which a served query
// leaves alone, so a flood of tags that ask once finds its own tags at the bottom and never reaches a tag that keeps
// asking. *A forgotten tag is served one burst, once*, and is remembered again; no tag stays without a bucket.
//
// Inside a rule, what only peers spoke of goes first, and of that a tag of the peer that told of most. Among the others
// the cells of the lowest value are a pool of at least a quarter of the rule's cells, and a hand goes round it: first
// in, first out, so a newcomer is the last of its pool to go. A flood whose tags are refused less often than the
// abusers of before replaces its own tags for ever; a flood whose tags are refused as often pays a dozen queries for
// each. Merits begin anew only when every tag of the rule has the highest, because they say nothing then.
//
// A tag that a peer tells of takes the place of other peers' tags only (Hearsay). *Peers share fairly* too: the peer
// with most cells in the group gives them, and the newcomer's own does unless another one has more. So one peer alone
// may fill the table, and then is the one that makes way for the others.
//
// A newcomer may lie in either of two groups. Where the first would give a tag that was refused, or one of another
// rule, the cheaper of the two gives (Sacrifice): tags of a quiet rule may have most of a group's cells by chance, and
// a flood of another rule goes past them then.
//
// Merits, the hand and the count of refusals are hints. Any value of them is legal, a torn one too; they need no order
// of stores.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace dthrottle {

inline constexpr std::size_t kCellsPerGroup = 24;

// What a tag has done on this host to be remembered.
namespace merit {
inline constexpr unsigned kHeard = 0;      // nothing: only peers spoke of it
inline constexpr unsigned kAsked = 1;      // it was asked here, and served
inline constexpr unsigned kRefused = 2;    // its bucket refused it once; each refusal more is one more,
inline constexpr unsigned kOften = 5;      // up to here; then every fourth refusal in the group raises the tag refused
inline constexpr unsigned kMax = 7;        // some twelve refusals
}    // namespace merit

// The merits of a group's cells, of 3 bits each, then the hand and a count of refusals in one byte: ten bytes of the
// group's first cache line. Zeros are what a table has that was made before there were merits.
class Merits {
 public:
  unsigned at(std::size_t cell) const { return Pair(cell) >> Shift(cell) & merit::kMax; }

  void Set(std::size_t cell, unsigned to) {
    const unsigned pair = (Pair(cell) & ~(merit::kMax << Shift(cell))) | to << Shift(cell);
    bytes_[cell * 3 / 8] = static_cast<std::uint8_t>(pair);
    bytes_[cell * 3 / 8 + 1] = static_cast<std::uint8_t>(pair >> 8);
  }

  void Asked(std::size_t cell) {
    if (at(cell) < merit::kAsked) Set(cell, merit::kAsked);
  }

  void Refused(std::size_t cell) {
    const unsigned before = at(cell);
    if (before == merit::kMax || (before >= merit::kOften && !IsFourth())) return;
    Set(cell, std::max(before + 1, merit::kRefused));
  }

  // The cell at which the search for the next one to go begins.
  std::size_t hand() const { return (bytes_[kHand] & kHandMask) % kCellsPerGroup; }
  void SetHand(std::size_t cell) {
    bytes_[kHand] = static_cast<std::uint8_t>((bytes_[kHand] & ~kHandMask) | cell % kCellsPerGroup);
  }

 private:
  static constexpr std::size_t kHand = kCellsPerGroup * 3 / 8;
  static constexpr unsigned kHandMask = 31, kRefusal = kHandMask + 1, kFourth = 4 * kRefusal;

  // Counts a refusal of a tag that was refused often. Tags of a group share the count, so its phase is known to nobody.
  bool IsFourth() {
    const unsigned next = (bytes_[kHand] & (kFourth - 1)) + kRefusal;
    bytes_[kHand] = static_cast<std::uint8_t>(next % kFourth);
    return next >= kFourth;
  }

  static unsigned Shift(std::size_t cell) { return static_cast<unsigned>(cell * 3 % 8); }

  // The two bytes that a merit may lie across. Behind the last of them is the hand, which is written as it was read.
  unsigned Pair(std::size_t cell) const {
    return bytes_[cell * 3 / 8] | static_cast<unsigned>(bytes_[cell * 3 / 8 + 1]) << 8;
  }

  std::array<std::uint8_t, kHand + 1> bytes_{};
};

static_assert(sizeof(Merits) == 10);

// The code of the peer that told of a tag. Above 255 peers, several share a code and its part.
using Teller = std::uint8_t;
inline constexpr Teller kNoTeller = 0;    // no peer in particular, or one that is not known any more
constexpr Teller TellerOf(std::uint32_t peer) {
  return static_cast<Teller>(1 + peer % 255);
}

// What a bucket may claim when room is short.
struct Claim {
  std::uint32_t rule;    // which rules share by; overrides are their rule's
  bool half_spent;       // more than half of its burst is spent: forgetting it forgives much
};

// What making room in a group costs. The lower of two is the cheaper.
struct Sacrifice {
  unsigned merit;          // the highest of the tags that go
  bool of_another_rule;    // one of these tags is under a rule that is not the newcomer's

  friend auto operator<=>(const Sacrifice&, const Sacrifice&) = default;
};

// The tags of a group while room is made in it for a newcomer.
class Crowd {
 public:
  Crowd(std::uint32_t newcomers_rule, std::size_t newcomers_cells)
      : own_(Class(newcomers_rule)), newcomers_cells_(newcomers_cells) {}

  void Add(std::size_t first, std::size_t cells, const Claim& claim, Teller teller = kNoTeller);

  // What the tags cost that would be chosen until the newcomer has its cells, of which `free` are there already.
  Sacrifice Cost(Merits merits, std::size_t free) const;

  struct Victim {
    std::size_t first, cells;
    unsigned merit;    // that it had; choosing may take some from all
    bool of_another_rule;
  };

  // Chooses a tag to be forgotten, and takes it out. REQUIRES: there is one.
  Victim Choose(Merits& merits);

 private:
  // Above 64 rules, several share a class and its quota.
  static constexpr std::size_t kClasses = 64;
  static std::uint8_t Class(std::uint32_t rule) { return static_cast<std::uint8_t>(rule % kClasses); }

  struct Member {
    std::uint32_t cells;    // a bit for each
    std::uint8_t rule;
    Teller teller;
    bool half_spent;
  };

  std::uint8_t Largest() const;
  std::uint32_t OfTellerWithMost(std::uint32_t pool) const;

  std::uint8_t own_;
  std::size_t newcomers_cells_;
  std::uint32_t firsts_ = 0;                         // a bit for each member's first cell
  std::array<Member, kCellsPerGroup> members_;       // by first cell
  std::array<std::uint8_t, kClasses> cells_of_{};    // by class, without the newcomer's
};

// The tags of a group that only peers spoke of, while a peer tells of one more.
class Hearsay {
 public:
  Hearsay(Teller newcomers, std::size_t newcomers_cells) : own_(newcomers), newcomers_cells_(newcomers_cells) {}

  void Add(std::size_t first, std::size_t cells, Teller teller);

  // Chooses a tag to be forgotten, and takes it out: one of the peer with most cells, which `chance` decides. Returns
  // its first cell, or none if no peer has more than the newcomer's and that one has nothing to give.
  std::optional<std::size_t> Choose(std::uint32_t chance);

 private:
  struct Member {
    std::uint8_t cells;
    Teller teller;
  };

  Teller own_;
  std::size_t newcomers_cells_;
  std::uint32_t firsts_ = 0;                      // a bit for each member's first cell
  std::array<Member, kCellsPerGroup> members_;    // by first cell
  std::array<std::uint8_t, 256> cells_of_{};      // by teller, without the newcomer's
};

}    // namespace dthrottle
