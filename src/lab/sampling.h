// What chance is shaped into.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/prng.h"
#include "base/time.h"

namespace dthrottle::lab {

// Uniform over [0, 1).
inline double Uniform(Prng& prng) {
  return static_cast<double>(prng.Next() >> 11) * 0x1p-53;
}

// Uniform over [0, bound]; zero if there is no bound.
inline Duration Uniform(Duration bound, Prng& prng) {
  return bound <= Duration::zero()
             ? Duration::zero()
             : Duration(static_cast<Duration::rep>(prng.Below(static_cast<std::uint64_t>(bound.count()) + 1)));
}

inline bool Happens(double probability, Prng& prng) {
  return probability > 0 && Uniform(prng) < probability;
}

// Exponentially distributed, mean 1.
inline double Exponential(Prng& prng) {
  return -std::log1p(-Uniform(prng));
}

// Normally distributed, mean 0 and standard deviation 1 (Box and Muller).
inline double Normal(Prng& prng) {
  const double radius = std::sqrt(2 * Exponential(prng));
  return radius * std::cos(2 * std::numbers::pi * Uniform(prng));
}

// Ranks 0 .. n-1, of which rank k comes with a weight of (k + 1)^-exponent.
class Zipf {
 public:
  Zipf(std::size_t n, double exponent) {
    double sum = 0;
    for (std::size_t k = 0; k < n; ++k) sums_.push_back(sum += std::pow(static_cast<double>(k + 1), -exponent));
  }

  std::size_t operator()(Prng& prng) const {
    const auto at = std::upper_bound(sums_.begin(), sums_.end(), Uniform(prng) * sums_.back());
    return std::min(static_cast<std::size_t>(at - sums_.begin()), sums_.size() - 1);
  }

 private:
  std::vector<double> sums_;
};

}    // namespace dthrottle::lab
