#include "capacity/gain.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace dthrottle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kAtLimit = 1e-12;    // of the limit; eigenvalues are not known better

}    // namespace

double LocalGainMax(double inverse_slope, double strength) {
  DT_CHECK(inverse_slope >= 0 && strength >= 0);
  return strength > 0 ? inverse_slope / (2 * strength) : kInfinity;
}

double GdrlGainMax(const Graph& graph, std::span<const double> inverse_slopes) {
  DT_CHECK(inverse_slopes.size() == graph.size());
  return LocalGainMax(*std::ranges::min_element(inverse_slopes), graph.StrengthMax());
}

double SpareBandwidthGainMax(const Graph& graph) {
  return LocalGainMax(1, graph.StrengthMax());
}

double PairwiseGainMax(std::span<const double> inverse_slopes, double weight_max) {
  DT_CHECK(!inverse_slopes.empty());
  return LocalGainMax(*std::ranges::min_element(inverse_slopes), weight_max);
}

bool Stable(double gamma, double lambda_max) {
  return gamma > 0 && gamma * lambda_max < 2 * (1 - kAtLimit);
}

double StableGammaWithoutSpectrum(const Graph& graph) {
  double bound = kInfinity;
  for (const WeightedLink& link : graph.links()) {
    bound = std::min(bound, 2 / (graph.Strength(link.a) + graph.Strength(link.b)));
  }
  return bound;
}

}    // namespace dthrottle
