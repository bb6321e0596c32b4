#include "plan/analysis.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "capacity/gain.h"

namespace dthrottle::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::uint64_t kStepsBetweenLooks = 1'000'000;    // of one node or link

// The eigenvalue of (L - gamma/2 L^2)^+ that belongs to one of L.
double Inverse(double lambda, double gamma) {
  return 1 / (lambda - gamma / 2 * lambda * lambda);
}

// d/dgamma of the sum of 1 / (gamma lambda (2 - gamma lambda)), but for a positive factor: rises with gamma.
double Descent(const Spectrum& spectrum, double gamma) {
  double sum = 0;
  for (std::size_t k = 1; k < spectrum.size(); ++k) {
    const double u = gamma * spectrum.values[k];
    sum += (u - 1) / (u * (2 - u) * (2 - u));
  }
  return sum;
}

// Normal numbers, two at a time (Box and Muller).
class Normal {
 public:
  double operator()(Prng& prng) {
    if (std::exchange(has_spare_, !has_spare_)) return spare_;
    const double radius = std::sqrt(-2 * std::log1p(-Uniform(prng)));
    const double angle = 2 * std::numbers::pi * Uniform(prng);
    spare_ = radius * std::sin(angle);
    return radius * std::cos(angle);
  }

 private:
  static double Uniform(Prng& prng) { return static_cast<double>(prng.Next() >> 11) * 0x1p-53; }

  bool has_spare_ = false;
  double spare_ = 0;
};

double SquaredDistancesFromMean(std::span<const double> p) {
  const double mean = std::accumulate(p.begin(), p.end(), 0.0) / static_cast<double>(p.size());
  double sum = 0;
  for (const double value : p) sum += (value - mean) * (value - mean);
  return sum;
}

}    // namespace

double ConvergenceFactor(const Ends& ends, double gamma) {
  return std::max(std::abs(1 - gamma * ends.lambda_2), std::abs(1 - gamma * ends.lambda_n));
}

std::optional<std::uint64_t> RoundsTo(double fraction, double convergence_factor) {
  DT_CHECK(fraction > 0 && fraction < 1);
  if (convergence_factor >= 1) return std::nullopt;
  if (convergence_factor <= fraction) return 1;
  const double rounds = std::ceil(std::log(fraction) / std::log(convergence_factor));
  return rounds < 1e18 ? std::optional(static_cast<std::uint64_t>(rounds)) : std::nullopt;
}

double FastestCycle(const Ends& ends) {
  return 2 / (ends.lambda_2 + ends.lambda_n);
}

double Dispersion(const Spectrum& spectrum, double gamma, std::span<const double> variances) {
  DT_CHECK(variances.size() == spectrum.size());
  if (!Stable(gamma, LambdaN(spectrum))) return kInfinity;
  const std::vector<double> c = Centrality(spectrum, gamma);
  return std::inner_product(c.begin(), c.end(), variances.begin(), 0.0) / (2 * gamma);
}

// Tr((L - gamma/2 L^2)^+ Cov) / (2 gamma), in the eigenvectors of L.
double CovariantDispersion(const Spectrum& spectrum, double gamma, std::span<const double> covariance) {
  const std::size_t n = spectrum.size();
  DT_CHECK(covariance.size() == n * n);
  if (!Stable(gamma, LambdaN(spectrum))) return kInfinity;
  double trace = 0;
  for (std::size_t k = 1; k < n; ++k) {
    double along = 0;    // of the covariance, along the eigenvector
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) along += spectrum.at(k, i) * covariance[i * n + j] * spectrum.at(k, j);
    }
    trace += Inverse(spectrum.values[k], gamma) * along;
  }
  return trace / (2 * gamma);
}

double Dispersion(const Spectrum& spectrum, double gamma, double variance) {
  if (!Stable(gamma, LambdaN(spectrum))) return kInfinity;
  double trace = 0;
  for (std::size_t k = 1; k < spectrum.size(); ++k) trace += Inverse(spectrum.values[k], gamma);
  return trace * variance / (2 * gamma);
}

