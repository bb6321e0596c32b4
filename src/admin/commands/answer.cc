#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "admin/commands/commands.h"
#include "admin/escape.h"
#include "rule/rulebook.h"

namespace dthrottle::commands {

namespace {

// Columns are those of the first row, padded to their widest value.
std::string TableText(const Json& rows) {
  if (rows.empty()) return "(none)\n";
  std::vector<std::vector<std::string>> lines(1);
  for (const auto& [name, value] : rows.front().items()) lines.front().push_back(name);
  for (const Json& row : rows) {
    lines.emplace_back();
    for (const auto& [name, value] : row.items()) lines.back().push_back(Scalar(value));
  }
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      out += i + 1 == widths.size() ? line[i] : fmt::format("{:<{}}  ", line[i], widths[i]);
    }
    out += '\n';
  }
  return out;
}

// A string is itself; an object, a line for each member; a list of objects, a table.
std::string Text(const Json& answer) {
  if (answer.is_string()) {
    std::string text = answer.get<std::string>();
    return text.ends_with('\n') ? text : text + '\n';
  }
  if (answer.is_array()) return TableText(answer);
  std::size_t width = 0;
  for (const auto& [name, value] : answer.items()) width = std::max(width, name.size());
  std::string out;
  for (const auto& [name, value] : answer.items()) {
    if (!value.is_array()) {
      out += fmt::format("{:<{}}  {}\n", name, width, Scalar(value));
    } else if (!value.empty() && value.front().is_string()) {
      for (const Json& line : value) out += Scalar(line) + '\n';
    } else {
      out += fmt::format("{}:\n{}", name, TableText(value));
    }
  }
  return out;
}

}    // namespace

std::string Scalar(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "-";
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  return value.dump();
}

Json ErrorAnswer(std::string_view message) {
  return {{"error", message}};
}

std::string Finish(const Json& answer, bool as_json) {
  // Patterns and paths may hold bytes that are not UTF-8; they must not keep anybody from an answer.
  if (as_json) return answer.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n\n";
  if (answer.is_object() && answer.contains("error")) {
    return fmt::format("error: {}\n\n", answer["error"].get<std::string>());
  }
  std::string text = Text(answer);
  // An empty line is the end of the answer, so there can be none within.
  for (std::size_t i = text.find("\n\n"); i != std::string::npos; i = text.find("\n\n", i)) text.erase(i, 1);
  return text + '\n';
}

std::unique_ptr<NamedTag> TagArgument(const Context& c, Json& answer) {
  const Result<std::string> bytes = UnescapeTag(c.argument);
  if (!bytes) {
    answer = ErrorAnswer("TAG: " + bytes.error().message);
    return nullptr;
  }
  return std::make_unique<NamedTag>(*bytes, c.host.settings().query.max_tag_bytes, c.limiter().keys().digest);
}

double Rounded(double x) {
  return std::round(x * 1e6) / 1e6;
}

double Hundredths(double x) {
  return std::round(x * 100) / 100;
}

std::string Hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string ShowTag(const Tag& tag) {
  return tag.is_digest ? fmt::format("(over-long, digest {})", Hex(tag.bytes)) : EscapeTag(tag.bytes);
}

Json Escaped(std::string_view text) {
  return text.empty() ? Json() : Json(EscapeTag(text));
}

std::string RuleName(const Rulebook& rules, const Limit& limit) {
  return limit.rule < rules.rules().size() ? rules.rules()[limit.rule].name : "(none)";
}

}    // namespace dthrottle::commands
