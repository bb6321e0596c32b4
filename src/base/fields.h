// The named fields of a frame between hosts: what messages write into a MessagePack map, and read from one.
//
// A message names its fields once, for writing and for reading:
//
//     static void Fields(auto& fields, auto& message) {
//       fields.Must("host", message.sender);
//       fields.May("last", message.last);
//     }
//
// `Must` is in every frame. `May` is left out if it is zero, false or empty, and means that when it is not there. Fields
// that a reader does not name are passed over, which is how a later version says more. A type says how it is written and
// read by two functions found beside it, PutField and GetField.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/message_pack.h"
#include "base/time.h"

namespace dthrottle {

// Bytes of another format within a frame.
struct PackedBytes {
  std::string_view view;
  friend bool operator==(const PackedBytes&, const PackedBytes&) = default;
};

// Kinds of messages, each a number below 64.
template <class Kind>
class Kinds {
 public:
  consteval Kinds(std::initializer_list<Kind> kinds) {
    for (const Kind kind : kinds) bits_ |= std::uint64_t{1} << static_cast<unsigned>(kind);
  }
  bool has(Kind kind) const { return (bits_ >> static_cast<unsigned>(kind) & 1) != 0; }

 private:
  std::uint64_t bits_ = 0;
};

// Takes values off the front, those of an array one by one.
class PackCursor {
 public:
  PackCursor(const std::vector<PackValue>& values, std::size_t at) : values_(values), at_(at) {}

  // REQUIRES: there is one.
  const PackValue& Take() { return values_[at_++]; }
  // Enters the array that comes next, which has `n` values. False, and nothing is taken: it is no array, or has more
  // than `most`.
  bool Enter(std::size_t most, std::size_t& n) {
    const PackValue& v = values_[at_];
    n = static_cast<std::size_t>(v.number);
    at_ += v.type == PackValue::Type::kArray && n <= most;
    return v.type == PackValue::Type::kArray && n <= most;
  }

 private:
  const std::vector<PackValue>& values_;
  std::size_t at_;
};

inline void PutField(PackWriter& out, bool v) {
  out.Bool(v);
}
inline void PutField(PackWriter& out, std::uint64_t v) {
  out.Unsigned(v);
}
inline void PutField(PackWriter& out, std::int64_t v) {
  out.Signed(v);
}
inline void PutField(PackWriter& out, const std::string& v) {
  out.Text(v);
}
inline void PutField(PackWriter& out, PackedBytes v) {
  out.Bytes(v.view);
}
inline void PutField(PackWriter& out, Duration v) {
  out.Signed(v.count());
}
inline void PutField(PackWriter& out, Instant v) {
  out.Signed(v.time_since_epoch().count());
}
// Kinds are texts: KindNames(kind), found beside the enum, has their names in its order, from 1 on.
template <class Kind>
  requires std::is_enum_v<Kind>
void PutField(PackWriter& out, Kind kind) {
  out.Text(KindNames(kind)[static_cast<std::size_t>(kind) - 1]);
}

inline bool GetField(PackCursor& in, bool& v) {
  const PackValue& value = in.Take();
  v = value.number != 0;
  return value.type == PackValue::Type::kBool;
}
inline bool GetField(PackCursor& in, std::uint64_t& v) {
  const PackValue& value = in.Take();
  v = value.number;
  return value.type == PackValue::Type::kUnsigned;
}
inline bool GetField(PackCursor& in, std::int64_t& v) {
  const PackValue& value = in.Take();
  v = static_cast<std::int64_t>(value.number);
  return value.type == PackValue::Type::kNegative || (value.type == PackValue::Type::kUnsigned && v >= 0);
}
inline bool GetField(PackCursor& in, std::string& v) {
  const PackValue& value = in.Take();
  v = value.bytes;
  return value.type == PackValue::Type::kText;
}
inline bool GetField(PackCursor& in, PackedBytes& v) {
  const PackValue& value = in.Take();
  v.view = value.bytes;
  return value.type == PackValue::Type::kBytes;
}
inline bool GetField(PackCursor& in, Duration& v) {
  std::int64_t ns = 0;
  const bool ok = GetField(in, ns);
  v = Duration(ns);
  return ok;
}
inline bool GetField(PackCursor& in, Instant& v) {
  std::int64_t ns = 0;
  const bool ok = GetField(in, ns);
  v = FromNanoseconds(ns);
  return ok;
}
template <class Kind>
  requires std::is_enum_v<Kind>
bool GetField(PackCursor& in, Kind& kind) {
  const PackValue& value = in.Take();
  const std::span<const std::string_view> names = KindNames(kind);
  const auto name = std::ranges::find(names, value.bytes);
  kind = static_cast<Kind>(name - names.begin() + 1);
  return value.type == PackValue::Type::kText && name != names.end();
}

// How many fields a map will have.
class FieldCounter {
 public:
  void Must(std::string_view, const auto&) { ++count_; }
  template <class T>
  void May(std::string_view, const T& v) {
    count_ += !(v == T());
  }
  std::size_t count() const { return count_; }

