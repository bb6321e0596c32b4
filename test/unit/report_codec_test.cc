#include <fmt/format.h>
#include <zstd.h>
#include <catch2/catch.hpp>

#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "bus/ipv4_text.h"
#include "test/support/examples.h"
#include "test/support/messages.h"
#include "test/support/pack.h"

namespace dthrottle {

// For messages of Catch.
std::ostream& operator<<(std::ostream& out, DecodeFault fault) {
  constexpr const char* kNames[] = {"none", "junk", "version", "checksum", "content"};
  return out << kNames[static_cast<int>(fault)];
}

namespace {

using testing::AddRandomEntries;
using testing::B;
using testing::BytesOf;
using testing::I;
using testing::IsSound;
using testing::List;
using testing::Map;
using testing::RandomMessage;
using testing::Same;
using testing::T;
using testing::U;
using testing::With;
using testing::WithChecksum;
using testing::Without;
using testing::Yes;

constexpr std::size_t kChecksumBytes = 8;

std::string Encoded(const Message& m) {
  Codec codec;
  std::string frame;
  codec.Encode(m, frame);
  return frame;
}

DecodeFault FaultOf(std::string_view frame) {
  Codec codec;
  Message m;
  return codec.Decode(frame, m);
}

std::string FrameOf(std::string_view map) {
  return WithChecksum("DTR\2" + std::string(map));
}
std::string FrameOf(const Map& map) {
  return FrameOf(BytesOf(map));
}

// What frames of these kinds have at least.
const Map kHello = {{"kind", T("hello")}, {"host", T("a")},   {"life", U(1)},   {"at", I(0)},
                    {"seq", U(0)},        {"period", I(1)}, {"number", U(0)}, {"text", T("")}};
const Map kReport = {{"kind", T("report")}, {"host", T("a")}, {"life", U(1)}, {"at", I(0)},
                     {"seq", U(1)},         {"ring", U(1)},   {"span", U(0)}, {"period", I(1)}};
const Map kRepeat = {{"kind", T("repeat")}, {"host", T("a")}, {"life", U(1)}, {"at", I(0)}, {"ranges", List({})}};
const Map kSnapshot = {{"kind", T("snapshot")}, {"host", T("a")}, {"life", U(1)},
                       {"at", I(0)},            {"seq", U(1)},    {"number", U(1)}};
const Map kSnapshotEnd = {{"kind", T("snapshot-end")}, {"host", T("a")},   {"life", U(1)},        {"at", I(0)},
                          {"seq", U(1)},               {"number", U(1)}, {"positions", List({})}};

std::string HelloWith(const Map& fields) {
  return FrameOf(With(kHello, fields));
}

// With this many entries, laid out like this.
std::string ReportOf(std::uint64_t entries, std::string_view columns, const Map& fields = {}) {
  return FrameOf(With(With(kReport, {{"count", U(entries)}, {"columns", B(columns)}}), fields));
}

// With two entries, "a" of 5 hits and "b" of none, and what stands beside them.
std::string ReportOfTwo(const Map& fields) {
  using namespace std::string_literals;
  return ReportOf(2, "\1\1\0\0ab\5\0"s, fields);
}

std::string Varint(std::uint64_t v) {
  std::string bytes;
  for (; v >= 128; v >>= 7) bytes += static_cast<char>(v | 128);
  return bytes + static_cast<char>(v);
}

Message Report() {
  Message m;
  m.kind = MessageKind::kReport;
  m.sender = "web-1.example";
  m.incarnation = 1'700'000'000'000'000;
  m.sequence = 42;
  m.ring_low = 7;
  m.from = FromNanoseconds(1'000'000'000);
  m.to = FromNanoseconds(2'000'000'000);
  m.period = std::chrono::seconds(1);
  m.last = true;
  return m;
}

TEST_CASE("a message of any kind comes back as it was") {
  Codec codec;
  std::string frame;
  Message back;
  for (std::uint64_t seed = 1; seed <= 700; ++seed) {
    Prng prng(seed);
    const auto kind = MessageKind{static_cast<std::uint8_t>(1 + seed % 9)};
    const Message m = RandomMessage(kind, prng);
    CAPTURE(seed);
    codec.Encode(m, frame);
    REQUIRE(frame.size() <= kFrameBytesMax);
    REQUIRE(codec.Decode(frame, back) == DecodeFault::kNone);
    REQUIRE(Same(m, back));
    REQUIRE(IsSound(back));
  }
}

TEST_CASE("the same message is the same bytes, whatever the codec did before") {
  Codec used;
  std::string frame;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Prng prng(seed);
    const Message m = RandomMessage(MessageKind::kReport, prng);
    CAPTURE(seed);
    used.Encode(m, frame);
    REQUIRE(frame == Encoded(m));
  }
}

TEST_CASE("a number that peers would not take is said as the most that they do") {
  constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();
  Message m = Report();
  REQUIRE(m.entries.Add({"tag"}, 1, 0, {.demand = kHuge, .returnable = kHuge, .back = kHuge, .penalty = kHuge,
                                        .places = kHuge, .refusals = kHuge}));
  REQUIRE(m.entries.Add({"quota"}, 1, 0, {.quota = QuotaWord{1, 1, kHuge, kHuge},
                                          .member = MemberWord{1, kHuge, kHuge, kHuge}}));
  Message back;
  REQUIRE(Codec().Decode(Encoded(m), back) == DecodeFault::kNone);
  const Entry& tag = back.entries.list().at(0);
  const Entry& quota = back.entries.list().at(1);
  CHECK(back.entries.demand(tag) == kDemandMax);
  CHECK(back.entries.penalty(tag) == kPenaltyMsMax);
  CHECK(back.entries.places(tag) == kPlacesMax);
  CHECK(back.entries.refusals(tag) == kRefusalsMax);
  CHECK(back.entries.quota(quota).value().taken == kQuotaTokensMax);
  CHECK(back.entries.member(quota).value().fair == MemberWord::kMost);
}

TEST_CASE("a message that is read into again keeps its memory and nothing of what it said") {
  Codec codec;
  std::string frame;
  Message m, back;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Prng prng(seed);
    back = RandomMessage(MessageKind{static_cast<std::uint8_t>(1 + seed % 9)}, prng);
    back.Clear();
    CAPTURE(seed);
    REQUIRE(Same(back, Message()));
    back = RandomMessage(MessageKind{static_cast<std::uint8_t>(1 + seed % 9)}, prng);
    m = RandomMessage(MessageKind{static_cast<std::uint8_t>(1 + prng.Below(9))}, prng);
    codec.Encode(m, frame);
    REQUIRE(codec.Decode(frame, back) == DecodeFault::kNone);
    REQUIRE(Same(m, back));
  }
  back.ranges.assign(kRangesMax, {1, 2});
  back.Clear();
  CHECK(back.ranges.capacity() >= kRangesMax);

  m = Report();
  while (m.entries.Add({"tag"}, 1, 0)) continue;
  codec.Encode(m, frame);
  REQUIRE(codec.Decode(frame, back) == DecodeFault::kNone);
  const Entry* const entries = back.entries.list().data();
  const char* const tags = back.entries.tag(back.entries.list()[0]).bytes.data();
  REQUIRE(codec.Decode(frame, back) == DecodeFault::kNone);
  CHECK(back.entries.list().data() == entries);
  CHECK(back.entries.tag(back.entries.list()[0]).bytes.data() == tags);
}

TEST_CASE("a frame that is cut off anywhere is refused") {
  Message m = Report();
  Prng prng(1);
  AddRandomEntries(m.kind, 40, m.entries, prng);
  const std::string frame = Encoded(m);
  REQUIRE(frame.size() > 1000);
  for (std::size_t n = 0; n < frame.size(); ++n) {
    CAPTURE(n);
    const DecodeFault fault = FaultOf(std::string_view(frame).substr(0, n));
    REQUIRE((fault == DecodeFault::kJunk || fault == DecodeFault::kChecksum));
  }
}

TEST_CASE("a body that is cut off anywhere is refused even with the right checksum") {
  for (const std::size_t entries : {3u, 300u}) {    // as it is, and compressed
    Message m = Report();
    for (std::size_t i = 0; i < entries; ++i) REQUIRE(m.entries.Add({"tag-" + std::to_string(i)}, i + 1, 5));
    std::string frame = Encoded(m);
    frame.resize(frame.size() - kChecksumBytes);
    for (std::size_t n = 5; n < frame.size(); ++n) {
      CAPTURE(entries, n);
      const DecodeFault fault = FaultOf(WithChecksum(std::string_view(frame).substr(0, n)));
      REQUIRE((fault == DecodeFault::kContent || fault == DecodeFault::kJunk));
    }
  }
}

TEST_CASE("a flipped bit anywhere is refused") {
  Message m = Report();
  REQUIRE(m.entries.Add({"10.0.0.1"}, 3, 64));
  std::string frame = Encoded(m);
  Codec codec;
  Message back;
  for (std::size_t bit = 0; bit < 8 * frame.size(); ++bit) {
    const auto flip = [&] { frame[bit / 8] = static_cast<char>(frame[bit / 8] ^ 1 << bit % 8); };
    flip();
    CAPTURE(bit);
    REQUIRE(codec.Decode(frame, back) != DecodeFault::kNone);
    flip();
  }
  CHECK(codec.Decode(frame, back) == DecodeFault::kNone);
}

TEST_CASE("whatever bytes come under a right checksum, the message is sound or refused") {
  Codec codec;
  Message back, again;
  std::string frame;
  int accepted = 0, refused = 0;
  for (std::uint64_t seed = 1; seed <= 30'000; ++seed) {
    Prng prng(seed);
    Message m = Report();
    m.kind = MessageKind{static_cast<std::uint8_t>(1 + seed % 9)};
    if (m.kind == MessageKind::kRepeat) m.ranges = {{1, 2}, {300, 70'000}};
    if (m.kind == MessageKind::kSnapshotEnd) m.positions = {{"b", 1, 2}, {"c.d", 3, 1u << 30}};
    if (m.kind == MessageKind::kReport || m.kind == MessageKind::kSnapshot) {
      AddRandomEntries(m.kind, prng.Below(12), m.entries, prng);
    }
    codec.Encode(m, frame);
    frame.resize(frame.size() - kChecksumBytes);
    for (std::uint64_t n = 1 + prng.Below(3); n > 0; --n) {
      const std::size_t at = 4 + prng.Below(frame.size() - 4);
      switch (prng.Below(4)) {
        case 0:
          frame[at] = static_cast<char>(prng.Next());
          break;
        case 1:
          frame[at] = static_cast<char>(frame[at] + (prng.Below(2) == 0 ? 1 : -1));
          break;
        case 2:
          frame.insert(at, 1, static_cast<char>(prng.Next()));
          break;
        default:
          frame.erase(at, 1 + prng.Below(2));
      }
      if (frame.size() < 6) break;
    }
    CAPTURE(seed);
    if (codec.Decode(WithChecksum(frame), back) != DecodeFault::kNone) {
      ++refused;
      continue;
    }
    ++accepted;
    REQUIRE(IsSound(back));
    codec.Encode(back, frame);
    REQUIRE(codec.Decode(frame, again) == DecodeFault::kNone);
    REQUIRE(Same(back, again));
  }
  CHECK(accepted > 1000);
  CHECK(refused > 1000);
}

TEST_CASE("what is not ours, what is of another version and what is damaged are told apart") {
  const std::string frame = Encoded(Report());
  CHECK(FaultOf(frame) == DecodeFault::kNone);
  CHECK(FaultOf("") == DecodeFault::kJunk);
  CHECK(FaultOf("DTR") == DecodeFault::kJunk);
  CHECK(FaultOf("DTR\2") == DecodeFault::kJunk);
  CHECK(FaultOf("DTX\1" + frame.substr(4)) == DecodeFault::kJunk);
  CHECK(FaultOf("DTR\1") == DecodeFault::kVersion);
  CHECK(FaultOf("DTR\1" + frame.substr(4)) == DecodeFault::kVersion);
  CHECK(FaultOf("DTR\3" + frame.substr(4)) == DecodeFault::kVersion);
  CHECK(FaultOf(frame + '\0') == DecodeFault::kChecksum);
  CHECK(FaultOf("DTR\2" + std::string(10, 'x')) == DecodeFault::kChecksum);
  std::string longest(kFrameBytesMax - kChecksumBytes, 'x');
  longest.replace(0, 4, "DTR\2");
  CHECK(FaultOf(WithChecksum(longest)) == DecodeFault::kContent);
  CHECK(FaultOf(WithChecksum(longest + "x")) == DecodeFault::kJunk);
}

TEST_CASE("a field that is not known is passed over, whatever it is and wherever it stands") {
  const std::string ext = "\xd6\7abcd", nil = "\xc0", real = "\xca" + std::string(4, '\0');
  const std::string deep = List({List({U(1)}), T("x"), BytesOf({{"kind", U(7)}, {"seq", T("no")}})});
  for (const std::string& value : {U(1), I(-5), Yes(), T("later"), B("later"), ext, nil, real, deep}) {
    for (std::size_t at = 0; at <= kHello.size(); ++at) {
      Map map = With(kHello, {{"seq", U(5)}});
      map.insert(map.begin() + static_cast<std::ptrdiff_t>(at), {"later", value});
      Codec codec;
      Message m;
      REQUIRE(codec.Decode(FrameOf(map), m) == DecodeFault::kNone);
      CHECK(m.sequence == 5);
      CHECK(m.sender == "a");
    }
  }
}

TEST_CASE("the order of fields means nothing") {
  Map map = kHello;
  std::reverse(map.begin(), map.end());
  CHECK(FaultOf(FrameOf(map)) == DecodeFault::kNone);
}

TEST_CASE("a frame without a field that its kind has, or with one of another type, is refused") {
  for (const Map& map : {kHello, kReport, kRepeat, kSnapshot, kSnapshotEnd}) {
    REQUIRE(FaultOf(FrameOf(map)) == DecodeFault::kNone);
    for (const auto& [name, value] : map) {
      CAPTURE(name);
      CHECK(FaultOf(FrameOf(Without(map, name))) == DecodeFault::kContent);
      for (const std::string& other : {U(1), T("a"), B("a"), Yes(), List({U(1)}), BytesOf({})}) {
        const bool is_number = value[0] != T("a")[0] && other == U(1);
        if (other[0] == value[0] || is_number || (name == "text" && other == T("a"))) continue;
        if (value == T("") && other == T("a")) continue;
        CHECK(FaultOf(FrameOf(With(map, {{name, other}}))) == (other == T("a") && name == "host"
                                                                   ? DecodeFault::kNone
                                                                   : DecodeFault::kContent));
      }
    }
  }
  for (const char* may : {"last", "ipv4"}) {
    CHECK(FaultOf(HelloWith({{may, Yes(false)}})) == DecodeFault::kNone);
    CHECK(FaultOf(HelloWith({{may, U(1)}})) == DecodeFault::kContent);
  }
}

TEST_CASE("what is no map of named fields is refused") {
  CHECK(FaultOf(FrameOf(U(1))) == DecodeFault::kContent);
  CHECK(FaultOf(FrameOf(List({}))) == DecodeFault::kContent);
  CHECK(FaultOf(FrameOf(BytesOf({}))) == DecodeFault::kContent);
  CHECK(FaultOf(FrameOf(BytesOf(kHello) + U(1))) == DecodeFault::kContent);           // something behind it
  CHECK(FaultOf(FrameOf("\x81" + U(1) + U(1))) == DecodeFault::kContent);             // a key that is no text
  Map twice = kHello;
  twice.emplace_back("seq", U(0));
  CHECK(FaultOf(FrameOf(twice)) == DecodeFault::kContent);
  CHECK(FaultOf(FrameOf("\xdf\xff\xff\xff\xff")) == DecodeFault::kContent);           // claims 2^32 fields
  CHECK(FaultOf(HelloWith({{"later", "\xdd\xff\xff\xff\xff"}})) == DecodeFault::kContent);
  CHECK(FaultOf(HelloWith({{"later", "\xc6\xff\xff\xff\xff"}})) == DecodeFault::kContent);
  CHECK(FaultOf(HelloWith({{"later", "\xc9\xff\xff\xff\xff\1"}})) == DecodeFault::kContent);
  CHECK(FaultOf(HelloWith({{"later", "\xc1"}})) == DecodeFault::kContent);             // a byte that means nothing

  std::string deep = U(1);
  for (std::size_t i = 1; i < kPackDepthMax; ++i) deep = List({deep});
  CHECK(FaultOf(HelloWith({{"later", deep}})) == DecodeFault::kNone);
  CHECK(FaultOf(HelloWith({{"later", List({deep})}})) == DecodeFault::kContent);
  CHECK(FaultOf(HelloWith({{"later", std::string(60'000, '\x91') + U(1)}})) == DecodeFault::kContent);
  const std::size_t room = kPackValuesMax - 1 - 2 * kHello.size() - 2;
  CHECK(FaultOf(HelloWith({{"later", List(std::vector<std::string>(room, U(1)))}})) == DecodeFault::kNone);
  CHECK(FaultOf(HelloWith({{"later", List(std::vector<std::string>(room + 1, U(1)))}})) == DecodeFault::kContent);
  Map many = kHello;
  while (many.size() < kPackFieldsMax) many.emplace_back(std::to_string(many.size()), U(1));
  CHECK(FaultOf(FrameOf(many)) == DecodeFault::kNone);
  many.emplace_back("one more", U(1));
  CHECK(FaultOf(FrameOf(many)) == DecodeFault::kContent);
}

TEST_CASE("fields are refused that no host sends") {
  CHECK(FaultOf(HelloWith({})) == DecodeFault::kNone);
  CHECK(FaultOf(HelloWith({{"kind", T("nonsense")}})) == DecodeFault::kContent);
  CHECK(FaultOf(HelloWith({{"kind", T("")}})) == DecodeFault::kContent);
  CHECK(FaultOf(HelloWith({{"columns", B("body")}})) == DecodeFault::kContent);
  CHECK(FaultOf(HelloWith({{"span", U(1)}})) == DecodeFault::kContent);
  CHECK(FaultOf(HelloWith({{"seq", I(-1)}})) == DecodeFault::kContent);
}

TEST_CASE("names, texts, times and periods have bounds") {
  const auto named = [](std::string_view name) { return FaultOf(HelloWith({{"host", T(name)}})); };
  CHECK(named(std::string(64, 'x')) == DecodeFault::kNone);
  CHECK(named(std::string(65, 'x')) == DecodeFault::kContent);
  CHECK(named("") == DecodeFault::kContent);
  CHECK(named("AZaz09._-") == DecodeFault::kNone);
  for (int c = 0; c < 256; ++c) {
    const bool allowed = c < 128 && (std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-');
    CHECK(named(std::string(1, static_cast<char>(c))) == (allowed ? DecodeFault::kNone : DecodeFault::kContent));
  }

  const auto texted = [](std::size_t n) { return FaultOf(HelloWith({{"text", T(std::string(n, 't'))}})); };
  CHECK(texted(256) == DecodeFault::kNone);
  CHECK(texted(257) == DecodeFault::kContent);

  constexpr std::int64_t kFarthest = std::int64_t{1} << 62;
  CHECK(FaultOf(HelloWith({{"at", I(kFarthest)}})) == DecodeFault::kNone);
  CHECK(FaultOf(HelloWith({{"at", I(-kFarthest)}})) == DecodeFault::kNone);
  CHECK(FaultOf(HelloWith({{"at", I(kFarthest + 1)}})) == DecodeFault::kContent);
  CHECK(FaultOf(HelloWith({{"at", I(-kFarthest - 1)}})) == DecodeFault::kContent);
  CHECK(FaultOf(HelloWith({{"at", U(~std::uint64_t{0})}})) == DecodeFault::kContent);

  constexpr std::int64_t kDay = 86'400'000'000'000;
  CHECK(FaultOf(HelloWith({{"period", I(kDay)}})) == DecodeFault::kNone);
  CHECK(FaultOf(HelloWith({{"period", I(kDay + 1)}})) == DecodeFault::kContent);
  CHECK(FaultOf(HelloWith({{"period", I(-1)}})) == DecodeFault::kContent);
  CHECK(FaultOf(HelloWith({{"period", U(~std::uint64_t{0})}})) == DecodeFault::kContent);
}

TEST_CASE("an interval cannot begin before the origin of time or end before it began") {
  const auto fault_of = [](std::int64_t at, std::uint64_t span) {
    return FaultOf(FrameOf(With(kReport, {{"at", I(at)}, {"span", U(span)}})));
  };
  constexpr std::int64_t kLast = std::int64_t{1} << 62, kSecond = 1 - kLast;
  constexpr std::uint64_t kAll = std::uint64_t{1} << 63;    // from -2^62 to 2^62
  CHECK(fault_of(kLast, kAll) == DecodeFault::kNone);
  CHECK(fault_of(kLast, kAll + 1) == DecodeFault::kContent);
  CHECK(fault_of(kSecond, 0) == DecodeFault::kNone);
  CHECK(fault_of(kSecond, 1) == DecodeFault::kNone);
  CHECK(fault_of(kSecond, 2) == DecodeFault::kContent);
  CHECK(fault_of(kSecond, ~std::uint64_t{0}) == DecodeFault::kContent);    // would begin 1 ns behind its end
  for (unsigned shift = 0; shift < 63; ++shift) {
    CHECK(fault_of(kSecond, (std::uint64_t{1} << shift) + 1) == DecodeFault::kContent);
    CHECK(fault_of(kLast, kAll + (std::uint64_t{1} << shift)) == DecodeFault::kContent);
    CHECK(fault_of(kLast, ~std::uint64_t{0} >> shift) == (shift == 0 ? DecodeFault::kContent : DecodeFault::kNone));
  }
}

TEST_CASE("ranges and positions are refused where they do not belong, run backwards or are too many") {
  const auto repeat = [](const std::vector<std::string>& ranges) {
    return FaultOf(FrameOf(With(kRepeat, {{"ranges", List(ranges)}})));
  };
  const auto times = [](std::size_t n, const std::string& value) { return std::vector<std::string>(n, value); };
  const std::string range = List({U(1), U(2)}), position = List({T("b"), U(3), U(4)});
  CHECK(repeat(times(kRangesMax, range)) == DecodeFault::kNone);
  CHECK(repeat(times(kRangesMax + 1, range)) == DecodeFault::kContent);
  CHECK(repeat({List({U(1)})}) == DecodeFault::kContent);
  CHECK(repeat({List({U(1), U(2), U(3)})}) == DecodeFault::kContent);
  CHECK(repeat({U(1)}) == DecodeFault::kContent);
  CHECK(repeat({List({U(1), U(~std::uint64_t{0})})}) == DecodeFault::kNone);
  CHECK(repeat({List({U(2), U(1)})}) == DecodeFault::kContent);
  CHECK(FaultOf(HelloWith({{"ranges", List({range})}})) == DecodeFault::kContent);

  const auto snapshot_end = [](const std::vector<std::string>& positions) {
    return FaultOf(FrameOf(With(kSnapshotEnd, {{"positions", List(positions)}})));
  };
  CHECK(snapshot_end(times(kPositionsMax, position)) == DecodeFault::kNone);
  CHECK(snapshot_end(times(kPositionsMax + 1, position)) == DecodeFault::kContent);
  CHECK(snapshot_end({List({T(" "), U(3), U(4)})}) == DecodeFault::kContent);
  CHECK(snapshot_end({List({T(""), U(3), U(4)})}) == DecodeFault::kContent);
  CHECK(snapshot_end({List({T("b"), U(3)})}) == DecodeFault::kContent);
  CHECK(snapshot_end({List({T("b"), U(3), U(4), U(5)})}) == DecodeFault::kContent);
  CHECK(snapshot_end({List({T("b"), U(3), T("4")})}) == DecodeFault::kContent);
  CHECK(FaultOf(HelloWith({{"positions", List({position})}})) == DecodeFault::kContent);
}

TEST_CASE("entries are refused that no host sends") {
  using namespace std::string_literals;
  CHECK(FaultOf(ReportOf(1, "\3\5abc\7")) == DecodeFault::kNone);
  CHECK(FaultOf(ReportOf(1, "\4\5abc\7")) == DecodeFault::kContent);    // a tag longer than what is there
  CHECK(FaultOf(ReportOf(1, "\2\5abc\7")) == DecodeFault::kContent);    // and shorter
  CHECK(FaultOf(ReportOf(2, "\3\5abc\7")) == DecodeFault::kContent);
  CHECK(FaultOf(ReportOf(0, "\3\5abc\7")) == DecodeFault::kContent);
  CHECK(FaultOf(ReportOf(0, "")) == DecodeFault::kNone);
  CHECK(FaultOf(ReportOf(1, "")) == DecodeFault::kContent);
  CHECK(FaultOf(ReportOf(1, "\3\5abc\0"s)) == DecodeFault::kContent);    // no hit
  CHECK(FaultOf(ReportOf(1, "\3\5abc" + Varint(kHitsMax))) == DecodeFault::kNone);
  CHECK(FaultOf(ReportOf(1, "\3\5abc" + Varint(kHitsMax + 1))) == DecodeFault::kContent);
  CHECK(FaultOf(ReportOf(1, "\3\5abc\x87\0"s)) == DecodeFault::kContent);    // more bytes than a number needs
  CHECK(FaultOf(ReportOf(1, "\20\205" + std::string(16, 'd') + "\1")) == DecodeFault::kNone);
  CHECK(FaultOf(ReportOf(1, "\17\205" + std::string(15, 'd') + "\1")) == DecodeFault::kContent);    // half a digest
  const auto snapshot = [](std::uint64_t value) {
    return FaultOf(FrameOf(With(kSnapshot, {{"count", U(1)}, {"columns", B("\1\0x"s + Varint(value))}})));
  };
  CHECK(snapshot(0) == DecodeFault::kNone);
  CHECK(snapshot(kMicrosecondsMax) == DecodeFault::kNone);
  CHECK(snapshot(kMicrosecondsMax + 1) == DecodeFault::kContent);
  CHECK(FaultOf(HelloWith({{"count", U(1)}, {"columns", B("\3\5abc\7")}})) == DecodeFault::kContent);

  const auto many = [](std::size_t n) { return FaultOf(ReportOf(n, std::string(2 * n, '\0') + std::string(n, '\1'))); };
  CHECK(many(kEntriesMax) == DecodeFault::kNone);
  CHECK(many(kEntriesMax + 1) == DecodeFault::kContent);
  CHECK(FaultOf(ReportOf(~std::uint64_t{0}, "\3\5abc\7")) == DecodeFault::kContent);
}

TEST_CASE("demands are of entries that are there, in order, and let an entry be without hits") {
  using namespace std::string_literals;
  const auto report = [](std::string_view bytes) { return ReportOfTwo({{"demands", B(bytes)}}); };
  Codec codec;
  Message m;
  REQUIRE(codec.Decode(report("\1\7"), m) == DecodeFault::kNone);
  CHECK(m.entries.demand(m.entries.list()[0]) == std::nullopt);
  CHECK(m.entries.demand(m.entries.list()[1]) == 7);
  CHECK(codec.Decode(report("\0\1\0\0"s), m) == DecodeFault::kNone);    // of both; b's is 0
  CHECK(m.entries.demand(m.entries.list()[1]) == 0);
  CHECK(FaultOf(report("\0\7"s)) == DecodeFault::kContent);    // b has neither hits nor a demand
  CHECK(FaultOf(report("\2\7")) == DecodeFault::kContent);     // of a third
  CHECK(FaultOf(report("\1")) == DecodeFault::kContent);       // cut off
  CHECK(FaultOf(report("\1" + Varint(kDemandMax))) == DecodeFault::kNone);
  CHECK(FaultOf(report("\1" + Varint(kDemandMax + 1))) == DecodeFault::kContent);
  CHECK(FaultOf(report(Varint(~0ull) + "\7")) == DecodeFault::kContent);
  const Map snapshot = With(kSnapshot, {{"count", U(1)}, {"columns", B("\1\0x\5"s)}});
  CHECK(FaultOf(FrameOf(snapshot)) == DecodeFault::kNone);
  CHECK(FaultOf(FrameOf(With(snapshot, {{"demands", B("\0\7"s)}}))) == DecodeFault::kContent);
}

TEST_CASE("what may come back and what comes back are of entries that are there, and the latter needs no hits") {
  using namespace std::string_literals;
  const auto report = [](const std::string& field, std::string_view bytes) {
    return ReportOfTwo({{"back", B("\1\7")}, {field, B(bytes)}});
  };
  Codec codec;
  Message m;
  REQUIRE(codec.Decode(report("returnable", "\0\3"s), m) == DecodeFault::kNone);
  CHECK(m.entries.returnable(m.entries.list()[0]) == 3);
  CHECK(m.entries.returnable(m.entries.list()[1]) == 0);
  CHECK(m.entries.back(m.entries.list()[0]) == 0);
  CHECK(m.entries.back(m.entries.list()[1]) == 7);
  CHECK(FaultOf(report("returnable", "\0"s + Varint(kTokensBackMax))) == DecodeFault::kNone);
  CHECK(FaultOf(report("returnable", "\0"s + Varint(kTokensBackMax + 1))) == DecodeFault::kContent);
  CHECK(FaultOf(report("returnable", "\0\0"s)) == DecodeFault::kContent);
  CHECK(FaultOf(report("returnable", "\2\1")) == DecodeFault::kContent);    // of a third
  CHECK(FaultOf(ReportOfTwo({{"returnable", B("\1\1")}})) == DecodeFault::kContent);    // of no hits
  CHECK(FaultOf(ReportOfTwo({{"back", B("\0\7"s)}})) == DecodeFault::kContent);
  const Map snapshot = With(kSnapshot, {{"count", U(1)}, {"columns", B("\1\0x\5"s)}});
  CHECK(FaultOf(FrameOf(With(snapshot, {{"back", B("\0\7"s)}}))) == DecodeFault::kContent);
}

TEST_CASE("a penalty is of an entry that is there, needs no hits, and lasts a week at most") {
  using namespace std::string_literals;
  const auto report = [](std::string_view bytes) { return ReportOfTwo({{"penalties", B(bytes)}}); };
  Codec codec;
  Message m;
  REQUIRE(codec.Decode(report("\1\7"s), m) == DecodeFault::kNone);
  CHECK(m.entries.penalty(m.entries.list()[0]) == std::nullopt);
  CHECK(m.entries.penalty(m.entries.list()[1]) == 7);
  REQUIRE(codec.Decode(report("\1\0"s), m) == DecodeFault::kNone);    // it was forgiven
  CHECK(m.entries.penalty(m.entries.list()[1]) == 0);
  CHECK(FaultOf(report("\1" + Varint(kPenaltyMsMax))) == DecodeFault::kNone);
  CHECK(FaultOf(report("\1" + Varint(kPenaltyMsMax + 1))) == DecodeFault::kContent);
  CHECK(FaultOf(report("\0\7"s)) == DecodeFault::kContent);    // b has neither hits nor a penalty
  CHECK(FaultOf(report("\2\7")) == DecodeFault::kContent);     // of a third
  Message near;                                                // an owner tells everybody of one
  near.kind = MessageKind::kNear;
  near.sender = "owner-1";
  REQUIRE(near.entries.Add({"a", false}, 0, 0, {.penalty = 7}));
  REQUIRE(codec.Decode(Encoded(near), m) == DecodeFault::kNone);
  CHECK(m.entries.penalty(m.entries.list()[0]) == 7);
}

TEST_CASE("refusals are of an entry that is there, need no hits, and have a bound") {
  using namespace std::string_literals;
  const auto report = [](std::string_view bytes) { return ReportOfTwo({{"refusals", B(bytes)}}); };
  Codec codec;
  Message m;
  REQUIRE(codec.Decode(report("\1\7"s), m) == DecodeFault::kNone);
  CHECK(m.entries.refusals(m.entries.list()[0]) == 0);
  CHECK(m.entries.refusals(m.entries.list()[1]) == 7);
  CHECK(FaultOf(report("\1" + Varint(kRefusalsMax))) == DecodeFault::kNone);
  CHECK(FaultOf(report("\1" + Varint(kRefusalsMax + 1))) == DecodeFault::kContent);
  CHECK(FaultOf(report("\1\0"s)) == DecodeFault::kContent);    // none were refused
  CHECK(FaultOf(report("\0\7"s)) == DecodeFault::kContent);    // b has neither hits nor refusals
  CHECK(FaultOf(report("\2\7")) == DecodeFault::kContent);     // of a third
}

TEST_CASE("places are of an entry that is there, need no hits, and have a bound") {
  using namespace std::string_literals;
  const auto report = [](std::string_view bytes) { return ReportOfTwo({{"places", B(bytes)}}); };
  Codec codec;
  Message m;
  REQUIRE(codec.Decode(report("\1\7"s), m) == DecodeFault::kNone);
  CHECK(m.entries.places(m.entries.list()[0]) == std::nullopt);
  CHECK(m.entries.places(m.entries.list()[1]) == 7);
  CHECK(FaultOf(report("\1\0"s)) == DecodeFault::kNone);
  CHECK(FaultOf(report("\1" + Varint(kPlacesMax + 1))) == DecodeFault::kContent);
  CHECK(FaultOf(report("\2\7")) == DecodeFault::kContent);
}

TEST_CASE("a member is said whole, of an entry that is there, and within its bounds") {
  using namespace std::string_literals;
  const auto report = [](std::string_view member, std::string_view asked, std::string_view served,
                         std::string_view weight) {
    return ReportOfTwo({{"member", B(member)}, {"asked", B(asked)}, {"served", B(served)}, {"weight", B(weight)}});
  };
  const auto of_second = [](std::uint64_t number) { return "\1" + Varint(number); };
  Codec codec;
  Message m;
  REQUIRE(codec.Decode(report("\1\7"s, "\1\3"s, "\1\2"s, of_second(1500)), m) == DecodeFault::kNone);
  CHECK(m.entries.member(m.entries.list()[0]) == std::nullopt);
  CHECK(m.entries.member(m.entries.list()[1]) == MemberWord{7, 3, 2, 1500});
  CHECK(FaultOf(report(of_second(MemberWord::kNameMax), "\1\0"s, "\1\0"s, "\1\1")) == DecodeFault::kNone);
  CHECK(FaultOf(report(of_second(MemberWord::kNameMax + 1), "\1\0"s, "\1\0"s, "\1\1")) == DecodeFault::kContent);
  CHECK(FaultOf(report("\1\7", of_second(MemberWord::kMost + 1), "\1\2", "\1\1")) == DecodeFault::kContent);
  CHECK(FaultOf(report("\1\7", "\1\3", "\1\2", "\1\0"s)) == DecodeFault::kContent);    // no weight
  CHECK(FaultOf(report("\1\7", "\1\3", "\1\2", "")) == DecodeFault::kContent);    // a part, and no hits
  CHECK(FaultOf(report("\2\7", "\2\3", "\2\2", "\2\1")) == DecodeFault::kContent);    // of a third
}

TEST_CASE("the text of an address is read back, and nothing else is taken for one") {
  Prng prng(1);
  for (int i = 0; i < 10'000; ++i) {
    const auto octet = [&] { return static_cast<std::uint8_t>(prng.Next() >> prng.Below(64)); };
    const std::array<std::uint8_t, 4> octets{octet(), octet(), octet(), octet()};
    char bytes[kIpv4Bytes], text[kIpv4TextMax + 1], back[kIpv4Bytes];
    std::memcpy(bytes, octets.data(), sizeof bytes);
    const std::string_view written(text, WriteIpv4(bytes, text));
    REQUIRE(written == fmt::format("{}.{}.{}.{}", octets[0], octets[1], octets[2], octets[3]));
    REQUIRE(ReadIpv4(written, back));
    REQUIRE(std::memcmp(bytes, back, sizeof bytes) == 0);
  }
  for (const char* text :
       {"",          "1",        "1.2.3",      "1.2.3.",           ".1.2.3",           "1.2.3.4.",
        "1.2.3.4.5", "1..2.3",   "1.2.3.256",  "256.2.3.4",        "1.2.3.1000",       "4294967297.1.1",
        "01.2.3.4",  "1.2.3.00", "1.2.3.4 ",   " 1.2.3.4",         "+1.2.3.4",         "1.2.3.-4",
        "1.2.3.0x4", "1,2,3,4",  "1.2.3.4:80", "255.255.255.2555", "0255.255.255.255", "user-17",
        "1234567",   "......."}) {
    CAPTURE(text);
    char bytes[kIpv4Bytes];
    CHECK(!ReadIpv4(text, bytes));
  }
}

TEST_CASE("an address takes four bytes, and comes back as text") {
  using namespace std::string_literals;
  const auto report = [](std::uint64_t entries, std::string_view columns, bool flag = true) {
    return ReportOf(entries, columns, {{"ipv4", Yes(flag)}});
  };
  Codec codec;
  Message m;
  REQUIRE(codec.Decode(report(2, "\0\2\5\0\0\177\377\1ab\7\6"s), m) == DecodeFault::kNone);
  REQUIRE(m.entries.size() == 2);
  CHECK(m.entries.tag(m.entries.list()[0]).bytes == "0.127.255.1");
  CHECK(m.entries.tag(m.entries.list()[1]).bytes == "ab");
  CHECK(m.entries.list()[0].value == 7);
  CHECK(m.entries.list()[0].phase == 5);
  CHECK(IsSound(m));
  CHECK(FaultOf(report(1, "\0\0\1\2\3\4\7"s)) == DecodeFault::kNone);
  CHECK(FaultOf(report(1, "\0\0\1\2\3\4\7"s, false)) == DecodeFault::kContent);
  CHECK(FaultOf(report(1, "\0\0\1\2\3\4"s)) == DecodeFault::kContent);            // no value
  CHECK(FaultOf(report(1, "\0\0\1\2\3"s)) == DecodeFault::kContent);              // cut off
  CHECK(FaultOf(report(1, "\0\205\1\2\3\4\7"s)) == DecodeFault::kContent);        // is no digest
  CHECK(FaultOf(ReportOf(1, "\0\0\1\2\3\4\7"s)) == DecodeFault::kContent);        // not said to be one
  CHECK(FaultOf(HelloWith({{"ipv4", Yes()}})) == DecodeFault::kNone);             // of no entries

  // The bound is of text.
  const auto longest = [&](std::size_t n) {
    return FaultOf(report(n, std::string(2 * n, '\0') + std::string(4 * n, '\377') + std::string(n, '\1')));
  };
  constexpr std::size_t kFit = kEntriesBytesMax / (3 + kIpv4TextMax);
  CHECK(longest(kFit) == DecodeFault::kNone);
  CHECK(longest(kFit + 1) == DecodeFault::kContent);

  // A tag without bytes could not be told from an address.
  Message sent = Report();
  REQUIRE(sent.entries.Add({"192.0.2.1"}, 1, 0));
  const std::size_t shortened = Encoded(sent).size();
  REQUIRE(sent.entries.Add({""}, 1, 0));
  CHECK(Encoded(sent).size() == shortened + 3 + 5 - 6);    // an entry, four digits and a dot, and not the field
  REQUIRE(codec.Decode(Encoded(sent), m) == DecodeFault::kNone);
  CHECK(Same(sent, m));
}

std::string Compressed(std::string_view columns) {
  std::string out(ZSTD_compressBound(columns.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), columns.data(), columns.size(), 1));
  return out;
}

std::string PackedReport(std::uint64_t entries, std::uint64_t unpacked, std::string_view body) {
  return ReportOf(entries, body, {{"size", U(unpacked)}});
}

TEST_CASE("a compressed body is one zstd frame of exactly the bytes that it says") {
  const std::string columns = std::string(200, '\0') + std::string(100, '\1');    // 100 empty tags, one hit each
  const std::string body = Compressed(columns);
  CHECK(FaultOf(PackedReport(100, 300, body)) == DecodeFault::kNone);
  CHECK(FaultOf(PackedReport(100, 299, body)) == DecodeFault::kContent);
  CHECK(FaultOf(PackedReport(100, 301, body)) == DecodeFault::kContent);
  CHECK(FaultOf(PackedReport(100, 0, body)) == DecodeFault::kContent);
  CHECK(FaultOf(PackedReport(100, 300, body + body)) == DecodeFault::kContent);
  CHECK(FaultOf(PackedReport(100, 300, body + Compressed(""))) == DecodeFault::kContent);
  CHECK(FaultOf(PackedReport(100, 300, body + "x")) == DecodeFault::kContent);
  CHECK(FaultOf(PackedReport(100, 300, "")) == DecodeFault::kContent);
  CHECK(FaultOf(PackedReport(100, 300, columns)) == DecodeFault::kContent);
  CHECK(FaultOf(PackedReport(0, 300, body)) == DecodeFault::kContent);
}

TEST_CASE("a body that would unpack to more than entries may have is refused") {
  for (const std::size_t bytes : {kEntriesBytesMax + 1, kFrameBytesMax, std::size_t{100} << 20}) {
    const std::string bomb = Compressed(std::string(bytes, '\0'));
    REQUIRE(bomb.size() < kFrameBytesMax);
    CAPTURE(bytes);
    CHECK(FaultOf(PackedReport(kEntriesMax, bytes, bomb)) == DecodeFault::kContent);
    CHECK(FaultOf(PackedReport(kEntriesMax, kEntriesBytesMax, bomb)) == DecodeFault::kContent);
  }
}

// All fields at their longest, and as many entries as Add takes.
std::string LongestReport(std::uint64_t hits, const std::function<std::string()>& tag) {
  Message m = Report();
  m.sender = std::string(kHostNameBytesMax, 'x');
  m.incarnation = m.sequence = m.ring_low = m.snapshot = ~std::uint64_t{0};
  m.from = Instant() - kSinceOriginMax;
  m.to = Instant() + kSinceOriginMax;
  m.period = kPeriodMax;
  m.text = std::string(kTextBytesMax, 'x');
  while (m.entries.Add({tag()}, hits, kPhases - 1)) continue;
  Codec codec;
  std::string frame;
  Message back;
  codec.Encode(m, frame);
  CHECK(codec.Decode(frame, back) == DecodeFault::kNone);
  CHECK(Same(m, back));
  return frame;
}

TEST_CASE("what Add takes fits into a frame") {
  Prng prng(1);
  CHECK(LongestReport(kHitsMax, [&] { return testing::RandomBytes(255, prng); }).size() <= kFrameBytesMax);
  CHECK(LongestReport(kHitsMax, [&] { return testing::RandomBytes(12, prng); }).size() <= kFrameBytesMax);
  CHECK(LongestReport(kHitsMax, [&] { return testing::RandomBytes(1, prng); }).size() <= kFrameBytesMax);
  CHECK(LongestReport(kHitsMax, [] { return std::string(); }).size() <= kFrameBytesMax);
  CHECK(LongestReport(1, [] { return std::string(255, 'x'); }).size() < 2000);

  Message m = Report();
  for (std::size_t i = 0; i < kEntriesMax; ++i) REQUIRE(m.entries.Add({std::string(1, static_cast<char>(i))}, 1, 0));
  CHECK(!m.entries.Add({"x"}, 1, 0));
}

TEST_CASE("what does not get smaller is sent as it is") {
  Prng prng(1);
  const auto overhead = [&](std::size_t tag_bytes) {
    Message m = Report();
    REQUIRE(m.entries.Add({testing::RandomBytes(tag_bytes, prng)}, 1, 0));
    REQUIRE(m.entries.Add({testing::RandomBytes(tag_bytes, prng)}, 1, 0));
    const std::size_t with = Encoded(m).size();
    m.entries.Clear();
    return with - Encoded(m).size() - 2 * tag_bytes;
  };
  CHECK(overhead(10) == 17 + 6);    // names and headers of count and columns, and the entries
  CHECK(overhead(255) == 18 + 6);
}

TEST_CASE("what is short is sent as it is, even if it would get smaller") {
  Message m = Report();
  const std::size_t without = Encoded(m).size();
  while (m.entries.size() < 85) REQUIRE(m.entries.Add({""}, 1, 0));
  CHECK(Encoded(m).size() == without + 17 + 255);
  REQUIRE(m.entries.Add({""}, 1, 0));
  CHECK(Encoded(m).size() < without + 100);
}

TEST_CASE("the most positions and ranges fit into a frame") {
  Message m = Report();
  m.sender = std::string(kHostNameBytesMax, 'x');
  m.incarnation = m.sequence = m.ring_low = m.snapshot = ~std::uint64_t{0};
  m.text = std::string(kTextBytesMax, 'x');
  m.kind = MessageKind::kSnapshotEnd;
  m.from = {};
  m.positions.assign(kPositionsMax, {m.sender, ~std::uint64_t{0}, ~std::uint64_t{0}});
  Codec codec;
  Message back;
  std::string frame;
  codec.Encode(m, frame);
  REQUIRE(codec.Decode(frame, back) == DecodeFault::kNone);
  CHECK(Same(m, back));

  m.positions.clear();
  m.kind = MessageKind::kRepeat;
  m.ranges.assign(kRangesMax, {std::uint64_t{1} << 63, ~std::uint64_t{0}});
  codec.Encode(m, frame);
  REQUIRE(codec.Decode(frame, back) == DecodeFault::kNone);
  CHECK(Same(m, back));
}

TEST_CASE("a million addresses cost less than eight bytes each") {
  for (const bool with_phases : {false, true}) {
    Prng prng(1);
    Codec codec;
    std::string frame;
    std::size_t bytes = 0, entries = 0;
    for (int frames = 0; frames < 10; ++frames) {
      Message m = Report();
      for (bool room = true; room; entries += room) {
        const std::uint64_t a = prng.Next();
        const auto hits = std::min<std::uint64_t>(1'000'000, ~std::uint64_t{0} / (prng.Next() | 1));    // Zipf
        room = m.entries.Add({fmt::format("{}.{}.{}.{}", a & 255, a >> 8 & 255, a >> 16 & 255, a >> 24 & 255)}, hits,
                             static_cast<std::uint8_t>(with_phases ? prng.Below(kPhases) : 0));
      }
      codec.Encode(m, frame);
      bytes += frame.size();
    }
    CHECK(static_cast<double>(bytes) / static_cast<double>(entries) <= (with_phases ? 5.7 : 4.8));
  }
}

// ---- The examples of protocol/report.md ----

TEST_CASE("the examples of the page are what is sent") {
  std::map<std::string, Message> messages;
  Message& report = messages["A report"];
  report.kind = MessageKind::kReport;
  report.sender = "web-1";
  report.incarnation = 3;
  report.sequence = 300;
  report.ring_low = 17;
  report.from = FromNanoseconds(1'000'000);
  report.to = FromNanoseconds(3'000'000);
  report.period = std::chrono::milliseconds(2);
  report.last = true;
  REQUIRE(report.entries.Add({"192.0.2.1"}, 1, 0));
  REQUIRE(report.entries.Add({"alice"}, 200, 127));

  Message& hello = messages["A hello"];
  hello.kind = MessageKind::kHello;
  hello.sender = "web-1";
  hello.incarnation = 3;
  hello.sequence = 300;
  hello.to = FromNanoseconds(3'000'000);
  hello.period = std::chrono::milliseconds(2);
  hello.text = "0.1.0";

  Message& repeat = messages["A request to repeat"];
  repeat.kind = MessageKind::kRepeat;
  repeat.sender = "web-2";
  repeat.incarnation = 3;
  repeat.to = FromNanoseconds(-1);
  repeat.ranges = {{290, 290}, {295, 299}};

  const auto examples = testing::Examples("report.md");
  REQUIRE(examples.size() == messages.size());
  for (const auto& [heading, message] : messages) {
    CAPTURE(heading);
    REQUIRE(examples.contains(heading));
    CHECK(testing::Hex(examples.at(heading)) == testing::Hex(Encoded(message)));
    Codec codec;
    Message back;
    REQUIRE(codec.Decode(examples.at(heading), back) == DecodeFault::kNone);
    CHECK(Same(message, back));
  }
}

}    // namespace
}    // namespace dthrottle
