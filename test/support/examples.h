// The bytes that pages of protocol/ show.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>

namespace dthrottle::testing {

// The bytes of the page's examples by heading: a line of an example is indented, hex in pairs, then two blanks and what
// it means.
inline std::map<std::string, std::string> Examples(const std::string& page) {
  std::ifstream in(DTHROTTLE_SOURCE "/protocol/" + page);
  std::map<std::string, std::string> examples;
  std::string line, section, heading;
  while (std::getline(in, line)) {
    if (line.starts_with("## ")) section = line.substr(3);
    if (line.starts_with("### ")) heading = line.substr(4);
    if (!line.starts_with("    ") || section != "Examples") continue;
    std::istringstream hex(line.substr(0, line.find("  ", 4)));
    for (unsigned byte; hex >> std::hex >> byte;) examples[heading] += static_cast<char>(byte);
  }
  return examples;
}

inline std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x} ", static_cast<unsigned char>(c));
  return text;
}

}    // namespace dthrottle::testing
