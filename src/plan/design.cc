#include "plan/design.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "io/files.h"
#include "io/run.h"
#include "plan/analysis.h"
#include "plan/spectrum.h"

namespace dthrottle::plan {
namespace {

constexpr std::size_t kSolutionBytesMax = std::size_t{1} << 30;
// Columns of an inverse that share a block. More: fewer blocks, but with the square of it as many unknowns each.
constexpr std::size_t kColumns = 6;

// A problem in SDPA's sparse format: minimize cost . x subject to sum x_i F_i - F_0 positive semidefinite, block by
// block. Rows and columns count from 0 here, from 1 in the file.
class Problem {
 public:
  explicit Problem(std::size_t unknowns) : costs_(unknowns, 0.0) {}

  std::size_t AddUnknown(double cost) {
    costs_.push_back(cost);
    return costs_.size() - 1;
  }
  std::size_t AddBlock(std::size_t side) {
    blocks_.push_back(static_cast<std::int64_t>(side));
    return blocks_.size();
  }
  // A block of numbers that have to be 0 or more.
  std::size_t AddDiagonal(std::size_t side) {
    blocks_.push_back(-static_cast<std::int64_t>(side));
    return blocks_.size();
  }
  // `factor` L_e at the unknown, for links in order from unknown 0.
  void AddLinks(std::size_t block, std::span<const WeightedLink> links, double factor) {
    for (std::size_t e = 0; e < links.size(); ++e) {
      const auto [a, b] = std::minmax(links[e].a, links[e].b);
      Coefficient(e, block, a, a, factor);
      Coefficient(e, block, b, b, factor);
      Coefficient(e, block, a, b, -factor);
    }
  }
  // An entry of F_i, i the unknown, and its mirror image. REQUIRES: row <= column.
  void Coefficient(std::size_t unknown, std::size_t block, std::size_t row, std::size_t column, double value) {
    fmt::format_to(std::back_inserter(coefficients_), "{} {} {} {} {:.17g}\n", unknown + 1, block, row + 1, column + 1,
                   value);
  }
  // An entry of -F_0, what the block has by itself.
  // What is added to an entry twice is summed.
  void Constant(std::size_t block, std::size_t row, std::size_t column, double value) {
    constants_[{block, row, column}] += value;
  }

  std::string Text() const {
    std::string text = fmt::format("{}\n{}\n{}\n{:.17g}\n", costs_.size(), blocks_.size(), fmt::join(blocks_, " "),
                                   fmt::join(costs_, " "));
    for (const auto& [at, value] : constants_) {
      const auto [block, row, column] = at;
      fmt::format_to(std::back_inserter(text), "0 {} {} {} {:.17g}\n", block, row + 1, column + 1, -value);
    }
    return text + coefficients_;
  }
  std::size_t unknowns() const { return costs_.size(); }

 private:
  std::vector<double> costs_;
  std::vector<std::int64_t> blocks_;                                                 // sides; negative: diagonal
  std::map<std::tuple<std::size_t, std::size_t, std::size_t>, double> constants_;    // by block, row, column
  std::string coefficients_;                                                         // as in the file
};

// csdp's own settings, a digit closer than its defaults. It reads them from the folder it runs in.
constexpr std::string_view kParameters =
    "axtol=1.0e-9\natytol=1.0e-9\nobjtol=1.0e-9\npinftol=1.0e8\ndinftol=1.0e8\nmaxiter=100\nminstepfrac=0.90\n"
    "maxstepfrac=0.97\nminstepp=1.0e-8\nminstepd=1.0e-8\nusexzgap=1\ntweakgap=0\naffine=0\nprintlevel=0\n"
    "perturbobj=0\nfastmode=0\n";

// What csdp writes: x, then entries of Z (matrix 1) and of the dual X (matrix 2).
struct Solution {
  struct Entry {
    std::size_t block, row, column;
    double value;
  };
  std::vector<double> x;
  std::vector<Entry> dual;
};

// Numbers of a text, one after another.
class Numbers {
 public:
  explicit Numbers(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  std::optional<double> Next() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '+')) ++at_;
    double value = 0;
    const auto [end, error] = std::from_chars(at_, end_, value);
    if (error != std::errc()) return std::nullopt;
    at_ = end;
    return value;
  }

 private:
  const char* at_;
  const char* end_;
};

std::optional<Solution> ParseSolution(std::string_view text, std::size_t unknowns) {
  Solution solution;
  Numbers numbers(text);
  while (solution.x.size() < unknowns) {
    const auto value = numbers.Next();
    if (!value || !std::isfinite(*value)) return std::nullopt;
    solution.x.push_back(*value);
  }
  while (const auto matrix = numbers.Next()) {
    double entry[4];
    for (double& value : entry) {
      const auto next = numbers.Next();
      if (!next) return std::nullopt;
      value = *next;
    }
    if (!(entry[0] >= 1 && entry[1] >= 1 && entry[2] >= 1 && entry[2] < 1e6)) return std::nullopt;
    if (*matrix == 2) {
      solution.dual.push_back({static_cast<std::size_t>(entry[0]), static_cast<std::size_t>(entry[1]) - 1,
                               static_cast<std::size_t>(entry[2]) - 1, entry[3]});
    }
  }
  return solution;
}

