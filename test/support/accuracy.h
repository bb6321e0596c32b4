// How near a fleet comes to one bucket for all: one tag, one-way delay 10 ms, and unless a test says otherwise rate 100/s,
// burst 100 and a period of 1 s, so one entry of a report for each host and second; 60 s. By the definitions of Raghavan
// et al. 2007 and others:
//
//   over    what was served beyond the ideal in each window of a second, in sum, in % of all that is ideal
//   under   the same the other way
//   longer  served in all against the ideal, in %
//   excess  tokens above burst + rate x time in the worst window
//   served  in % of what was asked for; ideal: the same of one bucket
//
// The hosts' certificates (limiter/certificate.h) are shown beside the truth: over and under as the mean of all hosts, and
// the bound on excess that theory gives.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "config/load.h"
#include "sim/dividing_hosts.h"
#include "sim/fleet.h"
#include "test/support/host.h"

namespace dthrottle::testing {

inline constexpr double kAccuracyRate = 100;    // tokens/s, which the workloads below are multiples of

enum class Scheme { kSplit, kPlain, kEager, kForecast, kCapacity };    // kSplit: an N-th of the limit for each host

struct Accuracy {
  double over = 0, under = 0, longer = 0;    // %
  double excess = 0;                         // tokens
  double entries = 0;                        // sent by a host in a second
  double over_seen = 0, under_seen = 0;      // %
  double bound = 0;                          // tokens
  double served = 0, ideal = 0;              // %

