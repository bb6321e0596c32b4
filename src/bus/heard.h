// Which sequences of one sender have come: everything below `next` but for a short list of ranges. Whatever a sender
// claims, a step costs no more than that list is long.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/time.h"

namespace dthrottle {

class Heard {
 public:
  static constexpr std::size_t kMissingMax = 256;    // ranges; the oldest is given up when there would be more

  struct Missing {
    std::uint64_t first, last;    // both included
    Instant since;                // when a later sequence came

    static void Fields(auto& state, auto& self) { state(self.first, self.last, self.since); }
  };

  // What one sequence changed, as numbers of sequences.
  struct Change {
    bool fresh = false;    // it had not come before
    std::uint64_t missed = 0, repaired = 0, lost = 0;
  };

  // Nothing below `next` is of interest.
  explicit Heard(std::uint64_t next = 1) : next_(next) {}

  // Whether Add would find it fresh.
  bool Wants(std::uint64_t sequence) const {
    if (sequence >= next_) return true;
    const auto it = At(sequence);
    return it != missing_.end() && it->first <= sequence;
  }

  // REQUIRES: 0 < sequence < 2^64 - 1.
  Change Add(std::uint64_t sequence, Instant now) {
    Change change;
    if (sequence >= next_) {
      if (sequence > next_) missing_.push_back({next_, sequence - 1, now});
      change.missed = sequence - next_;
      next_ = sequence + 1;
    } else {
      const auto it = missing_.begin() + (At(sequence) - missing_.cbegin());
      if (it == missing_.end() || it->first > sequence) return change;
      change.repaired = 1;
      const Missing rest{sequence + 1, it->last, it->since};
      it->last = sequence - 1;
      const bool none_before = it->first == sequence, none_after = rest.first > rest.last;
      if (none_before && none_after) {
        missing_.erase(it);
      } else if (none_before) {
        *it = rest;
      } else if (!none_after) {
        missing_.insert(it + 1, rest);
      }
    }
    change.fresh = true;
    if (missing_.size() > kMissingMax) change.lost = GiveUpBelow(missing_.front().last + 1);
    return change;
  }

  // Sequences up to that one are known to exist, though none behind them has come. Returns how many are missing then.
  std::uint64_t Expect(std::uint64_t last, Instant since) {
    if (last < next_) return 0;
    const std::uint64_t more = last + 1 - next_;
    missing_.push_back({next_, last, since});
    next_ = last + 1;
    return more;
  }

  // Waits no longer for what is missing below `low`; returns how many that were.
  std::uint64_t GiveUpBelow(std::uint64_t low) {
    std::uint64_t lost = 0;
    auto it = missing_.begin();
    for (; it != missing_.end() && it->last < low; ++it) lost += it->last - it->first + 1;
    if (it != missing_.end() && it->first < low) {
      lost += low - it->first;
      it->first = low;
    }
    missing_.erase(missing_.begin(), it);
    return lost;
  }
  std::uint64_t GiveUp() { return GiveUpBelow(std::numeric_limits<std::uint64_t>::max()); }

  std::uint64_t next() const { return next_; }
  // Every sequence up to it has come, or is given up.
  std::uint64_t counted() const { return (missing_.empty() ? next_ : missing_.front().first) - 1; }

  static void Fields(auto& state, auto& self) {
    state(self.next_, self.missing_);
    std::uint64_t from = 0;    // ranges ascend and do not touch
    for (const Missing& range : self.missing_) {
      state.Check(range.first >= from && range.first <= range.last && range.last < self.next_);
      from = range.last + 1;
    }
    state.Check(self.next_ != 0 && self.missing_.size() <= kMissingMax);
  }

  // In order of sequence, and so of age.
  const std::vector<Missing>& missing() const { return missing_; }

 private:
  // The first range that does not end before `sequence`.
  std::vector<Missing>::const_iterator At(std::uint64_t sequence) const {
    return std::lower_bound(missing_.begin(), missing_.end(), sequence,
                            [](const Missing& range, std::uint64_t s) { return range.last < s; });
  }

  std::uint64_t next_;
  std::vector<Missing> missing_;
};

}    // namespace dthrottle
