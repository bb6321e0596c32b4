#include "share/pace.h"

#include <algorithm>
#include <cmath>

#include "base/math.h"

namespace dthrottle {

namespace {

// Found by simulation over the workloads of test/bench/accuracy_bench.cc, at a period of 1 s.
constexpr double kDemandMemory = 0.7;    // s
constexpr double kRelax = 0.15;          // s
// A peer uses an announced demand until the next report, and each report corrects the level at once. Both times are
// therefore counted in periods where reports are rare. Beyond 4 s the mean would outlast most bursts.
constexpr double kPeriodMin = 1, kDemandMemoryMax = 4;

constexpr Tokens kCreditPlenty = 2, kCreditRationed = 1, kCreditOfAll = 4;    // the latter divided by root_hosts
// Where reports are rare, peers go on foretelling what a host earned and forgot, and the level is believed too low. The
// cap grows from a period of 1 s to one of 4 s, and all hosts together stay within 0.3 of the burst.
constexpr Tokens kCreditRare = 3;
constexpr double kCreditOfBurst = 0.3, kRareFrom = 1, kRareUntil = 4;

constexpr double kTargetNoise = 0.12;    // of root_hosts thresholds
// Parts of the burst. The least grows with root_hosts: few hosts have less that they have not heard of each other.
constexpr double kTargetLeast = 0.006, kTargetLeastMax = 0.0225, kTargetMax = 0.1;
constexpr double kThresholdOfBurst = 0.5;

// All hosts together may keep this part of the level to themselves: by simulation nothing is lost by it.
constexpr double kKept = 0.9;
// A tag is far from its limit while this part of its burst is left. Fewer tokens a host would spare hardly any frames.
constexpr double kFarLeft = 0.5;
constexpr Tokens kFarKeptMin = 3;
constexpr double kFarNews = 0.05;    // of the burst

// U, unless a rule says otherwise: 2 sqrt(N) bursts on all hosts together, as much as their chance differences are.
// With fewer than 4 a report would be due after each query, and every other one would wait for it.
constexpr double kUnheardOfBurst = 2;
constexpr Tokens kUnheardMin = 4;

// A client that goes from host to host leaves demand behind that is believed for a while, so hosts are not rationed
// until the level is low.
constexpr double kRationedOfRelax = 0.33, kRationedOfBurst = 0.1;

constexpr double kMarginNoise = 2;    // standard deviations of the demand that may be chance

}    // namespace

double Pace::demand_memory() const {
  return std::min(kDemandMemory * std::max(period / kPeriodMin, 1.0), kDemandMemoryMax);
}

double Pace::relax() const {
  return kRelax / kDemandMemory * demand_memory();
}

Tokens Pace::CreditMax(bool plenty) const {
  const Tokens least = (plenty ? kCreditPlenty : kCreditRationed) + kCreditOfAll / root_hosts;
  const double rare = std::clamp((period - kRareFrom) / (kRareUntil - kRareFrom), 0.0, 1.0);
  return std::max(least, rare * std::min(kCreditRare, kCreditOfBurst * burst / hosts()));
}

Tokens Pace::Target(Tokens delta) const {
  const double least = std::min(kTargetLeast * root_hosts, kTargetLeastMax);
  return std::clamp(kTargetNoise * root_hosts * delta, least * burst, kTargetMax * burst);
}

Tokens Pace::ThresholdMax() const {
  return std::max(kThresholdOfBurst * burst, kThresholdMin);
}

Tokens Pace::Kept(Tokens level) const {
  return kKept * level / hosts();
}

Tokens Pace::FarKept(Tokens level) const {
  const Tokens kept = Kept(level);
  return level >= kFarLeft * burst && kept >= kFarKeptMin ? kept : 0;
}

Tokens Pace::FarNews() const {
  return kFarNews * burst;
}

bool Pace::NearlyFull(Tokens level) const {
  return burst - level <= std::min(FarNews(), rate * period);
}

// What a host serves leaves what is foretold by the root of its number, by chance; so it strays as far as the threshold
// after the square of that. Reports at the end of a period and reports due to chance are independent, and each spares
// some of the others.
double Pace::EntriesAtRate() const {
  return std::hypot(1 / period, part() / Square(std::ceil(ThresholdMax())));
}

Tokens BurstOfEntries(double part, double entries) {
  return std::ceil(std::sqrt(part / entries)) / kThresholdOfBurst;
}

Tokens UnheardMaxOf(Tokens burst, double root_hosts) {
  return std::max(kUnheardMin, kUnheardOfBurst * burst / root_hosts);
}

Tokens BurstOfUnheardMin(double root_hosts) {
  return kUnheardMin * root_hosts / kUnheardOfBurst;
}

// For a Poisson load D below the rate r the depth of a bucket is exponential with mean D / (2 (r - D)). Bayes' rule
// with an estimate of variance v moves the level up by v / mean. D itself is only known to its noise s.
Tokens Margin(const Pace& pace, const Outlook& outlook) {
  const double demand = outlook.demand;
  if (demand <= 0) return 0;
  const double noise = std::sqrt(demand * outlook.cost / (2 * pace.demand_memory()));
  const double spare = pace.rate + kMarginNoise * noise - demand;
  if (spare <= 0) return 0;
  const double variance =
      std::clamp(pace.hosts() * outlook.delta * outlook.delta / 3, 0.0, std::max(outlook.foretold, 0.0));
  return std::min(pace.burst, 2 * variance * spare / demand);
}

double ShareOf(const Pace& pace, double demand, Tokens level, Tokens target) {
  const double given = std::max(pace.rate + (level - target) / pace.relax(), 0.0);
  return demand > given ? given / demand : 1;
}

Tokens RationedBelow(const Pace& pace, double demand, Tokens target) {
  return target + std::max(kRationedOfRelax * pace.relax() * (demand - pace.rate), kRationedOfBurst * pace.burst);
}

// It has three parts: while there is plenty, p is 1 and the level falls; then the level goes to the target
// exponentially; far below the target p is 0 and the level rises.
double Earned(const Pace& pace, double demand, Tokens level, Tokens target, double dt) {
  if (demand <= 0) return dt;
  const double relax = pace.relax();
  double earned = 0;
  if (const double plenty = target + relax * (demand - pace.rate); level >= plenty) {
    const double lasts = demand > pace.rate ? std::min(dt, (level - plenty) / (demand - pace.rate)) : dt;
    earned += lasts;
    dt -= lasts;
    level = plenty;
  } else if (const double nothing = target - relax * pace.rate; level < nothing) {
    dt -= std::min(dt, (nothing - level) / pace.rate);
    level = nothing;
  }
  return earned + std::min(dt, (pace.rate * dt + (level - target) * (1 - std::exp(-dt / relax))) / demand);
}

}    // namespace dthrottle
