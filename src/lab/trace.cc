#include "lab/trace.h"

#include <fmt/format.h>

#include <cmath>
#include <unordered_map>

#include "base/number.h"
#include "base/tag.h"

namespace dthrottle::lab {
namespace {

constexpr double kSecondsMax = 1e9;
constexpr Cost kCostMax = 1'000'000;

// Takes the number before the next comma, and the comma; false if there is none.
template <class Number>
bool TakeNumber(std::string_view& rest, Number& number) {
  const std::size_t comma = rest.find(',');
  if (comma == std::string_view::npos) return false;
  const bool whole = ParseNumber(rest.substr(0, comma), number);
  rest.remove_prefix(comma + 1);
  return whole;
}

}    // namespace

Result<Trace> ParseTrace(std::string_view text, std::string_view file, std::uint32_t hosts) {
  Trace trace;
  std::unordered_map<std::string_view, std::uint32_t> tags;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    const auto fail = [&](std::string_view why) { return Fail(fmt::format("{}:{}: error: {}", file, number, why)); };
    double seconds = 0;
    Trace::Line read;
    std::string_view tag = line;
    if (!TakeNumber(tag, seconds) || !TakeNumber(tag, read.host) || !TakeNumber(tag, read.cost)) {
      return fail("must be SECONDS,HOST,COST,TAG");
    }
    if (!(seconds >= 0 && seconds <= kSecondsMax)) return fail("SECONDS must be a number from 0 to 1e+09");
    if (read.host >= hosts) return fail(fmt::format("HOST must be from 0 to {}", hosts - 1));
    if (read.cost < 1 || read.cost > kCostMax) return fail(fmt::format("COST must be from 1 to {}", kCostMax));
    if (tag.size() > kTagBytesMax) return fail(fmt::format("TAG must be of at most {} bytes", kTagBytesMax));
    read.at = Duration(std::llround(seconds * 1e9));
    if (!trace.lines.empty() && read.at < trace.lines.back().at) return fail("SECONDS must not be less than before");
    if (trace.lines.size() == kTraceLinesMax) return fail(fmt::format("must be at most {} lines", kTraceLinesMax));
    const auto [known, is_new] = tags.emplace(tag, static_cast<std::uint32_t>(trace.tags.size()));
    if (is_new) trace.tags.emplace_back(tag);
    read.tag = known->second;
    trace.lines.push_back(read);
  }
  return trace;
}

}    // namespace dthrottle::lab
