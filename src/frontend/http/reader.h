// Cuts a stream of bytes into HTTP/1.x requests, without sockets (protocol/http.md). It is strict where two readers of
// one stream could disagree about where a request ends, because a proxy in front may be the other reader: lines end in
// CRLF, no field is continued on the next line, and a field that frames a request or decides about it comes once.
//
// No request that is answered here has a body. A request that announces one is reported with has_body; where it ends
// is not looked for, so nothing behind it may be read.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "base/result.h"

namespace dthrottle {

inline constexpr std::size_t kHttpHeadBytesMax = 16 * 1024;    // of a request's line and fields, with their ends
inline constexpr std::size_t kHttpFieldsMax = 128;

// One request, as views into the bytes that were read.
struct HttpRequest {
  std::string_view method;
  std::string_view target;                     // "/check?tag=C"
  std::string_view host;                       // the field Host; empty: none
  std::string_view fetch_site;                 // Sec-Fetch-Site, which only browsers send
  std::optional<std::string_view> origin{};    // Origin: the site of the page, of some requests of browsers
  std::optional<std::string_view> tag;         // Dthrottle-Tag: a tag that needs no encoding
  std::string_view fields;                     // all of them, each a line with its CR LF
  bool is_1_1 = true;                          // false: HTTP/1.0
  bool keep_alive = true;                      // the client wants to ask more on this connection
  bool has_body = false;
  bool through_tcp = true;
};

// Why bytes are no request, as the status of the answer. Nothing behind them can be read.
struct HttpFault {
  unsigned status;
  std::string_view detail;
};

class HttpReader {
 public:
  struct Step {
    std::size_t bytes;    // that were read
    bool whole;           // they end with a request; false: what follows them is incomplete
  };

  // Reads one request at the beginning of `bytes`; all of it is set but through_tcp. What is incomplete must come
  // again, first, in the next call, and has fewer than kHttpHeadBytesMax bytes.
  tl::expected<Step, HttpFault> Next(std::string_view bytes, HttpRequest& request);

 private:
  std::size_t seen_ = 0;    // bytes of the incomplete request that are whole lines
};

}    // namespace dthrottle
