#include "plan/spectrum.h"

#include <Eigen/Eigenvalues>

#include <algorithm>
#include <cmath>
#include <numeric>

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

// The root x of f(x) = 1 + sum part_k^2 / (at_k - x) between pole k and the one above it, or `limit`. There f rises
// from minus infinity; times the distances to the two poles it is finite at both ends, falls through 0, and is nearly a
// line, so regula falsi finds the root in some ten steps (Illinois: an end that stays for two steps counts half).
template <class Poles>
double SecularRoot(const Poles& poles, std::size_t k, double limit) {
  const bool last = k + 1 == poles.size();
  const double above = last ? limit : poles[k + 1].at;
  const auto f = [&](double x) {
    double sum = 1;
    for (const auto& pole : poles) sum += pole.part * pole.part / (pole.at - x);
    return sum * (poles[k].at - x) * (last ? 1 : above - x);
  };
  double low = poles[k].at, high = above;
  double at_low = poles[k].part * poles[k].part * (last ? 1 : above - low),
         at_high = last ? f(above) : -poles[k + 1].part * poles[k + 1].part * (above - low);
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

double SquaredLength(std::span<const double> vector) {
  return std::inner_product(vector.begin(), vector.end(), vector.begin(), 0.0);
}

}    // namespace

RankOneChange::RankOneChange(std::span<const double> values, std::span<const double> parts) {
  const std::size_t n = values.size();
  DT_CHECK(parts.size() == n && n > 0);
  const double length = SquaredLength(parts);
  const double same = 1e-12 * (std::abs(values.back()) + length);
  for (std::size_t first = 0, last = 1; first < n; first = last++) {
    while (last < n && values[last] - values[first] <= same) ++last;
    // An eigenvalue stays where c has no part in its eigenspace, and all but one of equal ones do.
    if (SquaredLength(parts.subspan(first, last - first)) <= 1e-24 * length) {
      for (std::size_t k = first; k < last; ++k) origins_.push_back({values[k], false, k});
    } else {
      Group(values, parts, first, last);
    }
  }
  for (std::size_t k = 0; k < poles_.size(); ++k) {
    origins_.push_back({SecularRoot(poles_, k, poles_[k].at + length), true, k});
  }
  std::ranges::stable_sort(origins_, {}, &Origin::value);
  for (const Origin& origin : origins_) values_.push_back(origin.value);
}

void RankOneChange::Group(std::span<const double> values, std::span<const double> parts, std::size_t first,
                          std::size_t last) {
  std::vector<double> normal(parts.begin() + static_cast<std::ptrdiff_t>(first),
                             parts.begin() + static_cast<std::ptrdiff_t>(last));
  double part = normal[0];
  if (normal.size() > 1) {    // Householder: away from the first direction, so that nothing cancels
    part = std::copysign(std::sqrt(SquaredLength(normal)), -normal[0]);
    normal[0] -= part;
    const double scale = std::sqrt(2 / SquaredLength(normal));
    for (double& value : normal) value *= scale;
    mirrors_.push_back({first, std::move(normal)});
  }
  poles_.push_back({values[first], part, first});
  for (std::size_t k = first + 1; k < last; ++k) origins_.push_back({values[k], false, k});
}

std::vector<double> RankOneChange::Coordinates(std::vector<double> vector) const {
  DT_CHECK(vector.size() == values_.size());
  for (const Mirror& mirror : mirrors_) {
    const auto begin = vector.begin() + static_cast<std::ptrdiff_t>(mirror.first);
    const double along = std::inner_product(mirror.normal.begin(), mirror.normal.end(), begin, 0.0);
    for (std::size_t i = 0; i < mirror.normal.size(); ++i) vector[mirror.first + i] -= along * mirror.normal[i];
  }
  std::vector<double> out;
  for (const Origin& origin : origins_) out.push_back(origin.moved ? Along(origin.value, vector) : vector[origin.from]);
  return out;
}

double RankOneChange::Along(double value, std::span<const double> vector) const {
  double sum = 0, length = 0;
  for (const Pole& pole : poles_) {
    if (pole.at == value) return vector[pole.index];    // a root that rounding puts onto a pole
    const double entry = pole.part / (pole.at - value);
    sum += entry * vector[pole.index];
    length += entry * entry;
  }
  return sum / std::sqrt(length);
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
