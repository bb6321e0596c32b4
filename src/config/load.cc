#include "config/load.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "config/findings.h"
#include "config/keys.h"
#include "config/listeners.h"
#include "config/paths.h"
#include "config/retired.h"
#include "config/sections.h"
#include "rule/rulebook.h"

namespace dthrottle {

namespace {

constexpr std::size_t kResourcesMax = 10'000;    // templates; each that does not match costs a new resource a glob

Value FromToml(const toml::node& node) {
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_string()) return v->get();
  const auto* array = node.as_array();
  if (array == nullptr || !std::all_of(array->begin(), array->end(), [](const auto& n) { return n.is_string(); })) {
    return {};
  }
  std::vector<std::string> list;
  for (const auto& element : *array) list.push_back(element.as_string()->get());
  return list;
}

// A value that no key can have still has to be shown.
std::string QuoteNode(const toml::node& node) {
  const Value value = FromToml(node);
  if (!std::holds_alternative<std::monostate>(value)) return Quote(value);
  return node.is_table() ? "a table" : node.is_array() ? "a list of mixed values" : "a date or time";
}

// The key in TOML: in quotes, unless it is a bare word.
std::string ShownKey(std::string_view key) {
  const auto is_bare = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-'; };
  return !key.empty() && std::ranges::all_of(key, is_bare) ? std::string(key) : Quote(std::string(key));
}

template <class T>
std::string KeyNames(const std::vector<Key<T>>& keys) {
  std::string names;
  for (const auto& key : keys) names += fmt::format("{}{}", names.empty() ? "" : ", ", key.name);
  return names;
}

Findings::Place ToPlace(toml::source_position at) {
  return {at.line, at.column};
}

template <class Node>
Findings::Place PlaceOf(const Node& node) {
  return ToPlace(node.source().begin);
}

class Loader {
 public:
  using Reader = Findings::Reader;

  Loader(std::string_view file, std::string_view runtime_dir, std::span<const FurtherTable> further,
         const FileReader& read, Reader reader)
      : further_(further), read_(read), findings_(loaded_, reader) {
    loaded_.settings = DefaultSettings(runtime_dir);
    loaded_.file = file;
  }

  // Reads nothing but these lists, into settings that have everything else.
  Loader(std::string_view file, Settings settings, std::span<const std::string_view> lists, const FileReader& read)
      : lists_(lists), read_(read), findings_(loaded_, Reader::kDaemon) {
    loaded_.settings = std::move(settings);
    loaded_.file = file;
  }

  LoadedSettings Load(std::string_view text) {
    if (Readable(text)) Parse(text);
    findings_.Finish();
    return std::move(loaded_);
  }

  LoadedSettings Reload(std::string_view text, const Settings& running) {
    if (Readable(text)) Parse(text);
    if (loaded_.ok()) KeepWhatRuns(running);
    findings_.Finish();
    return std::move(loaded_);
  }

 private:
  bool Readable(std::string_view text) {
    if (text.size() > kSettingsBytesMax) {
      findings_.Error(Findings::Place(), fmt::format("{} bytes; must be at most {}", text.size(), kSettingsBytesMax));
      return false;
    }
    Findings::Place at{1, 1};
    for (std::size_t start = 0; start <= text.size(); ++at.line) {
      const std::size_t end = std::min(text.find('\n', start), text.size());
      if (end - start > kSettingsLineBytesMax) {
        findings_.Error(at, fmt::format("a line of {} bytes; must be at most {}", end - start, kSettingsLineBytesMax));
        return false;
      }
      start = end + 1;
    }
    return true;
  }

  void Parse(std::string_view text) {
    toml::table root;
    try {
      root = toml::parse(text, loaded_.file);
    } catch (const toml::parse_error& e) {
      findings_.Error(ToPlace(e.source().begin), fmt::format("not TOML: {}", e.description()));
      return;
    }
    for (const auto& [name, node] : root) Top(name.str(), node);
    Check();
  }

  void Check() {
    if (Reads("resource")) CheckResources(findings_);
    if (Reads("rule")) CheckRulesAndOverrides();
    if (lists_.empty()) {
      CheckListeners(findings_);
      CheckPaths(findings_);
      CheckPeers(findings_);
      CheckLease(findings_);
      CheckTlsFiles(findings_);
      CheckIdleKeys(findings_);
    }
    if (Reads("rule")) CheckAnyRule();
  }

  bool Reads(std::string_view list) const { return lists_.empty() || std::ranges::find(lists_, list) != lists_.end(); }

  void CheckRulesAndOverrides() {
    NameRules();
    TakeNetworks(loaded_.settings.rules, read_, findings_);
    CheckRules(findings_);
    CheckReach(findings_);
    CheckOwned(findings_);
    CheckSites(findings_);
    CheckQuotas(findings_);
    CheckAlso(findings_);
    CheckShares(findings_);
    CheckOverrides(findings_);
    CheckShed(findings_);
    CheckCapacity(findings_);
  }

