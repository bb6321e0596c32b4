#include "frontend/http/reader.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "base/words.h"
#include "frontend/http/target.h"

namespace dthrottle {

namespace {

using Checked = tl::expected<void, HttpFault>;

tl::unexpected<HttpFault> Bad(std::string_view detail, unsigned status = 400) {
  return tl::unexpected(HttpFault{status, detail});
}

// What a method and a field's name are made of (RFC 9110, section 5.6.2).
constexpr std::array<bool, 256> kTokenBytes = [] {
  std::array<bool, 256> is{};
  for (unsigned c = '0'; c <= '9'; ++c) is[c] = true;
  for (unsigned c = 'a'; c <= 'z'; ++c) is[c] = is[c - 'a' + 'A'] = true;
  for (const char c : std::string_view("!#$%&'*+-.^_`|~")) is[static_cast<unsigned char>(c)] = true;
  return is;
}();

bool IsToken(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return kTokenBytes[static_cast<unsigned char>(c)]; });
}

bool HasControl(std::string_view text) {
  return std::ranges::any_of(text, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && byte != '\t') || byte == 0x7f;
  });
}

// A blank within the target is taken as part of it.
Checked ReadRequestLine(std::string_view line, HttpRequest& request) {
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == line.npos || first == last) return Bad("a request begins with METHOD TARGET HTTP/1.1");
  request.method = line.substr(0, first);
  request.target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!IsToken(request.method) || request.target.empty() || HasControl(line)) {
    return Bad("a request begins with METHOD TARGET HTTP/1.1");
  }
  if (version == "HTTP/1.1" || version == "HTTP/1.0") {
    request.is_1_1 = request.keep_alive = version.back() == '1';
    return {};
  }
  if (version.starts_with("HTTP/")) return Bad("only HTTP/1.1 and HTTP/1.0 are understood", 505);
  return Bad("a request begins with METHOD TARGET HTTP/1.1");
}

void ReadConnection(std::string_view value, HttpRequest& request) {
  while (true) {
    const std::size_t comma = std::min(value.find(','), value.size());
    const std::string_view option = Trimmed(value.substr(0, comma));
    if (SameName(option, "close")) request.keep_alive = false;
    if (SameName(option, "keep-alive") && !request.is_1_1) request.keep_alive = true;
    if (comma == value.size()) return;
    value.remove_prefix(comma + 1);
  }
}

// Fields of which a second one would leave open which of them counts.
struct Seen {
  bool host = false, fetch_site = false, content_length = false, transfer_encoding = false;
};

bool Again(bool& seen) {
  return std::exchange(seen, true);
}

Checked ReadField(std::string_view line, HttpRequest& request, Seen& seen) {
  const std::size_t colon = line.find(':');
  if (colon == line.npos || !IsToken(line.substr(0, colon))) return Bad("a field is NAME: VALUE on one line");
  const std::string_view name = line.substr(0, colon), value = Trimmed(line.substr(colon + 1));
  if (HasControl(value)) return Bad("a field has no control characters");
  switch (name.size()) {    // most fields are none of these
    case 4:
      if (!SameName(name, "Host")) return {};
      if (Again(seen.host)) return Bad("the field Host is given twice");
      request.host = value;
      return {};
    case 6:
      if (!SameName(name, "Origin")) return {};
      if (request.origin.has_value()) return Bad("the field Origin is given twice");
      request.origin = value;
      return {};
    case 10:
      if (SameName(name, "Connection")) ReadConnection(value, request);
      return {};
    case 13:
      if (!SameName(name, "Dthrottle-Tag")) return {};
      if (request.tag.has_value()) return Bad("the field Dthrottle-Tag is given twice");
      request.tag = value;
      return {};
    case 14:
      if (SameName(name, "Content-Length")) {
        const bool digits = value.find_first_not_of("0123456789") == value.npos && !value.empty();
        if (!digits || Again(seen.content_length)) return Bad("Content-Length must be one whole number");
        if (value.find_first_not_of('0') != value.npos) request.has_body = true;
      } else if (SameName(name, "Sec-Fetch-Site")) {
        if (Again(seen.fetch_site)) return Bad("the field Sec-Fetch-Site is given twice");
        request.fetch_site = value;
      }
      return {};
    case 17:
      if (SameName(name, "Transfer-Encoding")) request.has_body = seen.transfer_encoding = true;
      return {};
    default:
      return {};
  }
}

// `lines` are whole, without the request line. Field by field they are added to `request`.
Checked ReadFields(std::string_view lines, HttpRequest& request) {
  Seen seen;
  std::size_t fields = 0;
  request.fields = lines;
  for (std::size_t next = 0; next < lines.size();) {
    const std::size_t end = lines.find('\r', next);
    if (lines[end + 1] != '\n') return Bad("a line has no CR but at its end");
    if (const auto good = ReadField(lines.substr(next, end - next), request, seen); !good) return good;
    if (++fields > kHttpFieldsMax) return Bad("there are too many fields", 431);
    next = end + 2;
  }
  if (seen.transfer_encoding && seen.content_length) {
    return Bad("Content-Length and Transfer-Encoding do not go together");
  }
  return {};
}

}    // namespace

// Looks for the end of the request first, and reads it when it is there. The search goes on where the last one ended,
// so a client that sends byte by byte costs no more than another.
tl::expected<HttpReader::Step, HttpFault> HttpReader::Next(std::string_view bytes, HttpRequest& request) {
  std::size_t begin = 0;    // empty lines in front of a request mean nothing
  while (seen_ == 0 && bytes.substr(begin).starts_with("\r\n")) begin += 2;
  bytes.remove_prefix(begin);

  const bool resumed = seen_ > 0;
  const bool through_tcp = request.through_tcp;
  request = HttpRequest();
  request.through_tcp = through_tcp;
  std::size_t at = seen_;
  for (bool complete = false; !complete;) {
    const std::size_t lf = bytes.substr(0, kHttpHeadBytesMax).find('\n', at);
    if (lf == bytes.npos) {
      if (bytes.size() >= kHttpHeadBytesMax) {
        return at == 0 ? Bad("the target is too long", 414) : Bad("the fields are too long", 431);
      }
      seen_ = at;
      return Step{begin, false};
    }
    if (lf == at || bytes[lf - 1] != '\r') return Bad("a line ends in CR LF");
    if (at == 0) {    // what is no request is told so at once
      if (const auto good = ReadRequestLine(bytes.substr(0, lf - 1), request); !good) {
        return tl::unexpected(good.error());
      }
    }
    complete = lf == at + 1;
    at = lf + 1;
  }
  seen_ = 0;
  const std::size_t line_bytes = bytes.find('\n') + 1;
  if (resumed) std::ignore = ReadRequestLine(bytes.substr(0, line_bytes - 2), request);    // it was good before
  if (const auto good = ReadFields(bytes.substr(line_bytes, at - 2 - line_bytes), request); !good) {
    return tl::unexpected(good.error());
  }
  return Step{begin + at, true};
}

}    // namespace dthrottle
