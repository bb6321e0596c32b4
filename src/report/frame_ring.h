// The latest frames that this host published, to be sent again to who missed them. Numbers them from 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "report/exchange.h"

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