Result<Solution> Solve(const Problem& problem, const Solver& solver) {
  const std::string asked = problem.Text();
  if (solver.go_on && !solver.go_on()) return Fail("interrupted");
  const Result<TemporaryFolder> folder = TemporaryFolder::Make();
  if (!folder) return tl::unexpected(folder.error());
  for (const auto& [name, text] : {std::pair<const char*, std::string>("problem", asked),
                                   std::pair<const char*, std::string>("param.csdp", kParameters)}) {
    if (const auto written = ReplaceFile(folder->path() / name, text); !written) return Fail(written.error().message);
  }
  const Result<Finished> done =
      Run({solver.program, "problem", "solution"}, folder->path(), solver.patience, "coinor-csdp");
  if (!done) return tl::unexpected(done.error());
  // 3: solved, but not to its full accuracy. The gap shows what that is worth.
  if (done->status != 0 && done->status != 3) {
    return Fail(fmt::format("{} gave up with status {}", solver.program, done->status));
  }
  const auto text = ReadFile(folder->path() / "solution", kSolutionBytesMax);
  if (!text) return Fail(fmt::format("{} wrote no solution", solver.program));
  std::optional<Solution> solution = ParseSolution(*text, problem.unknowns());
  if (!solution) return Fail(fmt::format("{} wrote a solution that cannot be read", solver.program));
  return *std::move(solution);
}

Result<void> CheckSize(const Graph& graph) {
  DT_CHECK(graph.Connected() && graph.size() >= 2);
  if (graph.size() <= kDesignNodesMax && graph.links().size() <= kDesignLinksMax) return {};
  return Fail(fmt::format("best weights are found for up to {} nodes and {} links", kDesignNodesMax, kDesignLinksMax));
}

// U = sum of u_e L_e, u_e >= 0 and possibly 0; its eigenvectors, the constant one first.
Spectrum Weighted(const Graph& graph, std::span<const double> u) {
  const std::size_t n = graph.size();
  // Zero weights may leave the constant vector not alone at 0: lift it out of the way, then back to the front.
  std::vector<double> matrix(n * n, -1.0 / static_cast<double>(n));
  for (std::size_t e = 0; e < u.size(); ++e) {
    const WeightedLink& link = graph.links()[e];
    matrix[link.a * n + link.a] += u[e];
    matrix[link.b * n + link.b] += u[e];
    matrix[link.a * n + link.b] -= u[e];
    matrix[link.b * n + link.a] -= u[e];
  }
  return Decompose(matrix, n);
}

std::vector<double> Unscaled(std::span<const double> u, double gamma) {
  std::vector<double> weights;
  for (const double value : u) weights.push_back(value / gamma);
  return weights;
}

// The part of csdp's x that is weights; rounding may leave some just below 0.
std::vector<double> NotNegative(std::span<const double> x) {
  std::vector<double> u(x.begin(), x.end());
  for (double& value : u) value = std::max(value, 0.0);
  return u;
}

double Quadratic(std::span<const double> matrix, std::size_t n, const WeightedLink& link) {
  return matrix[link.a * n + link.a] + matrix[link.b * n + link.b] - matrix[link.a * n + link.b] -
         matrix[link.b * n + link.a];
}

// A bound below theta of (33). For symmetric S with S 1 = 0, nuclear norm at most 1 and tr(S L_e) <= 0 for all e:
// theta >= tr(S (I - U)) >= tr(S). The dual's S = X_1 - X_2 has all that but for rounding, which is mended first.
double FastestBound(const Graph& graph, const Solution& solution) {
  const std::size_t n = graph.size();
  const double part = 1.0 / static_cast<double>(n);
  std::vector<double> s(n * n, 0.0);
  for (const Solution::Entry& entry : solution.dual) {
    if (entry.block > 2 || entry.row >= n || entry.column >= n) continue;
    const double value = entry.block == 1 ? entry.value : -entry.value;
    s[entry.row * n + entry.column] += value;
    if (entry.row != entry.column) s[entry.column * n + entry.row] += value;
  }
  std::vector<double> row(n, 0.0);
  double all = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) row[i] += s[i * n + j];
    all += row[i];
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) s[i * n + j] += part * (part * all - row[i] - row[j]);
  }
  double excess = 0;
  for (const WeightedLink& link : graph.links()) excess = std::max(excess, Quadratic(s, n, link));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) s[i * n + j] -= excess / 2 * ((i == j ? 1 : 0) - part);
  }
  double trace = 0, norm = 0;
  for (const double value : Decompose(s, n).values) {
    trace += value;
    norm += std::abs(value);
  }
  return norm > 0 ? std::max(trace / norm, 0.0) : 0;
}

