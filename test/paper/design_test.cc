// The best weights, which csdp finds: DST section 5.2 and Table 2. Skipped where csdp is not installed.
#include <sys/resource.h>
#include <catch2/catch.hpp>

#include <fstream>
#include <nlohmann/json.hpp>

#include "plan/analysis.h"
#include "plan/design.h"
#include "test/paper/graphs.h"

namespace dthrottle::plan {
namespace {

Graph With(const Graph& graph, const std::vector<double>& weights) {
  std::vector<WeightedLink> links;
  for (std::size_t e = 0; e < weights.size(); ++e) {
    if (weights[e] > 0) links.push_back({graph.links()[e].a, graph.links()[e].b, weights[e]});
  }
  return *Graph::Make(graph.size(), links);
}

Design Must(const Result<Design>& design) {
  if (!design) FAIL(design.error().message);
  return *design;
}

Design Fastest(const Graph& graph, double gamma) {
  return Must(FastestWeights(graph, gamma, Solver{}));
}
Design Robust(const Graph& graph, double gamma) {
  return Must(MostRobustWeights(graph, gamma, 1, Solver{}));
}

void CheckAll(const std::vector<double>& weights, double expected, double tolerance) {
  for (const double weight : weights) CHECK(std::abs(weight - expected) <= tolerance);
}

TEST_CASE("DST Table 2 (33): the fastest weights at gamma 1 are 0.2 for K5 and 1/3 for S5") {
  const Design k5 = Fastest(Named("complete:5"), 1), s5 = Fastest(Named("star:5"), 1);
  CheckAll(k5.weights, 0.2, 1e-6);
  CHECK(std::abs(k5.value) < 1e-6);
  CheckAll(s5.weights, 1.0 / 3, 1e-6);
  CHECK(std::abs(s5.value - 2.0 / 3) < 1e-6);
}

TEST_CASE("DST Table 2 (35): the most robust weights at gamma 1 are 0.2 for K5 and 0.3189 for S5") {
  const Design k5 = Robust(Named("complete:5"), 1), s5 = Robust(Named("star:5"), 1);
  CheckAll(k5.weights, 0.2, 1e-4);
  CHECK(std::abs(k5.value - 4) < 1e-5);
  CheckAll(s5.weights, 0.3189, 1e-4);
  CHECK(std::abs(s5.value - 7.1425653) < 1e-5);
}

TEST_CASE("DST (33) and (35) on graph #1: 0.9297079 where weights of 1 reach 0.9340388, and 22.7568524") {
  const Graph graph = Named("dst:1");
  const Spectrum uniform = Decompose(graph);
  CHECK(std::abs(ConvergenceFactor(uniform, FastestCycle(uniform)) - 0.9340388) < 1e-6);
  const Design one = Fastest(graph, 1), small = Fastest(graph, 0.02);
  CHECK(std::abs(one.value - 0.9297079) < 1e-5);
  CHECK(std::abs(Robust(graph, 1).value - 22.7568524) < 1e-4);
  // Weights for 0.02 are 50 times those for 1, and reach the same.
  CHECK(std::abs(small.value - one.value) < 1e-6);
  for (std::size_t e = 0; e < one.weights.size(); ++e) CHECK(std::abs(small.weights[e] - 50 * one.weights[e]) < 0.05);
}

TEST_CASE("DST (33), (34): what is promised for the weights is what (15) and (20) say of them") {
  for (const char* name : {"dst:2", "random:12:20", "star:6"}) {
    const Graph graph = Named(name);
    const double gamma = 0.3;
    const Design fastest = Fastest(graph, gamma), robust = Robust(graph, gamma);
    CHECK(Near(ConvergenceFactor(Decompose(With(graph, fastest.weights)), gamma), fastest.value, 1e-9));
    CHECK(Near(Dispersion(Decompose(With(graph, robust.weights)), gamma, 1), robust.value, 1e-9));
  }
}

TEST_CASE("golden cases: DST eq (33) and (35)") {
  std::ifstream file(DTHROTTLE_SOURCE "/test/paper/cases.jsonl");
  int count = 0;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json["kind"] != "dst_sdp") continue;
    CAPTURE(json["id"].get<std::string>());
    std::vector<WeightedLink> links;
    for (const auto& edge : json["input"]["edges"]) links.push_back({edge[0], edge[1], 1});
    const Graph graph = *Graph::Make(json["input"]["n"], links);
    const double gamma = json["input"]["gamma"], tolerance = json["tol"];
    CHECK(Near(Fastest(graph, gamma).value, json["expect"]["theta"], tolerance));
    CHECK(Near(Robust(graph, gamma).value, json["expect"]["robust_value"], tolerance));
    ++count;
  }
  CHECK(count == 6);
}

