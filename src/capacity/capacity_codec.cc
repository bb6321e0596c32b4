#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/fields.h"
#include "base/frame.h"
#include "base/host_name.h"
#include "base/varint.h"
#include "capacity/capacity_message.h"

namespace dthrottle {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kKeyBytes = 16;
// What frames call the kinds, in the order of CapacityKind.
constexpr std::string_view kKindNames[] = {"beat",  "grant",  "dead",    "log",     "gifts",  "settle", "have",
                                           "fence", "fenced", "prepare", "promise", "commit", "ask",    "share"};

constexpr std::size_t kNumberBytesMax = 1 + 8, kFieldNameBytesMax = 1 + 10, kFieldsMax = 24;
static_assert(kCapacityFramePrefix.size() + kFrameRestBytes + kFieldsMax * (kFieldNameBytesMax + kNumberBytesMax) +
                  2 * kHostNameBytesMax + kWitnessesMax * (2 + kHostNameBytesMax) + kMemberBitsBytesMax +
                  kDegreeMax * kNumberBytesMax + kItemsBytesMax <=
              kCapacityFrameBytesMax);
static_assert(kPackValuesMax >= 2 * kFieldsMax + kWitnessesMax + kDegreeMax);

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

bool ReadItems(std::string_view bytes, CapacityMessage& m) {
  const bool has_edges = m.kind == CapacityKind::kLog || m.kind == CapacityKind::kSettle;
  if (m.degree > (m.kind == CapacityKind::kSettle ? 1 : kDegreeMax) || (!has_edges && m.degree != 0)) return false;
  if (m.kind == CapacityKind::kLog ? m.lives.size() != m.degree : !m.lives.empty()) return false;
  if (!bytes.empty() && !HasItems(m.kind)) return false;
  const std::size_t most = ItemsMax(m.kind, m.degree);
  for (ByteReader in(bytes); !in.empty();) {
    if (m.items.size() == most) return false;
    ReadItem(in, m);
    if (!in.ok()) return false;
  }
  return true;
}

// The fields of a frame, for writing and for reading (base/fields.h).
void FieldsOf(auto& fields, auto& m, auto& items) {
  const auto field = [&](std::string_view name, auto& v, Kinds<CapacityKind> kinds) {
    kinds.has(m.kind) ? fields.Must(name, v) : fields.May(name, v);
  };
  using enum CapacityKind;
  fields.Must("kind", m.kind);
  fields.Must("host", m.host);
  fields.Must("generation", m.generation);
  fields.Must("epoch", m.epoch);
  field("to_epoch", m.to_epoch, {kLog, kGifts, kGrant, kDead, kHave});
  field("seq", m.sequence, {kLog, kGifts, kSettle, kHave, kAsk, kShare});
  field("answered", m.answered, {kHave});
  field("sent", m.sent, {kBeat, kGrant});
  field("bond", m.binding, {kBeat, kGrant, kLog, kFence, kFenced});
  field("bound", m.bound, {kBeat});
  field("digest", m.digest, {kBeat, kPrepare, kPromise, kCommit});
  field("member", m.member, {kFence, kFenced, kSettle});
  field("life", m.life, {kFence, kFenced, kSettle, kDead});
  field("base", m.base, {kCommit});
  field("reserve", m.reserve, {kCommit, kPromise});
  field("aside", m.aside, {kCommit, kPromise});
  field("former", m.former, {kPromise});
  field("last", m.last, {});
  field("members", m.members, {});
  field("witnesses", m.witnesses, {});
  field("degree", m.degree, {kLog, kSettle});
  field("lives", m.lives, {kLog});
  field("items", items, {kLog, kGifts, kSettle, kAsk, kShare});
}

}    // namespace

// How the fields that are not plain numbers and texts are written; found by FieldWriter and FieldReader.
static constexpr std::span<const std::string_view> KindNames(CapacityKind) {
  return kKindNames;
}

static void PutField(PackWriter& out, const MemberBits& members) {
  out.Bytes(members.bytes());
}

static bool GetField(PackCursor& in, MemberBits& members) {
  const PackValue& value = in.Take();
  return value.type == PackValue::Type::kBytes && members.Assign(value.bytes);
}

static void PutField(PackWriter& out, const std::vector<std::string>& names) {
  out.Array(names.size());
  for (const std::string& name : names) out.Text(name);
}

static bool GetField(PackCursor& in, std::vector<std::string>& names) {
  std::size_t n = 0;
  bool ok = in.Enter(kWitnessesMax, n);
  for (std::size_t i = 0; ok && i < n; ++i) ok = GetField(in, names.emplace_back()) && IsHostName(names.back());
  return ok;
}

static void PutField(PackWriter& out, const std::vector<std::uint64_t>& numbers) {
  out.Array(numbers.size());
  for (const std::uint64_t number : numbers) out.Unsigned(number);
}

static bool GetField(PackCursor& in, std::vector<std::uint64_t>& numbers) {
  std::size_t n = 0;
  bool ok = in.Enter(kDegreeMax, n);
  for (std::size_t i = 0; ok && i < n; ++i) ok = GetField(in, numbers.emplace_back());
  return ok;
}

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

std::size_t ItemsMax(CapacityKind kind, std::uint64_t degree) {
  if (kind == CapacityKind::kAsk || kind == CapacityKind::kShare) return kAskedMax;
  return kItemsBytesMax / ItemBytesMax(kind, degree);
}

void EncodeCapacity(const CapacityMessage& m, std::string& frame) {
  DT_CHECK(m.items.size() <= ItemsMax(m.kind, m.degree) && m.edges.size() == m.items.size() * m.degree);
  thread_local std::string rows;    // keeps its memory
  rows.resize(m.items.size() * ItemBytesMax(m.kind, m.degree));
  char* at = rows.data();
  for (std::size_t i = 0; i < m.items.size(); ++i) at = WriteItem(at, m, i);
  const PackedBytes items{{rows.data(), at}};
  WriteFrame(kCapacityFramePrefix, frame, [&](auto& fields) { FieldsOf(fields, m, items); });
  DT_CHECK(frame.size() <= kCapacityFrameBytesMax);
}

CapacityFault DecodeCapacity(std::string_view frame, CapacityMessage& m) {
  if (const FrameFault fault = OpenFrame(kCapacityFramePrefix, kCapacityFrameBytesMax, frame);
      fault != FrameFault::kNone) {
    return fault == FrameFault::kVersion ? CapacityFault::kVersion : CapacityFault::kJunk;
  }
  m.Clear();
  thread_local PackReader values;    // keeps its memory
  if (!values.Read(frame)) return CapacityFault::kJunk;
  PackedBytes items;
  FieldReader fields(values.values());
  FieldsOf(fields, m, items);
  const bool names = IsHostName(m.host) && (m.member.empty() || IsHostName(m.member));
  return fields.ok() && names && ReadItems(items.view, m) ? CapacityFault::kNone : CapacityFault::kJunk;
}

}    // namespace dthrottle
