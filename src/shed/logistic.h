// Graceful degradation: with which probability to refuse a query when a host runs hot.
//
// Source: "Graceful degradation with the logistic function" (2022). Between two bounds of what is measured (there:
// bytes of memory) the probability of a rejection follows
//
//     f(x) = 1 / (1 + e^(-k (x - x0)))     x0 = (low + high) / 2     k = ln(99) / (high - x0)
//
// which is 0.01 at `low`, 0.5 in the middle and 0.99 at `high`: gentle where a host that is expected to run hot spends
// its time, and steep before it is too late. As in the last equation of the text it is cut off: 0 below `low`, 1 at and
// above `high`. So it steps from 0 to 0.01 and from 0.99 to 1.
//
// The code printed with the text is not that function. What it does, and what ours does instead:
//
//   - k = -log(1/.01 - 1) / (allocated - x0) is negative, for .01 belongs to the lower end: the curve falls. Ours is
//     derived from the upper end, as the text derives it, and rises.
//   - `x - x0` in uint64 is about 2^64 everywhere below the midpoint, so half of the curve is a constant. Ours is in
//     doubles; bytes below 2^53 are exact.
//   - It rejects everything only above allocated + range; the text from `high` on, and so does ours.
//   - allocated - range, for a range larger than what is allocated, is about 2^64 too, and nothing is ever rejected;
//     allocated + range can overflow to the opposite. Ours takes the two bounds and adds nothing.
//   - range / 2 is cut to a whole number, and a range of 1 divides by zero. Ours halves doubles; low == high is a step.
//   - `draw <= probability` rejects at probability 0 when the draw, from [0, 1), is 0. Ours is `<`: 0 is never, 1
//   always.
//   - The text's own k, .0000000415424043, is cut after six digits of ln 99, hence its f(low) = .01000000841. Ours is
//     .01 to the precision of a double.
#pragma once

#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "base/prng.h"

namespace dthrottle {

class LogisticCurve {
 public:
  // Bounds in the unit of what is measured. REQUIRES: low <= high, both finite.
  LogisticCurve(double low, double high) : low_(low), high_(high) {
    DT_CHECK(low <= high && std::isfinite(high - low));
  }

  // 0 to 1, never falling; NaN is no measurement and rejects nothing.
  double RejectionProbability(double x) const { return x >= high_ ? 1 : x >= low_ ? Unbounded(x) : 0; }

  // f(x), not cut off at the bounds. REQUIRES: low < high.
  double Unbounded(double x) const {
    constexpr double kL = 1;
    const double x0 = low_ + (high_ - low_) / 2;
    const double k = std::log(1 / kAtLow - 1) / (high_ - x0);
    return kL / (1 + std::exp(-k * (x - x0)));
  }

  // The part of the interval that is for step `i` of `n`: the n parts have equal lengths and no gaps.
  static LogisticCurve Step(double low, double high, std::size_t i, std::size_t n) {
    DT_CHECK(i < n);
    const auto bound = [=](std::size_t j) {
      return j == n ? high : low + (high - low) * static_cast<double>(j) / static_cast<double>(n);
    };
    return {bound(i), bound(i + 1)};
  }

  double low() const { return low_; }
  double high() const { return high_; }

 private:
  static constexpr double kAtLow = 0.01;    // f(low); f(high) is 1 less that

  double low_, high_;
};

// Whether this query is one of those to reject. Draws from `prng` only if there is a choice.
[[nodiscard]] inline bool Sheds(double probability, Prng& prng) {
  if (!(probability > 0)) return false;
  if (probability >= 1) return true;
  return static_cast<double>(prng.Next() >> 11) * 0x1p-53 < probability;
}

}    // namespace dthrottle