  Accuracy& operator+=(const Accuracy& o) {
    over += o.over, under += o.under, longer += o.longer, excess += o.excess, entries += o.entries;
    over_seen += o.over_seen, under_seen += o.under_seen, bound += o.bound;
    served += o.served, ideal += o.ideal;
    return *this;
  }
  Accuracy& operator/=(double n) {
    over /= n, under /= n, longer /= n, excess /= n, entries /= n;
    over_seen /= n, under_seen /= n, bound /= n;
    served /= n, ideal /= n;
    return *this;
  }
};

struct AccuracyOptions {
  std::size_t hosts = 16;
  Scheme scheme = Scheme::kForecast;
  sim::Workload workload;
  bool burst_everywhere = false;    // before the workload: `burst` queries to every host at once
  Duration period = std::chrono::seconds(1);
  double loss = 0;           // of frames
  double max_unheard = 0;    // 0: the default
  double rate = kAccuracyRate, burst = 100;
  Duration lasts = std::chrono::seconds(60);
  std::uint32_t drift_ppm = 100;    // of clocks, either way
};

// `samples` are `width` seconds wide.
inline Accuracy Compare(const std::vector<sim::Sample>& samples, double width, const AccuracyOptions& options) {
  Accuracy result;
  const auto per_window = static_cast<std::size_t>(std::lround(1 / width));
  double asked = 0, ideal = 0, served = 0, queue = 0;
  for (std::size_t i = 0; i < samples.size(); i += per_window) {
    double window = 0;
    for (std::size_t k = i; k < std::min(i + per_window, samples.size()); ++k) {
      const auto s = static_cast<double>(samples[k].served), want = static_cast<double>(samples[k].ideal);
      window += s - want;
      asked += static_cast<double>(samples[k].asked), ideal += want, served += s;
      queue = std::max(queue - options.rate * width, 0.0) + s;
      result.excess = std::max(result.excess, queue - options.burst);
    }
    (window > 0 ? result.over : result.under) += std::abs(window);
  }
  result.over *= 100 / ideal, result.under *= 100 / ideal;
  result.longer = 100 * (served / ideal - 1);
  result.served = 100 * served / asked, result.ideal = 100 * ideal / asked;
  return result;
}

inline Accuracy MeasureAccuracy(const AccuracyOptions& options, std::uint64_t seed) {
  using namespace std::chrono_literals;
  constexpr Duration kSample = 10ms;
  const bool divided = options.scheme == Scheme::kCapacity;
  const Settings defaults = ParseSettings("", "").settings;
  const Duration joined = divided ? sim::TimeToMeet(defaults, 10s, true) : 10s;
  std::string rules = "[[rule]]\nname=\"default\"\n";
  const std::string ideal_rules = fmt::format("{}burst={}\nrate={}\n", rules, options.burst, options.rate);
  if (options.scheme == Scheme::kSplit) {
    const auto hosts = static_cast<double>(options.hosts);
    rules += fmt::format("share=\"local\"\nburst={}\nrate={}\n", options.burst / hosts, options.rate / hosts);
  } else {
    const char* const share = divided ? "capacity" : options.scheme == Scheme::kForecast ? "forecast" : "debit";
    rules = fmt::format("{}share=\"{}\"\n", ideal_rules, share);
  }
  if (options.max_unheard > 0) rules += "max_unheard=" + std::to_string(options.max_unheard) + "\n";
  sim::FleetOptions fleet_options;
  fleet_options.hosts = options.hosts;
  fleet_options.rules = Rules(rules);
  fleet_options.ideal_rules = Rules(ideal_rules);
  fleet_options.period = options.period;
  fleet_options.lanes = {.delay = 10ms, .lossy = options.loss > 0, .loss = options.loss};
  fleet_options.drift_ppm_max = options.drift_ppm;
  fleet_options.started_within = options.period;
  fleet_options.host.eager = options.scheme == Scheme::kEager;
  fleet_options.host.capacity = sim::CapacityOf(defaults, *fleet_options.rules, options.hosts);
  fleet_options.sample = kSample;
  sim::Fleet fleet(fleet_options, seed);
  sim::Workload workload = options.workload;
  workload.from = sim::After(joined);
  workload.until = workload.from + options.lasts;
  fleet.Add(workload);
  if (options.burst_everywhere) {
    fleet.At(workload.from, [&] {
      for (int i = 0; i < static_cast<int>(options.burst); ++i) {
        for (std::uint32_t host = 0; host < fleet.size(); ++host) fleet.Ask(host, workload.tag);
      }
    });
  }
  fleet.Run(workload.until);
  std::vector<sim::Sample> samples = fleet.samples();
  samples.erase(samples.begin(), samples.begin() + std::min<std::ptrdiff_t>(joined / kSample, std::ssize(samples)));
  Accuracy result = Compare(samples, Seconds(kSample), options);
  double ideal = 0;
  for (const sim::Sample& sample : samples) ideal += static_cast<double>(sample.ideal);
  const std::vector<PeerAge> peers(options.hosts - 1, {Duration::zero(), fleet_options.lanes.delay});
  for (std::uint32_t i = 0; i < fleet.size(); ++i) {
    const Limiter& limiter = fleet.host(i).limiter();
    const Deviation& seen = limiter.accuracy(0).ever;
    const double hosts = static_cast<double>(fleet.size());
    result.over_seen += 100 * seen.over / ideal / hosts;
    result.under_seen += 100 * seen.under / ideal / hosts;
    if (options.scheme != Scheme::kSplit && !divided)
      result.bound = ExcessBound(limiter.BoundTermsOf(limiter.rules().limit(0)), peers);
    result.entries += static_cast<double>(fleet.host(i).exchange().Counts().published_entries);
  }
  result.entries /= static_cast<double>(fleet.size()) * Seconds(options.lasts);
  return result;
}

// ---- Workloads ----

inline sim::Workload Poisson(double times) {
  return {.rate = times * kAccuracyRate, .poisson = true};
}
// Five times the rate for 2 s, a tenth for 6 s, both exponentially distributed.
inline sim::Workload Bursty() {
  using namespace std::chrono_literals;
  sim::Workload w = Poisson(5);
  w.on = 2s, w.off = 6s, w.random_turns = true, w.quiet = 0.02;
  return w;
}
// Three times the rate, all on one host for 2 s and then on another.
inline sim::Workload Hop(std::size_t group = 1) {
  sim::Workload w = Poisson(3);
  w.spread = sim::Workload::Spread::kGroup;
  w.group = group;
  return w;
}
inline sim::Workload ZipfOverHosts(double rate = kAccuracyRate) {
  sim::Workload w = Poisson(2 * rate / kAccuracyRate);
  w.spread = sim::Workload::Spread::kZipf;
  return w;
}
// A tenth of the rate, and every 20 s, on all hosts, ten times the rate for 2 s.
inline sim::Workload FlashCrowds() {
  using namespace std::chrono_literals;
  sim::Workload w = Poisson(10);
  w.on = 2s, w.off = 18s, w.quiet = 0.01;
  return w;
}

}    // namespace dthrottle::testing
