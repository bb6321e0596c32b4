// What a dead host's log says of its edge with one neighbour, on the way there: in frames, each sent until it is
// acknowledged, and the one that says that there is no more behind all others.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/state.h"
#include "capacity/capacity_message.h"
#include "capacity/client_log.h"

namespace dthrottle {

class Settling {
 public:
  // Settles the edge `slot` of the log. Frames are numbered from `sequence`.
  Settling(const ClientLog& log, std::size_t slot, std::string its_to, std::uint64_t sequence);
  Settling() = default;    // to be read into

  std::string dead;
  std::uint64_t life = 0;
  std::string to;
  std::uint64_t to_life = 0;    // 0: not known
  int tries = 0;

  std::span<const CapacityItem> items() const { return items_; }
  std::span<const EdgeSums> sums() const { return sums_; }    // of each item
  std::size_t frames() const { return frames_; }
  bool done() const { return open_.empty(); }
  bool last_only() const { return open_.size() == 1 && *open_.begin() + 1 == frames_; }    // the last may go

  std::vector<std::size_t> Due() const;                             // frames to be sent, or sent again
  void Write(std::size_t frame, CapacityMessage& message) const;    // all fields of its own
  bool Acknowledge(std::uint64_t sequence);                         // false: it is none of its frames

  static void Fields(auto& state, auto& self) {
    state(self.dead, self.life, self.to, self.to_life, self.tries, self.items_, self.sums_, self.sequence_, self.open_);
    if constexpr (kIsReading<decltype(state)>) state.Check(self.Count());
  }

 private:
  bool Count();    // the frames; false: what was read cannot be

  std::vector<CapacityItem> items_;
  std::vector<EdgeSums> sums_;
  std::uint64_t sequence_ = 0;
  std::size_t frames_ = 0;
  std::set<std::size_t> open_;    // not acknowledged
};

}    // namespace dthrottle
