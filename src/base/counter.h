// A count that one thread writes and any thread reads.
#pragma once

#include <atomic>
#include <cstdint>

namespace dthrottle {

class Counter {
 public:
  // REQUIRES: always called by the same thread.
  void Add(std::uint64_t n = 1) { value_.store(Read() + n, std::memory_order_relaxed); }
  std::uint64_t Read() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

}    // namespace dthrottle
