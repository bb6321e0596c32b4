#include "config/keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "config/kinds.h"
#include "config/sections.h"

namespace dthrottle {

namespace {

// The default of a key, which is written as TOML but only ever as one of these.
Value DefaultValue(std::string_view text) {
  if (text == "[]") return std::vector<std::string>();
  if (text == "false") return false;
  if (text.starts_with('"')) return std::string(text.substr(1, text.size() - 2));
  if (text.find('.') != text.npos) return std::stod(std::string(text));
  return static_cast<std::int64_t>(std::stoll(std::string(text)));
}

constexpr std::string_view kRuntimeDir = "/run/dthrottle";

}    // namespace

const std::vector<Section>& Sections() {
  static const std::vector<Section> sections = {
      QuerySection(), AdminSection(), TableSection(), PeersSection(), SitesSection(),    CapacitySection(),
      ShedSection(),  RespSection(),  AskSection(),   HoldSection(),  QuotaSection(),    PageSection(),
      SpopSection(),  EnvoySection(), LeaseSection(), TlsSection(),   OperatorSection(), ProcessSection()};
  return sections;
}

std::vector<std::string> KeepStartKeys(const Settings& running, Settings& loaded) {
  std::vector<std::string> differed;
  for (const Section& section : Sections()) {
    std::vector<std::string_view> kept;    // of the section
    const auto keep = [&](const Key<Settings>& key) {
      if (key.get(running) == key.get(loaded)) return;
      kept.push_back(key.name);
      differed.push_back(fmt::format("{}.{}", section.name, key.name));
      DT_CHECK(key.set(loaded, key.get(running)));
    };
    for (const auto& key : section.keys) {
      if (!key.reloads) keep(key);
    }
    for (const auto& key : section.keys) {
      if (std::ranges::find_first_of(key.reloads_unless, kept) != key.reloads_unless.end()) keep(key);
    }
  }
  return differed;
}

Settings DefaultSettings(std::string_view runtime_dir) {
  Settings settings;
  for (const Section& section : Sections()) {
    for (const auto& key : section.keys) {
      Value value = DefaultValue(key.default_text);
      if (auto* text = std::get_if<std::string>(&value); text != nullptr && text->starts_with(kRuntimeDir)) {
        text->replace(0, kRuntimeDir.size(), runtime_dir);
      }
      key.set(settings, value);
    }
  }
  return settings;
}

// ---- What kinds of keys share ----

std::string OneOf(std::span<const std::string_view> choices) {
  std::string allowed = "one of";
  for (const auto& choice : choices) allowed += fmt::format("{} \"{}\"", &choice == choices.data() ? "" : ",", choice);
  return allowed;
}

bool IsOneOf(std::span<const std::string_view> choices, std::string_view text) {
  return std::find(choices.begin(), choices.end(), text) != choices.end();
}

std::optional<double> NumberIn(const Value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* number = std::get_if<double>(&value)) return *number;
  return std::nullopt;
}

bool NoControls(const std::string& text) {
  return std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

bool IsPath(const std::string& text) {
  return text.empty() || (text.front() == '/' && NoControls(text));
}

bool IsSocketPath(const std::string& text) {
  return IsPath(text) && text.size() < 108;
}

bool IsEtcdUrl(const std::string& text) {
  const std::size_t scheme = text.starts_with("http://") ? 7 : text.starts_with("https://") ? 8 : 0;
  return scheme > 0 && text.size() > scheme && text.size() <= 255 && NoControls(text) &&
         text.find_first_of(" ?#", scheme) == std::string::npos && !text.ends_with('/');
}

}    // namespace dthrottle
