// How badly a limiter is doing with the capacity it has: GDRL's q_i = f_i(C_i), DST's p_i (Table 1).
//
// Larger is worse, and capacity moves toward the worse. Convergence needs f decreasing, convex and continuously
// differentiable in the capacity (GDRL Assumption 1); whatever keeps that can be an Indicator. DST's case IV, the
// allowed amount, increases: it concentrates capacity instead of levelling it and has a round of its own
// (AllowedAmountRound in transfer.h).
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace dthrottle {

// One limiter for one round. Both in requests/s, or both in requests per cycle as DST counts them.
struct Load {
  double demand = 0;      // lambda_i, r_i; >= 0
  double capacity = 0;    // C_i, x_i
};

class Indicator {
 public:
  virtual ~Indicator() = default;

  // The name in settings and output.
  virtual std::string_view name() const = 0;
  // Where the formula means something. A limiter for which it does not takes no part in the round.
  virtual bool Defined(const Load& load) const = 0;
  // q = f(capacity). REQUIRES: Defined(load).
  virtual double Value(const Load& load) const = 0;
  // g(q) = f^-1(q): the capacity with which this demand is as badly off as q (GDRL eq (5)).
  virtual double Capacity(double demand, double q) const = 0;
  // -g'(q) >= 0: capacity that one unit of q is worth, at q. Decreases with q, as g is convex.
  virtual double InverseSlope(double demand, double q) const = 0;
};

// DST case I, eq (11), and GDRL's spare bandwidth, eq (14): demand - capacity, requests/s. Always defined.
const Indicator& ThrottledAmount();
// DST case II, eq (39): (demand - capacity) / demand, no unit. Needs demand > 0.
const Indicator& ThrottledRatio();
// DST case III, eq (43): ln(demand / capacity), no unit. Needs demand > 0 and capacity > 0.
const Indicator& LogRatio();
// GDRL section III-A: mean response time of an M/M/1 queue, 1 / (capacity - demand), seconds. Needs capacity > demand:
// below that the queue has no mean, so the first shares must leave spare capacity everywhere. GDRL's own equal split
// does not (in its ring of 10 the nodes from 7 on demand more than C/N).
const Indicator& ResponseTime();

// What the application says of itself: any measure above 0 that falls with the capacity, such as a response time. Told
// as the demand; the indicator is its logarithm, so a gain does not depend on the measure's unit, and measures are equal
// where their logarithms are. How steep it is nobody knows here: InverseSlope is 1, and the gain is the operator's.
const Indicator& Reported();
// A measure as an application writes it: a number above 0, at most 10^12.
std::optional<double> ReadReport(std::string_view text);

// All of the above that a formula has; spare bandwidth is the throttled amount under its other name.
std::span<const Indicator* const> Indicators();
// By name(), "reported" too, or "spare-bandwidth"; nullptr if there is none.
const Indicator* FindIndicator(std::string_view name);

}    // namespace dthrottle
