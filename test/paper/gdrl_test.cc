// Claims of Stanojevic and Shorten, "Generalized distributed rate limiting", one a test.
//
// Where the print is wrong the test says how, and holds what is right. Loss of messages and of nodes (section IV) is
// the daemon's and the simulator's; here capacity moves at once.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/prng.h"
#include "capacity/demand.h"
#include "capacity/fairness.h"
#include "plan/analysis.h"
#include "test/paper/graphs.h"
#include "test/support/sanitized.h"

namespace dthrottle::plan {
namespace {

using Values = std::vector<double>;

// Section III-A: n limiters, limiter i of 1 to n asked for i / (n + 1).
struct Setup {
  Graph graph;
  Values demands, shares;
  double gain;

  Setup(std::string_view name, double capacity_per_demand, double gain_) : graph(Named(name)), gain(gain_) {
    const double n = graph.size();
    for (std::uint32_t i = 1; i <= graph.size(); ++i) demands.push_back(i / (n + 1));
    shares.assign(graph.size(), capacity_per_demand * Sum(demands) / n);
  }

  Values q() const { return Indicate(ThrottledAmount(), demands, shares); }
  double jain() const { return JainIndex(q()); }
  void Round() { dthrottle::plan::Round(graph, ThrottledAmount(), demands, gain, shares); }

  // The first round after which Jain's index is at least this; -1: not within `most`.
  int Reaches(double index, int most) {
    for (int t = 0; t <= most; ++t) {
      if (jain() >= index) return t;
      Round();
    }
    return -1;
  }
};

Setup Ring10() {
  return Setup("ring:10", 1.1, 0.25);
}

TEST_CASE("GDRL Lemma 1 (8): the capacity is the same after every round") {
  Setup ring = Ring10();
  for (int t = 0; t < 1000; ++t) {
    ring.Round();
    REQUIRE(Near(Sum(ring.shares), 5.5, 1e-12));
  }
}

TEST_CASE("GDRL (7), (16) on the ring of 10: Jain's index round by round") {
  Setup ring = Ring10();
  const std::pair<int, double> expected[] = {{0, .0353698},  {1, .0570486},  {2, .0740741},  {5, .1348852},
                                             {10, .3006086}, {20, .7619314}, {30, .9597116}, {50, .9992428}};
  int t = 0;
  for (const auto& [at, index] : expected) {
    for (; t < at; ++t) ring.Round();
    CHECK(std::abs(ring.jain() - index) < 1e-7);
  }
  for (; t < 100; ++t) ring.Round();
  CHECK(std::abs(1 - ring.jain() - 3.3e-8) < 1e-9);
}

TEST_CASE("GDRL Fig. 4, exact demands: Jain's index reaches .5 .9 .95 .99 .999 after 15 26 29 38 49 rounds") {
  for (const auto& [index, rounds] : {std::pair{.5, 15}, {.9, 26}, {.95, 29}, {.99, 38}, {.999, 49}}) {
    CHECK(Ring10().Reaches(index, 100) == rounds);
  }
}

TEST_CASE("GDRL (7) on the ring of 10: shares at round 10, and their limit, demand + 0.05") {
  Setup ring = Ring10();
  for (int t = 0; t < 10; ++t) ring.Round();
  CHECK(std::abs(ring.shares[0] - 0.1755450) < 1e-7);
  CHECK(std::abs(ring.shares[9] - 0.9244550) < 1e-7);
  for (int t = 0; t < 500; ++t) ring.Round();
  for (std::size_t i = 0; i < 10; ++i) CHECK(Near(ring.shares[i], ring.demands[i] + 0.05, 1e-9));
}

TEST_CASE("GDRL (15): the bound on the ring is 1/4; linear rounds contract by 0.9045085 and diverge from 1/2 on") {
  const Graph ring = Named("ring:10");
  const Spectrum spectrum = Decompose(ring);
  CHECK(SpareBandwidthGainMax(ring) == 0.25);
  CHECK(std::abs(ConvergenceFactor(spectrum, 0.25) - 0.9045085) < 1e-6);
  CHECK(Near(2 / LambdaN(spectrum), 0.5, 1e-12));
}

TEST_CASE("GDRL (15): it is (9) for spare bandwidth, and each limiter's own bound is no smaller") {
  for (const char* name : {"ring:10", "star:7", "dst:2", "random:20:50"}) {
    const Graph graph = Named(name);
    const std::vector<Load> loads(graph.size(), Load{0.4, 0.5});
    CHECK(GainMax(graph, ThrottledAmount(), loads) == SpareBandwidthGainMax(graph));
    CHECK(SpareBandwidthGainMax(graph) == 0.5 / graph.DegreeMax());
    for (std::uint32_t i = 0; i < graph.size(); ++i) {
      CHECK(LocalGainMax(1, graph.Strength(i)) >= SpareBandwidthGainMax(graph));
    }
  }
}

// ---- The filter ----

// Packets by chance, one a slot at most, and a filter of 0.001 at each limiter.
class Filtered {
 public:
  Filtered(Setup setup, std::optional<double> start, std::uint64_t seed) : setup_(std::move(setup)), prng_(seed) {
    filters_.assign(setup_.demands.size(), DemandEstimate(1e-3, start));
  }

