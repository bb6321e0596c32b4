// Eigenvalues of a symmetric matrix, and functions of it. The one part that needs a library of linear algebra.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "capacity/graph.h"

namespace dthrottle::plan {

struct Spectrum {
  std::vector<double> values;    // ascending
  // n rows of n: row k is the eigenvector of values[k], of length 1. Empty where only the eigenvalues are known.
  std::vector<double> vectors;

  std::size_t size() const { return values.size(); }
  double at(std::size_t k, std::size_t i) const { return vectors[k * values.size() + i]; }
};

// `matrix` is n x n, symmetric, by rows; only its lower half is read. Time grows with n^3: half a second for n = 1000.
Spectrum Decompose(std::span<const double> matrix, std::size_t n);

// Of the Laplacian (DST eq (1)). values[0] is 0 but for rounding, and is set to 0; vectors[0] is constant.
// REQUIRES: connected.
Spectrum Decompose(const Graph& graph);

// The eigenvalues of A + c c^T, ascending, where A has the given spectrum and `c` is a vector of n. Each lies between
// one of A and the next one above it, and is found there as the root of the secular equation; time grows with n^2.
std::vector<double> ValuesAfterRankOne(const Spectrum& spectrum, std::span<const double> c);

// f(A) = sum over k >= first of f(lambda_k) u_k u_k^T; n x n by rows. `first` = 1 leaves out the constant vector of a
// Laplacian, so that f(x) = 1/x gives its pseudo-inverse (DST section 2).
std::vector<double> Apply(const Spectrum& spectrum, const std::function<double(double)>& f, std::size_t first);

}    // namespace dthrottle::plan
