// Lines of a web server's access log, in the common format and the combined one, which nginx and Apache write unless
// told otherwise:
//
//     192.0.2.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a.gif?b HTTP/1.0" 200 2326 "http://example.org/" "Mozilla"
//
// Lines are strangers' bytes: the sender of a request writes a part of them. Fields are views of the line, escapes in
// them as the server wrote them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dthrottle::lab {

struct LogLine {
  std::int64_t time_s = 0;    // since 1970 UTC
  std::string_view host, ident, user, request, status, size;
  std::string_view referer = "-", agent = "-";    // of the combined format
};

// Seconds since 1970 of "10/Oct/2000:13:55:36 -0700".
Result<std::int64_t> ParseLogTime(std::string_view text);

// The same for lines one after the other, most of which have the date of the line before.
class LogDates {
 public:
  Result<std::int64_t> Read(std::string_view text);

 private:
  std::string text_;    // the latest, or empty
  std::int64_t time_s_ = 0;
};

// Without LF. Fails with a reason if anything up to the size is not there or not what it should be; what follows the
// size may be anything.
Result<LogLine> ParseLogLine(std::string_view line, LogDates& dates);
inline Result<LogLine> ParseLogLine(std::string_view line) {
  LogDates dates;
  return ParseLogLine(line, dates);
}

// Parts of a request line; "-" where it is none.
struct RequestParts {
  std::string_view method, path, query;    // query: with its '?', or empty
};
RequestParts SplitRequest(std::string_view request);

// "2000-10-10T20:55:36Z".
std::string FormatTime(std::int64_t time_s);

// What a line asks the daemon: text with fields in it, named as in Apache's LogFormat: %h %l %u %r %m %U %q %s %b
// %{Referer}i %{User-Agent}i and %%.
class TagTemplate {
 public:
  static Result<TagTemplate> Parse(std::string_view text);

  // Appends the tag to `out`.
  void Expand(const LogLine& line, std::string& out) const;

 private:
  enum class Field { kText, kHost, kIdent, kUser, kRequest, kMethod, kPath, kQuery, kStatus, kSize, kReferer, kAgent };
  struct Part {
    Field field{};
    std::string text;
  };
  std::vector<Part> parts_;
};

}    // namespace dthrottle::lab
