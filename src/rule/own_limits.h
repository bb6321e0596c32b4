// The limits that tags name themselves (own_limit.h), as limits of a rulebook. It numbers them behind all others as it
// meets them. What decides queries finds the number in the tag's slot, as it does any limit's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "rule/own_limit.h"
#include "rule/rule.h"

namespace dthrottle {

struct Limit;

// Any thread.
class OwnLimits {
 public:
  // Limits that differ, of all rules. More are not taken, so that numbers that somebody chooses cannot fill the memory.
  static constexpr std::size_t kRoom = 4096, kMost = kRoom / 4 * 3;

  // Limits are written to the kRoom that begin at `limits`, which must outlive this object.
  explicit OwnLimits(Limit* limits) : limits_(limits), keys_(new std::atomic<std::uint64_t>[kRoom]()) {}

  // The place in `limits` of the limit under a rule, which is `its` but for burst and rate. None: there is no room.
  // REQUIRES: limit.can_be(); a rule comes with the same limit each time.
  std::optional<std::size_t> Find(const OwnLimit& limit, const Rule& rule, const Limit& its);

  // Tokens a second. REQUIRES: Find has returned the place.
  double rate(std::size_t place) const;

 private:
  Limit* const limits_;
  const std::unique_ptr<std::atomic<std::uint64_t>[]> keys_;    // by place; 0: it is free
  std::mutex mutex_;    // of whoever fills a place
  std::size_t used_ = 0;
};

}    // namespace dthrottle
