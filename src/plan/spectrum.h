// Eigenvalues of a symmetric matrix, and functions of it. The one part that needs a library of linear algebra.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "capacity/graph.h"

namespace dthrottle::plan {

// What decides how fast a graph converges: the smallest and the largest eigenvalue of its Laplacian but for the 0.
struct Ends {
  double lambda_2 = 0;
  double lambda_n = 0;
};

struct Spectrum {
  std::vector<double> values;    // ascending
  // n rows of n: row k is the eigenvector of values[k], of length 1. Empty where only the eigenvalues are known.
  std::vector<double> vectors;

  std::size_t size() const { return values.size(); }
  double at(std::size_t k, std::size_t i) const { return vectors[k * values.size() + i]; }
  operator Ends() const { return {values[1], values.back()}; }    // of a Laplacian's
};

// `matrix` is n x n, symmetric, by rows; only its lower half is read. Time grows with n^3: half a second for n = 1000.
Spectrum Decompose(std::span<const double> matrix, std::size_t n);

// The spectrum of the Laplacian (DST eq (1)). values[0] is 0 but for rounding, and is set to 0; vectors[0] is constant.
// REQUIRES: connected.
Spectrum Decompose(const Graph& graph);

// A + c c^T, where the eigenvalues of A are `values`, ascending, and c is `parts` in the basis of its eigenvectors.
// Each eigenvalue lies between one of A and the next one above it, and is found there as the root of the secular
// equation; time grows with n^2.
class RankOneChange {
 public:
  RankOneChange(std::span<const double> values, std::span<const double> parts);

  const std::vector<double>& values() const { return values_; }    // ascending
  // A vector in the basis of the new eigenvectors, in the order of their values, from one in the basis of the old.
  std::vector<double> Coordinates(std::vector<double> vector) const;

 private:
  // An eigenvalue of A that moves, and c's part in its eigenspace, which Coordinates turns into direction `index`.
  struct Pole {
    double at;
    double part;
    std::size_t index;
  };
  // The old directions [first, last) of one eigenvalue, and the mirror that turns c's part there into the first.
  struct Mirror {
    std::size_t first;
    std::vector<double> normal;    // of length sqrt(2)
  };
  // A new eigenvector: old direction `from` as it is, or one that has moved, (A - value)^-1 c but for its length.
  struct Origin {
    double value;
    bool moved;
    std::size_t from;
  };

  void Group(std::span<const double> values, std::span<const double> parts, std::size_t first, std::size_t last);
  // The part of a vector, mirrored already, along the moved eigenvector of this value.
  double Along(double value, std::span<const double> vector) const;

  std::vector<double> values_;
  std::vector<Pole> poles_;
  std::vector<Mirror> mirrors_;
  std::vector<Origin> origins_;    // one an eigenvalue
};

// f(A) = sum over k >= first of f(lambda_k) u_k u_k^T; n x n by rows. `first` = 1 leaves out the constant vector of a
// Laplacian, so that f(x) = 1/x gives its pseudo-inverse (DST section 2).
std::vector<double> Apply(const Spectrum& spectrum, const std::function<double(double)>& f, std::size_t first);

}    // namespace dthrottle::plan
