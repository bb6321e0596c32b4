// What the limiter and the ways of sharing know of one tag, and counts of ways, as people and metrics ask for them.
#pragma once

#include <cstdint>
#include <optional>

#include "bucket/bucket.h"
#include "quota/quotas.h"
#include "share/accuracy/certificate.h"
#include "share/among/among_tags.h"

namespace dthrottle {

struct Inspection {
  std::optional<LimitIndex> limit;    // none: no rule matches, every query is served
  bool recorded = false;              // false: the bucket is full and takes no memory
  Bucket bucket;
  Shape shape{};      // of the bucket, on this host; interval 0: no limit applies
  struct Places {
    std::uint32_t taken = 0, most = 0;    // on this host

    bool all_taken() const { return taken >= most; }
  };
  Cost lent = 0;    // tokens that workers have (loans.h)
  std::optional<Places> places;    // if there is a number of them
  Duration penalty{};             // for so long it is refused whatever its bucket holds
  std::optional<QuotaStanding> quota;    // if it has one
  double part = 1;    // of the limit's rate that this host has
  std::optional<DividedAmong> among;    // if it is divided among the tags that are charged with it
  struct Foretold {
    Tokens level = 0;                       // of the one bucket, as this host believes
    double share = 1;                       // of its demand that it earns
    double demand = 0, peers_demand = 0;    // tokens/s, as announced
    bool held = false;                      // queries wait for the peers to hear
  };
  std::optional<Foretold> foretold;       // if it is watched, under a limit that is forecast
  bool watched = false;                   // its hits are reported early
  std::optional<TagAccuracy> accuracy;    // if the certificate has an account of it
};

// Tags that are watched, so that peers hear early of their hits.
struct WatchCounts {
  std::uint64_t tags = 0;       // now
  std::uint64_t crowded = 0;    // times that a tag could not be watched for want of room
  std::uint64_t held = 0;       // queries refused because peers had not heard of enough
};

struct ShareStatus {
  WatchCounts watched;
};

}    // namespace dthrottle
