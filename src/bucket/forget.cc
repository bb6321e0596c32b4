#include "bucket/forget.h"

#include <algorithm>

#include "base/check.h"

namespace dthrottle {

namespace {

constexpr std::size_t kPoolPart = 4;    // a pool is at least a quarter of the rule's cells
constexpr std::size_t kValues = 2 * (merit::kMax + 1);

}    // namespace

void Crowd::Add(std::size_t first, std::size_t cells, const Claim& claim) {
  const std::uint8_t rule = Class(claim.rule);
  members_[first] = {((1u << cells) - 1) << first, rule, claim.half_spent};
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
  for (; pool == 0 && value < 2 * merit::kAsked; ++value) pool = cells_by_value[value];
  const bool is_hearsay = pool != 0;
  for (; !is_hearsay && static_cast<std::size_t>(std::popcount(pool)) * kPoolPart < cells_of_[rule]; ++value) {
    pool |= cells_by_value[value];
  }

  const std::uint32_t firsts = pool & of_rule, behind = firsts & (~0u << merits.hand());
  const auto chosen = static_cast<std::size_t>(std::countr_zero(behind != 0 ? behind : firsts));
  const Victim victim{chosen, merits.at(chosen)};
  const auto cells = static_cast<std::size_t>(std::popcount(members_[chosen].cells));
  merits.SetHand(chosen + cells);

  if (const auto best = static_cast<unsigned>((value - 1) / 2); best > merit::kAsked) {
    for (std::uint32_t left = of_rule; left != 0; left &= left - 1) {
      const auto first = static_cast<std::size_t>(std::countr_zero(left));
      const unsigned before = merits.at(first), lost = best - merit::kAsked;
      if (before > merit::kAsked) merits.Set(first, std::max(before, lost + merit::kAsked) - lost);
    }
  }

  firsts_ &= ~(1u << chosen);
  cells_of_[rule] = static_cast<std::uint8_t>(cells_of_[rule] - cells);
  return victim;
}

}    // namespace dthrottle
