#include "plan/spectrum.h"

#include <Eigen/Eigenvalues>

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

std::vector<double> Apply(const Spectrum& spectrum, const std::function<double(double)>& f, std::size_t first) {
  const std::size_t n = spectrum.size();
  std::vector<double> out(n * n, 0.0);
  for (std::size_t k = first; k < n; ++k) {
    const double value = f(spectrum.values[k]);
    const double* u = &spectrum.vectors[k * n];
    for (std::size_t i = 0; i < n; ++i) {
      const double scaled = value * u[i];
      for (std::size_t j = 0; j < n; ++j) out[i * n + j] += scaled * u[j];
    }
  }
  return out;
}

}    // namespace dthrottle::plan
