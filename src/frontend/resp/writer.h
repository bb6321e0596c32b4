// Replies as both versions of the Redis protocol write them.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "frontend/resp/commands.h"

namespace dthrottle {

class RespWriter {
 public:
  RespWriter(std::string& out, int protocol) : out_(out), protocol_(protocol) {}

  void Simple(std::string_view text) { Line('+', text); }
  void Ok() { Simple("OK"); }
  void Error(std::string_view text) { AppendError(out_, text); }
  void Integer(std::int64_t value) { Line(':', fmt::format_int(value).str()); }
  void Null() { out_ += protocol_ == 3 ? "_\r\n" : "$-1\r\n"; }
  void Array(std::size_t n) { Line('*', fmt::format_int(n).str()); }

  void Bulk(std::string_view text) {
    Line('$', fmt::format_int(text.size()).str());
    Line(text);
  }

  // Pairs of a key and a value follow.
  void Map(std::size_t pairs) {
    if (protocol_ == 3) return Line('%', fmt::format_int(pairs).str());
    Array(2 * pairs);
  }

  // Text for people.
  void Verbatim(std::string_view text) {
    if (protocol_ != 3) return Bulk(text);
    Line('=', fmt::format_int(text.size() + 4).str());
    out_ += "txt:";
    Line(text);
  }

 private:
  void Line(std::string_view text) { (out_ += text) += "\r\n"; }
  void Line(char kind, std::string_view text) {
    out_ += kind;
    Line(text);
  }

  std::string& out_;
  const int protocol_;
};

}    // namespace dthrottle
