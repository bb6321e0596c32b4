// Where the limiter's half leaves messages for the half that knows peers and frames. A full ring is tried again soon.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/time.h"
#include "bus/exchange.h"

namespace dthrottle {

class Outlet {
 public:
  // The ring must outlive it.
  explicit Outlet(ToPeersRing& ring) : ring_(ring) {}

  ToPeersRing& ring() { return ring_; }

  // Whether the next Push will find room; to be tried again soon if not.
  bool HasRoom(Instant now) {
    if (!ring_.full()) return true;
    retry_at_ = now + kRetry;
    return false;
  }

  // Hands `message` over, which is empty then; false if there is no room now.
  bool Push(ToPeers& message, Instant now) {
    if (!ring_.TryPush(std::move(message))) {
      retry_at_ = now + kRetry;
      return false;
    }
    message = ToPeers();
    return true;
  }

  // The same of a message without entries.
  bool Push(ToPeers::Kind kind, Instant to, Instant now, std::uint64_t snapshot = 0) {
    ToPeers message;
    message.kind = kind;
    message.to = to;
    message.snapshot = snapshot;
    return Push(message, now);
  }

  // When to try again; none: there was room.
  const std::optional<Instant>& retry_at() const { return retry_at_; }
  void Retry() { retry_at_.reset(); }

 private:
  static constexpr Duration kRetry = std::chrono::milliseconds(5);

  ToPeersRing& ring_;
  std::optional<Instant> retry_at_;
};

}    // namespace dthrottle
