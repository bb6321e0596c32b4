// What owners say: the levels of tags, to a host that reported them, and to everybody where a tag is near its limit.
// They are states, so none is repeated and none is missed for long. An answer also says which reports of the host are
// counted, which the host then keeps no longer.
#pragma once

#include <cstddef>

#include "bus/exchange_core.h"
#include "bus/membership.h"
#include "bus/owners/streams.h"

namespace dthrottle {

class Levels {
 public:
  Levels(ExchangeCore& core, Membership& members, Streams& streams)
      : core_(core), members_(members), streams_(streams) {}

  // REQUIRES: item.kind is kLevels or kNear.
  void FromLimiter(ToPeers& item, Instant now);

  // The levels that have come, of an owner.
  void OnLevels(Peer& owner, std::size_t bytes, Instant now);

 private:
  ExchangeCore& core_;
  Membership& members_;
  Streams& streams_;
};

}    // namespace dthrottle
