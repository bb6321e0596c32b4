#include "report/codec.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/frame.h"
#include "base/varint.h"
#include "report/ipv4_text.h"

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
  kEntries = 13,      // how many
  kUnpacked = 14,     // bytes of the entries before compression; absent if there is none
  kDemands = 15,      // of entries of a report
  kAddresses = 16,    // 1: a length of 0 is that of an IPv4 address, which has four bytes
};

constexpr std::size_t kPackFromBytes = 256;    // less would not pay for the compressor's own headers
// Repetitions of a few digits cost more, to find, to follow and in bytes, than a code for digits does.
constexpr int kMinMatch = 7, kHashLog = 10;
constexpr std::uint8_t kDigestBit = 0x80;    // of the byte that has the phase below it
static_assert(kPhases <= kDigestBit);

// Every message fits into a frame: all fields at their longest, and one of the three kinds of bulk. How long entries
// are at most is what Entries::Add sees to.
constexpr std::size_t FieldBytesMax(std::size_t value_bytes) {
  return 1 + (value_bytes < 1 << 7 ? 1 : value_bytes < 1 << 14 ? 2 : 3) + value_bytes;
}
constexpr std::size_t kRangeBytesMax = 2 * kVarintBytesMax;
constexpr std::size_t kPositionBytesMax = 1 + kHostNameBytesMax + 2 * kVarintBytesMax;
constexpr std::size_t kHeadBytesMax = kFramePrefix.size() + kFrameRestBytes + FieldBytesMax(kHostNameBytesMax) +
                                      FieldBytesMax(kTextBytesMax) + 11 * FieldBytesMax(kVarintBytesMax);
static_assert(kHeadBytesMax + 4 + kEntriesBytesMax <= kFrameBytesMax);    // 4: around the demands
static_assert(kHeadBytesMax + FieldBytesMax(kRangesMax * kRangeBytesMax) <= kFrameBytesMax);
static_assert(kHeadBytesMax + FieldBytesMax(kPositionsMax * kPositionBytesMax) <= kFrameBytesMax);

bool HasEntries(MessageKind kind) {
  return kind == MessageKind::kReport || kind == MessageKind::kSnapshot;
}

bool IsInstant(Instant t) {
  return t.time_since_epoch() >= -kSinceOriginMax && t.time_since_epoch() <= kSinceOriginMax;
}

// Demands are of entries that are there, and every entry without hits has one.
bool DemandsFit(const Entries& entries) {
  if (entries.demands().empty()) return true;
  const auto is_bad = [&](const Demand& d) { return d.entry >= entries.size() || d.per_second > kDemandMax; };
  if (std::any_of(entries.demands().begin(), entries.demands().end(), is_bad)) return false;
  return std::all_of(entries.list().begin(), entries.list().end(),
                     [&](const Entry& e) { return e.value != 0 || entries.demand(e).has_value(); });
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
         (m.entries.empty() || HasEntries(m.kind)) && (m.entries.demands().empty() || is_report) &&
         DemandsFit(m.entries);
}

bool IsPermitted(MessageKind kind, const Entry& e, bool with_demand) {
  const std::uint64_t least = kind == MessageKind::kReport && !with_demand ? 1 : 0;
  const std::uint64_t most = kind == MessageKind::kReport ? kHitsMax : kMicrosecondsMax;
  return (e.value - least <= most - least) & ((e.tag_bytes >= kDigestBytes) | !e.is_digest);    // hot: one branch
}

bool ReadFlag(ByteReader& value, bool& flag) {
  const std::uint64_t number = value.Varint();
  flag = number == 1;
  return number <= 1;
}

struct FreeContext {
  void operator()(ZSTD_CCtx* c) const { ZSTD_freeCCtx(c); }
  void operator()(ZSTD_DCtx* d) const { ZSTD_freeDCtx(d); }
};

}    // namespace

