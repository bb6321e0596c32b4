#include "bucket/forget.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace dthrottle {

namespace {

constexpr std::size_t kPoolPart = 4;    // a pool is at least a quarter of the rule's cells
constexpr std::size_t kValues = 2 * (merit::kMax + 1);

}    // namespace

void Crowd::Add(std::size_t first, std::size_t cells, const Claim& claim, Teller teller) {
  const std::uint8_t rule = Class(claim.rule);
  members_[first] = {((1u << cells) - 1) << first, rule, teller, claim.half_spent};
  firsts_ |= 1u << first;
  cells_of_[rule] = static_cast<std::uint8_t>(cells_of_[rule] + cells);
}

// The rule that has most cells here, the newcomer's own counted with it; its own in a tie. A rule without a tag here
// has nothing to give.
std::uint8_t Crowd::Largest() const {
  std::uint8_t largest = own_;
  std::size_t most = cells_of_[own_] == 0 ? 0 : cells_of_[own_] + newcomers_cells_;
  for (std::uint32_t left = firsts_; left != 0; left &= left - 1) {
    const std::uint8_t rule = members_[static_cast<std::size_t>(std::countr_zero(left))].rule;
    if (rule == own_ || cells_of_[rule] <= most) continue;
    largest = rule;
    most = cells_of_[rule];
  }
  return largest;
}

// The cells of the pool whose tags the peer told of that told of most of them.
std::uint32_t Crowd::OfTellerWithMost(std::uint32_t pool) const {
  std::uint32_t of_most = 0;
  for (std::uint32_t left = pool & firsts_; left != 0;) {
    const Teller teller = members_[static_cast<std::size_t>(std::countr_zero(left))].teller;
    std::uint32_t cells = 0;
    for (std::uint32_t others = left; others != 0; others &= others - 1) {
      const Member& member = members_[static_cast<std::size_t>(std::countr_zero(others))];
      if (member.teller == teller) cells |= member.cells;
    }
    left &= ~cells;
    if (std::popcount(cells) > std::popcount(of_most)) of_most = cells;
  }
  return of_most;
}

Sacrifice Crowd::Cost(Merits merits, std::size_t free) const {
  Crowd left = *this;
  Sacrifice cost{merit::kHeard, false};
  while (free < newcomers_cells_) {
    const Victim victim = left.Choose(merits);
    cost = {std::max(cost.merit, victim.merit), cost.of_another_rule || victim.of_another_rule};
    free += victim.cells;
  }
  return cost;
}

Crowd::Victim Crowd::Choose(Merits& merits) {
  DT_CHECK(firsts_ != 0);
  const std::uint8_t rule = Largest();
  std::array<std::uint32_t, kValues> cells_by_value{};
  std::uint32_t of_rule = 0;
  for (std::uint32_t left = firsts_; left != 0; left &= left - 1) {
    const auto first = static_cast<std::size_t>(std::countr_zero(left));
    const Member& member = members_[first];
    if (member.rule != rule) continue;
    cells_by_value[2 * merits.at(first) + (member.half_spent ? 1 : 0)] |= member.cells;
    of_rule |= 1u << first;
  }

  // What only peers spoke of needs no pool: no newcomer that was asked is ever among it.
  std::uint32_t pool = 0;
  std::size_t value = 0;
  for (; pool == 0; ++value) pool = cells_by_value[value];
  const auto least = static_cast<unsigned>((value - 1) / 2);
  const bool is_hearsay = least == merit::kHeard;
  if (is_hearsay) pool = OfTellerWithMost(pool);
  for (; !is_hearsay && static_cast<std::size_t>(std::popcount(pool)) * kPoolPart < cells_of_[rule]; ++value) {
    pool |= cells_by_value[value];
  }

  const std::uint32_t firsts = pool & of_rule, behind = firsts & (~0u << merits.hand());
  const auto chosen = static_cast<std::size_t>(std::countr_zero(behind != 0 ? behind : firsts));
  const auto cells = static_cast<std::size_t>(std::popcount(members_[chosen].cells));
  const Victim victim{chosen, cells, merits.at(chosen), rule != own_};
  merits.SetHand(chosen + cells);

  for (std::uint32_t left = least == merit::kMax ? of_rule : 0; left != 0; left &= left - 1) {
    merits.Set(static_cast<std::size_t>(std::countr_zero(left)), merit::kAsked);
  }

  firsts_ &= ~(1u << chosen);
  cells_of_[rule] = static_cast<std::uint8_t>(cells_of_[rule] - cells);
  return victim;
}

void Hearsay::Add(std::size_t first, std::size_t cells, Teller teller) {
  members_[first] = {static_cast<std::uint8_t>(cells), teller};
  firsts_ |= 1u << first;
  cells_of_[teller] = static_cast<std::uint8_t>(cells_of_[teller] + cells);
}

std::optional<std::size_t> Hearsay::Choose(std::uint32_t chance) {
  Teller giver = own_;
  std::size_t most = cells_of_[own_] + newcomers_cells_;
  for (std::uint32_t left = firsts_; left != 0; left &= left - 1) {
    const Teller teller = members_[static_cast<std::size_t>(std::countr_zero(left))].teller;
    if (teller == own_ || cells_of_[teller] <= most) continue;
    giver = teller;
    most = cells_of_[teller];
  }
  std::uint32_t of_giver = 0;
  for (std::uint32_t left = firsts_; left != 0; left &= left - 1) {
    if (members_[static_cast<std::size_t>(std::countr_zero(left))].teller == giver) of_giver |= left & (~left + 1);
  }
  if (of_giver == 0) return std::nullopt;
  for (std::uint32_t skipped = chance % static_cast<std::uint32_t>(std::popcount(of_giver)); skipped > 0; --skipped) {
    of_giver &= of_giver - 1;
  }
  const auto chosen = static_cast<std::size_t>(std::countr_zero(of_giver));
  firsts_ &= ~(1u << chosen);
  cells_of_[giver] = static_cast<std::uint8_t>(cells_of_[giver] - members_[chosen].cells);
  return chosen;
}

}    // namespace dthrottle
