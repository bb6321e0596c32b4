// The two ways of sharing a limit that GDRL was measured against, for comparison only: Raghavan et al., "Cloud control
// with distributed rate limiting" (2007).
//
//   GRD  global random drop: a query is served with the probability limit / what all hosts are asked for, or 1
//   FPS  flow proportional share: a host has a bucket with the part of burst and rate that its demand is of all demand
//
// Every host tells every other one once a period what it was asked for, by tag, and knows nothing newer of it. Demand is
// a mean over some two periods. The paper has a burst in neither, and estimates FPS's weights from flows that compete
// inside a host, where queries that are refused here come or do not come whatever the answer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/names.h"
#include "base/prng.h"
#include "bucket/bucket.h"
#include "lab/ledger.h"

namespace dthrottle::lab {

enum class BaselineKind : std::uint8_t { kGrd, kFps };
DT_NAMES(BaselineKind, "grd", "fps")

// What one host was asked for, tokens/s by tag.
using Demands = std::vector<double>;

class Baseline {
 public:
  Baseline(BaselineKind kind, std::size_t hosts, Duration period, std::uint64_t seed)
      : kind_(kind), hosts_(hosts), period_(period), prng_(seed), heard_(hosts, std::vector<Demands>(hosts)) {
    asked_.resize(hosts);
  }

  // A query to a host; `shape` is the limit's.
  bool Serves(std::uint32_t host, TagNumber tag, const Shape& shape, Cost cost, WorldTime now);
  // A period of the host is over. What it tells the others.
  std::shared_ptr<const Demands> Tell(std::uint32_t host);
  void Hear(std::uint32_t host, std::uint32_t from, const Demands& demands) { heard_[host][from] = demands; }

 private:
  double All(std::uint32_t host, TagNumber tag) const;

  BaselineKind kind_;
  std::size_t hosts_;
  Duration period_;
  Prng prng_;
  std::vector<std::vector<Demands>> heard_;     // by host and by whom it is of; its own too
  std::vector<Demands> asked_;                  // by host: tokens since its last word, by tag
  std::vector<std::vector<Bucket>> buckets_;    // FPS: by tag and host
};

}    // namespace dthrottle::lab
