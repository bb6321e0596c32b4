// What is asked: one request for each tag, made before anything is measured.
//
// All requests lie ready, one beside the other and in random order, so a batch is a slice of memory and the
// generator costs little more than its two system calls. Each tag comes once before any comes again: no cache
// of the service can live on luck.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "load_protocol.h"

namespace dthrottle::bench {

// All requests are of the same size. REQUIRES: tags > 0.
class Requests {
 public:
  Requests(const Request& form, std::uint64_t tags)
      : tag_offset_(form.around.front().size()), request_bytes_((form.around.size() - 1) * kTagBytes) {
    for (const std::string& text : form.around) request_bytes_ += text.size();
    bytes_.reserve(tags * request_bytes_);
    for (std::uint64_t i = 0; i < tags; ++i) {
      for (const std::string& text : form.around) {
        bytes_ += text;
        if (&text != &form.around.back()) AppendTag(i);
      }
    }
  }

  // A service must not meet the tags in the order in which it laid them out when they were new.
  void Shuffle() {
    std::mt19937_64 random(1);    // always the same, so that runs compare
    for (std::uint64_t i = count(); i > 1; --i) {
      const std::uint64_t j = random() % i;
      std::swap_ranges(At(i - 1), At(i - 1) + request_bytes_, At(j));
    }
    next_ = 0;
  }

  struct Slice {
    const char* first;
    std::size_t count;
  };

  // The next `wanted` requests, or fewer, at least one, where the end of the round is nearer.
  Slice Take(std::size_t wanted) {
    const Slice slice{At(next_), std::min(wanted, count() - next_)};
    next_ = (next_ + slice.count) % count();
    return slice;
  }

  std::string_view TagOf(const Slice& slice, std::size_t i) const {
    return {slice.first + i * request_bytes_ + tag_offset_, kTagBytes};
  }

  std::size_t request_bytes() const { return request_bytes_; }
  std::size_t count() const { return bytes_.size() / request_bytes_; }

 private:
  char* At(std::uint64_t i) { return bytes_.data() + i * request_bytes_; }

  // 60 bits as 15 hexadecimal digits. An odd factor and a folding shift permute the 60-bit numbers, so tags
  // differ and yet look random.
  void AppendTag(std::uint64_t i) {
    constexpr std::uint64_t kMask = (std::uint64_t{1} << 60) - 1;
    std::uint64_t x = (i + 1) * 0x9e3779b97f4a7c15 & kMask;
    x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9 & kMask;
    x ^= x >> 29;
    for (std::size_t digit = 0; digit < kTagBytes; ++digit, x >>= 4) bytes_ += "0123456789abcdef"[x & 15];
  }

  std::size_t tag_offset_;
  std::size_t request_bytes_;
  std::string bytes_;
  std::size_t next_ = 0;
};

}    // namespace dthrottle::bench
