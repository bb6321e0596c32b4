// Giving a snapshot: to one peer at a time. The limiter walks its table; positions say which reports are in it.
//
// Owners get what they own, and are not refused because another one is first: after a change of their list all of them
// ask every host at once. Owners that ask during a walk share the next one.
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
  struct Asker {
    Route route;
    std::string host;
    std::uint64_t id;    // of its request
    std::vector<Position> positions{};
    std::uint64_t parts = 0;
    // What an owner owns, until that fills a frame, as of `at`.
    Entries its{};
    Instant at{};
  };
  struct Given {
    std::uint64_t number;    // between us and the limiter
    Instant deadline;
    std::vector<Asker> askers;    // several only if they are owners
  };

  bool repairing(Instant now) const;
  bool WaitsForRepairs(Instant now);
  void Begin(std::vector<Asker> askers, Instant now);
  void Gather(Asker& asker, std::size_t owner, const ToPeers& part);
  void SayPart(Asker& asker, Instant at, Entries entries);
  void SayEnd(Asker& asker, Instant now);
  void End(Instant now);

  ExchangeCore& core_;
  const Membership& members_;
  Streams& streams_;
  std::optional<Given> given_;
  std::vector<Asker> waiting_;    // owners, for the next walk
  std::uint64_t begun_ = 0;
  Instant waiting_since_{}, waited_{};    // for repairs, while requests come
};

}    // namespace dthrottle
