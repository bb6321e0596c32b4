// The state of a part of the program as bytes, for the program that takes its place or the next start: see
// daemon/upgrade.cc and daemon/kept_state.h.
//
// A type lists its fields once, for both ways:
//
//     struct Edge {
//       Parts given = 0;
//       std::vector<std::uint32_t> waiting;
//       static void Fields(auto& state, auto& self) { state(self.given, self.waiting); }
//     };
//     const std::string bytes = WriteState(kVersion, edge);
//     if (Edge read; ReadState(bytes, kVersion, read)) ...
//
// Numbers are varints, reals their eight bytes, instants nanoseconds of their clock; containers are a count and their
// elements. A reader believes no count that the bytes left cannot hold. What the numbers mean is the type's to check.
// Another version is not read, so a change of the fields needs a new version.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/time.h"
#include "base/varint.h"

namespace dthrottle {

namespace state_detail {

template <class T>
concept IsTime = requires(const T& t) {
  t.time_since_epoch();
};

template <class T>
concept IsContainer = !std::is_same_v<T, std::string> && requires(T & t) {
  typename T::value_type;
  t.begin();
  t.size();
};

template <class T>
concept IsMap = IsContainer<T> && requires {
  typename T::mapped_type;
};

}    // namespace state_detail

class StateWriter {
 public:
  template <class... T>
  void operator()(const T&... values) {
    (Write(values), ...);
  }

  // A condition for the reader to check; there is nothing to write.
  void Check(bool) {}

  std::string Take() { return std::move(bytes_); }

 private:
  template <class T>
  void Write(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      Write(static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (std::is_floating_point_v<T>) {
      const auto bits = std::bit_cast<std::uint64_t>(static_cast<double>(value));
      bytes_.append(reinterpret_cast<const char*>(&bits), sizeof bits);
    } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T> && !std::is_same_v<T, bool>) {
      AppendVarint(bytes_, ZigZag(value));
    } else if constexpr (std::is_integral_v<T>) {
      AppendVarint(bytes_, value);
    } else if constexpr (std::is_same_v<T, Duration>) {
      Write(value.count());
    } else if constexpr (state_detail::IsTime<T>) {
      Write(value.time_since_epoch().count());
    } else if constexpr (std::is_same_v<T, std::string>) {
      AppendVarint(bytes_, value.size());
      bytes_ += value;
    } else if constexpr (state_detail::IsContainer<T>) {
      AppendVarint(bytes_, value.size());
      for (const auto& element : value) Write(element);
    } else {
      T::Fields(*this, value);
    }
  }
  template <class T>
  void Write(const std::optional<T>& value) {
    Write(value.has_value());
    if (value) Write(*value);
  }
  template <class A, class B>
  void Write(const std::pair<A, B>& value) {
    Write(value.first);
    Write(value.second);
  }
  std::string bytes_;
};

class StateReader {
 public:
  explicit StateReader(std::string_view bytes) : in_(bytes) {}

  template <class... T>
  void operator()(T&... values) {
    (Read(values), ...);
  }

  void Check(bool so) { sound_ = sound_ && so; }

  bool ok() const { return sound_ && in_.ok(); }
  bool at_end() const { return in_.empty(); }

 private:
  template <class T>
  void Read(T& value) {
    if constexpr (std::is_enum_v<T>) {
      std::underlying_type_t<T> number{};
      Read(number);
      value = static_cast<T>(number);
    } else if constexpr (std::is_floating_point_v<T>) {
      std::uint64_t bits = 0;
      const std::string_view bytes = in_.Bytes(sizeof bits);
      if (bytes.size() == sizeof bits) std::memcpy(&bits, bytes.data(), sizeof bits);
      value = static_cast<T>(std::bit_cast<double>(bits));
    } else if constexpr (std::is_same_v<T, bool>) {
      const std::uint64_t number = in_.Varint();
      Check(number <= 1);
      value = number == 1;
    } else if constexpr (std::is_integral_v<T>) {
      ReadNumber(value);
    } else if constexpr (std::is_same_v<T, Duration>) {
      Duration::rep count{};
      Read(count);
      value = Duration(count);
    } else if constexpr (state_detail::IsTime<T>) {
      typename T::duration::rep count{};
      Read(count);
      value = T(typename T::duration(count));
    } else if constexpr (std::is_same_v<T, std::string>) {
      value = in_.Bytes(in_.Varint());
    } else if constexpr (state_detail::IsContainer<T>) {
      ReadContainer(value);
    } else {
      T::Fields(*this, value);
    }
  }
  template <class T>
  void Read(std::optional<T>& value) {
    bool any = false;
    Read(any);
    value.reset();
    if (any) Read(value.emplace());
  }
  template <class A, class B>
  void Read(std::pair<A, B>& value) {
    Read(value.first);
    Read(value.second);
  }
  template <class Int>
  void ReadNumber(Int& value) {
    const std::uint64_t number = in_.Varint();
    if constexpr (std::is_signed_v<Int>) {
      value = static_cast<Int>(UnZigZag(number));
      Check(static_cast<std::int64_t>(value) == UnZigZag(number));
    } else {
      value = static_cast<Int>(number);
      Check(value == number);
    }
  }
  template <class T>
  void ReadContainer(T& value) {
    value.clear();
    std::uint64_t n = in_.Varint();
    Check(n <= in_.left());    // every element has some bytes
    for (; n > 0 && ok(); --n) {
      if constexpr (state_detail::IsMap<T>) {
        std::pair<typename T::key_type, typename T::mapped_type> element{};
        Read(element);
        value.insert(std::move(element));
      } else {
        typename T::value_type element{};
        Read(element);
        value.insert(value.end(), std::move(element));
      }
    }
  }

  ByteReader in_;
  bool sound_ = true;
};

template <class T>
std::string WriteState(std::uint32_t version, const T& value) {
  StateWriter state;
  state(version, value);
  return state.Take();
}

// False: of another version, cut off, or refused by the type; `value` is unspecified then.
template <class T>
[[nodiscard]] bool ReadState(std::string_view bytes, std::uint32_t version, T& value) {
  StateReader state(bytes);
  std::uint32_t written = 0;
  state(written);
  if (written != version) return false;
  state(value);
  return state.ok() && state.at_end();
}

// Whether a visitor of Fields(), by its type, reads.
template <class State>
inline constexpr bool kIsReading = std::is_same_v<std::remove_cvref_t<State>, StateReader>;

}    // namespace dthrottle
