#include "plan/ends.h"

#include <fmt/format.h>

#include <Spectra/SymEigsSolver.h>
#include <Eigen/SparseCholesky>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <stdexcept>
#include <vector>

#include "base/check.h"
#include "capacity/gain.h"

namespace dthrottle::plan {
namespace {

using Vector = Eigen::VectorXd;
using Factor = Eigen::SimplicialLLT<Eigen::SparseMatrix<double>>;

constexpr double kTolerance = 1e-9;          // of a residual, relative to the eigenvalue
constexpr Eigen::Index kLanczosSide = 64;    // of the matrix that Lanczos builds before it restarts
constexpr Eigen::Index kRestartsMax = 30;

// A symmetric matrix as Spectra wants it: a function from a vector to the product.
struct Operator {
  using Scalar = double;
  using Function = std::function<Vector(const Vector&)>;

  Eigen::Index side;
  Function times;

  Eigen::Index rows() const { return side; }
  Eigen::Index cols() const { return side; }
  void perform_op(const double* x, double* out) const {
    Eigen::Map<Vector>(out, side) = times(Eigen::Map<const Vector>(x, side));
  }
};

// The eigenvalue at one end of a matrix; none if Lanczos does not converge. Where the matrix has fewer eigenvalues than
// Lanczos wants directions, as that of a complete graph, Spectra throws or returns nonsense: so what it found is held
// against the matrix, and fewer directions, which are all there then, are tried.
std::optional<double> EndOf(std::uint32_t nodes, const Operator::Function& times, Spectra::SortRule which) {
  Operator matrix{static_cast<Eigen::Index>(nodes), times};
  for (Eigen::Index side = std::min(matrix.side, kLanczosSide); side >= 2; side /= 2) {
    try {
      Spectra::SymEigsSolver<Operator> solver(matrix, 1, side);
      solver.init();    // always with the same vector
      if (solver.compute(which, kRestartsMax, kTolerance) != 1) return std::nullopt;
      const double value = solver.eigenvalues()[0];
      const Vector vector = solver.eigenvectors().col(0);
      const double residual = (times(vector) - value * vector).norm();
      if (std::abs(vector.norm() - 1) < 1e-6 && residual < 10 * kTolerance * std::abs(value)) return value;
    } catch (const std::runtime_error&) {
    }
  }
  return std::nullopt;
}

Vector TimesLaplacian(const Graph& graph, const Vector& x) {
  const std::vector<double> product = graph.TimesLaplacian({x.data(), static_cast<std::size_t>(x.size())});
  return Eigen::Map<const Vector>(product.data(), x.size());
}

// A factor of factor L + shift I, without the first `left_out` rows and columns. Its info() says whether it is positive
// definite.
Factor Factorized(const Graph& graph, double factor, double shift, std::uint32_t left_out) {
  std::vector<Eigen::Triplet<double, int>> entries;
  for (std::uint32_t i = left_out; i < graph.size(); ++i) {
    const auto at = static_cast<int>(i - left_out);
    entries.emplace_back(at, at, factor * graph.Strength(i) + shift);
    for (const Graph::Neighbour& n : graph.neighbours(i)) {
      if (n.node >= left_out) entries.emplace_back(at, static_cast<int>(n.node - left_out), -factor * n.weight);
    }
  }
  const auto side = static_cast<Eigen::Index>(graph.size() - left_out);
  Eigen::SparseMatrix<double> matrix(side, side);
  matrix.setFromTriplets(entries.begin(), entries.end());
  return Factor(matrix);
}

std::optional<double> Lambda2Of(const Graph& graph) {
  // The constant vector, of eigenvalue 0, is lifted to the largest strength, which no lambda_2 exceeds but in a
  // complete graph, by n / (n - 1); twice that is above it.
  const double lift = 2 * graph.StrengthMax();
  const auto lifted = [&](const Vector& x) -> Vector { return TimesLaplacian(graph, x).array() + lift * x.mean(); };
  if (const auto found = EndOf(graph.size(), lifted, Spectra::SortRule::SmallestAlge)) return found;
  // L^+ solves with one node grounded, up to a constant, which the means take away.
  const Factor factor = Factorized(graph, 1, 0, 1);
  if (factor.info() != Eigen::Success) return std::nullopt;
  const auto inverse = [&](const Vector& x) -> Vector {
    Vector out = Vector::Zero(x.size());
    out.tail(x.size() - 1) = factor.solve((x.array() - x.mean()).matrix().tail(x.size() - 1));
    return out.array() - out.mean();
  };
  const auto found = EndOf(graph.size(), inverse, Spectra::SortRule::LargestAlge);
  return found ? std::optional(1 / *found) : std::nullopt;
}

std::optional<double> LambdaNOf(const Graph& graph) {
  const auto times = [&](const Vector& x) { return TimesLaplacian(graph, x); };
  if (const auto found = EndOf(graph.size(), times, Spectra::SortRule::LargestAlge)) return found;
  const double above = 2 / StableGammaWithoutSpectrum(graph) * (1 + 1e-6);    // lambda_n may be all of that bound
  const Factor factor = Factorized(graph, -1, above, 0);
  if (factor.info() != Eigen::Success) return std::nullopt;
  const auto inverse = [&](const Vector& x) -> Vector { return factor.solve(x); };
  const auto found = EndOf(graph.size(), inverse, Spectra::SortRule::LargestAlge);
  return found ? std::optional(above - 1 / *found) : std::nullopt;
}

}    // namespace

Result<Ends> FindEnds(const Graph& graph) {
  DT_CHECK(graph.size() >= 2 && graph.Connected());
  const std::optional<double> lambda_n = LambdaNOf(graph);
  const std::optional<double> lambda_2 = lambda_n ? Lambda2Of(graph) : std::nullopt;
  if (!lambda_2)
    return Fail(fmt::format("no {} found: too many eigenvalues are next to it", lambda_n ? "lambda_2" : "lambda_n"));
  return Ends{*lambda_2, *lambda_n};
}

}    // namespace dthrottle::plan
