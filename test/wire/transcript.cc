#include "test/wire/transcript.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace dthrottle::testing {

namespace {

// \n \r \\ \xNN and \{N*text}.
Result<std::string> Unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    const char kind = ++i < text.size() ? text[i] : '\0';
    if (kind == 'n' || kind == 'r' || kind == '\\') {
      out += kind == 'n' ? '\n' : kind == 'r' ? '\r' : '\\';
    } else if (kind == 'x' && i + 2 < text.size()) {
      unsigned char byte = 0;
      if (std::from_chars(&text[i + 1], &text[i + 3], byte, 16).ptr != &text[i + 3]) return Fail("bad \\x");
      out += static_cast<char>(byte);
      i += 2;
    } else if (kind == '{') {
      const std::size_t star = text.find('*', i), end = text.find('}', i);
      if (star == std::string_view::npos || end == std::string_view::npos || star > end) return Fail("bad \\{");
      const auto repeated = Unescape(text.substr(star + 1, end - star - 1));
      if (!repeated) return repeated;
      for (int n = std::stoi(std::string(text.substr(i + 1, star - i - 1))); n > 0; --n) out += *repeated;
      i = end;
    } else {
      return Fail("bad escape");
    }
  }
  return out;
}

std::string TomlString(const std::string& bytes) {
  std::string out = "\"";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || c == '"' || c == '\\' || byte > 0x7e ? fmt::format("\\u{:04x}", byte) : std::string(1, c);
  }
  return out + '"';
}

// "name=value" words as TOML lines.
Result<std::string> Keys(std::istringstream& words) {
  std::string out, word;
  while (words >> word) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) return Fail("not name=value: " + word);
    const std::string name = word.substr(0, equals);
    const auto value = Unescape(word.substr(equals + 1));
    if (!value) return value;
    static constexpr std::string_view kUnquoted[] = {"burst",         "rate",     "in_flight",
                                                     "penalty.after", "capacity", "safe_capacity",
                                                     "fail_closed"};
    const bool is_toml = std::ranges::find(kUnquoted, name) != std::end(kUnquoted) || value->starts_with('[');
    out += fmt::format("{} = {}\n", name, is_toml ? *value : TomlString(*value));
  }
  return out;
}

}    // namespace

Result<Transcript> ParseTranscript(std::string_view text) {
  Transcript t;
  std::istringstream lines{std::string(text)};
  bool closed = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == ">" || what == "<") {
      const auto bytes = Unescape(line.size() > 2 ? std::string_view(line).substr(2) : "");
      if (!bytes) return Fail(bytes.error().message + ": " + line);
      (what == ">" ? t.sent : t.expected) += *bytes;
      if (what == ">" && closed) return Fail("sends after close");
    } else if (what == "rule" || what == "override" || what == "resource") {
      const auto keys = Keys(words);
      if (!keys) return Fail(keys.error().message);
      t.settings += fmt::format("[[{}]]\n{}", what, *keys);
    } else if (what == "max_tag_bytes") {
      words >> t.tag_bytes_max;
    } else if (what == "accept_limits") {
      t.accept_limits = true;
    } else if (what == "learning") {
      t.learning = true;
    } else if (what == "gateway") {
      t.gateway = true;
    } else if (what == "elsewhere") {
      words >> t.elsewhere;
    } else if (what == "min_request_interval") {
      words >> t.min_request_interval_s;
    } else if (what == "close" || what == "end") {
      closed = true;
    } else {
      return Fail("unknown line: " + line);
    }
  }
  return t;
}

std::vector<std::filesystem::path> TranscriptFiles(std::string_view folder) {
  std::vector<std::filesystem::path> files;
  const std::filesystem::path protocol = DTHROTTLE_SOURCE "/protocol";
  for (const auto& entry : std::filesystem::directory_iterator(protocol / folder)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Transcript LoadTranscript(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto transcript = ParseTranscript(text);
  if (!transcript) throw std::runtime_error(path.string() + ": " + transcript.error().message);
  return *transcript;
}

}    // namespace dthrottle::testing