  void Round() {
    for (std::size_t i = 0; i < filters_.size(); ++i) {
      filters_[i].Observe(static_cast<double>(prng_.Next() >> 11) * 0x1p-53 < setup_.demands[i] ? 1 : 0);
    }
    Apply(setup_.graph, Flows(setup_.graph, measured(), setup_.gain), setup_.shares);
  }
  Values measured() const {
    Values q;
    for (std::size_t i = 0; i < filters_.size(); ++i) q.push_back(filters_[i].value() - setup_.shares[i]);
    return q;
  }
  double measured_jain() const { return JainIndex(measured()); }
  double true_jain() const { return setup_.jain(); }
  Setup& setup() { return setup_; }

 private:
  Setup setup_;
  Prng prng_;
  std::vector<DemandEstimate> filters_;
};

TEST_CASE("GDRL Fig. 4: with the filter, measured fairness settles at 0.9999 and true fairness at 0.968") {
  Filtered fleet(Ring10(), 0.0, 1);
  for (int t = 0; t < 20'000; ++t) fleet.Round();
  double measured = 0, real = 0;
  constexpr int kRounds = 200'000;
  for (int t = 0; t < kRounds; ++t) {
    fleet.Round();
    measured += fleet.measured_jain() / kRounds;
    real += fleet.true_jain() / kRounds;
  }
  CHECK(std::abs(measured - 0.9999) < 3e-4);
  CHECK(std::abs(real - 0.9683) < 0.01);
}

// Departure: the paper does not say where its filter starts. From 0 the figure's measured curve is near 1 throughout.
TEST_CASE("GDRL Fig. 4: a filter that starts at 0 looks fair at once, and is after 3200 rounds") {
  std::vector<int> reached;
  for (std::uint64_t seed = 1; seed <= 9; ++seed) {
    Filtered fleet(Ring10(), 0.0, seed);
    int t = 0;
    for (; t < 6000 && fleet.true_jain() < 0.95; ++t) {
      fleet.Round();
      if (t > 5) REQUIRE(fleet.measured_jain() > 0.99);
    }
    reached.push_back(t);
  }
  std::ranges::sort(reached);
  CHECK(reached[4] > 2560);
  CHECK(reached[4] < 3840);
}

TEST_CASE("GDRL Fig. 6: after demands swap, exact demands take 34 rounds more to 0.95") {
  Setup ring("ring:10", 1 / 0.9, 0.25);
  for (int t = 0; t < 10'000; ++t) ring.Round();
  std::ranges::reverse(ring.demands);    // i / (N + 1) becomes 1 - i / (N + 1)
  ring.Round();                          // the first with the new demands
  CHECK(ring.Reaches(0.95, 100) == 34);
}

TEST_CASE("GDRL Fig. 6: while demands slide over 10000 rounds, exact demands keep Jain's index above 0.9999") {
  Setup ring("ring:10", 1 / 0.9, 0.25);
  std::ranges::reverse(ring.demands);
  const Values from = ring.demands;
  for (int t = 0; t < 1000; ++t) ring.Round();
  for (int t = 0; t <= 10'000; ++t) {
    // Departure: the ramp is printed with its weights swapped, and would jump at both ends.
    for (std::size_t i = 0; i < 10; ++i) ring.demands[i] = from[i] + t / 1e4 * (from[9 - i] - from[i]);
    ring.Round();
    REQUIRE(ring.jain() > 0.9999);
  }
}

// ---- Scale ----

int MedianRounds(const std::string& name, double index, int most) {
  std::vector<int> rounds;
  for (int seed = 1; seed <= 7; ++seed) {
    const std::string seeded = name + ":" + std::to_string(seed);
    const std::uint32_t degree = Named(seeded).DegreeMax();
    Setup setup(seeded, 1 / 0.9, 0.5 / degree);
    Prng prng(static_cast<std::uint64_t>(seed));
    for (std::size_t i = setup.demands.size(); i > 1; --i)
      std::swap(setup.demands[i - 1], setup.demands[prng.Below(i)]);
    rounds.push_back(setup.Reaches(index, most));
  }
  std::ranges::sort(rounds);
  return rounds[3];
}

// Departure: "the speed of convergence is very close for a range of d" is the filter's doing, which takes 3000 rounds
// itself. With exact demands the ring is far slower.
TEST_CASE("GDRL Fig. 7: with exact demands degree matters, and size hardly does from degree 4 on") {
  CHECK(std::abs(MedianRounds("regular:10:4", 0.95, 1000) - 7) <= 3);
  CHECK(std::abs(MedianRounds("regular:100:8", 0.95, 1000) - 7) <= 3);
  CHECK(std::abs(MedianRounds("regular:1000:4", 0.95, 1000) - 19) <= 4);
  const int sparse = MedianRounds("regular:100:2", 0.95, 100'000);
  CHECK(sparse > 1055 / 2);
  CHECK(sparse < 1055 * 2);
}

TEST_CASE("GDRL Fig. 7: an ordered ring of 100 takes 2899 rounds to 0.95, one of 1000 takes 290821") {
  CHECK(Setup("ring:100", 1 / 0.9, 0.25).Reaches(0.95, 10'000) == 2899);
  if (testing::kSanitized) return;    // the larger ring runs the same lines for half a minute
  CHECK(Setup("ring:1000", 1 / 0.9, 0.25).Reaches(0.95, 300'000) == 290'821);
}

TEST_CASE("GDRL Fig. 7: with the filter every graph of degree 4 and more takes 2600 to 3000 rounds to 0.9") {
  for (const char* name : {"regular:10:4", "regular:100:4", "regular:100:8"}) {
    CAPTURE(name);
    Filtered fleet(Setup(name, 1 / 0.9, name[10] == '8' || name[12] == '8' ? 1.0 / 16 : 1.0 / 8), 0.0, 1);
    int t = 0;
    for (; t < 6000 && fleet.true_jain() < 0.9; ++t) fleet.Round();
    CHECK(t > 2600 * 0.85);
    CHECK(t < 3000 * 1.15);
  }
}

// ---- Theorem 1 ----

TEST_CASE("GDRL Theorem 1 (9) for M/M/1 response times on the ring: bound 0.0025, nested ranges, q* = 5.2631579") {
  const Graph ring = Named("ring:10");
  Values demands, shares(10, 0.6);
  std::vector<Load> loads;
  for (int i = 1; i <= 10; ++i) {
    demands.push_back(0.30 + 0.02 * i);
    loads.push_back({demands.back(), 0.6});
  }
  const double bound = GainMax(ring, ResponseTime(), loads);
  CHECK(std::abs(bound - 0.0025) < 1e-9);
  Values q = Indicate(ResponseTime(), demands, shares);
  CHECK(std::abs(JainIndex(q) - .8956009) < 1e-6);
  int reached = -1;
  for (int t = 0; t < 5000; ++t) {
    if (reached < 0 && JainIndex(q) >= 0.95) reached = t;
    Round(ring, ResponseTime(), demands, 0.999 * bound, shares);
    const Values next = Indicate(ResponseTime(), demands, shares);
    REQUIRE(*std::ranges::max_element(next) <= *std::ranges::max_element(q) + 1e-12);
    REQUIRE(*std::ranges::min_element(next) >= *std::ranges::min_element(q) - 1e-12);
    q = next;
  }
  CHECK(reached == 5);
  for (const double value : q) CHECK(std::abs(value - 5.2631579) < 1e-6);
}

// f: R -> R, decreasing, convex and smooth, as Assumption 1 asks: f_1 is the inverse of ln(1 + e^-q) - 0.01 q.
class Counterexample final : public Indicator {
 public:
  std::string_view name() const override { return "counterexample"; }
  bool Defined(const Load&) const override { return true; }
  double Capacity(double, double q) const override {
    return (q > 0 ? std::log1p(std::exp(-q)) : -q + std::log1p(std::exp(q))) - 0.01 * q;
  }
  double InverseSlope(double, double q) const override { return 1 / (1 + std::exp(q)) + 0.01; }
  double Value(const Load& load) const override {
    double low = -1e4, high = 1e4;    // Capacity falls with q
    for (int i = 0; i < 200; ++i) {
      const double middle = (low + high) / 2;
      (Capacity(0, middle) > load.capacity ? low : high) = middle;
    }
    return low;
  }
};

// Departure: (9) is printed with the slopes at q_i(0). It must have them at M(0) = max q_i(0).
TEST_CASE("GDRL Theorem 1 (9) is false as printed, and holds with the slope at the largest indicator") {
  const Counterexample first;
  const Graph pair = Named("path:2");
  const auto run = [&](double gain, double& highest) {
    Values shares{first.Capacity(0, 0), 0};    // q(0) = (0, 10): g_2(q) = 10 - q
    double q1 = 0, q2 = 10;
    highest = 10;
    for (int t = 0; t < 3000; ++t) {
      const Values flows = Flows(pair, Values{q1, q2}, gain);
      Apply(pair, flows, shares);
      q1 = first.Value({0, shares[0]});
      q2 = 10 - shares[1];
      highest = std::max({highest, q1, q2});
    }
    return std::abs(q1 - q2);
  };
  const double printed = GdrlGainMax(pair, Values{first.InverseSlope(0, 0), 1});
  const double corrected = GdrlGainMax(pair, Values{first.InverseSlope(0, 10), 1});
  CHECK(std::abs(printed - 0.255) < 1e-12);
  double highest = 0;
  CHECK(run(0.9 * printed, highest) > 1);
  CHECK(highest > 100);
  CHECK(run(0.999 * corrected, highest) < 1e-3);
  CHECK(highest <= 10);
}

TEST_CASE("GDRL Theorem 1 (9): one bound for all limiters has every slope at the largest indicator") {
  const Graph pair = Named("path:2");
  const std::vector<Load> loads{{10, 10}, {40, 10}};    // q(0) = 0 and ln 4; -g' is the capacity there
  CHECK(GainMax(pair, LogRatio(), loads) == Approx(10 / 4.0 / 2));
}

TEST_CASE("GDRL Assumption 1: every indicator falls with the capacity, is convex, and g and -g' are its own") {
  for (const Indicator* indicator : Indicators()) {
    CAPTURE(indicator->name());
    for (const double capacity : {11.0, 12.0, 15.0, 30.0}) {
      const auto f = [&](double c) { return indicator->Value({10, c}); };
      const double q = f(capacity), h = 1e-3;
      CHECK(indicator->Defined({10, capacity}));
      CHECK(f(capacity + h) < q);
      CHECK(f(capacity - h) + f(capacity + h) >= 2 * q - 1e-12);
      CHECK(indicator->Capacity(10, q) == Approx(capacity));
      CHECK(indicator->InverseSlope(10, q) == Approx(2 * h / (f(capacity - h) - f(capacity + h))).epsilon(1e-4));
    }
    CHECK(FindIndicator(indicator->name()) == indicator);
  }
  CHECK(FindIndicator("spare-bandwidth") == &ThrottledAmount());
  CHECK(FindIndicator("none") == nullptr);
  CHECK_FALSE(ThrottledRatio().Defined({0, 1}));
  CHECK_FALSE(LogRatio().Defined({1, 0}));
  CHECK_FALSE(ResponseTime().Defined({1, 1}));
}

TEST_CASE("GDRL set-up with response times: the equal split leaves limiters 7 to 10 without a mean") {
  int undefined = 0;
  for (int i = 1; i <= 10; ++i) undefined += !ResponseTime().Defined({i / 11.0, 0.55});
  CHECK(undefined == 4);
}

// ---- Appendix: one link at a time ----

TEST_CASE("GDRL (17): sweeps over the links of the ring, Jain's index after 1, 5 and 10") {
  Setup ring = Ring10();
  CHECK(PairwiseGainMax(Values(10, 1.0)) == 0.5);
  const auto exchange = [&](const WeightedLink& link, double gain) {
    const double transfer =
        Transfer(ring.demands[link.a] - ring.shares[link.a], ring.demands[link.b] - ring.shares[link.b], gain);
    ring.shares[link.a] += transfer;
    ring.shares[link.b] -= transfer;
  };
  for (int sweep = 1; sweep <= 10; ++sweep) {
    for (const WeightedLink& link : ring.graph.links()) exchange(link, 0.25);
    if (sweep == 1) CHECK(std::abs(ring.jain() - .0566905) < 1e-6);
    if (sweep == 5) CHECK(std::abs(ring.jain() - .1549482) < 1e-6);
    if (sweep == 10) CHECK(std::abs(ring.jain() - .3904931) < 1e-6);
  }
}

TEST_CASE("GDRL Theorem 2: random links reach 0.95 after 308, 161, 184 exchanges at gains .25, .5, .9; 1.01 diverges") {
  const auto median = [](double gain) {
    std::vector<int> counts;
    for (std::uint64_t seed = 1; seed <= 101; ++seed) {
      Setup ring = Ring10();
      Prng prng(seed);
      int t = 0;
      for (; t < 5000 && ring.jain() < 0.95; ++t) {
        const WeightedLink& link = ring.graph.links()[prng.Below(10)];
        const double transfer = Transfer(ring.q()[link.a], ring.q()[link.b], gain);
        ring.shares[link.a] += transfer;
        ring.shares[link.b] -= transfer;
      }
      REQUIRE(Near(Sum(ring.shares), 5.5, 1e-9));
      counts.push_back(t);
    }
    std::ranges::sort(counts);
    return counts[50];
  };
  CHECK(median(0.25) == Approx(308).epsilon(0.25));
  CHECK(median(0.5) == Approx(161).epsilon(0.25));
  CHECK(median(0.9) == Approx(184).epsilon(0.25));
  CHECK(median(1.01) == 5000);
}

// ---- Fairness ----

TEST_CASE("GDRL (16): Jain's index is 1 for equals and 1/n for one of n; it is blind where the sum is 0") {
  CHECK(JainIndex(Values{3, 3, 3}) == Approx(1));
  CHECK(JainIndex(Values{0, 0, 7, 0}) == Approx(0.25));
  CHECK(JainIndex(Values{0, 0}) == 1);
  // Load exactly at the capacity: the index says nothing, the spread does.
  CHECK(JainIndex(Values{1e-9, -1e-9}) == 0);
  CHECK(Spread(Values{1e-9, -1e-9}) == Approx(2e-9));
}

TEST_CASE("GDRL section IV: a gift is whole, bounded by what the giver has, and goes to the worse off only") {
  CHECK(Gift(1, 5, 10, 100) == 40);
  CHECK(Gift(1, 5, 10, 25) == 25);
  CHECK(Gift(1, 5, 0.2, 100) == 0);
  CHECK(Gift(5, 1, 10, 100) == 0);
  const double infinite = std::numeric_limits<double>::infinity();
  CHECK(Gift(1, infinite, 10, 100) == 100);
  CHECK(Gift(infinite, infinite, 10, 100) == 0);
  CHECK(Gift(1, std::nan(""), 10, 100) == 0);
  CHECK(Transfer(infinite, infinite, 10) == 0);
}

TEST_CASE("GDRL section III-A: a filter of alpha forgets to 1/e in 1/alpha slots") {
  DemandEstimate estimate(1e-3, 0.0);
  for (int i = 0; i < 1000; ++i) estimate.Observe(1);
  CHECK(estimate.value() == Approx(1 - std::exp(-1.0)).epsilon(1e-3));
  DemandEstimate first(1e-3);
  CHECK(first.value() == 0);
  first.Observe(7);
  CHECK(first.value() == 7);
  CHECK(DemandEstimate::Alpha(std::chrono::seconds(1), std::chrono::seconds(1000)) == Approx(1e-3).epsilon(1e-3));
}

}    // namespace
}    // namespace dthrottle::plan
