// A side table whose entries other hosts are told of: it knows which of them have changed since they were told.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/side_table.h"

namespace dthrottle {

struct UntoldWays {
  std::atomic<std::uint8_t> bits{0};    // one for each way
};

template <class Entry, std::size_t kWays>
class ToldTable : public SideTable<Entry, kWays, UntoldWays> {
 public:
  using Base = SideTable<Entry, kWays, UntoldWays>;
  using Base::Base;

  // Whether something is to be told. Any thread.
  bool any_untold() const { return any_.load(std::memory_order_relaxed); }

  // ---- With the set of the place locked ----

  // The same as in SideTable. A new entry counts as told.
  template <class Worth>
  std::size_t FindOrPut(std::uint64_t hash, Worth&& worth) {
    const std::size_t known = this->Find(hash);
    if (known != this->kNone) return known;
    const std::size_t place = Base::FindOrPut(hash, worth);
    if (place != this->kNone) SetTold(place);
    return place;
  }

  bool untold(std::size_t place) {
    return (this->beside(place).bits.load(std::memory_order_relaxed) & BitOf(place)) != 0;
  }
  // True: nothing else was to be told.
  bool SetUntold(std::size_t place) {
    this->beside(place).bits.fetch_or(BitOf(place), std::memory_order_relaxed);
    return !any_.exchange(true, std::memory_order_relaxed);
  }
  void SetTold(std::size_t place) {
    this->beside(place).bits.fetch_and(static_cast<std::uint8_t>(~BitOf(place)), std::memory_order_relaxed);
  }

  // ---- For the owner's thread, which locks the set of a hash by `lock(hash)` ----

  // Calls use(place, locked) for each entry.
  template <class Lock, class Use>
  void ForEach(Lock&& lock, Use&& use) {
    for (std::size_t place = 0; place < this->places(); ++place) {
      const std::uint64_t hash = this->HashAt(place);
      if (hash == 0) continue;
      auto locked = lock(hash);
      if (this->HashAt(place) == hash) use(place, locked);
    }
  }

  // Calls tell(place, locked) for each entry that is to be told, until that returns false for want of room. Returns
  // whether there is more to tell.
  template <class Lock, class Tell>
  bool TellSome(Lock&& lock, Tell&& tell) {
    if (!any_.exchange(false, std::memory_order_relaxed)) return false;
    for (std::size_t place = 0; place < this->places(); ++place) {
      if (!untold(place)) continue;
      const std::uint64_t hash = this->HashAt(place);
      if (hash == 0) continue;
      auto locked = lock(hash);
      if (this->HashAt(place) != hash) continue;    // another one has taken its place, and is told next time
      if (!tell(place, locked)) {
        any_.store(true, std::memory_order_relaxed);
        return true;
      }
      SetTold(place);
    }
    return false;
  }

 private:
  static_assert(kWays <= 8);
  static std::uint8_t BitOf(std::size_t place) { return static_cast<std::uint8_t>(1u << place % kWays); }

  std::atomic<bool> any_{false};
};

}    // namespace dthrottle
