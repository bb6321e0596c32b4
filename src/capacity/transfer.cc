#include "capacity/transfer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace dthrottle {
namespace {

constexpr double kRounding = 1e-12;    // of a bound, when a share counts as having reached it

// The part of what a node would give, and would get, that its bounds allow.
struct Allowed {
  double give = 1;
  double get = 1;
};

struct Ends {
  std::uint32_t giver, getter;
};

Ends EndsOf(const WeightedLink& link, double flow) {
  return flow > 0 ? Ends{link.b, link.a} : Ends{link.a, link.b};
}

double PartOf(double available, double wanted) {
  return wanted > std::max(available, 0.0) ? std::max(available, 0.0) / wanted : 1;
}

bool AtBound(double share, double bound) {
  return std::abs(share - bound) <= kRounding * std::max(1.0, std::abs(bound));
}

}    // namespace

double Transfer(double own, double neighbour, double gain) {
  DT_CHECK(gain >= 0);
  return own == neighbour ? 0 : gain * (own - neighbour);
}

std::uint64_t Gift(double own, double neighbour, double gain, std::uint64_t available) {
  const double wanted = std::floor(Transfer(neighbour, own, gain));
  if (!(wanted > 0)) return 0;    // nor if an indicator is no number
  return wanted >= static_cast<double>(available) ? available : static_cast<std::uint64_t>(wanted);
}

std::vector<double> Flows(const Graph& graph, std::span<const double> q, double gain) {
  DT_CHECK(q.size() == graph.size());
  std::vector<double> flows;
  flows.reserve(graph.links().size());
  for (const WeightedLink& link : graph.links()) flows.push_back(Transfer(q[link.a], q[link.b], gain * link.weight));
  return flows;
}

void Apply(const Graph& graph, std::span<const double> flows, std::span<double> shares) {
  DT_CHECK(shares.size() == graph.size() && flows.size() == graph.links().size());
  for (std::size_t i = 0; i < flows.size(); ++i) {
    shares[graph.links()[i].a] += flows[i];
    shares[graph.links()[i].b] -= flows[i];
  }
}

void CutFlows(const Graph& graph, std::span<const double> shares, std::span<const double> most,
              std::span<double> flows) {
  DT_CHECK(shares.size() == graph.size() && most.size() == graph.size() && flows.size() == graph.links().size());
  std::vector<Allowed> sum(graph.size(), Allowed{0, 0});
  for (std::size_t i = 0; i < flows.size(); ++i) {
    const Ends ends = EndsOf(graph.links()[i], flows[i]);
    sum[ends.giver].give += std::abs(flows[i]);
    sum[ends.getter].get += std::abs(flows[i]);
  }
  std::vector<Allowed> part(graph.size());
  for (std::size_t i = 0; i < part.size(); ++i) {
    part[i] = {PartOf(shares[i], sum[i].give), PartOf(most[i] - shares[i], sum[i].get)};
  }
  for (std::size_t i = 0; i < flows.size(); ++i) {
    const Ends ends = EndsOf(graph.links()[i], flows[i]);
    flows[i] *= std::min(part[ends.giver].give, part[ends.getter].get);
  }
}

void AllowedAmountRound(const Graph& graph, std::span<const double> demands, double gain, std::span<double> shares) {
  DT_CHECK(demands.size() == graph.size() && shares.size() == graph.size());
  std::vector<double> flows = Flows(graph, shares, gain);
  for (bool again = true; again;) {
    again = false;
    std::vector<double> move(graph.size(), 0.0);
    Apply(graph, flows, move);
    for (std::size_t link = 0; link < flows.size(); ++link) {
      const auto leaves = [&](std::uint32_t i) {
        return (move[i] > 0 && AtBound(shares[i], demands[i])) || (move[i] < 0 && AtBound(shares[i], 0));
      };
      if (flows[link] == 0 || (!leaves(graph.links()[link].a) && !leaves(graph.links()[link].b))) continue;
      flows[link] = 0;
      again = true;
    }
  }
  CutFlows(graph, shares, demands, flows);
  Apply(graph, flows, shares);
}

}    // namespace dthrottle
