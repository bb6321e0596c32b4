#include "report/codec.h"

#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace dthrottle {

namespace {

static_assert(std::endian::native == std::endian::little);

// Keys of fields. They come in ascending order, so that none can come twice.
enum class Field : std::uint8_t {
  kEnd = 0,
  kSender = 1,
  kIncarnation = 2,
  kSequence = 3,
  kRingLow = 4,
  kTo = 5,
  kInterval = 6,    // to - from
  kPeriod = 7,
  kLast = 8,
  kSnapshot = 9,
  kText = 10,
  kRanges = 11,
  kPositions = 12,
  kEntries = 13,     // how many
  kUnpacked = 14,    // bytes of the entries before compression; absent if there is none
};

constexpr std::size_t kVersionAt = kFramePrefix.size() - 1;
constexpr std::size_t kChecksumBytes = sizeof(XXH64_hash_t);
constexpr std::size_t kFrameBytesMin = kFramePrefix.size() + 1 + 1 + kChecksumBytes;
constexpr std::size_t kVarintBytesMax = 10;
constexpr std::size_t kPackFromBytes = 256;    // less would not pay for the compressor's own headers
constexpr std::uint8_t kDigestBit = 0x80;      // of the byte that has the phase below it
static_assert(kPhases <= kDigestBit);

// Every message fits into a frame: all fields at their longest, and one of the three kinds of bulk. How long entries
// are at most is what Entries::Add sees to.
constexpr std::size_t FieldBytesMax(std::size_t value_bytes) {
  return 1 + (value_bytes < 1 << 7 ? 1 : value_bytes < 1 << 14 ? 2 : 3) + value_bytes;
}
constexpr std::size_t kRangeBytesMax = 2 * kVarintBytesMax;
constexpr std::size_t kPositionBytesMax = 1 + kHostNameBytesMax + 2 * kVarintBytesMax;
constexpr std::size_t kHeadBytesMax = kFrameBytesMin + FieldBytesMax(kHostNameBytesMax) + FieldBytesMax(kTextBytesMax) +
                                      10 * FieldBytesMax(kVarintBytesMax);
static_assert(kHeadBytesMax + kEntriesBytesMax <= kFrameBytesMax);
static_assert(kHeadBytesMax + FieldBytesMax(kRangesMax * kRangeBytesMax) <= kFrameBytesMax);
static_assert(kHeadBytesMax + FieldBytesMax(kPositionsMax * kPositionBytesMax) <= kFrameBytesMax);

bool HasEntries(MessageKind kind) {
  return kind == MessageKind::kReport || kind == MessageKind::kSnapshot;
}

bool IsInstant(Instant t) {
  return t.time_since_epoch() >= -kSinceOriginMax && t.time_since_epoch() <= kSinceOriginMax;
}

// What may be said at all. The values of entries are looked at where they are written and read.
bool IsPermitted(const Message& m) {
  const bool is_report = m.kind == MessageKind::kReport;
  return m.kind >= MessageKind::kReport && m.kind <= MessageKind::kSnapshotEnd && IsHostName(m.sender) &&
         m.text.size() <= kTextBytesMax && IsInstant(m.to) &&
         (!is_report || (IsInstant(m.from) && m.from <= m.to)) &&    //
         m.period >= Duration() && m.period <= kPeriodMax && (m.ranges.empty() || m.kind == MessageKind::kRepeat) &&
         m.ranges.size() <= kRangesMax &&
         std::all_of(m.ranges.begin(), m.ranges.end(), [](const SequenceRange& r) { return r.first <= r.last; }) &&
         (m.positions.empty() || m.kind == MessageKind::kSnapshotEnd) && m.positions.size() <= kPositionsMax &&
         std::all_of(m.positions.begin(), m.positions.end(), [](const Position& p) { return IsHostName(p.sender); }) &&
         (m.entries.empty() || HasEntries(m.kind));
}

bool IsPermitted(MessageKind kind, const Entry& e) {
  const std::uint64_t least = kind == MessageKind::kReport ? 1 : 0;
  const std::uint64_t most = kind == MessageKind::kReport ? kHitsMax : kMicrosecondsMax;
  return (e.value - least <= most - least) & ((e.tag_bytes >= kDigestBytes) | !e.is_digest);    // hot: one branch
}

// Signed numbers with the sign in the lowest bit, so that small ones are short either way.
std::uint64_t ZigZag(std::int64_t v) {
  return (static_cast<std::uint64_t>(v) << 1) ^ static_cast<std::uint64_t>(v >> 63);
}
std::int64_t UnZigZag(std::uint64_t v) {
  return static_cast<std::int64_t>((v >> 1) ^ (0 - (v & 1)));
}

char* WriteVarint(char* p, std::uint64_t v) {
  for (; v >= 0x80; v >>= 7) *p++ = static_cast<char>(v | 0x80);
  *p++ = static_cast<char>(v);
  return p;
}

void AppendVarint(std::string& out, std::uint64_t v) {
  char bytes[kVarintBytesMax];
  out.append(bytes, WriteVarint(bytes, v));
}

void AppendField(std::string& out, Field key, std::string_view value) {
  out += static_cast<char>(key);
  AppendVarint(out, value.size());
  out += value;
}

// A field that is not there is zero.
void AppendNumber(std::string& out, Field key, std::uint64_t v) {
  if (v == 0) return;
  char bytes[kVarintBytesMax];
  AppendField(out, key, {bytes, WriteVarint(bytes, v)});
}

// Takes bytes off the front. Once something is missing or wrong it is not ok, and empty from then on.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  bool ok() const { return ok_; }
  bool empty() const { return at_ == end_; }

