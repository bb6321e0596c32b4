#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/frame.h"
#include "base/host_name.h"
#include "base/varint.h"
#include "capacity/capacity_message.h"

namespace dthrottle {
namespace {

static_assert(std::endian::native == std::endian::little);

// Keys of fields. They come in ascending order, so that none can come twice. A field that is not there is zero.
enum class Field : std::uint8_t {
  kEnd = 0,
  kGeneration = 1,
  kEpoch = 2,
  kToEpoch = 3,
  kSequence = 4,
  kAnswered = 5,
  kSent = 6,
  kBinding = 7,
  kBound = 8,
  kDigest = 9,
  kMember = 10,
  kLife = 11,
  kBase = 12,
  kReserve = 13,
  kAside = 14,
  kFormer = 15,
  kLast = 16,
  kMembers = 17,
  kWitnesses = 18,
  kLives = 19,
  kDegree = 20,
  kItems = 21,
};

constexpr std::size_t kKeyBytes = 16;
static_assert(kWitnessesMax * (1 + kHostNameBytesMax) + kMemberBitsBytesMax + kDegreeMax * kVarintBytesMax + 512 +
                  kItemsBytesMax <=
              kCapacityFrameBytesMax);

// Bytes that an item takes at most.
std::size_t ItemBytesMax(CapacityKind kind, std::uint64_t degree) {
  if (kind == CapacityKind::kGifts) return kKeyBytes + kVarintBytesMax + sizeof(double);
  return kKeyBytes + kVarintBytesMax + 2 * kVarintBytesMax * degree;
}

// What a log, a settling, an ask or its answer says of a tag besides edges.
std::uint64_t NumberOf(CapacityKind kind, const CapacityItem& item) {
  if (kind == CapacityKind::kLog) return ZigZag(item.base);
  return kind == CapacityKind::kSettle ? item.neighbour : item.given;
}

char* WriteItem(char* at, const CapacityMessage& m, std::size_t i) {
  const CapacityItem& item = m.items[i];
  std::memcpy(at, &item.key, kKeyBytes);
  at += kKeyBytes;
  if (m.kind == CapacityKind::kGifts) {
    at = WriteVarint(at, item.given);
    std::memcpy(at, &item.indicator, sizeof(double));
    return at + sizeof(double);
  }
  at = WriteVarint(at, NumberOf(m.kind, item));
  for (std::size_t k = 0; k < m.degree; ++k) {
    at = WriteVarint(at, m.edges[i * m.degree + k].given);
    at = WriteVarint(at, m.edges[i * m.degree + k].received);
  }
  return at;
}

void ReadItem(ByteReader& in, CapacityMessage& m) {
  CapacityItem& item = m.items.emplace_back();
  const std::string_view key = in.Bytes(kKeyBytes);
  if (!in.ok()) return;
  std::memcpy(&item.key, key.data(), kKeyBytes);
  if (m.kind == CapacityKind::kGifts) {
    item.given = in.Varint();
    const std::string_view indicator = in.Bytes(sizeof(double));
    if (in.ok()) std::memcpy(&item.indicator, indicator.data(), sizeof(double));
    // One way to say none.
    if (std::isnan(item.indicator)) item.indicator = std::numeric_limits<double>::quiet_NaN();
    return;
  }
  const std::uint64_t v = in.Varint();
  if (m.kind == CapacityKind::kLog) {
    item.base = UnZigZag(v);
  } else if (m.kind == CapacityKind::kSettle) {
    item.neighbour = v;
  } else {
    item.given = v;
  }
  for (std::size_t k = 0; k < m.degree; ++k) {
    const Parts given = in.Varint();
    m.edges.push_back({given, in.Varint()});
  }
}

bool HasItems(CapacityKind kind) {
  return kind == CapacityKind::kLog || kind == CapacityKind::kGifts || kind == CapacityKind::kSettle ||
         kind == CapacityKind::kAsk || kind == CapacityKind::kShare;
}

bool ReadItems(ByteReader& in, std::uint64_t count, CapacityMessage& m) {
  const bool has_edges = m.kind == CapacityKind::kLog || m.kind == CapacityKind::kSettle;
  if (m.degree > (m.kind == CapacityKind::kSettle ? 1 : kDegreeMax) || (!has_edges && m.degree != 0)) return false;
  if (m.kind == CapacityKind::kLog ? m.lives.size() != m.degree : !m.lives.empty()) return false;
  if (count != 0 && !HasItems(m.kind)) return false;
  // An item has a key and a byte at least.
  if (count > in.left() / (kKeyBytes + 1) || count > ItemsMax(m.kind, m.degree)) return false;
  m.items.reserve(count);
  m.edges.reserve(count * m.degree);
  for (std::uint64_t i = 0; i < count && in.ok(); ++i) ReadItem(in, m);
  return in.ok() && in.empty();
}

bool ReadNames(ByteReader value, std::vector<std::string>& names) {
  while (!value.empty()) {
    const std::string_view name = value.Bytes(value.Byte());
    if (!value.ok() || !IsHostName(name) || names.size() == kWitnessesMax) return false;
    names.emplace_back(name);
  }
  return value.ok();
}

bool ReadLives(ByteReader value, std::vector<std::uint64_t>& lives) {
  while (!value.empty()) {
    if (lives.size() == kDegreeMax) return false;
    lives.push_back(value.Varint());
  }
  return value.ok();
}

std::uint64_t* NumberOf(CapacityMessage& m, Field field) {
  switch (field) {
    case Field::kGeneration:
      return &m.generation;
    case Field::kEpoch:
      return &m.epoch;
    case Field::kToEpoch:
      return &m.to_epoch;
    case Field::kSequence:
      return &m.sequence;
    case Field::kAnswered:
      return &m.answered;
    case Field::kBinding:
      return &m.binding;
    case Field::kBound:
      return &m.bound;
    case Field::kDigest:
      return &m.digest;
    case Field::kLife:
      return &m.life;
    case Field::kBase:
      return &m.base;
    case Field::kReserve:
      return &m.reserve;
    case Field::kAside:
      return &m.aside;
    case Field::kFormer:
      return &m.former;
    case Field::kDegree:
      return &m.degree;
    default:
      return nullptr;
  }
}

// One field; true if it is as it has to be. A key that is not known is passed over.
bool ReadField(Field field, ByteReader value, CapacityMessage& m, std::uint64_t& items) {
  if (std::uint64_t* number = NumberOf(m, field)) {
    *number = value.Varint();
    return value.ok() && value.empty() && *number != 0;
  }
  switch (field) {
    case Field::kSent:
      m.sent = UnZigZag(value.Varint());
      return value.ok() && value.empty() && m.sent != 0;
    case Field::kLast:
      m.last = value.Varint() == 1;
      return value.empty() && m.last;
    case Field::kItems:
      items = value.Varint();
      return value.ok() && value.empty() && items != 0;
    case Field::kMember:
      m.member = value.Bytes(std::min(value.left(), kHostNameBytesMax));
      return value.empty() && IsHostName(m.member);
    case Field::kMembers:
      return !value.empty() && m.members.Assign(value.Bytes(std::min(value.left(), kMemberBitsBytesMax))) &&
             value.empty();
    case Field::kWitnesses:
      return !value.empty() && ReadNames(value, m.witnesses);
    case Field::kLives:
      return !value.empty() && ReadLives(value, m.lives);
    default:
      return true;
  }
}

}    // namespace

std::size_t MemberBits::Count() const {
  std::size_t n = 0;
  for (const char byte : bytes_) n += static_cast<std::size_t>(std::popcount(static_cast<unsigned char>(byte)));
  return n;
}

void CapacityMessage::Clear() {
  std::vector<CapacityItem> old_items = std::move(items);
  std::vector<EdgeSums> old_edges = std::move(edges);
  *this = CapacityMessage();
  items = std::move(old_items);
  edges = std::move(old_edges);
  items.clear();
  edges.clear();
}

bool operator==(const CapacityMessage& a, const CapacityMessage& b) {
  std::string x, y;
  EncodeCapacity(a, x);
  EncodeCapacity(b, y);
  return x == y;
}

std::size_t ItemsMax(CapacityKind kind, std::uint64_t degree) {
  if (kind == CapacityKind::kAsk || kind == CapacityKind::kShare) return kAskedMax;
  return kItemsBytesMax / ItemBytesMax(kind, degree);
}

void EncodeCapacity(const CapacityMessage& m, std::string& frame) {
  DT_CHECK(m.items.size() <= ItemsMax(m.kind, m.degree) && m.edges.size() == m.items.size() * m.degree);
  frame.assign(kCapacityFramePrefix);
  frame += static_cast<char>(m.kind);
  AppendNumber(frame, Field::kGeneration, m.generation);
  AppendNumber(frame, Field::kEpoch, m.epoch);
  AppendNumber(frame, Field::kToEpoch, m.to_epoch);
  AppendNumber(frame, Field::kSequence, m.sequence);
  AppendNumber(frame, Field::kAnswered, m.answered);
  AppendNumber(frame, Field::kSent, ZigZag(m.sent));
  AppendNumber(frame, Field::kBinding, m.binding);
  AppendNumber(frame, Field::kBound, m.bound);
  AppendNumber(frame, Field::kDigest, m.digest);
  AppendField(frame, Field::kMember, m.member);
  AppendNumber(frame, Field::kLife, m.life);
  AppendNumber(frame, Field::kBase, m.base);
  AppendNumber(frame, Field::kReserve, m.reserve);
  AppendNumber(frame, Field::kAside, m.aside);
  AppendNumber(frame, Field::kFormer, m.former);
  AppendNumber(frame, Field::kLast, m.last ? 1 : 0);
  AppendField(frame, Field::kMembers, m.members.bytes());
  std::string list;
  for (const std::string& name : m.witnesses) (list += static_cast<char>(name.size())) += name;
  AppendField(frame, Field::kWitnesses, list);
  list.clear();
  for (const std::uint64_t life : m.lives) AppendVarint(list, life);
  AppendField(frame, Field::kLives, list);
  AppendNumber(frame, Field::kDegree, m.degree);
  AppendNumber(frame, Field::kItems, m.items.size());
  frame += static_cast<char>(Field::kEnd);
  const std::size_t head = frame.size();
  frame.resize(head + m.items.size() * ItemBytesMax(m.kind, m.degree));
  char* at = frame.data() + head;
  for (std::size_t i = 0; i < m.items.size(); ++i) at = WriteItem(at, m, i);
  frame.resize(static_cast<std::size_t>(at - frame.data()));
  SealFrame(frame);
  DT_CHECK(frame.size() <= kCapacityFrameBytesMax);
}

CapacityFault DecodeCapacity(std::string_view frame, CapacityMessage& m) {
  if (const FrameFault fault = OpenFrame(kCapacityFramePrefix, kCapacityFrameBytesMax, frame);
      fault != FrameFault::kNone) {
    return fault == FrameFault::kVersion ? CapacityFault::kVersion : CapacityFault::kJunk;
  }
  m.Clear();
  ByteReader in(frame);
  m.kind = CapacityKind{in.Byte()};
  if (m.kind < CapacityKind::kBeat || m.kind > CapacityKind::kShare) return CapacityFault::kJunk;
  std::uint64_t items = 0;
  std::uint8_t previous = 0;
  while (const std::uint8_t key = in.Byte()) {
    if (key <= previous) return CapacityFault::kJunk;
    previous = key;
    const std::string_view value = in.Bytes(in.Varint());
    if (!in.ok() || !ReadField(Field{key}, ByteReader(value), m, items)) return CapacityFault::kJunk;
  }
  return in.ok() && ReadItems(in, items, m) ? CapacityFault::kNone : CapacityFault::kJunk;
}

}    // namespace dthrottle
