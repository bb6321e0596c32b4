// The lines of one connection. A line that is too long is told so once and passed over, so that what stands behind it
// is answered.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "query/http_line.h"

namespace dthrottle {

class AskReader {
 public:
  static constexpr std::size_t kLineBytesMax = 8192;    // without its LF

  // Whether the connection begins with an HTTP request, which a browser may be made to send with questions behind it.
  // To be asked before Read, with the same bytes; then it is to be closed.
  bool IsBrowser(std::string_view bytes) {
    const bool whole = bytes.find('\n') != bytes.npos;
    if (!is_new_ || (!whole && bytes.size() <= kLineBytesMax)) return false;
    is_new_ = false;
    return BeginsWithHttp(bytes, !whole);
  }

  // Calls sink.OnLine(line) for each whole line of `bytes`, without its LF, and sink.OnTooLong() for one that is too
  // long. `bytes` are those of rest() and what was read behind them.
  template <class Sink>
  void Read(std::string_view bytes, Sink& sink) {
    for (std::size_t lf; (lf = bytes.find('\n')) != bytes.npos; bytes.remove_prefix(lf + 1)) {
      if (passing_over_) {
        passing_over_ = false;
      } else if (lf > kLineBytesMax) {
        sink.OnTooLong();
      } else {
        sink.OnLine(bytes.substr(0, lf));
      }
    }
    if (!passing_over_ && bytes.size() > kLineBytesMax) {
      sink.OnTooLong();
      passing_over_ = true;
    }
    rest_ = passing_over_ ? std::string_view() : bytes;
  }

  std::string_view rest() const { return rest_; }    // at most kLineBytesMax bytes

  // What another process needs beside rest(), and goes on with.
  std::string state() const { return passing_over_ ? "passing over" : ""; }
  void Restore(std::string_view rest, std::string_view state) {
    rest_ = rest;
    passing_over_ = !state.empty();
    is_new_ = false;
  }

 private:
  std::string rest_;
  bool is_new_ = true;           // its first line has not been read
  bool passing_over_ = false;    // a line that is too long, up to its LF
};

}    // namespace dthrottle