  std::string_view Bytes(std::uint64_t n) {
    if (n > static_cast<std::size_t>(end_ - at_)) return Fail(), std::string_view();
    at_ += n;
    return {at_ - n, at_};
  }

  std::string_view Rest() { return Bytes(static_cast<std::size_t>(end_ - at_)); }

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

struct FreeContext {
  void operator()(ZSTD_CCtx* c) const { ZSTD_freeCCtx(c); }
  void operator()(ZSTD_DCtx* d) const { ZSTD_freeDCtx(d); }
};

std::uint64_t Checksum(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}    // namespace

// Entries are laid out as columns: lengths of tags, phases and kinds, tags, values.
struct Codec::Contexts {
  std::unique_ptr<ZSTD_CCtx, FreeContext> compressor{ZSTD_createCCtx()};
  std::unique_ptr<ZSTD_DCtx, FreeContext> decompressor{ZSTD_createDCtx()};
  std::array<char, kEntriesBytesMax> columns;
  std::array<char, kEntriesBytesMax> packed;
  std::string value;    // of a field that is being put together

  // Lays out the columns and returns where each ends. REQUIRES: entries are not empty.
  std::array<char*, 4> LayOut(MessageKind kind, const Entries& entries) {
    char* length = columns.data();
    char* phase = length + entries.size();
    char* const tags = phase + entries.size();
    char* value_at = std::copy(entries.tags_.begin(), entries.tags_.end(), tags);
    const std::array<char*, 3> ends{phase, tags, value_at};
    bool permitted = true;
    for (const Entry& e : entries.list_) {
      permitted &= IsPermitted(kind, e);
      *length++ = static_cast<char>(e.tag_bytes);
      *phase++ = static_cast<char>(e.phase | (e.is_digest ? kDigestBit : 0));
      value_at = WriteVarint(value_at, e.value);
    }
    DT_CHECK(permitted && value_at == columns.data() + entries.encoded_bytes_);
    return {ends[0], ends[1], ends[2], value_at};
  }

  // The columns compressed; empty if they would not be smaller. Flushing behind each column begins a new block, so that
  // each gets a code of its own: with one code for digits and phases together, both take more bits.
  std::string_view Compress(const std::array<char*, 4>& ends) {
    const auto bytes = static_cast<std::size_t>(ends.back() - columns.data());
    ZSTD_CCtx_reset(compressor.get(), ZSTD_reset_session_only);
    ZSTD_CCtx_setPledgedSrcSize(compressor.get(), bytes);
    ZSTD_outBuffer out{packed.data(), bytes - 1, 0};
    const char* begin = columns.data();
    for (const char* end : ends) {
      ZSTD_inBuffer in{begin, static_cast<std::size_t>(end - begin), 0};
      const auto then = end == ends.back() ? ZSTD_e_end : ZSTD_e_flush;
      if (ZSTD_compressStream2(compressor.get(), &out, &in, then) != 0) return {};    // full
      begin = end;
    }
    return {packed.data(), out.pos};
  }

