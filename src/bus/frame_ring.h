// The latest frames that this host published, to be sent again to peers that missed them. Numbers them from 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "base/state.h"
#include "bus/exchange.h"

namespace dthrottle {

class FrameRing {
 public:
  explicit FrameRing(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  // The frame's sequence is next().
  void Append(Frame frame) {
    bytes_ += frame->size();
    frames_.push_back(std::move(frame));
    ++next_;
    while (bytes_ > bytes_max_) {
      bytes_ -= frames_.front()->size();
      frames_.pop_front();
    }
  }

  // Drops frames up to that sequence, which nobody will ask for again.
  void ForgetUntil(std::uint64_t sequence) {
    while (!frames_.empty() && low() <= sequence) {
      bytes_ -= frames_.front()->size();
      frames_.pop_front();
    }
  }

  // Over a restart. The newest frames only, so that no query waits while the rest is copied.
  static constexpr std::size_t kKeptBytesMax = 4 << 20;
  static void Fields(auto& state, auto& self) {
    std::uint64_t next = self.next_, count = 0;
    for (std::size_t bytes = 0; count < self.frames_.size(); ++count) {
      bytes += self.at(next - count - 1)->size();
      if (bytes > kKeptBytesMax) break;
    }
    state(next, count);
    state.Check(next > count);
    if constexpr (!kIsReading<decltype(state)>) {
      for (std::uint64_t sequence = next - count; sequence < next; ++sequence) state(*self.at(sequence));
    } else {
      self.next_ = next - count;
      for (std::string bytes; count > 0 && state.ok(); --count) {
        state(bytes);
        self.Append(std::make_shared<const std::string>(std::move(bytes)));
      }
    }
  }

  std::uint64_t next() const { return next_; }

  // The oldest that is still there; next() if none is.
  std::uint64_t low() const { return next_ - frames_.size(); }

  // REQUIRES: low() <= sequence < next().
  const Frame& at(std::uint64_t sequence) const { return frames_[sequence - low()]; }

  std::size_t size() const { return frames_.size(); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_max_;
  std::size_t bytes_ = 0;
  std::uint64_t next_ = 1;
  std::deque<Frame> frames_;
};

}    // namespace dthrottle
