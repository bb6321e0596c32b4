// Settings as text again: for `config`, for the example file and for the manual, from the one table of keys.
#include <fmt/format.h>

#include <algorithm>

#include "config/keys.h"
#include "config/values.h"

namespace dthrottle {

namespace {

std::string QuoteText(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04X}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

// Whether it is UTF-8 by RFC 3629: in the shortest form, without surrogates.
bool IsUtf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
    const unsigned first = byte(i);
    const std::size_t more = first < 0x80 ? 0 : first >> 5 == 6 ? 1 : first >> 4 == 14 ? 2 : first >> 3 == 30 ? 3 : 4;
    if (more == 4) return false;
    std::uint32_t point = more == 0 ? first : first & (0x3f >> more);
    for (std::size_t k = 1; k <= more; ++k) {
      if (byte(i + k) >> 6 != 2) return false;
      point = point << 6 | (byte(i + k) & 0x3f);
    }
    constexpr std::uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    if (point < kLeast[more] || point > 0x10ffff || point >> 11 == 0x1b) return false;
    i += more + 1;
  }
  return true;
}

std::string ToToml(const Value& value) {
  struct Visitor {
    std::string operator()(std::monostate) const { return ""; }
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(std::int64_t i) const { return std::to_string(i); }
    std::string operator()(double d) const { return FormatNumber(d); }
    std::string operator()(const std::string& s) const { return QuoteText(s); }
    std::string operator()(const std::vector<std::string>& list) const {
      constexpr std::size_t kLineBytes = 1000;    // a reader takes lines of kSettingsLineBytesMax
      std::string out = "[";
      std::size_t line = 0;    // where it begins
      for (const auto& s : list) {
        if (out.size() > 1) out += ',';
        const bool full = out.size() - line > kLineBytes;
        if (full) line = out.size() + 1;
        if (out.size() > 1) out += full ? '\n' : ' ';
        out += QuoteText(s);
      }
      return out + "]";
    }
  };
  return std::visit(Visitor(), value);
}

template <class T>
void RenderKeys(std::string& out, const std::vector<Key<T>>& keys, const T& target) {
  for (const auto& key : keys) {
    const Value value = key.get(target);
    if (!std::holds_alternative<std::monostate>(value)) out += fmt::format("{} = {}\n", key.name, ToToml(value));
  }
}

// The keys that differ from what a T has without them.
template <class T>
void RenderGiven(std::string& out, std::string_view list, const std::vector<Key<T>>& keys, const T& target) {
  const T nothing{};
  out += fmt::format("[[{}]]\n", list);
  for (const auto& key : keys) {
    const Value value = key.get(target);
    const bool is_default = !key.default_text.empty() && value == key.get(nothing);
    if (!is_default && !std::holds_alternative<std::monostate>(value)) {
      out += fmt::format("{} = {}\n", key.name, ToToml(value));
    }
  }
}

// Wraps `text` into comment lines.
std::string Comment(std::string_view text) {
  std::string out, line = "#";
  std::size_t start = 0;
  while (start < text.size()) {
    const std::size_t end = std::min(text.find(' ', start), text.size());
    const std::string word(text.substr(start, end - start));
    if (line.size() + 1 + word.size() > 100) {
      out += line + "\n";
      line = "#";
    }
    line += " " + word;
    start = end + 1;
  }
  return out + line + "\n";
}

// "*words*" are emphasized; a star followed or preceded by a blank stands for itself.
template <class Emphasize>
std::string Marked(std::string_view text, Emphasize&& emphasize) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t end = text[i] == '*' ? text.find('*', i + 1) : std::string_view::npos;
    const bool opens =
        end != std::string_view::npos && i + 1 < text.size() && text[i + 1] != ' ' && text[end - 1] != ' ';
    if (opens) {
      out += emphasize(text.substr(i + 1, end - i - 1));
      i = end;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string Plain(std::string_view text) {
  return Marked(text, [](std::string_view word) { return std::string(word); });
}

std::string Sentence(std::string_view allowed) {
  return fmt::format("Must be {}.", allowed);
}

// `item`: values of a table of a list; null: the defaults of a section.
template <class T>
void RenderExampleKeys(std::string& out, const std::vector<Key<T>>& keys, const T* item) {
  for (const auto& key : keys) {
    const std::string value = item != nullptr ? ToToml(key.get(*item)) : std::string(key.default_text);
    out += "\n" + Comment(Plain(key.meaning)) + Comment(Sentence(key.allowed));
    if (item == nullptr && !key.reloads) out += "# Read at start only.\n";
    out += value.empty() ? fmt::format("# {} = \"...\"\n", key.name) : fmt::format("{} = {}\n", key.name, value);
  }
}

// ---- mdoc ----

std::string Roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else {
      out += c;
    }
  }
  return out;
}

