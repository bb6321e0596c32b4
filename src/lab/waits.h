// How long questions waited, in constant memory: quantiles are at most 1/64 too long.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace dthrottle::lab {

class Waits {
 public:
  // REQUIRES: wait >= 0.
  void Add(Duration wait) {
    ++counts_[IndexOf(static_cast<std::uint64_t>(wait.count()))];
    ++count_;
    longest_ = std::max(longest_, wait);
  }

  std::uint64_t count() const { return count_; }
  Duration longest() const { return longest_; }

  // The part `q` of all waited no longer. REQUIRES: count() > 0, 0 < q <= 1.
  Duration Quantile(double q) const {
    const double wanted = q * static_cast<double>(count_);
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (seen > 0 && static_cast<double>(seen) >= wanted) return std::min(EndOf(i), longest_);
    }
    return longest_;
  }

 private:
  // A number of ns is 2^shift x [kParts, 2 x kParts), or smaller than that without a shift.
  static constexpr std::uint64_t kParts = 64;
  static constexpr int kPartBits = 7;    // of 2 x kParts

  static std::size_t IndexOf(std::uint64_t ns) {
    const int shift = std::max(static_cast<int>(std::bit_width(ns)) - kPartBits, 0);
    return static_cast<std::size_t>(shift) * kParts + static_cast<std::size_t>(ns >> shift);
  }
  static Duration EndOf(std::size_t index) {
    const std::size_t shift = index < 2 * kParts ? 0 : index / kParts - 1;
    const std::uint64_t part = index - shift * kParts;
    return Duration(static_cast<Duration::rep>(((part + 1) << shift) - 1));
  }

  std::array<std::uint64_t, (64 - kPartBits + 2) * kParts> counts_{};
  std::uint64_t count_ = 0;
  Duration longest_{};
};

}    // namespace dthrottle::lab