// Adds blocks that hold the matrix that `fill` writes beside columns of the identity, and unknowns that bound the trace
// of its inverse from above: [A E; E^T Y] is positive semidefinite if and only if Y >= E^T A^-1 E.
template <class Fill>
void MinimizeTraceOfInverse(Problem& problem, std::size_t n, const Fill& fill) {
  for (std::size_t first = 0; first < n; first += kColumns) {
    const std::size_t columns = std::min(kColumns, n - first);
    const std::size_t block = problem.AddBlock(n + columns);
    fill(block);
    for (std::size_t i = 0; i < columns; ++i) {
      problem.Constant(block, first + i, n + i, 1);
      for (std::size_t j = i; j < columns; ++j) {
        problem.Coefficient(problem.AddUnknown(i == j ? 1 : 0), block, n + i, n + j, 1);
      }
    }
  }
}

void AddConstantVector(Problem& problem, std::size_t block, std::size_t n, double factor) {
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i; j < n; ++j) problem.Constant(block, i, j, factor / static_cast<double>(n));
  }
}

void AddIdentity(Problem& problem, std::size_t block, std::size_t n, double factor) {
  for (std::size_t i = 0; i < n; ++i) problem.Constant(block, i, i, factor);
}

// tr(U^+ + (2I - U)^-1) / 2 without the constant vector, and a bound below it over all u >= 0. The function is convex,
// so it is nowhere below its tangent, and where it is finite the trace of U is below 2 (n - 1): the sum of u is below
// n - 1.
struct Robustness {
  double value = std::numeric_limits<double>::infinity();
  double bound = 0;
};

Robustness RobustnessOf(const Graph& graph, std::span<const double> u) {
  const std::size_t n = graph.size();
  const Spectrum spectrum = Weighted(graph, u);
  Robustness robustness;
  if (spectrum.values[1] <= 0 || spectrum.values.back() >= 2) return robustness;
  robustness.value = 0;
  for (std::size_t k = 1; k < n; ++k) {
    const double lambda = spectrum.values[k];
    robustness.value += (1 / lambda + 1 / (2 - lambda)) / 2;
  }
  const auto slope = [](double lambda) { return (1 / ((2 - lambda) * (2 - lambda)) - 1 / (lambda * lambda)) / 2; };
  const std::vector<double> gradient = Apply(spectrum, slope, 1);
  double along = 0, steepest = 0;
  for (std::size_t e = 0; e < u.size(); ++e) {
    const double g = Quadratic(gradient, n, graph.links()[e]);
    along += g * u[e];
    steepest = std::max(steepest, -g);
  }
  robustness.bound = std::max(0.0, robustness.value - along - steepest * static_cast<double>(n - 1));
  return robustness;
}

}    // namespace

Result<Design> FastestWeights(const Graph& graph, double gamma, const Solver& solver) {
  DT_CHECK(gamma > 0);
  if (const auto fits = CheckSize(graph); !fits) return tl::unexpected(fits.error());
  const std::size_t n = graph.size(), links = graph.links().size();
  Problem problem(links);
  const std::size_t theta = problem.AddUnknown(1);
  for (const double sign : {1.0, -1.0}) {    // theta I +- (U + 11^T/n - I) is positive semidefinite
    const std::size_t block = problem.AddBlock(n);
    problem.AddLinks(block, graph.links(), sign);
    AddConstantVector(problem, block, n, sign);
    AddIdentity(problem, block, n, -sign);
    for (std::size_t i = 0; i < n; ++i) problem.Coefficient(theta, block, i, i, 1);
  }
  const std::size_t signs = problem.AddDiagonal(links);
  for (std::size_t e = 0; e < links; ++e) problem.Coefficient(e, signs, e, e, 1);
  const Result<Solution> solution = Solve(problem, solver);
  if (!solution) return tl::unexpected(solution.error());
  const std::vector<double> u = NotNegative(std::span(solution->x).first(links));
  return Design{Unscaled(u, gamma), ConvergenceFactor(Weighted(graph, u), 1), FastestBound(graph, *solution)};
}

Result<Design> MostRobustWeights(const Graph& graph, double gamma, double variance, const Solver& solver) {
  DT_CHECK(gamma > 0 && variance >= 0);
  if (const auto fits = CheckSize(graph); !fits) return tl::unexpected(fits.error());
  const std::size_t n = graph.size(), links = graph.links().size();
  Problem problem(links);
  MinimizeTraceOfInverse(problem, n, [&](std::size_t block) {    // U + 11^T/n
    problem.AddLinks(block, graph.links(), 1);
    AddConstantVector(problem, block, n, 1);
  });
  MinimizeTraceOfInverse(problem, n, [&](std::size_t block) {    // 2I - U - 11^T/n
    problem.AddLinks(block, graph.links(), -1);
    AddConstantVector(problem, block, n, -1);
    AddIdentity(problem, block, n, 2);
  });
  const std::size_t signs = problem.AddDiagonal(links);
  for (std::size_t e = 0; e < links; ++e) problem.Coefficient(e, signs, e, e, 1);
  const Result<Solution> solution = Solve(problem, solver);
  if (!solution) return tl::unexpected(solution.error());
  const std::vector<double> u = NotNegative(std::span(solution->x).first(links));
  const Robustness robustness = RobustnessOf(graph, u);
  return Design{Unscaled(u, gamma), variance * robustness.value, variance * robustness.bound};
}

}    // namespace dthrottle::plan
