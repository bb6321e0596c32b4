// What an owner of tags tells every host, or one that has come: frames of the kind near (protocol/owners.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/allowance.h"
#include "bus/exchange.h"
#include "share/owners/owning_counts.h"
#include "share/share.h"

namespace dthrottle {

// A full ring is tried again after so long.
inline constexpr Duration kNearRetry = std::chrono::milliseconds(5);

// How many entries everybody may be told of. Tags near their limit, penalties, quotas and places have so many each, so
// none of these takes the room of another.
inline Allowance NearRoom() {
  return {kEntriesMax, kEntriesMax};
}

// The entries, as of that instant, for one host or for all.
inline ToPeers NearFrame(const LimiterCore& core, Entries&& entries, Instant as_of,
                         std::optional<std::uint32_t> peer = std::nullopt) {
  ToPeers item;
  item.kind = ToPeers::Kind::kNear;
  item.to = as_of;
  item.hosts = core.abroad;
  item.peer = peer.value_or(0);
  item.to_one = peer.has_value();
  item.entries = std::move(entries);
  return item;
}

}    // namespace dthrottle
