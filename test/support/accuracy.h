// How near a fleet comes to one bucket for all: one tag, one-way delay 10 ms, and unless a test says otherwise rate
// 100/s, burst 100 and a period of 1 s, so one entry of a report for each host and second; 60 s. By the definitions of
// Raghavan et al. 2007 and others:
//
//   over    what was served beyond the ideal in each window of a second, in sum, in % of all that is ideal
//   under   the same the other way
//   longer  served in all against the ideal, in %
//   excess  tokens above burst + rate x time in the worst window
//   served  in % of what was asked for; ideal: the same of one bucket
//
// The hosts' certificates (share/accuracy/certificate.h) are shown beside the truth: over and under as the mean of all
// hosts, and the bound on excess that theory gives.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "config/load.h"
#include "lab/dividing_hosts.h"
#include "lab/fleet.h"
#include "rule/rulebook.h"
#include "share/ways.h"
#include "test/support/host.h"

namespace dthrottle::testing {

inline constexpr double kAccuracyRate = 100;    // tokens/s, which the workloads below are multiples of

enum class Scheme { kSplit, kPlain, kForecast, kCapacity };    // kSplit: an N-th of the limit for each host

struct Accuracy {
  double over = 0, under = 0, longer = 0;    // %
  double excess = 0;                         // tokens
  double entries = 0;                        // sent by a host in a second
  double over_seen = 0, under_seen = 0;      // %
  double blurred = 0;                        // of these two, %
  double bound = 0;                          // tokens
  double served = 0, ideal = 0;              // %

  Accuracy& operator+=(const Accuracy& o) {
    over += o.over, under += o.under, longer += o.longer, excess += o.excess, entries += o.entries;
    over_seen += o.over_seen, under_seen += o.under_seen, blurred += o.blurred, bound += o.bound;
    served += o.served, ideal += o.ideal;
    return *this;
  }
  Accuracy& operator/=(double n) {
    over /= n, under /= n, longer /= n, excess /= n, entries /= n;
    over_seen /= n, under_seen /= n, blurred /= n, bound /= n;
    served /= n, ideal /= n;
    return *this;
  }
};

// Whether certificates show the truth to a factor of two; below half a per cent there is little to show. If not, they
// have to say so.
inline bool IsNear(double seen, double truth) {
  constexpr double kSmall = 0.5;
  return seen <= 2 * truth + kSmall && seen >= truth / 2 - kSmall;
}
inline bool IsNear(const Accuracy& a) {
  return IsNear(a.over_seen, a.over) && IsNear(a.under_seen, a.under);
}
inline bool IsBlurred(const Accuracy& a) {
  return 2 * a.blurred > a.over_seen + a.under_seen;
}

struct AccuracyOptions {
  std::size_t hosts = 16;
  Scheme scheme = Scheme::kForecast;
  std::size_t owners = 0;    // of the hosts, that own all tags; 0: everybody hears everything
  lab::Workload workload;
  bool burst_everywhere = false;    // before the workload: `burst` queries to every host at once
  Duration period = std::chrono::seconds(1);
  double loss = 0;           // of frames
  double max_unheard = 0;    // 0: the default
  double rate = kAccuracyRate, burst = 100;
  Duration lasts = std::chrono::seconds(60);
  std::uint32_t drift_ppm = 100;    // of clocks, either way
  Duration settles{};               // at the beginning, not measured
  std::function<void(lab::Fleet&, lab::WorldTime begin)> before{};    // of the workload, which begins then
};

// The first hosts of a fleet.
inline std::vector<std::string> OwnerNames(std::size_t owners) {
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < owners; ++i) names.push_back(lab::HostName(i));
  return names;
}

// `samples` are `width` seconds wide.
inline Accuracy Compare(const std::vector<lab::Sample>& samples, double width, const AccuracyOptions& options) {
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
  const Duration joined = divided ? 10s + lab::TimeToMeet(defaults, true) : 10s;
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
  lab::FleetOptions fleet_options;
  fleet_options.hosts = options.hosts;
  fleet_options.owners = OwnerNames(options.owners);
  fleet_options.rules = Rules(rules);
  fleet_options.ideal_rules = Rules(ideal_rules);
  fleet_options.period = options.period;
  fleet_options.lanes = {.delay = 10ms, .lossy = options.loss > 0, .loss = options.loss};
  fleet_options.drift_ppm_max = options.drift_ppm;
  fleet_options.started_within = options.period;
  fleet_options.host.capacity = lab::CapacityOf(defaults, *fleet_options.rules, options.hosts);
  fleet_options.sample = kSample;
  lab::Fleet fleet(fleet_options, seed);
  if (options.before) options.before(fleet, lab::After(joined));
  lab::Workload workload = options.workload;
  workload.from = lab::After(joined);
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
  std::vector<lab::Sample> samples = fleet.samples();
  samples.erase(samples.begin(), samples.begin() + std::min<std::ptrdiff_t>((joined + options.settles) / kSample, std::ssize(samples)));
  Accuracy result = Compare(samples, Seconds(kSample), options);
  double ideal = 0;
  for (const lab::Sample& sample : samples) ideal += static_cast<double>(sample.ideal);
  for (std::uint32_t i = 0; i < fleet.size(); ++i) {
    result.entries += static_cast<double>(fleet.host(i).exchange().Counts().published_entries);
  }
  fleet.Run(workload.until + 5 * options.period);    // until certificates have looked at the end
  const std::vector<PeerAge> peers(options.hosts - 1, {Duration::zero(), fleet_options.lanes.delay});
  for (std::uint32_t i = 0; i < fleet.size(); ++i) {
    const Limiter& limiter = fleet.host(i).limiter();
    const Deviation& seen = limiter.ways().Get<Debits>().accuracy(0).ever;
    const double hosts = static_cast<double>(fleet.size());
    result.over_seen += 100 * seen.over / ideal / hosts;
    result.under_seen += 100 * seen.under / ideal / hosts;
    result.blurred += 100 * seen.blurred / ideal / hosts;
    const Limit& limit = limiter.rules().limit(0);
    const auto bound = limiter.ways().With(limit, [&](const auto& way) { return way.Bound(limit, peers); });
    if (options.scheme != Scheme::kSplit && !divided) result.bound = bound.value();
  }
  result.entries /= static_cast<double>(fleet.size()) * Seconds(options.lasts);
  return result;
}

// ---- Workloads ----

inline lab::Workload Poisson(double times) {
  return {.rate = times * kAccuracyRate, .poisson = true};
}
// Five times the rate for 2 s, a tenth for 6 s, both exponentially distributed.
inline lab::Workload Bursty() {
  using namespace std::chrono_literals;
  lab::Workload w = Poisson(5);
  w.on = 2s, w.off = 6s, w.random_turns = true, w.quiet = 0.02;
  return w;
}
// Three times the rate, all on one host for 2 s and then on another.
inline lab::Workload Hop(std::size_t group = 1) {
  lab::Workload w = Poisson(3);
  w.spread = lab::Workload::Spread::kGroup;
  w.group = group;
  return w;
}
inline lab::Workload ZipfOverHosts(double rate = kAccuracyRate) {
  lab::Workload w = Poisson(2 * rate / kAccuracyRate);
  w.spread = lab::Workload::Spread::kZipf;
  return w;
}
// A tenth of the rate, and every 20 s, on all hosts, ten times the rate for 2 s.
inline lab::Workload FlashCrowds() {
  using namespace std::chrono_literals;
  lab::Workload w = Poisson(10);
  w.on = 2s, w.off = 18s, w.quiet = 0.01;
  return w;
}

}    // namespace dthrottle::testing
