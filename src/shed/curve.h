// Graceful degradation: with which probability to refuse a query when a host runs hot.
//
// Source: "Graceful degradation with the logistic function" (2022), which has three curves between two bounds of what
// is measured (there: bytes of memory):
//
//   step        1 from `low` on                 abrupt: what lies above `low` is never used
//   linear      (x - low) / (high - low)        refuses much where a host that runs hot spends its time
//   logistic    f(x) = 1 / (1 + e^(-k (x - x0)))     x0 = (low + high) / 2     k = ln(99) / (high - x0)
//
// The logistic one is 0.01 at `low`, 0.5 in the middle and 0.99 at `high`: gentle at first, and steep before it is too
// late. As in the text's last equation it is cut off: 0 below `low`, 1 from `high` on. So it steps from 0 to 0.01 and
// from 0.99 to 1.
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
//   - range / 2 is cut to a whole number. A range of 0 or 1 makes k infinite and the probability NaN at `allocated`,
//     which rejects nothing. Ours halves doubles, and low == high is a step.
//   - `draw <= probability` rejects at probability 0 when the draw, from [0, 1), is 0. Ours is `<`: 0 is never, 1
//   always.
//   - The text's own k, .0000000415424043, is cut after six digits of ln 99, hence its f(low) = .01000000841. Ours is
//     .01 to the precision of a double.
//   - The text's linear function has no upper bound, and exceeds 1 above `high`. Ours is cut off there.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/names.h"
#include "base/prng.h"

namespace dthrottle {

enum class CurveShape : std::uint8_t { kLogistic, kLinear, kStep };
DT_NAMES(CurveShape, "logistic", "linear", "step")

class ShedCurve {
 public:
  // Bounds in the unit of what is measured. REQUIRES: low <= high, both finite.
  ShedCurve(double low, double high, CurveShape shape = CurveShape::kLogistic) : low_(low), high_(high), shape_(shape) {
    DT_CHECK(low <= high && std::isfinite(high - low));
  }

  // 0 to 1, never falling; NaN is no measurement and rejects nothing.
  double RejectionProbability(double x) const { return x >= high_ ? 1 : x >= low_ ? Between(x) : 0; }

  // The logistic f(x), not cut off at the bounds. REQUIRES: low < high.
  double Logistic(double x) const {
    constexpr double kL = 1;
    const double x0 = low_ + (high_ - low_) / 2;
    const double k = std::log(1 / kAtLow - 1) / (high_ - x0);
    return kL / (1 + std::exp(-k * (x - x0)));
  }

  // The same shape over part `i` of `n` of the interval: the parts have equal lengths and no gaps.
  ShedCurve Part(std::size_t i, std::size_t n) const {
    DT_CHECK(i < n);
    const auto bound = [=, this](std::size_t j) {
      return j == n ? high_ : low_ + (high_ - low_) * static_cast<double>(j) / static_cast<double>(n);
    };
    return {bound(i), bound(i + 1), shape_};
  }

  double low() const { return low_; }
  double high() const { return high_; }
  CurveShape shape() const { return shape_; }

 private:
  static constexpr double kAtLow = 0.01;    // f(low); f(high) is 1 less that

  double Between(double x) const {
    if (shape_ == CurveShape::kStep) return 1;
    return shape_ == CurveShape::kLinear ? (x - low_) / (high_ - low_) : Logistic(x);
  }

  double low_, high_;
  CurveShape shape_;
};

// Whether this query is one of those to reject. Draws from `prng` only if there is a choice.
[[nodiscard]] inline bool Sheds(double probability, Prng& prng) {
  if (!(probability > 0)) return false;
  if (probability >= 1) return true;
  return static_cast<double>(prng.Next() >> 11) * 0x1p-53 < probability;
}

}    // namespace dthrottle