// Random steps of shrinking size over the weights, kept while they help.
template <class Objective>
double Search(std::vector<double> weights, const Objective& objective, Prng& prng) {
  double best = objective(weights);
  for (double step = 0.1; step > 1e-7; step *= 0.97) {
    std::vector<double> tried = weights;
    for (double& weight : tried) {
      weight = std::max(1e-12, weight + step * (static_cast<double>(prng.Below(2'000'001)) / 1e6 - 1));
    }
    const double value = objective(tried);
    if (value >= best) continue;
    best = value;
    weights = std::move(tried);
  }
  return best;
}

TEST_CASE("DST (33), (35): no local search beats the weights, and none falls below the proven bound") {
  Prng prng(20);
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    const Graph graph = Named("random:8:14:" + std::to_string(seed));
    const auto speed = [&](const std::vector<double>& w) { return ConvergenceFactor(Decompose(With(graph, w)), 1); };
    const auto noise = [&](const std::vector<double>& w) { return Dispersion(Decompose(With(graph, w)), 1, 1); };
    const Design fastest = Fastest(graph, 1), robust = Robust(graph, 1);
    CHECK(fastest.gap() < 1e-6);
    CHECK(fastest.gap() > -1e-9);
    CHECK(robust.gap() < 1e-3);
    CHECK(robust.gap() > -1e-9);
    for (int start = 0; start < 4; ++start) {
      // From the solution itself, and from elsewhere.
      std::vector<double> near = fastest.weights, close = robust.weights;
      if (start > 0) {
        const double scale = FastestCycle(Decompose(graph));
        for (double& w : near) w = scale * (0.5 + static_cast<double>(prng.Below(1000)) / 1000);
        close = near;
      }
      const double searched = Search(near, speed, prng), steadied = Search(close, noise, prng);
      CHECK(searched > fastest.value - 1e-6);
      CHECK(searched >= fastest.bound);
      CHECK(steadied > robust.value - 1e-4);
      CHECK(steadied >= robust.bound);
    }
  }
}

// csdp's, not ours, and not what the clock on the wall says: the machine may be busy.
double ChildrenSeconds() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) + static_cast<double>(usage.ru_utime.tv_usec) / 1e6;
}

TEST_CASE("DST (33), (35) on 60 links, dense and sparse, take csdp less than 10 s") {
  for (const char* name : {"random:20:60", "random:40:60", "path:61"}) {
    CAPTURE(name);
    const Graph graph = Named(name);
    const double before = ChildrenSeconds();
    const Design fastest = Fastest(graph, 1);
    const double between = ChildrenSeconds();
    const Design robust = Robust(graph, 1);
    CHECK(between - before < 10);
    CHECK(ChildrenSeconds() - between < 10);
    CHECK(fastest.gap() < 1e-6);
    CHECK(robust.gap() < 1e-4 * robust.value);
  }
}

TEST_CASE("weights that csdp does not find are an error that says so") {
  Solver missing;
  missing.program = "/no/such/csdp";
  const Result<Design> none = FastestWeights(Named("ring:5"), 1, missing);
  REQUIRE_FALSE(none);
  CHECK(none.error().message == "/no/such/csdp is not installed (package coinor-csdp)");
  CHECK_FALSE(FastestWeights(Named("ring:101"), 1, Solver{}));
  Solver hasty;
  hasty.patience = std::chrono::milliseconds(0);
  const Result<Design> late = MostRobustWeights(Named("path:61"), 1, 1, hasty);
  REQUIRE_FALSE(late);
  CHECK(late.error().message == "csdp: it took longer than 0.001 s");
}

}    // namespace
}    // namespace dthrottle::plan
