#include "bus/codec.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <span>

#include "base/check.h"
#include "base/fields.h"
#include "base/frame.h"
#include "base/varint.h"
#include "bus/ipv4_text.h"
#include "bus/owners/owners.h"

namespace dthrottle {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kPackFromBytes = 256;    // less would not pay for the compressor's own headers
// Repetitions of a few digits cost more, to find, to follow and in bytes, than a code for digits does.
constexpr int kMinMatch = 7, kHashLog = 10;
constexpr std::uint8_t kDigestBit = 0x80;    // of the byte that has the phase below it
static_assert(kPhases <= kDigestBit);

// What frames call the kinds, in the order of MessageKind.
constexpr std::string_view kKindNames[] = {
    "report",       "hello",  "welcome", "refusal", "repeat", "gone",     "want", "snapshot",
    "snapshot-end", "levels", "near",    "owners",  "closed", "handover", "taken"};

// Every message fits into a frame: all fields at their longest, and one of the three kinds of bulk. Entries::Add bounds
// how long entries are.
constexpr std::size_t kNumberBytesMax = 1 + 8, kFieldNameBytesMax = 1 + 10, kFieldsMax = 30;
constexpr std::size_t kRangeBytesMax = 1 + 2 * kNumberBytesMax;
constexpr std::size_t kPositionBytesMax = 1 + 2 + kHostNameBytesMax + 2 * kNumberBytesMax;
constexpr std::size_t kHeadBytesMax = kFramePrefix.size() + kFrameRestBytes + kHostNameBytesMax + kTextBytesMax +
                                      kFieldsMax * (kFieldNameBytesMax + kNumberBytesMax);
static_assert(kHeadBytesMax + kEntriesBytesMax <= kFrameBytesMax);
static_assert(kHeadBytesMax + kRangesMax * kRangeBytesMax <= kFrameBytesMax);
static_assert(kHeadBytesMax + kPositionsMax * kPositionBytesMax <= kFrameBytesMax);
static_assert(kHeadBytesMax + 2 * Owners::kMost * (2 + kHostNameBytesMax) <= kFrameBytesMax);
static_assert(kPackValuesMax >= 2 * kFieldsMax + 4 * kPositionsMax);

bool HasEntries(MessageKind kind) {
  return kind == MessageKind::kReport || kind == MessageKind::kSnapshot || kind == MessageKind::kLevels ||
         kind == MessageKind::kNear || kind == MessageKind::kHandover;
}

bool IsInstant(Instant t) {
  return t.time_since_epoch() >= -kSinceOriginMax && t.time_since_epoch() <= kSinceOriginMax;
}

// Every number is of an entry that is there and within its bounds, and every entry without hits has a number.
bool BesidesFit(MessageKind kind, const Entries& entries) {
  if (entries.besides() == 0) return true;
  const auto fit = [&](const std::vector<Beside>& besides, std::uint64_t least, std::uint64_t most) {
    return std::all_of(besides.begin(), besides.end(), [&](const Beside& b) {
      return b.entry < entries.size() && b.number >= least && b.number <= most;
    });
  };
  const bool of_levels = kind == MessageKind::kLevels;
  std::size_t of_all_hosts = entries.places().size();    // owners say so of quotas, places and, to one host, of members
  for (const auto& column : entries.quotas()) of_all_hosts += column.size();
  for (const auto& column : entries.members()) of_all_hosts += of_levels ? column.size() : 0;
  const std::size_t besides = entries.besides() - of_all_hosts;
  if (kind == MessageKind::kNear && besides != entries.penalties().size()) return false;
  if (of_levels && besides != entries.demands().size() + entries.backs().size()) return false;
  return fit(entries.demands(), 0, kDemandMax) && fit(entries.returnables(), 1, kTokensBackMax) &&
         fit(entries.backs(), 1, kTokensBackMax) && fit(entries.penalties(), 0, kPenaltyMsMax) &&
         fit(entries.places(), 0, kPlacesMax) && fit(entries.refusals(), 1, kRefusalsMax) &&
         fit(entries.quotas()[0], 0, kQuotaCounterMax) && fit(entries.quotas()[1], 0, kQuotaPeriodMax) &&
         fit(entries.quotas()[2], 0, kQuotaTokensMax) && fit(entries.quotas()[3], 0, kQuotaTokensMax) &&
         fit(entries.members()[0], 0, MemberWord::kNameMax) && fit(entries.members()[1], 0, MemberWord::kMost) &&
         fit(entries.members()[2], 0, MemberWord::kMost) && fit(entries.members()[3], 1, MemberWord::kMost) &&
         std::all_of(entries.list().begin(), entries.list().end(), [&](const Entry& e) {
           return e.value != 0 || of_levels || kind == MessageKind::kNear || entries.demand(e).has_value() ||
                  entries.back(e) != 0 || entries.penalty(e).has_value() || entries.places(e).has_value() ||
                  entries.quota(e).has_value() || entries.member(e).has_value() || entries.refusals(e) != 0;
         });
}

// A list of owners, like the one before it, has names in ascending order, each once.
bool AreOwners(const Message& m) {
  if (m.kind != MessageKind::kOwners) return m.names.list.empty() && m.before.list.empty();
  const auto good = [](const HostNames& hosts) {
    const std::vector<std::string>& names = hosts.list;
    return names.size() <= Owners::kMost && std::all_of(names.begin(), names.end(), IsHostName) &&
           std::adjacent_find(names.begin(), names.end(), std::greater_equal()) == names.end();
  };
  return !m.names.list.empty() && good(m.names) && good(m.before) && Owners::NumberOf(m.owners) >= Owners::kFirst;
}

// What may be said at all. The values of entries are looked at where they are written and read.
bool IsPermitted(const Message& m) {
  const bool is_report = m.kind == MessageKind::kReport;
  return m.kind >= MessageKind::kReport && m.kind <= MessageKind::kTaken && IsHostName(m.sender) &&
         m.text.size() <= kTextBytesMax && (m.site.empty() || IsHostName(m.site)) && IsInstant(m.to) &&
         (!is_report || (IsInstant(m.from) && m.from <= m.to)) &&    //
         m.period >= Duration() && m.period <= kPeriodMax && m.ranges.size() <= kRangesMax &&
         (m.ranges.empty() || m.kind == MessageKind::kRepeat || m.kind == MessageKind::kClosed) &&
         std::all_of(m.ranges.begin(), m.ranges.end(), [](const SequenceRange& r) { return r.first <= r.last; }) &&
         (m.positions.empty() || m.kind == MessageKind::kSnapshotEnd) && m.positions.size() <= kPositionsMax &&
         std::all_of(m.positions.begin(), m.positions.end(), [](const Position& p) { return IsHostName(p.sender); }) &&
         AreOwners(m) && (m.entries.empty() || HasEntries(m.kind)) &&
         (m.entries.besides() == 0 || is_report || m.kind == MessageKind::kLevels || m.kind == MessageKind::kNear) &&
         BesidesFit(m.kind, m.entries);
}

bool IsPermitted(MessageKind kind, const Entry& e, bool with_besides) {
  const std::uint64_t least = kind == MessageKind::kReport && !with_besides ? 1 : 0;
  const std::uint64_t most = kind == MessageKind::kReport ? kHitsMax : kMicrosecondsMax;
  return (e.value - least <= most - least) & ((e.tag_bytes >= kDigestBytes) | !e.is_digest);    // hot: one branch
}

struct FreeContext {
  void operator()(ZSTD_CCtx* c) const { ZSTD_freeCCtx(c); }
  void operator()(ZSTD_DCtx* d) const { ZSTD_freeDCtx(d); }
};

// What a frame has besides the fields of its message.
struct Body {
  std::uint64_t span = 0;        // of a report: to - from, in ns
  std::uint64_t count = 0;       // of entries
  std::uint64_t unpacked = 0;    // bytes of the columns before compression; 0: there is none
  bool ipv4 = false;             // a length of 0 is that of an address, which has four bytes
  PackedBytes columns, demands, returnables, backs, penalties, places, refusals;
  std::array<PackedBytes, 4> quotas, members;    // as Entries::WordColumns
};

// The fields of a frame, for writing and for reading (base/fields.h).
void FieldsOf(auto& fields, auto& m, auto& body) {
  const auto field = [&](std::string_view name, auto& v, Kinds<MessageKind> kinds) __attribute__((always_inline)) {
    kinds.has(m.kind) ? fields.Must(name, v) : fields.May(name, v);
  };
  using enum MessageKind;
  fields.Must("kind", m.kind);
  fields.Must("host", m.sender);
  fields.Must("life", m.incarnation);
  fields.Must("at", m.to);
  field("seq", m.sequence, {kReport, kHello, kWelcome, kSnapshot, kSnapshotEnd, kLevels, kClosed, kHandover, kTaken});
  field("ring", m.ring_low, {kReport, kWelcome, kGone});
  field("span", body.span, {kReport});
  field("period", m.period, {kReport, kHello, kWelcome});
  field("last", m.last, {});
  field("number", m.snapshot, {kHello, kWelcome, kSnapshotWanted, kSnapshot, kSnapshotEnd});
  field("text", m.text, {kHello, kWelcome, kRefusal});
  field("site", m.site, {});
  field("hits", m.hits, {});
  field("owners", m.owners, {});
  field("stream", m.stream, {kClosed});
  field("names", m.names, {kOwners});
  field("before", m.before, {});
  field("hosts", m.hosts, {});
  field("parts", m.parts, {});
  field("account", m.told.account, {});
  field("frames-before", m.told.frames, {});
  field("hits-before", m.told.hits, {});
  field("ranges", m.ranges, {kRepeat});
  field("positions", m.positions, {kSnapshotEnd});
  field("count", body.count, {});
  field("size", body.unpacked, {});
  field("ipv4", body.ipv4, {});
  field("demands", body.demands, {});
  field("returnable", body.returnables, {});
  field(m.kind == kLevels ? "foretold" : "back", body.backs, {});
  field("penalties", body.penalties, {});
  field("places", body.places, {});
  field("refusals", body.refusals, {});
  field("quota-of", body.quotas[0], {});
  field("quota-in", body.quotas[1], {});
  field("quota", body.quotas[2], {});
  field("quota-back", body.quotas[3], {});
  field("member", body.members[0], {});
  field("asked", body.members[1], {});
  field("served", body.members[2], {});
  field(m.kind == kLevels ? "level" : "weight", body.members[3], {});
  field("columns", body.columns, {});
}

}    // namespace

