#include "plan/spectrum.h"

#include <Eigen/Eigenvalues>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace dthrottle::plan {

Spectrum Decompose(std::span<const double> matrix, std::size_t n) {
  DT_CHECK(matrix.size() == n * n && n > 0);
  const auto side = static_cast<Eigen::Index>(n);
  // Symmetric, so it does not matter that Eigen goes by columns.
  const Eigen::Map<const Eigen::MatrixXd> mapped(matrix.data(), side, side);
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(mapped.transpose());
  DT_CHECK(solver.info() == Eigen::Success);
  const Eigen::VectorXd& values = solver.eigenvalues();
  const Eigen::MatrixXd& vectors = solver.eigenvectors();
  return {{values.data(), values.data() + side}, {vectors.data(), vectors.data() + side * side}};
}

Spectrum Decompose(const Graph& graph) {
  DT_CHECK(graph.Connected());
  Spectrum spectrum = Decompose(graph.Laplacian(), graph.size());
  spectrum.values[0] = 0;
  return spectrum;
}

namespace {

// An eigenvalue of A, and the squared length of the part of c in its eigenspace.
struct Pole {
  double at;
  double weight;
};

// The root x of f(x) = 1 + sum weight_k / (at_k - x) between pole k and the one above it, or `limit`. There f rises
// from minus infinity; times the distances to the two poles it is finite at both ends, falls through 0, and is nearly a
// line, so regula falsi finds the root in some ten steps (Illinois: an end that stays for two steps counts half).
double SecularRoot(std::span<const Pole> poles, std::size_t k, double limit) {
  const bool last = k + 1 == poles.size();
  const double above = last ? limit : poles[k + 1].at;
  const auto f = [&](double x) {
    double sum = 1;
    for (const Pole& pole : poles) sum += pole.weight / (pole.at - x);
    return sum * (poles[k].at - x) * (last ? 1 : above - x);
  };
  double low = poles[k].at, high = above;
  double at_low = poles[k].weight * (last ? 1 : above - low),
         at_high = last ? f(above) : -poles[k + 1].weight * (above - low);
  int stayed = 0;    // steps in which only one end moved: below 0 the lower one
  for (int step = 0; step < 200; ++step) {
    const double x = low + (high - low) * (at_low / (at_low - at_high));
    if (!(x > low && x < high)) return std::clamp(x, low, high);
    const double at_x = f(x);
    if (at_x > 0) {
      if (x - low <= 4e-16 * std::abs(x)) return x;
      low = x, at_low = at_x;
      if (--stayed < -1) at_high /= 2;
      if (stayed >= 0) stayed = -1;
    } else {
      if (high - x <= 4e-16 * std::abs(x)) return x;
      high = x, at_high = at_x;
      if (++stayed > 1) at_low /= 2;
      if (stayed <= 0) stayed = 1;
    }
  }
  return low + (high - low) / 2;
}

}    // namespace

std::vector<double> ValuesAfterRankOne(const Spectrum& spectrum, std::span<const double> c) {
  const std::size_t n = spectrum.size();
  DT_CHECK(c.size() == n);
  const auto side = static_cast<Eigen::Index>(n);
  const Eigen::Map<const Eigen::MatrixXd> vectors(spectrum.vectors.data(), side, side);    // a column each
  const Eigen::Map<const Eigen::VectorXd> added(c.data(), side);
  const Eigen::VectorXd parts = vectors.transpose() * added;
  const double length = parts.squaredNorm();

  // An eigenvalue stays where c has no part in its eigenspace, and all but one of equal ones do.
  const double same = 1e-12 * (std::abs(spectrum.values.back()) + length);
  std::vector<double> values;
  std::vector<Pole> poles;
  for (std::size_t k = 0; k < n; ++k) {
    const double part = parts[static_cast<Eigen::Index>(k)], weight = part * part;
    if (!poles.empty() && spectrum.values[k] - poles.back().at <= same) {
      poles.back().weight += weight;
      values.push_back(spectrum.values[k]);
    } else if (weight <= 1e-24 * length) {
      values.push_back(spectrum.values[k]);
    } else {
      poles.push_back({spectrum.values[k], weight});
    }
  }
  for (std::size_t k = 0; k < poles.size(); ++k) {
    values.push_back(SecularRoot(poles, k, poles[k].at + length));
  }
  std::ranges::sort(values);
  return values;
}

std::vector<double> Apply(const Spectrum& spectrum, const std::function<double(double)>& f, std::size_t first) {
  const std::size_t n = spectrum.size();
  const auto side = static_cast<Eigen::Index>(n);
  const Eigen::Map<const Eigen::MatrixXd> vectors(spectrum.vectors.data(), side, side);    // a column each
  Eigen::VectorXd values = Eigen::VectorXd::Zero(side);
  for (std::size_t k = first; k < n; ++k) values[static_cast<Eigen::Index>(k)] = f(spectrum.values[k]);
  std::vector<double> out(n * n);
  Eigen::Map<Eigen::MatrixXd>(out.data(), side, side) = vectors * values.asDiagonal() * vectors.transpose();
  return out;
}

}    // namespace dthrottle::plan
