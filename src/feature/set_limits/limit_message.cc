#include "feature/set_limits/limit_message.h"

#include <bit>
#include <cstring>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/fields.h"
#include "base/frame.h"
#include "feature/set_limits/set_limit.h"

namespace dthrottle {

namespace {

static_assert(std::endian::native == std::endian::little);

// The names of the kinds in frames, in the order of LimitMessageKind.
constexpr std::string_view kKindNames[] = {"digest", "have", "limits"};

static_assert(kLimitLinesBytesMax + kLimitsPerFrame * 3 + 256 <= kLimitFrameBytesMax);
static_assert(kRulesLineBytesMax <= kLimitLinesBytesMax && kLimitLineBytesMax <= kLimitLinesBytesMax);
static_assert(kLimitHashesMax * sizeof(std::uint64_t) + 256 <= kLimitFrameBytesMax);

void FieldsOf(auto& fields, auto& m, auto& hashes) {
  fields.Must("kind", m.kind);
  fields.May("count", m.count);
  fields.May("sum", m.sum);
  fields.May("answer", m.answer);
  fields.May("hashes", hashes);
  fields.May("limits", m.lines);
}

}    // namespace

static constexpr std::span<const std::string_view> KindNames(LimitMessageKind) {
  return kKindNames;
}

static void PutField(PackWriter& out, const LimitLines& lines) {
  out.Array(lines.size());
  for (const std::string& line : lines) out.Text(line);
}

static bool GetField(PackCursor& in, LimitLines& lines) {
  std::size_t n = 0;
  bool ok = in.Enter(kLimitsPerFrame, n);
  for (std::size_t i = 0; ok && i < n; ++i) {
    ok = GetField(in, lines.emplace_back()) && lines.back().size() <= kRulesLineBytesMax;
  }
  return ok;
}

std::string EncodeLimits(const LimitMessage& m) {
  DT_CHECK(m.hashes.size() <= kLimitHashesMax && m.lines.size() <= kLimitsPerFrame);
  const PackedBytes hashes{
      {reinterpret_cast<const char*>(m.hashes.data()), m.hashes.size() * sizeof(std::uint64_t)}};
  std::string frame;
  WriteFrame(kLimitFramePrefix, frame, [&](auto& fields) { FieldsOf(fields, m, hashes); });
  DT_CHECK(frame.size() <= kLimitFrameBytesMax);
  return frame;
}

bool DecodeLimits(std::string_view frame, LimitMessage& m) {
  m = {};
  if (OpenFrame(kLimitFramePrefix, kLimitFrameBytesMax, frame) != FrameFault::kNone) return false;
  PackReader values;
  if (!values.Read(frame)) return false;
  FieldReader reader(values.values());
  PackedBytes hashes;
  FieldsOf(reader, m, hashes);
  if (!reader.ok() || hashes.view.size() % sizeof(std::uint64_t) != 0 ||
      hashes.view.size() > kLimitHashesMax * sizeof(std::uint64_t)) {
    return false;
  }
  m.hashes.resize(hashes.view.size() / sizeof(std::uint64_t));
  if (!hashes.view.empty()) std::memcpy(m.hashes.data(), hashes.view.data(), hashes.view.size());
  return true;
}

}    // namespace dthrottle
