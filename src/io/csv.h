// Comma-separated values (RFC 4180, lines end with LF): the tables that programs read.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace dthrottle {

// A field as it stands in a file: in quotes if it has to be.
std::string CsvField(std::string_view text);

// Lines of fields, to be appended to a file or written at once.
class Csv {
 public:
  // One line. Numbers are written so that they read back as the same.
  template <class... Fields>
  void Row(const Fields&... fields) {
    bool first = true;
    ((first ? void(first = false) : text_.push_back(','), Append(fields)), ...);
    text_ += '\n';
  }

  const std::string& text() const { return text_; }
  void Clear() { text_.clear(); }

 private:
  void Append(std::string_view field) { text_ += CsvField(field); }
  void Append(const std::string& field) { Append(std::string_view(field)); }
  void Append(const char* field) { Append(std::string_view(field)); }
  template <class Number>
  void Append(const Number& number) {
    fmt::format_to(std::back_inserter(text_), "{}", number);
  }

  std::string text_;
};

}    // namespace dthrottle