// How the fields of messages that are not plain numbers and texts are written; found by FieldWriter and FieldReader.
static constexpr std::span<const std::string_view> KindNames(MessageKind) {
  return kKindNames;
}

static void PutField(PackWriter& out, const std::vector<SequenceRange>& ranges) {
  out.Array(ranges.size());
  for (const SequenceRange& r : ranges) {
    out.Array(2);
    out.Unsigned(r.first);
    out.Unsigned(r.last);
  }
}

static bool GetField(PackCursor& in, std::vector<SequenceRange>& ranges) {
  std::size_t n = 0, values = 0;
  bool ok = in.Enter(kRangesMax, n);
  for (std::size_t i = 0; ok && i < n; ++i) {
    SequenceRange& r = ranges.emplace_back();
    ok = in.Enter(2, values) && values == 2 && GetField(in, r.first) && GetField(in, r.last);
  }
  return ok;
}

static void PutField(PackWriter& out, const HostNames& names) {
  out.Array(names.list.size());
  for (const std::string& name : names.list) out.Text(name);
}

static bool GetField(PackCursor& in, HostNames& names) {
  std::size_t n = 0;
  bool ok = in.Enter(Owners::kMost, n);
  for (std::size_t i = 0; ok && i < n; ++i) ok = GetField(in, names.list.emplace_back());
  return ok;
}

