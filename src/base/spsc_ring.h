// A bounded queue between two threads, one that pushes and one that pops. Never blocks: full and empty are answers.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/check.h"

namespace dthrottle {

template <class T>
class SpscRing {
 public:
  // Holds up to `capacity` items. REQUIRES: capacity > 0.
  explicit SpscRing(std::size_t capacity) : slots_(capacity + 1) { DT_CHECK(capacity > 0); }
  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;

  // Moves from `item` and returns true, or leaves it alone and returns false. The pushing thread.
  bool TryPush(T&& item) {
    const std::size_t tail = tail_.load(std::memory_order_relaxed), next = After(tail);
    if (next == head_.load(std::memory_order_acquire)) return false;
    slots_[tail] = std::move(item);
    tail_.store(next, std::memory_order_release);
    return true;
  }

  // False if there is none. The popping thread.
  bool TryPop(T& item) {
    const std::size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    item = std::move(slots_[head]);
    head_.store(After(head), std::memory_order_release);
    return true;
  }

  // For either thread. The answer may be out of date, always in favour of the caller: there is more room, or more to
  // pop.
  bool full() const { return After(tail_.load(std::memory_order_acquire)) == head_.load(std::memory_order_acquire); }
  bool empty() const { return head_.load(std::memory_order_acquire) == tail_.load(std::memory_order_acquire); }

 private:
  std::size_t After(std::size_t i) const { return i + 1 == slots_.size() ? 0 : i + 1; }

  std::vector<T> slots_;
  alignas(64) std::atomic<std::size_t> head_{0};    // next to pop
  alignas(64) std::atomic<std::size_t> tail_{0};    // next to push
};

}    // namespace dthrottle
