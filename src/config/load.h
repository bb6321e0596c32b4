// Settings from the text of a TOML file. Says everything that is wrong with it at once, each with its place.
#pragma once

#include <string>
#include <string_view>
#include <vector>

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

  bool ok() const;
};

// What is refused before it is parsed: the parser recurses, and nobody needs more.
inline constexpr std::size_t kSettingsBytesMax = std::size_t{256} << 20;
inline constexpr std::size_t kSettingsLineBytesMax = 4096;

// `file` is what messages call the text. Defaults under /run/dthrottle are moved to `runtime_dir`.
LoadedSettings ParseSettings(std::string_view text, std::string_view file,
                             std::string_view runtime_dir = "/run/dthrottle");

}    // namespace dthrottle
