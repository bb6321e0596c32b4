// How many places go with a part of a limit. A host has the places of its reserve, whole ones only; all others are
// divided as hosts divide what is beyond their reserves. So one host that has all of that has all of these places, though
// the others keep their reserves, which may be too small for a place.
//
// Parts move until next to nothing is left of them, so a host that lacks less than 1 / (hosts + 1) of a place has it. That
// is never one too many: all hosts together lack less than one place then, and places are whole.
#pragma once

#include <algorithm>
#include <cstdint>

#include "capacity/capacity_exchange.h"

namespace dthrottle {

class PlaceUnits {
 public:
  // For a limit with so many places, of which every host keeps `reserve`.
  PlaceUnits(const CapacityStanding& standing, std::uint32_t reserve, std::uint32_t in_flight)
      : reserve_(reserve),
        reserve_part_(Whole(standing.reserve)),
        divided_(Whole(standing.divided)),
        lacks_(1 / static_cast<double>(standing.hosts + standing.absent + 1) - kRounding) {
    const auto aside = static_cast<std::uint64_t>(Whole(standing.aside) * in_flight + kRounding);
    const std::uint64_t kept = standing.hosts * reserve + standing.absent * std::max<std::uint64_t>(aside, reserve);
    if (standing.divided > 0 && kept < in_flight) rest_ = static_cast<std::uint32_t>(in_flight - kept);
  }

  // Places whatever happens, and those that hosts divide.
  std::uint32_t reserve() const { return reserve_; }
  std::uint32_t rest() const { return rest_; }

  // The places of this part of the limit, reserve included.
  std::uint32_t Of(double part) const {
    if (rest_ == 0) return reserve_;
    const double beyond = std::clamp((part - reserve_part_) / divided_, 0.0, 1.0) * rest_;
    return reserve_ + std::min(rest_, static_cast<std::uint32_t>(beyond + lacks_));
  }

  // The part that so many places need.
  double PartOf(std::uint32_t places) const {
    if (places <= reserve_) return 0;
    return rest_ == 0 ? 1 : reserve_part_ + divided_ * std::min(places - reserve_, rest_) / rest_;
  }

 private:
  static constexpr double kRounding = 1e-6;    // parts are rounded down

  static double Whole(Parts parts) { return static_cast<double>(parts) / static_cast<double>(kWhole); }

  const std::uint32_t reserve_;
  const double reserve_part_, divided_, lacks_;    // parts of the limit; of a place
  std::uint32_t rest_ = 0;
};

}    // namespace dthrottle
