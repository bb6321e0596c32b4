// What a graph and an update cycle promise: DST sections 4 and 5.1, from the Laplacian's eigenvalues.
//
// `gamma` is DST's server update cycle: requests/s (or requests per cycle) that move over a link of weight 1 in one
// round when the ends' indicators differ by one; above 0. All of it is about case I, where the rounds are linear.
// Every Spectrum is one of a connected graph with two nodes or more.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "capacity/graph.h"
#include "plan/spectrum.h"

namespace dthrottle::plan {

inline double Lambda2(const Spectrum& spectrum) {
  return spectrum.values[1];
}
inline double LambdaN(const Spectrum& spectrum) {
  return spectrum.values.back();
}

// Phi_cr, DST eq (15): by what factor differences shrink in a round in the end; 1 and more: they do not (Lemma 2).
double ConvergenceFactor(const Ends& ends, double gamma);

// Rounds until differences are `fraction` (0 to 1) of what they were, by eq (15); none if they never are. An estimate
// for the slowest mode: others fade sooner.
std::optional<std::uint64_t> RoundsTo(double fraction, double convergence_factor);

// DST eq (27): the gamma with the smallest Phi_cr, 2 / (lambda_2 + lambda_n).
double FastestCycle(const Ends& ends);

// Phi_ss, DST eq (20), for a diagonal Cov(v): expected sum of squared distances of the p_i from their mean when
// requests change by independent v_i each cycle. `variances` holds the v_i's, one a node. Infinite unless stable (Lemma
// 2).
//
// DST's Table 4 has Cov(v) = I. Its Remarks 2 and 3, eq (23) and (24), have Cov(v) = gamma sigma^2 I, which makes the
// values gamma times as large: 6.6959 where the table has 334.7965. So the variances are an argument.
double Dispersion(const Spectrum& spectrum, double gamma, std::span<const double> variances);
double Dispersion(const Spectrum& spectrum, double gamma, double variance);    // the same for all nodes
// The same where changes depend on each other: `covariance` has a row for each node, one after another.
double CovariantDispersion(const Spectrum& spectrum, double gamma, std::span<const double> covariance);

// c_ii of DST eq (23), Remark 2: how much the noise of each node adds to Phi_ss; one a node, above 0. Infinite unless
// stable.
std::vector<double> Centrality(const Spectrum& spectrum, double gamma);

// DST eq (31) for Cov(v) = variance I that does not depend on gamma: the gamma with the smallest Phi_ss. Between
// 1/lambda_n and the smaller of 1/lambda_2 and 2/lambda_n, whatever the variance.
//
// The bound below (31) is printed for Cov(v) = gamma sigma^2 I. There Phi_ss grows with gamma and has no minimum.
double SteadiestCycle(const Spectrum& spectrum);

// Effective resistances, DST eq (2); n x n by rows, zero on the diagonal.
std::vector<double> EffectiveResistances(const Spectrum& spectrum);

// DST eq (25): Phi_ss for gamma -> 0 with Cov(v) = gamma sigma^2 I, sigma^2 / (2 n) times the total effective
// resistance.
double SmallCycleDispersion(const Spectrum& spectrum, double variance);

// Percent of over-throttling to expect when demand sits at the limit: 100 sqrt(n Phi_ss) / (sqrt(2 pi) limit_total).
// Not in DST; the ratio of its Table 4's 6.2 and 2.8 % follows from it, and both with a limit of 372 in total.
double ExpectedOverThrottling(std::size_t nodes, double dispersion, double limit_total);

// Told what is being done, and which part of it is done, 0 to 1; false: end with what there is. Empty: nobody watches.
using Going = std::function<bool(std::string_view what, std::optional<double> part)>;

// An average over a simulation, and how sure it is.
struct Estimate {
  double mean = 0;
  double standard_error = 0;    // of batch means
};

// How many batches a simulation has. The standard error is right where a batch hardly depends on the one before,
// but of fewer batches it would often be too small where few modes are slow.
inline constexpr std::uint64_t kBatchesMin = 20, kBatchesMax = 64;

struct Simulation {
  std::uint64_t rounds = 0;       // at least kBatchesMin x batch_min
  std::uint64_t batch_min = 1;    // of these, in which differences fade; above 0
};

// Phi_ss by simulating eq (18) with normal v, after a tenth as many rounds to forget the start. `going` is asked every
// so many rounds; where it says no, the rounds until then count, or none are enough for an estimate. REQUIRES:
// Stable(gamma, LambdaN).
std::optional<Estimate> SimulateDispersion(const Graph& graph, double gamma, std::span<const double> variances,
                                           const Simulation& simulation, Prng& prng, const Going& going = {});

}    // namespace dthrottle::plan
