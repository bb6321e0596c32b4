#include "frontend/spop/frame.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/append.h"

namespace dthrottle {

namespace {

constexpr std::uint8_t kFin = 1;    // in the last of the four bytes of flags

// Types of values, in the low four bits; a bool has its value in the bit above.
enum Datum : std::uint8_t {
  kNull = 0,
  kBool = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kIpv4 = 6,
  kIpv6 = 7,
  kString = 8,
  kBinary = 9,
};
constexpr std::uint8_t kTrue = 0x10;

constexpr std::uint8_t kSetVar = 1, kSetVarArguments = 3, kTransaction = 2;

}    // namespace

// ---- Values ----

void SpopValue::AppendText(std::string& out) const {
  switch (kind) {
    case Kind::kNull:
      return;
    case Kind::kBool:
      out += number != 0 ? "true" : "false";
      return;
    case Kind::kInteger:
      return Append(out, number);
    case Kind::kIpv4:
    case Kind::kIpv6: {
      char text[INET6_ADDRSTRLEN];
      out += ::inet_ntop(kind == Kind::kIpv4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof text);
      return;
    }
    case Kind::kBytes:
      out += bytes;
      return;
  }
}

void SpopCursor::Fail() {
  failed_ = true;
  rest_ = {};
}

std::uint8_t SpopCursor::Byte() {
  const std::string_view byte = Bytes(1);
  return byte.empty() ? std::uint8_t{0} : static_cast<std::uint8_t>(byte[0]);
}

// Four bits in the first byte, seven in each of the next, low ones first; each digit adds to what those before it have.
std::uint64_t SpopCursor::Varint() {
  std::uint64_t value = Byte();
  if (value < 240) return value;
  std::uint8_t byte = 128;
  for (unsigned shift = 4; byte >= 128; shift += 7) {
    if (shift >= 64) Fail();
    if (failed_) return 0;
    byte = Byte();
    value += std::uint64_t{byte} << shift;
  }
  return failed_ ? 0 : value;
}

std::string_view SpopCursor::Bytes(std::uint64_t n) {
  if (n > rest_.size()) {
    Fail();
    return {};
  }
  const std::string_view bytes = rest_.substr(0, n);
  rest_.remove_prefix(n);
  return bytes;
}

SpopValue SpopCursor::Address(SpopValue::Kind kind, std::size_t size) {
  const std::string_view bytes = Bytes(size);
  return failed_ ? SpopValue() : SpopValue{kind, 0, bytes};
}

SpopValue SpopCursor::Value() {
  using Kind = SpopValue::Kind;
  const std::uint8_t type = Byte();
  switch (type & 0x0f) {
    case kNull:
      return {};
    case kBool:
      return {Kind::kBool, (type & kTrue) != 0, {}};
    case kInt32:
    case kUint32:
    case kInt64:
    case kUint64:
      return {Kind::kInteger, static_cast<std::int64_t>(Varint()), {}};
    case kIpv4:
      return Address(Kind::kIpv4, sizeof(in_addr));
    case kIpv6:
      return Address(Kind::kIpv6, sizeof(in6_addr));
    case kString:
    case kBinary:
      return {Kind::kBytes, 0, Text()};
    default:
      Fail();
      return {};
  }
}

// ---- Frames ----

std::size_t SpopReader::Length(std::string_view bytes) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length = length << 8 | static_cast<std::uint8_t>(bytes[i]);
  return length;
}

bool SpopReader::Parse(std::string_view frame, SpopFrame& parsed) {
  SpopCursor cursor(frame);
  parsed.type = cursor.Byte();
  const std::string_view flags = cursor.Bytes(4);
  parsed.whole = !flags.empty() && (static_cast<std::uint8_t>(flags[3]) & kFin) != 0;
  parsed.stream_id = cursor.Varint();
  parsed.frame_id = cursor.Varint();
  parsed.payload = cursor.rest();
  return !cursor.failed();
}

SpopWriter::SpopWriter(std::string& out, SpopType type, std::uint64_t stream_id, std::uint64_t frame_id)
    : out_(out), begin_(out.size()) {
  out_.append(SpopReader::kLengthBytes, '\0');
  out_ += static_cast<char>(type);
  out_.append(3, '\0');
  out_ += static_cast<char>(kFin);
  Varint(stream_id);
  Varint(frame_id);
}

SpopWriter::~SpopWriter() {
  std::size_t length = out_.size() - begin_ - SpopReader::kLengthBytes;
  for (std::size_t i = SpopReader::kLengthBytes; i-- > 0; length >>= 8) {
    out_[begin_ + i] = static_cast<char>(length & 0xff);
  }
}

void SpopWriter::Varint(std::uint64_t value) {
  if (value < 240) {
    out_ += static_cast<char>(value);
    return;
  }
  out_ += static_cast<char>(value | 240);
  for (value = (value - 240) >> 4; value >= 128; value = (value - 128) >> 7) out_ += static_cast<char>(value | 128);
  out_ += static_cast<char>(value);
}

void SpopWriter::Text(std::string_view text) {
  Varint(text.size());
  out_ += text;
}

void SpopWriter::Pair(std::string_view name, std::string_view value) {
  Text(name);
  out_ += static_cast<char>(kString);
  Text(value);
}

void SpopWriter::Pair(std::string_view name, std::uint32_t value) {
  Text(name);
  out_ += static_cast<char>(kUint32);
  Varint(value);
}

void SpopWriter::BeginSet(std::string_view name) {
  for (const std::uint8_t byte : {kSetVar, kSetVarArguments, kTransaction}) out_ += static_cast<char>(byte);
  Text(name);
}

void SpopWriter::SetBool(std::string_view name, bool value) {
  BeginSet(name);
  out_ += static_cast<char>(kBool | (value ? kTrue : 0));
}

void SpopWriter::SetInteger(std::string_view name, std::int64_t value) {
  BeginSet(name);
  out_ += static_cast<char>(kInt64);
  Varint(static_cast<std::uint64_t>(value));
}

void SpopWriter::SetText(std::string_view name, std::string_view value) {
  BeginSet(name);
  out_ += static_cast<char>(kString);
  Text(value);
}

std::size_t SpopWriter::RoomForText(std::string_view name, std::size_t bytes_max) const {
  constexpr std::size_t kBeside = 3 + 1 + 1 + 2;    // the action, the length of the name, the type, that of the text
  const std::size_t taken = out_.size() - begin_ - SpopReader::kLengthBytes + kBeside + name.size();
  return bytes_max - std::min(bytes_max, taken);
}

}    // namespace dthrottle
