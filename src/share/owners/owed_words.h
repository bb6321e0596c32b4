// Tags of which hosts that have named them are to be told, by the numbers of hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bus/entries.h"

namespace dthrottle {

class OwedWords {
 public:
  // The host is to be told of the tag of that hash, which it may be already.
  void Owe(std::uint32_t peer, std::uint64_t hash) {
    if (due_.size() <= peer) due_.resize(peer + 1);
    if (due_[peer].size() < kMost) due_[peer].push_back(hash);
  }

  // Calls add(hash) for what the host is to be told, until that returns false: there is no room. Whether all found room.
  template <class Add>
  bool Give(std::uint32_t peer, Add&& add) {
    if (peer >= due_.size()) return true;
    std::vector<std::uint64_t>& due = due_[peer];
    while (!due.empty() && add(due.back())) due.pop_back();
    return due.empty();
  }

  bool any(std::uint32_t peer) const { return peer < due_.size() && !due_[peer].empty(); }

 private:
  static constexpr std::size_t kMost = 4 * kEntriesMax;    // to one host; it names again what is left out

  std::vector<std::vector<std::uint64_t>> due_;
};

}    // namespace dthrottle
