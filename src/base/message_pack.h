// MessagePack values to bytes and back, for frames between hosts. https://msgpack.org is the format.
//
// Only message_pack.cc includes the library. Writing appends to a string. Reading takes a whole frame apart at once into
// a flat list of values, which keep views into the frame; the list is used again for the next frame, so that reading
// allocates nothing for each value. Whatever the bytes claim, it holds at most kPackValuesMax values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dthrottle {

inline constexpr std::size_t kPackValuesMax = 4096;    // of a frame, keys and elements included
inline constexpr std::size_t kPackDepthMax = 4;        // of maps and arrays within each other
inline constexpr std::size_t kPackFieldsMax = 64;      // of one map

// Appends values, each in its shortest form.
class PackWriter {
 public:
  explicit PackWriter(std::string& out) : out_(out) {}

  void Map(std::size_t fields);      // so many times a key and a value have to follow
  void Array(std::size_t values);    // so many values have to follow
  void Unsigned(std::uint64_t v);
  void Signed(std::int64_t v);
  void Bool(bool v);
  void Text(std::string_view v);
  void Bytes(std::string_view v);

 private:
  std::string& out_;
};

struct PackValue {
  enum class Type : std::uint8_t { kOther, kBool, kUnsigned, kNegative, kText, kBytes, kArray, kMap };
  Type type{};
  std::uint64_t number = 0;    // kBool, kUnsigned; kNegative: its two's complement; kArray, kMap: values, fields in it
  std::string_view bytes{};    // kText, kBytes
  std::uint32_t end = 0;       // number of the value behind it and all that is in it
};

class PackReader {
 public:
  // False unless `frame` is one value and nothing else, within the limits. REQUIRES: the frame outlives the values.
  bool Read(std::string_view frame);

  // The value itself comes first, and behind each array or map what is in it, a key before its value.
  const std::vector<PackValue>& values() const { return values_; }

 private:
  std::vector<PackValue> values_;
};

}    // namespace dthrottle