// Entries are laid out as columns: lengths of tags, phases and kinds, tags, values. The bounds of entries.h are of tags
// as text; addresses only make columns shorter.
struct Codec::Contexts {
  std::unique_ptr<ZSTD_CCtx, FreeContext> compressor{ZSTD_createCCtx()};
  std::unique_ptr<ZSTD_DCtx, FreeContext> decompressor{ZSTD_createDCtx()};
  std::array<char, kEntriesBytesMax> columns;
  std::array<char, kEntriesBytesMax> packed;
  std::array<char, kEntriesMax> text_lengths;    // of tags
  std::string value;                             // of a field that is being put together

  struct Columns {
    std::array<char*, 4> ends;
    bool with_addresses;
  };

  // REQUIRES: entries are not empty, and no more than Entries::Add takes.
  Columns LayOut(MessageKind kind, const Entries& entries) {
    char* const phases = columns.data() + entries.size();
    char* const tags = phases + entries.size();
    char *length = columns.data(), *phase = phases, *tag_at = tags;
    const bool may_shorten =
        std::none_of(entries.list_.begin(), entries.list_.end(), [](const Entry& e) { return e.tag_bytes == 0; });
    std::size_t saved = 0;
    for (const Entry& e : entries.list_) {
      *phase++ = static_cast<char>(e.phase | (e.is_digest ? kDigestBit : 0));
      const std::string_view tag = entries.tag(e).bytes;
      if (may_shorten && ReadIpv4(tag, tag_at)) {
        *length++ = 0;
        tag_at += kIpv4Bytes;
        saved += tag.size() - kIpv4Bytes;
      } else {
        *length++ = static_cast<char>(e.tag_bytes);
        tag_at = std::copy(tag.begin(), tag.end(), tag_at);
      }
    }
    char* value_at = tag_at;
    bool permitted = true;
    const bool with_zero = !entries.demands_.empty();
    for (const Entry& e : entries.list_) {
      permitted &= IsPermitted(kind, e, with_zero);
      value_at = WriteVarint(value_at, e.value);
    }
    DT_CHECK(permitted && value_at + saved == columns.data() + entries.encoded_bytes_);
    return {{phases, tags, tag_at, value_at}, saved != 0};
  }

  // Into `value`: of each, how many entries lie between it and the one before, and the number.
  void LayOutDemands(const Entries& entries) {
    value.clear();
    std::size_t next = 0;
    for (const Demand& d : entries.demands_) {
      AppendVarint(value, d.entry - next);
      AppendVarint(value, d.per_second);
      next = d.entry + std::size_t{1};
    }
  }

  static void ReadDemands(ByteReader& in, Entries& entries) {
    std::uint64_t next = 0;
    while (!in.empty() && entries.demands_.size() < kEntriesMax) {
      const std::uint64_t entry = next + std::min<std::uint64_t>(in.Varint(), kEntriesMax);
      entries.demands_.push_back(
          {static_cast<std::uint16_t>(std::min<std::uint64_t>(entry, kEntriesMax)), in.Varint()});
      next = entry + 1;
    }
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

  // Writes the tags as text, behind each other, and returns how long each is.
  std::string_view Spell(std::string_view short_lengths, std::string_view tags, std::string& text) {
    const auto addresses = static_cast<std::size_t>(std::count(short_lengths.begin(), short_lengths.end(), '\0'));
    text.resize(tags.size() + addresses * (kIpv4TextMax + 1 - kIpv4Bytes));
    char* to = text.data();
    const char* from = tags.data();
    for (std::size_t i = 0; i < short_lengths.size(); ++i) {
      char* const begin = to;
      if (const auto bytes = static_cast<std::uint8_t>(short_lengths[i]); bytes != 0) {
        to = std::copy(from, from + bytes, to);
        from += bytes;
      } else {
        to = WriteIpv4(from, to);
        from += kIpv4Bytes;
      }
      text_lengths[i] = static_cast<char>(to - begin);
    }
    text.resize(static_cast<std::size_t>(to - text.data()));
    return {text_lengths.data(), short_lengths.size()};
  }

  // False if the columns are not those of `count` entries.
  bool Read(std::string_view body, std::uint64_t count, bool with_addresses, MessageKind kind, Entries& entries) {
    if (count > kEntriesMax || body.size() > kEntriesBytesMax) return false;
    ByteReader in(body);
    std::string_view lengths = in.Bytes(count);
    const std::string_view phases = in.Bytes(count);
    const std::size_t bytes_of_none = with_addresses ? kIpv4Bytes : 0;
    std::size_t tags_bytes = 0;
    for (const char length : lengths) tags_bytes += length != 0 ? static_cast<std::uint8_t>(length) : bytes_of_none;
    const std::string_view tags = in.Bytes(tags_bytes);
    if (!in.ok()) return false;    // so all three columns are there
    if (with_addresses) {
      lengths = Spell(lengths, tags, entries.tags_);
    } else {
      entries.tags_.assign(tags);
    }
    entries.encoded_bytes_ = body.size() - tags.size() + entries.tags_.size();
    if (entries.encoded_bytes_ + entries.demands_.size() * kDemandBytesMax > kEntriesBytesMax) return false;

    entries.list_.resize(count);
    bool permitted = true;
    const bool with_zero = !entries.demands_.empty();
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
      permitted &= IsPermitted(kind, e, with_zero);
    }
    return in.ok() && in.empty() && permitted;
  }
};

