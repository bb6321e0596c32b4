// The words that follow a command of dthrottlectl which has options of its own.
#pragma once

#include <fmt/format.h>
#include <sysexits.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dthrottle {

inline constexpr int kRefused = 1;    // exit code: the daemon answered, but did not do it

// Says what is wrong. Returns the exit code.
inline int Complain(const std::string& message, int exit_code) {
  fmt::print(stderr, "dthrottlectl: {}\n", message);
  return exit_code;
}

// Reads them, the first of which is the command's own name. With an exit code there is nothing more to do: the words are
// wrong, or they ask for help, and that has been said.
inline std::optional<int> ReadWords(CLI::App& app, std::vector<std::string> words) {
  std::ranges::reverse(words);    // as the library wants them
  words.pop_back();
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? EX_OK : EX_USAGE;
  }
  return std::nullopt;
}

}    // namespace dthrottle
