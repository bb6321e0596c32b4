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

  // A report leaves, and `all` is flying with it. That may be less than before, because peers have foretold some of it.
  void Leave(Tokens all, Instant now) {
    const double kept = sum_ > all ? all / sum_ : 1;
    for (Flight& flight : flights_) flight.tokens *= kept;
    flights_[kMost - 2].tokens += flights_[kMost - 1].tokens;
    std::move_backward(flights_.begin(), flights_.end() - 1, flights_.end());
    flights_.front() = {std::max(all - sum_, 0.0), now};
    sum_ = all;
  }

  // Returns what has been heard: what left at `before` or earlier.
  Tokens Land(Instant before) {
    if (sum_ == 0) return 0;
    Tokens flying = 0;
    for (Flight& flight : flights_) {
      if (flight.left <= before) flight.tokens = 0;
      flying += flight.tokens;
    }
    return std::exchange(sum_, flying) - flying;
  }
  Tokens LandAll() { return Land(Instant::max()); }

 private:
  // Reports are some 5 ms apart (Forecast::MayReport), and all have heard of them within 20. If there are more, the two
  // that left first land together.
  static constexpr std::size_t kMost = 4;
  struct Flight {
    Tokens tokens = 0;
    Instant left{};
  };

  Tokens sum_ = 0;
  std::array<Flight, kMost> flights_;    // the latest first
};

}    // namespace dthrottle