 private:
  std::size_t count_ = 0;
};

class FieldWriter {
 public:
  FieldWriter(std::string& out, std::size_t count) : out_(out) { out_.Map(count); }

  void Must(std::string_view name, const auto& v) {
    out_.Text(name);
    PutField(out_, v);
  }
  template <class T>
  void May(std::string_view name, const T& v) {
    if (!(v == T())) Must(name, v);
  }

 private:
  PackWriter out_;
};

class FieldReader {
 public:
  // REQUIRES: `values` are those of a whole frame, and outlive this.
  explicit FieldReader(const std::vector<PackValue>& values) : values_(values), ok_(TakeNames()) {}

  // Inlined, so that a name's bit and its comparison are made of constants.

  // The value is unspecified where a field is missing that must be there, or is of another type.
  [[gnu::always_inline]] void Must(std::string_view name, auto& v) { ok_ = ok_ && Get(Find(name), v); }
  // Leaves the value alone where the field is missing.
  [[gnu::always_inline]] void May(std::string_view name, auto& v) {
    if ((names_ & BitOf(name)) == 0) return;
    if (const std::size_t at = Find(name); at != 0) ok_ = ok_ && Get(at, v);
  }

  // True: the frame is a map whose keys are distinct texts, no field was missing, and each had its type.
  bool ok() const { return ok_; }

 private:
  // A bit that few names share, so a name that is not there seldom needs a search.
  static constexpr std::uint64_t BitOf(std::string_view name) {
    if (name.empty()) return 1;
    const auto first = static_cast<unsigned char>(name.front()), last = static_cast<unsigned char>(name.back());
    return std::uint64_t{1} << (first + 7u * last + 31 * name.size()) % 64;
  }

  bool TakeNames() {
    if (values_.empty() || values_[0].type != PackValue::Type::kMap) return false;
    for (std::size_t key = 1; key < values_.size(); key = values_[key + 1].end) {
      if (values_[key].type != PackValue::Type::kText) return false;
      const std::string_view name = values_[key].bytes;
      if ((names_ & BitOf(name)) != 0 && FindIn(1, key, name) != 0) return false;
      names_ |= BitOf(name);
    }
    return true;
  }

  bool Get(std::size_t at, auto& v) const {
    PackCursor cursor(values_, at);
    return at != 0 && GetField(cursor, v);
  }

  // Number of the value under that name; 0: none. Fields mostly come in the order in which they are asked for.
  [[gnu::always_inline]] std::size_t Find(std::string_view name) {
    if (!ok_) return 0;
    const std::size_t key = next_ < values_.size() && values_[next_].bytes == name ? next_ : FindElsewhere(name);
    if (key == 0) return 0;
    next_ = values_[key + 1].end;
    return key + 1;
  }
  [[gnu::noinline]] std::size_t FindElsewhere(std::string_view name) const {
    const std::size_t key = FindIn(next_, values_.size(), name);
    return key != 0 ? key : FindIn(1, next_, name);
  }

  // The key of that name in [from, to); 0: none.
  std::size_t FindIn(std::size_t from, std::size_t to, std::string_view name) const {
    for (std::size_t key = from; key < to; key = values_[key + 1].end) {
      if (values_[key].bytes == name) return key;
    }
    return 0;
  }

  const std::vector<PackValue>& values_;
  std::uint64_t names_ = 0;    // bits of all that are there
  bool ok_;
  std::size_t next_ = 1;    // where to look first: the key behind the one that was found last
};

}    // namespace dthrottle
