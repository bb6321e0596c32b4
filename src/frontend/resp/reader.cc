#include "frontend/resp/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/number.h"

namespace dthrottle {

namespace {

tl::unexpected<Error> ProtocolError(std::string_view what) {
  return Fail(fmt::format("Protocol error: {}", what));
}

// The number in a line of one letter, digits, CR and LF.
struct Header {
  std::size_t bytes = 0;    // of the line; 0: it is not complete
  bool is_number = false;
  std::int64_t number = 0;
};

// Fails with `too_long` if there can be no such line.
Result<Header> ReadHeader(std::string_view bytes, std::string_view too_long) {
  const std::string_view window = bytes.substr(0, kRespHeaderBytesMax);
  const std::size_t lf = window.find('\n');
  if (lf == std::string_view::npos) {
    if (window.size() == kRespHeaderBytesMax) return ProtocolError(too_long);
    return Header{};
  }
  Header header{lf + 1};
  if (lf < 2 || window[lf - 1] != '\r') return header;
  header.is_number = ParseNumber(window.substr(1, lf - 2), header.number);
  return header;
}

}    // namespace

Result<RespReader::Step> RespReader::Next(std::string_view bytes, Arguments& arguments) {
  constexpr Step kUnfinished{0, 0};
  if (bytes.front() != '*') return NextInline(bytes, arguments);
  const auto array = ReadHeader(bytes, "too big mbulk count string");
  if (!array) return tl::unexpected(array.error());
  if (array->bytes == 0) return kUnfinished;
  if (!array->is_number || array->number > static_cast<std::int64_t>(kRespArgumentsMax)) {
    return ProtocolError("invalid multibulk length");
  }
  std::size_t at = array->bytes;
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(array->number, 0));    // as Redis has it
  for (std::size_t i = 0; i < count; ++i) {
    if (at >= bytes.size()) return kUnfinished;
    if (bytes[at] != '$') {
      const char found = bytes[at];
      return ProtocolError(fmt::format("expected '$', got '{}'", found < 0x20 || found > 0x7e ? ' ' : found));
    }
    const auto bulk = ReadHeader(bytes.substr(at), "too big bulk count string");
    if (!bulk) return tl::unexpected(bulk.error());
    if (bulk->bytes == 0) return kUnfinished;
    at += bulk->bytes;
    // What follows, CR LF included, has to fit into what a command may have.
    const auto room = static_cast<std::int64_t>(kRespCommandBytesMax) - static_cast<std::int64_t>(at + 2);
    if (!bulk->is_number || bulk->number < 0 || bulk->number > room) return ProtocolError("invalid bulk length");
    const auto size = static_cast<std::size_t>(bulk->number);
    if (bytes.size() < at + size + 2) return kUnfinished;
    arguments[i] = bytes.substr(at, size);
    at += size + 2;
  }
  return Step{at, count};
}

Result<RespReader::Step> RespReader::NextInline(std::string_view bytes, Arguments& arguments) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t lf = bytes.substr(0, kRespCommandBytesMax).find('\n');
  if (lf == std::string_view::npos) {
    if (bytes.size() >= kRespCommandBytesMax) return ProtocolError("too big inline request");
    return Step{0, 0};
  }
  const std::string_view line = bytes.substr(0, lf);
  std::size_t count = 0;
  for (std::size_t at = line.find_first_not_of(kBlanks); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    if (count == arguments.size()) return ProtocolError("too big inline request");
    arguments[count++] = line.substr(at, end - at);
    at = line.find_first_not_of(kBlanks, end);
  }
  return Step{lf + 1, count};
}

}    // namespace dthrottle
