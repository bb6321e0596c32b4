// How much of a peer's news was not taken, by the ceiling that it was above: the exchange counts what it leaves for
// later, the limiter what it drops.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "bus/exchange.h"
#include "limiter/limiter.h"
#include "share/debit/debits.h"
#include "share/ways.h"

namespace dthrottle {

struct Cut {
  std::string_view ceiling;    // as its key in [peers], without "max_", or what the ceiling is for
  std::uint64_t much;          // in what that key counts
};

inline PeerMergeCounts MergedOf(const Limiter& limiter, const PeerStatus& peer) {
  return peer.number ? limiter.ways().Get<Debits>().peers().counts_of(*peer.number) : PeerMergeCounts();
}

inline std::array<Cut, 6> CutOf(const Limiter& limiter, const PeerStatus& peer) {
  return {{{"frames", peer.cut.frames},
           {"entries", peer.cut.entries},
           {"hits", peer.cut.hits},
           {"new_tags", MergedOf(limiter, peer).new_tags_cut},
           {"penalties", MergedOf(limiter, peer).penalties_cut},
           {"limits", peer.cut.limits}}};
}

}    // namespace dthrottle