static void PutField(PackWriter& out, const std::vector<Position>& positions) {
  out.Array(positions.size());
  for (const Position& p : positions) {
    out.Array(3);
    out.Text(p.sender);
    out.Unsigned(p.incarnation);
    out.Unsigned(p.next);
  }
}

static bool GetField(PackCursor& in, std::vector<Position>& positions) {
  std::size_t n = 0, values = 0;
  bool ok = in.Enter(kPositionsMax, n);
  for (std::size_t i = 0; ok && i < n; ++i) {
    Position& p = positions.emplace_back();
    ok = in.Enter(3, values) && values == 3 && GetField(in, p.sender) && GetField(in, p.incarnation) &&
         GetField(in, p.next);
  }
  return ok;
}

// Entries are laid out as columns: lengths of tags, phases and kinds, tags, values. The bounds of entries.h are of tags
// as text; addresses only make columns shorter.
struct Codec::Contexts {
  std::unique_ptr<ZSTD_CCtx, FreeContext> compressor{ZSTD_createCCtx()};
  std::unique_ptr<ZSTD_DCtx, FreeContext> decompressor{ZSTD_createDCtx()};
  std::array<char, kEntriesBytesMax> columns;
  std::array<char, kEntriesBytesMax> packed;
  std::array<char, kEntriesMax> text_lengths;    // of tags
  std::array<std::string, 14> besides;           // that are being put together
  PackReader values;                             // of the frame that is being read

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
    const bool with_zero = entries.besides() != 0;
    for (const Entry& e : entries.list_) {
      permitted &= IsPermitted(kind, e, with_zero);
      value_at = WriteVarint(value_at, e.value);
    }
    DT_CHECK(permitted && value_at + saved == columns.data() + entries.encoded_bytes_);
    return {{phases, tags, tag_at, value_at}, saved != 0};
  }

  // Writes for each how many entries lie between it and the one before, and the number.
  static std::string_view LayOut(const std::vector<Beside>& besides, std::string& bytes) {
    bytes.clear();
    std::size_t next = 0;
    for (const Beside& b : besides) {
      AppendVarint(bytes, b.entry - next);
      AppendVarint(bytes, b.number);
      next = b.entry + std::size_t{1};
    }
    return bytes;
  }

  static bool Read(std::string_view bytes, std::vector<Beside>& besides) {
    ByteReader in(bytes);
    std::uint64_t next = 0;
    while (!in.empty() && besides.size() < kEntriesMax) {
      const std::uint64_t entry = next + std::min<std::uint64_t>(in.Varint(), kEntriesMax);
      besides.push_back({static_cast<std::uint16_t>(std::min<std::uint64_t>(entry, kEntriesMax)), in.Varint()});
      next = entry + 1;
    }
    return in.ok() && in.empty();
  }
  static bool ReadRare(const Body& body, Entries& entries) {
    const auto read = [&](const PackedBytes& bytes, auto column) {
      return bytes.view.empty() || Read(bytes.view, column(entries.rare_.Made()));
    };
    using Rare = Entries::Rare;
    bool ok = read(body.returnables, [](Rare& r) -> auto& { return r.returnables; }) &&
              read(body.backs, [](Rare& r) -> auto& { return r.backs; }) &&
              read(body.penalties, [](Rare& r) -> auto& { return r.penalties; }) &&
              read(body.places, [](Rare& r) -> auto& { return r.places; }) &&
              read(body.refusals, [](Rare& r) -> auto& { return r.refusals; });
    for (std::size_t i = 0; i < body.quotas.size(); ++i) {
      ok = ok && read(body.quotas[i], [i](Rare& r) -> auto& { return r.quotas[i]; }) &&
           read(body.members[i], [i](Rare& r) -> auto& { return r.members[i]; });
    }
    return ok;
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
    if (body.size() < sizeof(magic)) return {};
    std::memcpy(&magic, body.data(), sizeof(magic));
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
    entries.CountBesides();
    entries.encoded_bytes_ = body.size() - tags.size() + entries.tags_.size();
    if (entries.encoded_bytes_ + entries.besides() * kDemandBytesMax > kEntriesBytesMax) return false;

    entries.list_.resize(count);
    bool permitted = true;
    const bool with_zero = entries.besides() != 0;
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
  Body body;
  if (m.kind == MessageKind::kReport) {
    const auto from = static_cast<std::uint64_t>(m.from.time_since_epoch().count());
    body.span = static_cast<std::uint64_t>(m.to.time_since_epoch().count()) - from;
  }
  if (!m.entries.empty()) {
    const Contexts::Columns laid_out = contexts_->LayOut(m.kind, m.entries);
    const std::string_view columns(contexts_->columns.data(), laid_out.ends.back());
    if (columns.size() >= kPackFromBytes) body.columns.view = contexts_->Compress(laid_out.ends);
    body.unpacked = body.columns.view.empty() ? 0 : columns.size();
    if (body.unpacked == 0) body.columns.view = columns;
    body.count = m.entries.size();
    body.ipv4 = laid_out.with_addresses;
  }
  auto bytes = contexts_->besides.begin();
  const auto lay_out = [&](const std::vector<Beside>& column) { return Contexts::LayOut(column, *bytes++); };
  body.demands.view = lay_out(m.entries.demands());
  body.returnables.view = lay_out(m.entries.returnables());
  body.backs.view = lay_out(m.entries.backs());
  body.penalties.view = lay_out(m.entries.penalties());
  body.places.view = lay_out(m.entries.places());
  body.refusals.view = lay_out(m.entries.refusals());
  for (std::size_t i = 0; i < body.quotas.size(); ++i) {
    body.quotas[i].view = lay_out(m.entries.quotas()[i]);
    body.members[i].view = lay_out(m.entries.members()[i]);
  }
  WriteFrame(kFramePrefix, frame, [&](auto& fields) { FieldsOf(fields, m, body); });
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
  if (!contexts_->values.Read(frame)) return DecodeFault::kContent;
  Body body;
  FieldReader fields(contexts_->values.values());
  FieldsOf(fields, m, body);
  if (!fields.ok() || !IsInstant(m.to)) return DecodeFault::kContent;
  if (m.kind == MessageKind::kReport) {
    const auto to = static_cast<std::uint64_t>(m.to.time_since_epoch().count());
    m.from = FromNanoseconds(static_cast<std::int64_t>(to - body.span));    // too long a span ends up out of bounds
  } else if (body.span != 0) {
    return DecodeFault::kContent;
  }
  std::string_view columns = body.columns.view;
  if (body.unpacked != 0) {
    columns = contexts_->Decompress(columns, body.unpacked);
    if (columns.empty()) return DecodeFault::kContent;
  }
  // What stands beside entries comes before them, since it bounds the sum.
  if (!Contexts::Read(body.demands.view, m.entries.demands_) ||
      !Contexts::ReadRare(body, m.entries) ||
      !contexts_->Read(columns, body.count, body.ipv4, m.kind, m.entries) || !IsPermitted(m)) {
    return DecodeFault::kContent;
  }
  return DecodeFault::kNone;
}

}    // namespace dthrottle
