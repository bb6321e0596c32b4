// Numbers in as few bytes as they need, and a reader of untrusted bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dthrottle {

inline constexpr std::size_t kVarintBytesMax = 10;

// Signed numbers with the sign in the lowest bit, so that small ones are short either way.
constexpr std::uint64_t ZigZag(std::int64_t v) {
  return (static_cast<std::uint64_t>(v) << 1) ^ static_cast<std::uint64_t>(v >> 63);
}
constexpr std::int64_t UnZigZag(std::uint64_t v) {
  return static_cast<std::int64_t>((v >> 1) ^ (0 - (v & 1)));
}

// Writes at most kVarintBytesMax bytes at `p` and returns their end.
inline char* WriteVarint(char* p, std::uint64_t v) {
  for (; v >= 0x80; v >>= 7) *p++ = static_cast<char>(v | 0x80);
  *p++ = static_cast<char>(v);
  return p;
}

inline void AppendVarint(std::string& out, std::uint64_t v) {
  char bytes[kVarintBytesMax];
  out.append(bytes, WriteVarint(bytes, v));
}

// Takes bytes off the front. Once something is missing or wrong it is not ok, and empty from then on.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  bool ok() const { return ok_; }
  bool empty() const { return at_ == end_; }
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

  std::string_view Bytes(std::uint64_t n) {
    if (n > left()) return Fail(), std::string_view();
    at_ += n;
    return {at_ - n, at_};
  }

  std::string_view Rest() { return Bytes(left()); }

  std::uint8_t Byte() {
    if (empty()) return Fail(), std::uint8_t{0};
    return static_cast<std::uint8_t>(*at_++);
  }

  // Refuses more bytes than a number needs, so that it has one spelling.
  std::uint64_t Varint() {
    if (!empty() && static_cast<std::uint8_t>(*at_) < 0x80) return static_cast<std::uint8_t>(*at_++);
    std::uint64_t v = 0;
    for (unsigned shift = 0; shift < 64 && !empty(); shift += 7) {
      const std::uint64_t byte = Byte();
      v |= (byte & 0x7f) << shift;
      if (byte < 0x80) {
        if (byte == 0 || (shift == 63 && byte > 1)) break;
        return v;
      }
    }
    return Fail(), 0;
  }

 private:
  void Fail() {
    ok_ = false;
    at_ = end_;
  }

  const char* at_;
  const char* end_;
  bool ok_ = true;
};

}    // namespace dthrottle
