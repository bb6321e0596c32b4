#include "admin/escape.h"

#include <fmt/format.h>

#include <charconv>

namespace dthrottle {

namespace {

std::string Escape(std::string_view bytes, std::string_view backslash) {
  std::string out;
  out.reserve(bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\\') {
      out += backslash;
    } else if (byte < 0x20 || byte > 0x7e) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

}    // namespace

std::string EscapeTag(std::string_view bytes) {
  return Escape(bytes, "\\\\");
}

std::string EscapeRest(std::string_view text) {
  return Escape(text, "\\");
}

std::string Shortened(std::string_view text, std::size_t bytes_max) {
  return std::string(text.substr(0, bytes_max)) + (text.size() > bytes_max ? "..." : "");
}

Result<std::string> UnescapeTag(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
    } else if (text.substr(i, 2) == "\\\\") {
      out += text[i++];
    } else {
      const std::string_view hex = text.substr(i).substr(0, 4);
      unsigned char byte = 0;
      const bool whole = hex.size() == 4 && hex[1] == 'x';
      if (!whole || std::from_chars(hex.data() + 2, hex.data() + 4, byte, 16).ptr != hex.data() + 4) {
        return Fail("a backslash must begin \\\\ or \\xNN");
      }
      out += static_cast<char>(byte);
      i += 3;
    }
  }
  return out;
}

}    // namespace dthrottle
