// MessagePack put together by hand: values, and maps of named fields as frames have them.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/message_pack.h"

namespace dthrottle::testing {

// MessagePack values as they stand in frames.
inline std::string Packed(const std::function<void(PackWriter&)>& write) {
  std::string bytes;
  PackWriter writer(bytes);
  write(writer);
  return bytes;
}
inline std::string U(std::uint64_t v) {
  return Packed([&](PackWriter& w) { w.Unsigned(v); });
}
inline std::string I(std::int64_t v) {
  return Packed([&](PackWriter& w) { w.Signed(v); });
}
inline std::string Yes(bool v = true) {
  return Packed([&](PackWriter& w) { w.Bool(v); });
}
inline std::string T(std::string_view v) {
  return Packed([&](PackWriter& w) { w.Text(v); });
}
inline std::string B(std::string_view v) {
  return Packed([&](PackWriter& w) { w.Bytes(v); });
}
inline std::string List(const std::vector<std::string>& values) {
  std::string bytes = Packed([&](PackWriter& w) { w.Array(values.size()); });
  for (const std::string& value : values) bytes += value;
  return bytes;
}

// The fields of a frame, in their order.
using Map = std::vector<std::pair<std::string, std::string>>;

inline std::string BytesOf(const Map& map) {
  std::string bytes = Packed([&](PackWriter& w) { w.Map(map.size()); });
  for (const auto& [name, value] : map) bytes += T(name) + value;
  return bytes;
}

// With these fields instead of those of the same name, or behind the others.
inline Map With(Map map, const Map& fields) {
  for (const auto& field : fields) {
    const auto same = std::find_if(map.begin(), map.end(), [&](const auto& f) { return f.first == field.first; });
    same != map.end() ? void(*same = field) : map.push_back(field);
  }
  return map;
}

inline Map Without(Map map, std::string_view name) {
  std::erase_if(map, [&](const auto& field) { return field.first == name; });
  return map;
}

}    // namespace dthrottle::testing
