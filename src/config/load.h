// Settings from the text of a TOML file. Says everything that is wrong with it at once, each with its place.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys.h"
#include "config/settings.h"

namespace dthrottle {

struct Problem {
  enum class Severity { kError, kWarning };
  Severity severity;
  std::string file;
  std::uint32_t line;      // from 1; 0: the file as a whole
  std::uint32_t column;    // from 1
  std::string message;
};

// "file:line:column: error: message".
std::string Format(const Problem& problem);

struct LoadedSettings {
  Settings settings;                // complete only if ok()
  std::vector<Problem> problems;    // in the order of the file
  std::string file;
  struct Place {
    std::uint32_t line = 0, column = 0;
  };
  std::map<std::string, Place, std::less<>> places;    // of values that the file gives, by "section.key"

  bool ok() const;
  // Its errors, a line each; empty if ok().
  std::string Errors() const;

  // An error in the value of such a key, which only its user can tell: "section.key = value: complaint".
  Problem ErrorAt(std::string_view section, std::string_view key, std::string_view complaint) const;
};

// What is refused before it is parsed: the parser recurses, and nobody needs more.
inline constexpr std::size_t kSettingsBytesMax = std::size_t{256} << 20;
inline constexpr std::size_t kSettingsLineBytesMax = 4096;

// A table that a program's file has beside those of the daemon, read and complained about in the same way.
struct FurtherTable {
  struct Nothing {};

  std::string_view name;
  std::size_t count_max = 0;    // 0: there is one, [name]; otherwise it is a list, [[name]]
  // For each such table of the file, in order: its keys, which write where they like. `line` is that of the table.
  std::function<std::vector<Key<Nothing>>(std::uint32_t line)> open;
};

// The keys of a T as keys of a further table, writing into `target`, which must outlive them.
template <class T>
std::vector<Key<FurtherTable::Nothing>> KeysOf(const std::vector<Key<T>>& keys, T& target) {
  using Nothing = FurtherTable::Nothing;
  std::vector<Key<Nothing>> bound;
  for (const Key<T>& key : keys) {
    bound.push_back({key.name, key.default_text, key.allowed, key.meaning,
                     [&target, set = key.set](Nothing&, const Value& value) { return set(target, value); },
                     [&target, get = key.get](const Nothing&) { return get(target); }, key.reloads});
  }
  return bound;
}

// `file` is what messages call the text. Defaults under /run/dthrottle are moved to `runtime_dir`. `read` is for files
// that the text names; without it such a file is an error.
LoadedSettings ParseSettings(std::string_view text, std::string_view file,
                             std::string_view runtime_dir = "/run/dthrottle",
                             std::span<const FurtherTable> further = {}, const FileReader& read = {});

// The same for a daemon that runs with these settings and reads its file again. What only a start can change stays as it
// runs, with a warning, and what comes of it is checked again: the file may hold together by itself alone.
LoadedSettings ParseReload(std::string_view text, std::string_view file, std::string_view runtime_dir,
                           const Settings& running, const FileReader& read);

// The same for a program that tries a daemon's rules on hosts of its own, so that the text need name none.
LoadedSettings ParseForRehearsal(std::string_view text, std::string_view file, const FileReader& read);

// The [[resource]] of a text that has nothing else, for a daemon with these settings, whose own are left out.
LoadedSettings ParseResources(std::string_view text, std::string_view file, Settings settings);

// The same for [[rule]] and [[override]], of which there must be one. `read` is for files that rules name.
LoadedSettings ParseRules(std::string_view text, std::string_view file, Settings settings, const FileReader& read);

}    // namespace dthrottle