std::vector<double> Centrality(const Spectrum& spectrum, double gamma) {
  std::vector<double> c(spectrum.size(), 0.0);
  if (!Stable(gamma, LambdaN(spectrum))) {
    std::ranges::fill(c, kInfinity);
    return c;
  }
  for (std::size_t k = 1; k < spectrum.size(); ++k) {
    for (std::size_t i = 0; i < c.size(); ++i) {
      c[i] += Inverse(spectrum.values[k], gamma) * spectrum.at(k, i) * spectrum.at(k, i);
    }
  }
  return c;
}

double SteadiestCycle(const Spectrum& spectrum) {
  double low = 1 / LambdaN(spectrum);
  double high = std::min(1 / Lambda2(spectrum), 2 / LambdaN(spectrum));
  for (int i = 0; i < 100; ++i) {    // doubles have no more bits
    const double middle = (low + high) / 2;
    (Descent(spectrum, middle) < 0 ? low : high) = middle;
  }
  return (low + high) / 2;
}

std::vector<double> EffectiveResistances(const Spectrum& spectrum) {
  const std::size_t n = spectrum.size();
  std::vector<double> r = Apply(
      spectrum, [](double lambda) { return 1 / lambda; }, 1);
  std::vector<double> diagonal;
  for (std::size_t i = 0; i < n; ++i) diagonal.push_back(r[i * n + i]);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) r[i * n + j] = i == j ? 0 : diagonal[i] + diagonal[j] - 2 * r[i * n + j];
  }
  return r;
}

double SmallCycleDispersion(const Spectrum& spectrum, double variance) {
  double trace = 0;    // the total effective resistance is n times this
  for (std::size_t k = 1; k < spectrum.size(); ++k) trace += 1 / spectrum.values[k];
  return variance / 2 * trace;
}

double ExpectedOverThrottling(std::size_t nodes, double dispersion, double limit_total) {
  return 100 * std::sqrt(static_cast<double>(nodes) * dispersion) / (std::sqrt(2 * std::numbers::pi) * limit_total);
}

std::optional<Estimate> SimulateDispersion(const Graph& graph, double gamma, std::span<const double> variances,
                                           const Simulation& simulation, Prng& prng, const Going& going) {
  const std::uint64_t rounds = simulation.rounds;
  const std::uint64_t batches = std::min(kBatchesMax, rounds / simulation.batch_min);
  DT_CHECK(variances.size() == graph.size() && batches >= kBatchesMin);
  std::vector<double> p(graph.size(), 0.0);
  std::vector<double> deviations;
  for (const double variance : variances) deviations.push_back(std::sqrt(variance));
  Normal normal;
  std::vector<double> move(graph.size());
  const auto round = [&] {
    std::ranges::fill(move, 0.0);
    for (const WeightedLink& link : graph.links()) {
      const double flow = gamma * link.weight * (p[link.a] - p[link.b]);
      move[link.a] -= flow;
      move[link.b] += flow;
    }
    for (std::size_t i = 0; i < p.size(); ++i) p[i] += move[i] + deviations[i] * normal(prng);
    return SquaredDistancesFromMean(p);
  };
  const std::uint64_t settling = rounds / 10, batch = rounds / batches;
  const std::uint64_t step = 1 + kStepsBetweenLooks / (graph.size() + graph.links().size());
  double total = 0, sum = 0, squares = 0;
  std::uint64_t done = 0;    // batches
  for (std::uint64_t i = 1; i <= settling + batches * batch; ++i) {
    const double distances = round();
    if (going && i % step == 0 &&
        !going("simulating", static_cast<double>(i) / static_cast<double>(settling + rounds))) {
      break;
    }
    if (i <= settling) continue;
    total += distances;
    if ((i - settling) % batch != 0) continue;
    const double mean = std::exchange(total, 0) / static_cast<double>(batch);
    sum += mean;
    squares += mean * mean;
    ++done;
  }
  if (done < 2) return std::nullopt;
  const auto count = static_cast<double>(done);
  const double mean = sum / count;
  const double variance = std::max(0.0, squares / count - mean * mean) / (count - 1);
  return Estimate{mean, std::sqrt(variance)};
}

}    // namespace dthrottle::plan
