// Giving a snapshot: to one peer at a time. The limiter walks its table; positions say which reports are in it.
#pragma once

#include <optional>
#include <vector>

#include "bus/exchange_core.h"
#include "bus/membership.h"
#include "bus/owners/streams.h"

namespace dthrottle {

class Giving {
 public:
  Giving(ExchangeCore& core, const Membership& members, Streams& streams)
      : core_(core), members_(members), streams_(streams) {}

  // The request that has come.
  void OnWanted(const Route& route, Peer& peer, Instant now);

  // REQUIRES: item.kind is kSnapshotBegin, kSnapshotPart or kSnapshotEnd.
  void FromLimiter(ToPeers& item, Instant now);

  // Gives up when the limiter says nothing. Returns when to look again.
  Instant Pass(Instant now);

 private:
  struct Given {
    Route route;
    std::string host;
    std::uint64_t id;        // of who asked
    std::uint64_t number;    // between us and the limiter
    Instant deadline;
    std::vector<Position> positions;
    std::uint64_t parts = 0;
  };

  bool repairing(Instant now) const;
  bool WaitsForRepairs(Instant now);
  Entries ForAsker(const std::string& host, Entries entries) const;

  ExchangeCore& core_;
  const Membership& members_;
  Streams& streams_;
  std::optional<Given> given_;
  std::uint64_t begun_ = 0;
  Instant waiting_since_{}, waited_{};    // for repairs, while requests come
};

}    // namespace dthrottle