  // The columns of one zstd frame; empty if it is anything else, or not of exactly this many bytes.
  std::string_view Decompress(std::string_view body, std::uint64_t bytes) {
    // What follows a frame, or has another magic number, could be formats that the library has kept for old times'
    // sake.
    std::uint32_t magic = 0;
    std::memcpy(&magic, body.data(), std::min(body.size(), sizeof(magic)));
    if (magic != ZSTD_MAGICNUMBER || bytes > columns.size() ||
        ZSTD_findFrameCompressedSize(body.data(), body.size()) != body.size() ||
        ZSTD_decompressDCtx(decompressor.get(), columns.data(), bytes, body.data(), body.size()) != bytes) {
      return {};
    }
    return {columns.data(), bytes};
  }

  // False if the columns are not those of `count` entries.
  static bool Read(std::string_view columns, std::uint64_t count, MessageKind kind, Entries& entries) {
    if (count > kEntriesMax || columns.size() > kEntriesBytesMax) return false;
    Reader in(columns);
    const std::string_view lengths = in.Bytes(count), phases = in.Bytes(count);
    std::size_t tags_bytes = 0;
    for (const char length : lengths) tags_bytes += static_cast<std::uint8_t>(length);
    entries.tags_.assign(in.Bytes(tags_bytes));
    if (!in.ok()) return false;    // so all three columns are there

    entries.list_.resize(count);
    entries.encoded_bytes_ = columns.size();
    bool permitted = true;
    std::size_t tag_at = 0;
    for (std::size_t i = 0; i < count; ++i) {
      Entry& e = entries.list_[i];
      const auto phase = static_cast<std::uint8_t>(phases[i]);
      e.value = in.Varint();
      e.tag_at = static_cast<std::uint16_t>(tag_at);
      e.tag_bytes = static_cast<std::uint8_t>(lengths[i]);
      e.is_digest = (phase & kDigestBit) != 0;
      e.phase = static_cast<std::uint8_t>(phase & ~kDigestBit);
      tag_at += e.tag_bytes;
      permitted &= IsPermitted(kind, e);
    }
    return in.ok() && in.empty() && permitted;
  }
};

Codec::Codec() : contexts_(std::make_unique<Contexts>()) {
  DT_CHECK(contexts_->compressor && contexts_->decompressor);
  ZSTD_CCtx_setParameter(contexts_->compressor.get(), ZSTD_c_compressionLevel, 1);
}

Codec::~Codec() = default;

void Codec::Encode(const Message& m, std::string& frame) {
  DT_CHECK(IsPermitted(m));
  std::string& value = contexts_->value;
  frame.assign(kFramePrefix);
  frame += static_cast<char>(m.kind);
  AppendField(frame, Field::kSender, m.sender);
  AppendNumber(frame, Field::kIncarnation, m.incarnation);
  AppendNumber(frame, Field::kSequence, m.sequence);
  AppendNumber(frame, Field::kRingLow, m.ring_low);
  AppendNumber(frame, Field::kTo, ZigZag(m.to.time_since_epoch().count()));
  if (m.kind == MessageKind::kReport) {
    const auto from = static_cast<std::uint64_t>(m.from.time_since_epoch().count());
    AppendNumber(frame, Field::kInterval, static_cast<std::uint64_t>(m.to.time_since_epoch().count()) - from);
  }
  AppendNumber(frame, Field::kPeriod, static_cast<std::uint64_t>(m.period.count()));
  AppendNumber(frame, Field::kLast, m.last);
  AppendNumber(frame, Field::kSnapshot, m.snapshot);
  if (!m.text.empty()) AppendField(frame, Field::kText, m.text);
  if (!m.ranges.empty()) {
    value.clear();
    for (const SequenceRange& r : m.ranges) {
      AppendVarint(value, r.first);
      AppendVarint(value, r.last - r.first);
    }
    AppendField(frame, Field::kRanges, value);
  }
  if (!m.positions.empty()) {
    value.clear();
    for (const Position& p : m.positions) {
      AppendVarint(value, p.sender.size());
      value += p.sender;
      AppendVarint(value, p.incarnation);
      AppendVarint(value, p.next);
    }
    AppendField(frame, Field::kPositions, value);
  }
  std::string_view body;
  if (!m.entries.empty()) {
    AppendNumber(frame, Field::kEntries, m.entries.size());
    const std::array<char*, 4> ends = contexts_->LayOut(m.kind, m.entries);
    const std::string_view columns(contexts_->columns.data(), ends.back());
    if (columns.size() >= kPackFromBytes) body = contexts_->Compress(ends);
    if (body.empty()) {
      body = columns;
    } else {
      AppendNumber(frame, Field::kUnpacked, columns.size());
    }
  }
  frame += static_cast<char>(Field::kEnd);
  frame += body;
  const std::uint64_t checksum = Checksum(frame);
  frame.append(reinterpret_cast<const char*>(&checksum), kChecksumBytes);
  DT_CHECK(frame.size() <= kFrameBytesMax);
}

DecodeFault Codec::Decode(std::string_view frame, Message& m) {
  if (frame.size() > kFrameBytesMax || !frame.starts_with(kFramePrefix.substr(0, kVersionAt)) ||
      frame.size() == kVersionAt) {
    return DecodeFault::kJunk;
  }
  if (frame[kVersionAt] != kFramePrefix[kVersionAt]) return DecodeFault::kVersion;
  if (frame.size() < kFrameBytesMin) return DecodeFault::kJunk;
  std::uint64_t checksum;
  std::memcpy(&checksum, frame.data() + frame.size() - kChecksumBytes, kChecksumBytes);
  frame.remove_suffix(kChecksumBytes);
  if (checksum != Checksum(frame)) return DecodeFault::kChecksum;
  frame.remove_prefix(kFramePrefix.size());

  m.Clear();
  Reader in(frame);
  m.kind = MessageKind{in.Byte()};
  std::uint64_t interval = 0, entries = 0, unpacked = 0;
  std::uint8_t previous = 0;
  while (const std::uint8_t key = in.Byte()) {
    if (key <= previous) return DecodeFault::kContent;
    previous = key;
    Reader value(in.Bytes(in.Varint()));
    switch (Field{key}) {
      case Field::kSender:
        m.sender = value.Rest();
        break;
      case Field::kIncarnation:
        m.incarnation = value.Varint();
        break;
      case Field::kSequence:
        m.sequence = value.Varint();
        break;
      case Field::kRingLow:
        m.ring_low = value.Varint();
        break;
      case Field::kTo:
        m.to = FromNanoseconds(UnZigZag(value.Varint()));
        break;
      case Field::kInterval:
        interval = value.Varint();
        break;
      case Field::kPeriod:
        m.period = Duration(static_cast<std::int64_t>(value.Varint()));
        if (m.period == Duration()) return DecodeFault::kContent;
        break;
      case Field::kLast: {
        const std::uint64_t last = value.Varint();
        if (last > 1) return DecodeFault::kContent;
        m.last = last == 1;
        break;
      }
      case Field::kSnapshot:
        m.snapshot = value.Varint();
        break;
      case Field::kText:
        m.text = value.Rest().substr(0, kTextBytesMax + 1);
        break;
      case Field::kRanges:
        while (!value.empty() && m.ranges.size() < kRangesMax) {
          const std::uint64_t first = value.Varint();
          m.ranges.push_back({first, first + value.Varint()});
        }
        break;
      case Field::kPositions:
        while (!value.empty() && m.positions.size() < kPositionsMax) {
          Position& p = m.positions.emplace_back();
          p.sender = value.Bytes(value.Varint());
          p.incarnation = value.Varint();
          p.next = value.Varint();
        }
        break;
      case Field::kEntries:
        entries = value.Varint();
        break;
      case Field::kUnpacked:
        unpacked = value.Varint();
        if (unpacked == 0) return DecodeFault::kContent;
        break;
      default:
        value.Rest();    // of a later minor version
    }
    if (!value.ok() || !value.empty()) return DecodeFault::kContent;
  }
  // Read before the entries: the end of the fields, and what bounds the sum.
  if (!in.ok() || !IsInstant(m.to)) return DecodeFault::kContent;
  if (m.kind == MessageKind::kReport) {
    const auto to = static_cast<std::uint64_t>(m.to.time_since_epoch().count());
    m.from = FromNanoseconds(static_cast<std::int64_t>(to - interval));    // too long an interval ends up out of bounds
  } else if (interval != 0) {
    return DecodeFault::kContent;
  }
  std::string_view columns = in.Rest();
  if (unpacked != 0) {
    columns = contexts_->Decompress(columns, unpacked);
    if (columns.empty()) return DecodeFault::kContent;
  }
  if (!Contexts::Read(columns, entries, m.kind, m.entries) || !IsPermitted(m)) return DecodeFault::kContent;
  return DecodeFault::kNone;
}

}    // namespace dthrottle