  // A file with errors is told of those alone.
  void CheckAnyRule() {
    const Settings& s = loaded_.settings;
    if (!s.rules.empty() || !s.overrides.empty() || findings_.fleet() || !loaded_.ok()) return;
    if (lists_.empty()) return findings_.Warn("", "there is no [[rule]]: every query will be answered OK");
    findings_.Error("", "no [[rule]] and no [[override]]: every query would be served");
  }

  // The file by itself has no errors, and what it is warned of has been said.
  void KeepWhatRuns(const Settings& running) {
    const std::vector<std::string> kept = KeepStartKeys(running, loaded_.settings);
    if (kept.empty()) return;
    std::vector<Problem> of_file = std::exchange(loaded_.problems, {});
    Check();
    const std::vector<Problem> of_both = std::exchange(loaded_.problems, std::move(of_file));
    for (const std::string& key : kept) findings_.Warn(key, key + " changes at the next start");
    for (const Problem& problem : of_both) {
      if (problem.severity != Problem::Severity::kError) continue;
      findings_.Error({problem.line, problem.column}, "until the next start: " + problem.message);
    }
  }

  void Top(std::string_view name, const toml::node& node) {
    if (!Reads(name)) {
      return findings_.Error(
          PlaceOf(node), fmt::format("unknown key {}; must be [[{}]]", ShownKey(name), fmt::join(lists_, "]] or [[")));
    }
    if (name == "rule") {
      List(name, node, RuleKeys(), loaded_.settings.rules, findings_.rules, Rulebook::kRulesMax);
      for (std::size_t i = 0; i < findings_.rules.size(); ++i) {
        findings_.has_match.push_back(node.as_array()->get(i)->as_table()->contains("match"));
      }
      return;
    }
    if (name == "override") {
      return List(name, node, OverrideKeys(), loaded_.settings.overrides, findings_.overrides, Rulebook::kOverridesMax);
    }
    if (name == "resource") {
      return List(name, node, ResourceKeys(), loaded_.settings.resources, findings_.resources, kResourcesMax);
    }
    for (const FurtherTable& table : further_) {
      if (table.name == name) return Further(table, node);
    }
    std::string names;
    for (const Section& section : Sections()) {
      if (section.name == name) {
        if (!IsTable(name, node)) return;
        Keys(name, *node.as_table(), section.keys, loaded_.settings);
        for (const auto& [key, value] : *node.as_table()) {
          findings_.Gives(fmt::format("{}.{}", name, key.str()), PlaceOf(value), QuoteNode(value));
        }
        return;
      }
      names += fmt::format("[{}], ", section.name);
    }
    std::string lists;
    for (const FurtherTable& table : further_) {
      (table.count_max == 0 ? names : lists) +=
          table.count_max == 0 ? fmt::format("[{}], ", table.name) : fmt::format(", [[{}]]", table.name);
    }
    findings_.Error(
        PlaceOf(node),
        fmt::format("unknown key {}; must be one of {}[[rule]], [[override]], [[resource]]{}", ShownKey(name), names,
                    lists));
  }

  void Further(const FurtherTable& table, const toml::node& node) {
    const auto read = [&](const toml::table& entry) {
      FurtherTable::Nothing nothing;
      const auto keys = table.open(entry.source().begin.line);
      Keys(table.name, entry, keys, nothing);
      CheckGiven(table.name, entry, keys);
    };
    if (table.count_max == 0) {
      if (IsTable(table.name, node)) read(*node.as_table());
    } else if (IsListOfTables(table.name, node, table.count_max)) {
      for (const toml::node& element : *node.as_array()) read(*element.as_table());
    }
  }

  bool IsTable(std::string_view name, const toml::node& node) {
    if (node.is_table()) return true;
    findings_.Error(PlaceOf(node), fmt::format("{0} = {1}: must be a table, [{0}]", name, QuoteNode(node)));
    return false;
  }

  bool IsListOfTables(std::string_view name, const toml::node& node, std::size_t count_max) {
    const toml::array* array = node.as_array();
    if (array == nullptr || !std::all_of(array->begin(), array->end(), [](const auto& n) { return n.is_table(); })) {
      findings_.Error(PlaceOf(node),
                      fmt::format("{} = {}: must be a list of tables, [[{}]]", name, QuoteNode(node), name));
      return false;
    }
    if (array->size() > count_max) {
      findings_.Error(PlaceOf(node), fmt::format("{} [[{}]]; must be at most {}", array->size(), name, count_max));
      return false;
    }
    return true;
  }

  template <class T>
  void CheckGiven(std::string_view name, const toml::table& table, const std::vector<Key<T>>& keys) {
    for (const auto& key : keys) {
      if (key.default_text.empty() && !table.contains(key.name)) {
        findings_.Error(PlaceOf(table), fmt::format("{} without {}; must be {}", name, key.name, key.allowed));
      }
    }
  }

  // Whether keys that belong together are named "NAME.key", which is one table in TOML.
  template <class T>
  static bool IsGroup(std::string_view name, const std::vector<Key<T>>& keys) {
    return std::ranges::any_of(keys, [&](const auto& key) {
      return key.name.size() > name.size() && key.name.starts_with(name) && key.name[name.size()] == '.';
    });
  }