Codec::Codec() : contexts_(std::make_unique<Contexts>()) {
  DT_CHECK(contexts_->compressor && contexts_->decompressor);
  const auto set = [&](ZSTD_cParameter parameter, int value) {
    ZSTD_CCtx_setParameter(contexts_->compressor.get(), parameter, value);
  };
  set(ZSTD_c_compressionLevel, 1);
  set(ZSTD_c_minMatch, kMinMatch);
  set(ZSTD_c_hashLog, kHashLog);
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
  AppendField(frame, Field::kText, m.text);
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
  bool with_addresses = false;
  if (!m.entries.empty()) {
    AppendNumber(frame, Field::kEntries, m.entries.size());
    const Contexts::Columns laid_out = contexts_->LayOut(m.kind, m.entries);
    with_addresses = laid_out.with_addresses;
    const std::string_view columns(contexts_->columns.data(), laid_out.ends.back());
    if (columns.size() >= kPackFromBytes) body = contexts_->Compress(laid_out.ends);
    if (body.empty()) {
      body = columns;
    } else {
      AppendNumber(frame, Field::kUnpacked, columns.size());
    }
  }
  if (!m.entries.demands().empty()) {
    contexts_->LayOutDemands(m.entries);
    AppendField(frame, Field::kDemands, value);
  }
  AppendNumber(frame, Field::kAddresses, with_addresses);
  frame += static_cast<char>(Field::kEnd);
  frame += body;
  SealFrame(frame);
  DT_CHECK(frame.size() <= kFrameBytesMax);
}

DecodeFault Codec::Decode(std::string_view frame, Message& m) {
  switch (OpenFrame(kFramePrefix, kFrameBytesMax, frame)) {
    case FrameFault::kNone:
      break;
    case FrameFault::kJunk:
      return DecodeFault::kJunk;
    case FrameFault::kVersion:
      return DecodeFault::kVersion;
    case FrameFault::kChecksum:
      return DecodeFault::kChecksum;
  }

  m.Clear();
  ByteReader in(frame);
  m.kind = MessageKind{in.Byte()};
  std::uint64_t interval = 0, entries = 0, unpacked = 0;
  bool with_addresses = false;
  std::uint8_t previous = 0;
  while (const std::uint8_t key = in.Byte()) {
    if (key <= previous) return DecodeFault::kContent;
    previous = key;
    ByteReader value(in.Bytes(in.Varint()));
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
      case Field::kLast:
        if (!ReadFlag(value, m.last)) return DecodeFault::kContent;
        break;
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
      case Field::kDemands:
        Contexts::ReadDemands(value, m.entries);
        break;
      case Field::kAddresses:
        if (!ReadFlag(value, with_addresses)) return DecodeFault::kContent;
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
  if (!contexts_->Read(columns, entries, with_addresses, m.kind, m.entries) || !IsPermitted(m)) {
    return DecodeFault::kContent;
  }
  return DecodeFault::kNone;
}

}    // namespace dthrottle