// One sentence a line, as mdoc wants it.
std::string Paragraph(std::string_view text) {
  std::string out = Marked(Roff(text), [](std::string_view word) { return fmt::format("\\fI{}\\fR", word); });
  for (std::size_t i = out.find(". "); i != std::string::npos; i = out.find(". ", i)) out.replace(i, 2, ".\n");
  return out + "\n";
}

template <class T>
void RenderManualKeys(std::string& out, const std::vector<Key<T>>& keys, bool item) {
  out += ".Bl -tag -width Ds\n";
  for (const auto& key : keys) {
    out += fmt::format(".It Ic {}\n", key.name) + Paragraph(key.meaning) + Paragraph(Sentence(key.allowed));
    if (!item && !key.reloads) out += "Read at start only.\n";
    if (key.default_text.empty()) {
      out += "Required.\n";
    } else if (!item || key.default_text != "\"\"") {
      out += fmt::format("Default: {}.\n", Roff(key.default_text));
    }
  }
  out += ".El\n";
}

}    // namespace

std::string Quote(const Value& value) {
  constexpr std::size_t kShown = 80;
  std::string text = ToToml(value);
  if (text.size() <= kShown) return text;
  std::size_t end = kShown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;    // not inside a character
  return text.substr(0, end) + "...";
}

bool IsTagOfFile(std::string_view tag) {
  const auto& keys = OverrideKeys();
  const auto key = std::ranges::find(keys, "tag", &Key<Override>::name);
  Override probe;
  return IsUtf8(tag) && key->set(probe, Value(std::string(tag)));
}

std::string RenderSettings(const Settings& settings, std::span<const Rule> rules, std::span<const Override> overrides) {
  std::string out;
  for (const Section& section : Sections()) {
    out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section.name);
    RenderKeys(out, section.keys, settings);
  }
  for (const Rule& rule : rules) {
    out += "\n[[rule]]\n";
    RenderKeys(out, RuleKeys(), rule);
  }
  for (const Override& o : overrides.first(std::min(overrides.size(), kOverridesRendered))) {
    if (!IsTagOfFile(o.tag)) continue;
    out += "\n[[override]]\n";
    RenderKeys(out, OverrideKeys(), o);
  }
  if (overrides.size() > kOverridesRendered) {
    out += fmt::format("\n# and {} more [[override]]\n", overrides.size() - kOverridesRendered);
  }
  for (const lease::ResourceTemplate& resource : settings.resources) {
    out += "\n[[resource]]\n";
    RenderKeys(out, ResourceKeys(), resource);
  }
  return out;
}

std::string RenderRules(std::span<const Rule> rules, std::span<const Override> overrides) {
  std::string out;
  for (const Rule& rule : rules) RenderGiven(out, "rule", RuleKeys(), rule);
  for (const Override& its : overrides) RenderGiven(out, "override", OverrideKeys(), its);
  return out;
}

std::string RenderExample() {
  Rule rule;
  rule.name = "login", rule.match = "login:*";
  const Override partner{"login:partner-7", 100, 20, {}, {}};
  const lease::ResourceTemplate orders{.identifier_glob = "db:orders", .capacity = 500};
  std::string out =
      "# Settings of dthrottled(8): every key with its meaning, what is allowed, and its default.\n"
      "# Check a file with: dthrottled --check FILE\n"
      "# Put it in force with: systemctl reload dthrottled, or SIGHUP.\n";
  for (const Section& section : Sections()) {
    out += "\n" + Comment(Plain(section.meaning)) + fmt::format("[{}]\n", section.name);
    RenderExampleKeys<Settings>(out, section.keys, nullptr);
  }
  out += "\n" + Comment(Plain(kRuleMeaning)) + "[[rule]]\n";
  RenderExampleKeys(out, RuleKeys(), &rule);
  out += "\n# The default rule: everybody else.\n[[rule]]\nname = \"default\"\nburst = 10\nrate = 1.0\n";
  out += "\n" + Comment(Plain(kOverrideMeaning)) + "[[override]]\n";
  RenderExampleKeys(out, OverrideKeys(), &partner);
  out += "\n" + Comment(Plain(kResourceMeaning)) + "[[resource]]\n";
  RenderExampleKeys(out, ResourceKeys(), &orders);
  return out;
}

std::string RenderManual() {
  std::string out;
  for (const Section& section : Sections()) {
    out += fmt::format(".Ss [{}]\n", section.name) + Paragraph(section.meaning);
    RenderManualKeys(out, section.keys, false);
  }
  out += ".Ss [[rule]]\n" + Paragraph(kRuleMeaning);
  RenderManualKeys(out, RuleKeys(), true);
  out += ".Ss [[override]]\n" + Paragraph(kOverrideMeaning);
  RenderManualKeys(out, OverrideKeys(), true);
  out += ".Ss [[resource]]\n" + Paragraph(kResourceMeaning);
  RenderManualKeys(out, ResourceKeys(), true);
  return out;
}

}    // namespace dthrottle
