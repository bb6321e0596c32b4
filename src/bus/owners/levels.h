// What owners say: the levels of tags, to a host that reported them, and to everybody where a tag is near its limit.
// They are states, so none is repeated and none is missed for long. An answer also says which reports of the host are
// counted, which the host then keeps no longer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bus/exchange_core.h"
#include "bus/membership.h"
#include "bus/owners/streams.h"

namespace dthrottle {

class Levels {
 public:
  Levels(ExchangeCore& core, Membership& members, Streams& streams)
      : core_(core), members_(members), streams_(streams) {}

  // REQUIRES: item.kind is kLevels or kNear.
  void FromLimiter(ToPeers& item);

  // The levels that have come, of an owner.
  void OnLevels(Peer& owner, std::size_t bytes, Instant now);

  static constexpr std::uint64_t kHostsMax = 1 << 16;    // of a fleet

 private:
  // What an owner of the list has said of how many hosts there are.
  struct Said {
    std::uint64_t hosts = 0;    // 0: nothing
    std::uint64_t life = 0;     // of the owner
    Instant began{};            // that life, if another was heard before
    Instant at{};               // when it said so last
  };

  std::uint64_t Hosts(std::size_t owner, Instant now);

  ExchangeCore& core_;
  Membership& members_;
  Streams& streams_;
  std::vector<Said> said_;          // by the owners of a list
  std::uint64_t said_epoch_ = 0;    // of that list
};

}    // namespace dthrottle
