// Limiters that share C as GDRL has it, for its figures: with demands that are known, or estimated by the paper's
// filter, by the paper's rounds or as hosts over a network.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "capacity/demand.h"
#include "capacity/fairness.h"
#include "capacity/gain.h"
#include "lab/capacity_fleet.h"
#include "lab/figure_parts.h"
#include "lab/figures.h"
#include "lab/sampling.h"
#include "share/capacity/part_table.h"

namespace dthrottle::lab {

inline constexpr double kNever = std::numeric_limits<double>::quiet_NaN();

// lambda_i, and the same the other way round.
inline Values Rising(std::size_t n) {
  Values demands;
  for (std::size_t i = 1; i <= n; ++i) demands.push_back(static_cast<double>(i) / static_cast<double>(n + 1));
  return demands;
}
inline Values Falling(std::size_t n) {
  Values demands = Rising(n);
  std::ranges::reverse(demands);
  return demands;
}

// At the largest gain that (15) allows unless options say another one. Over a network they are hosts.
class Limiters {
 public:
  // `load`: demand as a part of the capacity.
  Limiters(Graph graph, double load, const FigureOptions& options)
      : demands(Rising(graph.size())),
        graph_(std::move(graph)),
        gain_(options.gain.value_or(SpareBandwidthGainMax(graph_))),
        capacity_(Sum(demands) / load),
        go_on_(options.go_on) {
    shares_.assign(demands.size(), capacity_ / static_cast<double>(demands.size()));
    if (options.network) Begin(options.seed, *options.network);
  }

  Values demands;    // the maker of the figure changes them

  Values q() const { return Indicate(demands, shares_); }                        // as it is
  Values measured_q() const { return Indicate(measured_demands(), shares_); }    // as limiters think it is
  Values measured_demands() const {
    if (filters_.empty()) return demands;
    Values measured;
    for (const DemandEstimate& filter : filters_) measured.push_back(filter.value());
    return measured;
  }
  double jain() const { return JainIndex(q()); }
  double measured_jain() const { return JainIndex(measured_q()); }
  double most() const { return PartOfWhole(hosts_->most()); }    // of C, that all had at once. REQUIRES: a network

  void Filter(double alpha) { filters_.assign(demands.size(), DemandEstimate(alpha, 0)); }
  bool going() const { return go_on_(); }    // whether rounds are wanted
  void Round(Prng& prng) {
    if (!going()) return;
    for (std::size_t i = 0; i < filters_.size(); ++i) filters_[i].Observe(Happens(demands[i], prng) ? 1 : 0);
    if (hosts_ == nullptr) return lab::Round(graph_, measured_q(), gain_, shares_);
    const Values measured = measured_demands();
    for (std::uint32_t i = 0; i < measured.size(); ++i) hosts_->SetDemand(i, 0, measured[i] / capacity_);
    hosts_->Run(hosts_->now() + 1);
    for (std::uint32_t i = 0; i < measured.size(); ++i) shares_[i] = PartOfWhole(hosts_->Share(i, 0)) * capacity_;
  }

 private:
  void Begin(std::uint64_t seed, const FrameTrouble& trouble) {
    constexpr double kSettle = 30;    // rounds until there is a generation and everybody has a best friend
    CapacityFleet::Options o{.hosts = static_cast<std::uint32_t>(demands.size()), .tags = 1, .lanes = trouble.lanes()};
    o.graph = graph_;
    o.reserve = 0;    // the paper has none
    o.gain = gain_;
    hosts_ = std::make_unique<CapacityFleet>(std::move(o), seed);
    hosts_->Run(kSettle);
  }

  Graph graph_;
  double gain_;
  double capacity_;
  std::function<bool()> go_on_;
  Values shares_;
  std::vector<DemandEstimate> filters_;     // none: demands are known
  std::unique_ptr<CapacityFleet> hosts_;    // none: everybody hears everybody at once
};

// When Jain's index first was at least this high.
class Passage {
 public:
  explicit Passage(double index) : index_(index) {}
  void See(int round, double jain) {
    if (std::isnan(at_) && jain >= index_) at_ = round;
  }
  double index() const { return index_; }
  double at() const { return at_; }

 private:
  double index_, at_ = kNever;
};

class Mean {
 public:
  void Add(double value) {
    sum_ += value;
    ++count_;
  }
  double value() const { return sum_ / count_; }

 private:
  double sum_ = 0;
  int count_ = 0;
};

}    // namespace dthrottle::lab
