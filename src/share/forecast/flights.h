// Tokens that a host has reported so lately that not all peers have heard of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "base/time.h"
#include "base/tokens.h"

namespace dthrottle {

class Flights {
 public:
  Tokens sum() const { return sum_; }

  // A report leaves. With it all of `sum` is flying, which may be less than before because peers foretold some of it.
  void Leave(Tokens sum, Instant now) {
    if (flights_.back().tokens > 0) Join(flights_[kMost - 2], flights_.back());
    std::move_backward(flights_.begin(), flights_.end() - 1, flights_.end());
    flights_.front() = {std::max(sum - sum_, 0.0), now};
    for (std::size_t i = kMost; i-- > 0 && sum < sum_;) {
      const Tokens less = std::min(sum_ - sum, flights_[i].tokens);
      flights_[i].tokens -= less;
      sum_ -= less;
    }
    sum_ = sum;
  }

  // Returns what has been heard: what left at `before` or earlier.
  Tokens Land(Instant before) {
    if (sum_ == 0) return 0;
    Tokens landed = 0;
    for (Flight& flight : flights_) {
      if (flight.left <= before) landed += std::exchange(flight.tokens, 0);
    }
    sum_ -= landed;
    return landed;
  }
  Tokens LandAll() { return Land(Instant::max()); }

 private:
  // Reports are some 5 ms apart (Forecast::MayReport), and all have heard within 20.
  static constexpr std::size_t kMost = 4;
  struct Flight {
    Tokens tokens = 0;
    Instant left{};
  };

  static void Join(Flight& later, Flight& earlier) { later.tokens += std::exchange(earlier.tokens, 0); }

  Tokens sum_ = 0;
  std::array<Flight, kMost> flights_;    // the latest first
};

}    // namespace dthrottle
