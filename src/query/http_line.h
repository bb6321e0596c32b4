// Tells an HTTP request from a line of one of our protocols.
//
// A browser can be made to POST any text to any port of its host, and every line of that text would be a query. All it
// sends begins with a request line, which the browser writes and ends with CR LF; so a connection that begins with one
// is not an application's. A client may choose the same text as its tag and does not get away from its limit by it:
// libraries for applications end a line with LF, and send no CR before it whatever the tag.
#pragma once

#include <algorithm>
#include <string_view>

namespace dthrottle {

// Whether a connection whose first bytes are `bytes` speaks HTTP: its first line is "METHOD TARGET HTTP/1.1" and ends
// with CR LF. "METHOD /" is enough where the line is not whole yet and will not be kept (`cut`).
inline bool BeginsWithHttp(std::string_view bytes, bool cut) {
  constexpr std::size_t kMethodBytesMax = 16;
  const std::string_view line = bytes.substr(0, bytes.find('\n'));
  const std::size_t blank = line.find(' ');
  if (blank == 0 || blank > kMethodBytesMax) return false;    // npos too
  const std::string_view method = line.substr(0, blank), rest = line.substr(blank + 1);
  if (!std::all_of(method.begin(), method.end(), [](char c) { return c >= 'A' && c <= 'Z'; })) return false;
  if (cut) return rest.starts_with('/');
  const std::size_t last = rest.rfind(' ');
  return rest.ends_with('\r') && last != std::string_view::npos && last > 0 &&
         rest.substr(last + 1).starts_with("HTTP/");
}

}    // namespace dthrottle
