// Bytes as a source of decisions, for fuzzers and for tests that play random ones: zeros when they are over.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace dthrottle::testing {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}
  bool over() const { return at_ == end_; }
  std::uint8_t Byte() { return over() ? std::uint8_t{0} : *at_++; }
  // A number near 0, near 2^n or near 2^64.
  std::uint64_t Number() {
    const std::uint8_t shape = Byte();
    if (shape < 128) return shape;
    return (shape == 255 ? ~std::uint64_t{0} : std::uint64_t{1} << (shape & 63)) - (Byte() & 3);
  }
  std::string Rest(std::size_t most) {
    const auto n = std::min<std::size_t>(most, static_cast<std::size_t>(end_ - at_));
    std::string bytes(reinterpret_cast<const char*>(at_), n);
    at_ += n;
    return bytes;
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

}    // namespace dthrottle::testing