  template <class T>
  void Keys(std::string_view section, const toml::table& table, const std::vector<Key<T>>& keys, T& target,
            std::string_view group = "") {
    for (const auto& [toml_key, node] : table) {
      if (node.is_table() && IsGroup(toml_key.str(), keys)) {
        Keys(section, *node.as_table(), keys, target, fmt::format("{}.", toml_key.str()));
        continue;
      }
      const std::string full = fmt::format("{}{}", group, toml_key.str());
      const std::string_view name = full;
      const auto key = std::find_if(keys.begin(), keys.end(), [name](const auto& k) { return k.name == name; });
      if (key != keys.end() && key->set(target, FromToml(node))) continue;
      const std::string shown = QuoteNode(node);
      if (const auto instead = ReplacementOf(section, name, shown); !instead.empty()) {
        findings_.Error(PlaceOf(node), fmt::format("{}.{} = {}: no longer there; {}", section, name, shown, instead));
      } else if (key == keys.end()) {
        findings_.Error(PlaceOf(toml_key),
                        fmt::format("unknown key {}.{}{}; must be one of {}", section, group,
                                    ShownKey(toml_key.str()), KeyNames(keys)));
      } else {
        findings_.Error(PlaceOf(node), fmt::format("{}.{} = {}: must be {}", section, name, shown, key->allowed));
        findings_.HasWrong(section);
      }
    }
  }

  template <class T>
  void List(std::string_view name, const toml::node& node, const std::vector<Key<T>>& keys, std::vector<T>& list,
            std::vector<Findings::Place>& places, std::size_t count_max) {
    if (!IsListOfTables(name, node, count_max)) return;
    const toml::array& array = *node.as_array();
    list.reserve(array.size());
    for (const toml::node& element : array) {
      const toml::table& table = *element.as_table();
      T item{};
      Keys(name, table, keys, item);
      CheckGiven(name, table, keys);
      list.push_back(std::move(item));
      places.push_back(PlaceOf(table));
    }
  }

  void NameRules() {
    auto& rules = loaded_.settings.rules;
    for (std::size_t i = 0; i < rules.size(); ++i) {
      if (rules[i].name.empty()) rules[i].name = fmt::format("rule-{}", i + 1);
    }
  }

  std::span<const FurtherTable> further_;
  std::span<const std::string_view> lists_;    // that are read; empty: everything
  FileReader read_;
  LoadedSettings loaded_;
  Findings findings_;
};

}    // namespace

bool LoadedSettings::ok() const {
  return std::none_of(problems.begin(), problems.end(),
                      [](const Problem& p) { return p.severity == Problem::Severity::kError; });
}

std::string LoadedSettings::Errors() const {
  std::string lines;
  for (const Problem& problem : problems) {
    if (problem.severity != Problem::Severity::kError) continue;
    lines += (lines.empty() ? "" : "\n") + Format(problem);
  }
  return lines;
}

Problem LoadedSettings::ErrorAt(std::string_view section, std::string_view key, std::string_view complaint) const {
  Problem problem{Problem::Severity::kError, file, 0, 0, {}};
  const std::string path = fmt::format("{}.{}", section, key);
  if (const auto place = places.find(path); place != places.end()) {
    problem.line = place->second.line;
    problem.column = place->second.column;
  }
  for (const Section& s : Sections()) {
    for (const auto& k : s.keys) {
      if (s.name != section || k.name != key) continue;
      problem.message = fmt::format("{} = {}: {}", path, Quote(k.get(settings)), complaint);
    }
  }
  return problem;
}

std::string Format(const Problem& p) {
  const std::string place = p.line == 0 ? p.file : fmt::format("{}:{}:{}", p.file, p.line, p.column);
  return fmt::format("{}: {}: {}", place, p.severity == Problem::Severity::kError ? "error" : "warning", p.message);
}

LoadedSettings ParseSettings(std::string_view text, std::string_view file, std::string_view runtime_dir,
                             std::span<const FurtherTable> further, const FileReader& read) {
  const auto reader = further.empty() ? Findings::Reader::kDaemon : Findings::Reader::kFleet;
  return Loader(file, runtime_dir, further, read, reader).Load(text);
}

LoadedSettings ParseForRehearsal(std::string_view text, std::string_view file, const FileReader& read) {
  return Loader(file, "/run/dthrottle", {}, read, Findings::Reader::kRehearsal).Load(text);
}

LoadedSettings ParseReload(std::string_view text, std::string_view file, std::string_view runtime_dir,
                           const Settings& running, const FileReader& read) {
  return Loader(file, runtime_dir, {}, read, Findings::Reader::kDaemon).Reload(text, running);
}

LoadedSettings ParseResources(std::string_view text, std::string_view file, Settings settings) {
  static constexpr std::string_view kLists[] = {"resource"};
  settings.resources.clear();
  return Loader(file, std::move(settings), kLists, {}).Load(text);
}

LoadedSettings ParseRules(std::string_view text, std::string_view file, Settings settings, const FileReader& read) {
  static constexpr std::string_view kLists[] = {"rule", "override"};
  settings.rules.clear(), settings.overrides.clear();
  return Loader(file, std::move(settings), kLists, read).Load(text);
}

}    // namespace dthrottle
