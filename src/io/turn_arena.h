// Where the bytes of a turn land, one read behind another, and stay in place until the turn ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace dthrottle {

class TurnArena {
 public:
  // The most that one read adds, and what a connection has left unread before it.
  struct Sizes {
    std::size_t read_bytes;
    std::size_t rest_bytes_max;
  };

  explicit TurnArena(const Sizes& sizes) : sizes_(sizes) {}
  const Sizes& sizes() const { return sizes_; }

  // Takes the memory, with the first connection.
  void Open() { bytes_.resize(std::max(kBytesMin, kFullReads * each())); }

  // Puts the rest of a connection where its next bytes are going to be, and returns where it ends: room for a read.
  char* Put(std::string_view rest) {
    DT_CHECK(rest.size() <= sizes_.rest_bytes_max);
    std::memcpy(bytes_.data() + used_, rest.data(), rest.size());
    return bytes_.data() + used_ + rest.size();
  }
  // What was put and read, so many bytes, stays until Clear.
  void Keep(std::size_t bytes) { used_ += bytes; }
  void Clear() { used_ = 0; }

  bool empty() const { return used_ == 0; }
  bool full() const { return used_ + each() > bytes_.size(); }    // no room for one more read

 private:
  static constexpr std::size_t kFullReads = 4;
  static constexpr std::size_t kBytesMin = 64 * 1024;

  std::size_t each() const { return sizes_.read_bytes + sizes_.rest_bytes_max; }

  const Sizes sizes_;
  std::vector<char> bytes_;
  std::size_t used_ = 0;
};

}    // namespace dthrottle
