// A codec for tests of what is above it: fields one after another, nothing compressed, a sum at the end.
#include <cstring>

#include "report/codec.h"

namespace dthrottle {
namespace {

template <class T>
void Put(std::string& frame, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  frame.append(bytes, sizeof(T));
}

void PutString(std::string& frame, std::string_view text) {
  Put(frame, static_cast<std::uint32_t>(text.size()));
  frame += text;
}

struct Reader {
  std::string_view left;
  bool good = true;

  std::string_view Bytes(std::size_t n) {
    if (left.size() < n) good = false;
    if (!good) return {};
    const std::string_view bytes = left.substr(0, n);
    left.remove_prefix(n);
    return bytes;
  }

  template <class T>
  T Get() {
    T value{};
    if (const std::string_view bytes = Bytes(sizeof(T)); good) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

  std::string_view String() { return Bytes(Get<std::uint32_t>()); }
};

std::uint32_t Sum(std::string_view bytes) {
  std::uint32_t sum = 1;
  for (const char c : bytes) sum = sum * 31 + static_cast<unsigned char>(c);
  return sum;
}

}    // namespace

struct Codec::Contexts {};

Codec::Codec() = default;
Codec::~Codec() = default;

void Codec::Encode(const Message& m, std::string& frame) {
  frame = kFramePrefix;
  Put(frame, m.kind);
  PutString(frame, m.sender);
  for (const std::uint64_t v : {m.incarnation, m.sequence, m.ring_low, m.snapshot}) Put(frame, v);
  Put(frame, m.from.time_since_epoch().count());
  Put(frame, m.to.time_since_epoch().count());
  Put(frame, m.period.count());
  Put(frame, m.last);
  PutString(frame, m.text);
  Put(frame, static_cast<std::uint32_t>(m.ranges.size()));
  for (const auto& range : m.ranges) {
    Put(frame, range.first);
    Put(frame, range.last);
  }
  Put(frame, static_cast<std::uint32_t>(m.positions.size()));
  for (const auto& p : m.positions) {
    PutString(frame, p.sender);
    Put(frame, p.incarnation);
    Put(frame, p.next);
  }
  Put(frame, static_cast<std::uint32_t>(m.entries.size()));
  for (const Entry& e : m.entries.list()) {
    const Tag tag = m.entries.tag(e);
    PutString(frame, tag.bytes);
    Put(frame, tag.is_digest);
    Put(frame, e.value);
    Put(frame, e.phase);
  }
  Put(frame, Sum(frame));
}

DecodeFault Codec::Decode(std::string_view frame, Message& m) {
  m.Clear();
  const std::size_t major = kFramePrefix.size() - 1;
  if (frame.substr(0, major) != kFramePrefix.substr(0, major) || frame.size() < kFramePrefix.size() + 4) {
    return DecodeFault::kJunk;
  }
  if (frame[major] != kFramePrefix[major]) return DecodeFault::kVersion;
  std::uint32_t sum;
  std::memcpy(&sum, frame.data() + frame.size() - 4, 4);
  frame.remove_suffix(4);
  if (sum != Sum(frame)) return DecodeFault::kChecksum;
  Reader in{frame.substr(kFramePrefix.size())};
  m.kind = in.Get<MessageKind>();
  m.sender = in.String();
  for (std::uint64_t* v : {&m.incarnation, &m.sequence, &m.ring_low, &m.snapshot}) *v = in.Get<std::uint64_t>();
  m.from = FromNanoseconds(in.Get<std::int64_t>());
  m.to = FromNanoseconds(in.Get<std::int64_t>());
  m.period = Duration(in.Get<std::int64_t>());
  m.last = in.Get<std::uint8_t>() != 0;
  m.text = in.String();
  for (auto n = in.Get<std::uint32_t>(); in.good && n > 0; --n) {
    const auto first = in.Get<std::uint64_t>();
    m.ranges.push_back({first, in.Get<std::uint64_t>()});
  }
  for (auto n = in.Get<std::uint32_t>(); in.good && n > 0; --n) {
    const std::string_view sender = in.String();
    const auto incarnation = in.Get<std::uint64_t>();
    m.positions.push_back({std::string(sender), incarnation, in.Get<std::uint64_t>()});
  }
  for (auto n = in.Get<std::uint32_t>(); in.good && n > 0; --n) {
    const std::string_view tag = in.String();
    const bool is_digest = in.Get<std::uint8_t>() != 0;
    const auto value = in.Get<std::uint64_t>();
    const auto phase = in.Get<std::uint8_t>();
    if (tag.size() > kTagBytesMax || phase >= kPhases) return DecodeFault::kContent;
    if (!m.entries.Add({tag, is_digest}, value, phase)) return DecodeFault::kContent;
  }
  return in.good && in.left.empty() ? DecodeFault::kNone : DecodeFault::kContent;
}

void Message::Clear() {
  kind = {};
  sender.clear();
  incarnation = sequence = ring_low = snapshot = 0;
  from = to = {};
  period = {};
  last = false;
  text.clear();
  ranges.clear();
  positions.clear();
  entries.Clear();
}

}    // namespace dthrottle
