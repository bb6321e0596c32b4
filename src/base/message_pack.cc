#include "base/message_pack.h"

#define MSGPACK_NO_BOOST
#include <msgpack/null_visitor.hpp>
#include <msgpack/pack.hpp>
#include <msgpack/parse.hpp>
#include <msgpack/unpack.hpp>

#include <array>
#include <exception>

namespace dthrottle {

namespace {

struct Appender {
  std::string& out;
  void write(const char* bytes, std::size_t n) { out.append(bytes, n); }
};

// What the library's parser calls for each value. False stops it.
class Collector : public msgpack::null_visitor {
 public:
  explicit Collector(std::vector<PackValue>& values) : values_(values) {}

  bool visit_nil() { return Add({}); }
  bool visit_boolean(bool v) { return Add({.type = PackValue::Type::kBool, .number = v}); }
  bool visit_positive_integer(std::uint64_t v) { return Add({.type = PackValue::Type::kUnsigned, .number = v}); }
  bool visit_negative_integer(std::int64_t v) {
    return Add({.type = PackValue::Type::kNegative, .number = static_cast<std::uint64_t>(v)});
  }
  bool visit_float32(float) { return Add({}); }
  bool visit_float64(double) { return Add({}); }
  bool visit_str(const char* v, std::uint32_t n) { return Add({.type = PackValue::Type::kText, .bytes = {v, n}}); }
  bool visit_bin(const char* v, std::uint32_t n) { return Add({.type = PackValue::Type::kBytes, .bytes = {v, n}}); }
  bool visit_ext(const char*, std::uint32_t) { return Add({}); }
  bool start_array(std::uint32_t n) { return n <= kPackValuesMax && Open(PackValue::Type::kArray, n); }
  bool end_array() { return Close(); }
  bool start_map(std::uint32_t n) { return n <= kPackFieldsMax && Open(PackValue::Type::kMap, n); }
  bool end_map() { return Close(); }

 private:
  [[gnu::always_inline]] bool Add(PackValue value) {
    if (values_.size() == kPackValuesMax) return false;
    value.end = static_cast<std::uint32_t>(values_.size()) + 1;
    values_.push_back(value);
    return true;
  }
  bool Open(PackValue::Type type, std::uint32_t n) {
    if (depth_ == kPackDepthMax || !Add({.type = type, .number = n})) return false;
    open_[depth_++] = values_.size() - 1;
    return true;
  }
  bool Close() {
    values_[open_[--depth_]].end = static_cast<std::uint32_t>(values_.size());
    return true;
  }

  std::vector<PackValue>& values_;
  std::array<std::size_t, kPackDepthMax> open_{};    // numbers of the maps and arrays around what comes next
  std::size_t depth_ = 0;
};

template <class Do>
void Append(std::string& out, Do pack) {
  Appender appender{out};
  msgpack::packer<Appender> packer(appender);
  pack(packer);
}

}    // namespace

void PackWriter::Map(std::size_t fields) {
  Append(out_, [&](auto& p) { p.pack_map(static_cast<std::uint32_t>(fields)); });
}

void PackWriter::Array(std::size_t values) {
  Append(out_, [&](auto& p) { p.pack_array(static_cast<std::uint32_t>(values)); });
}

void PackWriter::Unsigned(std::uint64_t v) {
  Append(out_, [&](auto& p) { p.pack_uint64(v); });
}

void PackWriter::Signed(std::int64_t v) {
  Append(out_, [&](auto& p) { p.pack_int64(v); });
}

void PackWriter::Bool(bool v) {
  Append(out_, [&](auto& p) { v ? p.pack_true() : p.pack_false(); });
}

void PackWriter::Text(std::string_view v) {
  Append(out_, [&](auto& p) {
    const auto n = static_cast<std::uint32_t>(v.size());
    p.pack_str(n).pack_str_body(v.data(), n);
  });
}

void PackWriter::Bytes(std::string_view v) {
  Append(out_, [&](auto& p) {
    const auto n = static_cast<std::uint32_t>(v.size());
    p.pack_bin(n).pack_bin_body(v.data(), n);
  });
}

bool PackReader::Read(std::string_view frame) {
  values_.clear();
  Collector collector(values_);
  std::size_t at = 0;
  try {
    return msgpack::v2::parse(frame.data(), frame.size(), at, collector) && at == frame.size();
  } catch (const std::exception&) {    // of a size that the library itself does not take
    return false;
  }
}

}    // namespace dthrottle
