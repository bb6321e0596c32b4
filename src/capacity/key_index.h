// Where the ledger of a key is: open addressing over digests, which need no further hashing.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "capacity/capacity_exchange.h"

namespace dthrottle {

class KeyIndex {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  std::uint32_t Find(const CapacityKey& key) const {
    if (slots_.empty()) return kNone;
    for (std::size_t i = key.low & mask_;; i = (i + 1) & mask_) {
      if (slots_[i].place == kNone || slots_[i].key == key) return slots_[i].place;
    }
  }

  // REQUIRES: the key is not there.
  void Add(const CapacityKey& key, std::uint32_t place) {
    if (2 * (size_ + 1) > slots_.size()) Grow();
    Put({key, place});
    ++size_;
  }

  void Clear() {
    slots_.clear();
    size_ = mask_ = 0;
  }

 private:
  struct Slot {
    CapacityKey key;
    std::uint32_t place = kNone;
  };

  void Put(const Slot& slot) {
    std::size_t i = slot.key.low & mask_;
    while (slots_[i].place != kNone) i = (i + 1) & mask_;
    slots_[i] = slot;
  }

  void Grow() {
    const std::vector<Slot> old = std::move(slots_);
    slots_.assign(old.empty() ? 64 : 2 * old.size(), Slot());
    mask_ = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.place != kNone) Put(slot);
    }
  }

  std::vector<Slot> slots_;    // a power of two
  std::size_t mask_ = 0, size_ = 0;
};

}    // namespace dthrottle
