// Files of golden traces: each says what was done and what came of it, and doing it again must give the same file.
#pragma once

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace dthrottle::testing {

// Checks each file of `folder` against what replay(text of the file) gives; returns how many there are. With
// DTHROTTLE_UPDATE_TRACES set, writes them as well.
template <class Replay>
int CheckGoldenTraces(const char* folder, Replay replay) {
  int traces = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".txt") continue;
    ++traces;
    DYNAMIC_SECTION(entry.path().stem().string()) {
      std::ifstream in(entry.path());
      const std::string golden{std::istreambuf_iterator<char>(in), {}};
      const std::string now = replay(golden);
      if (std::getenv("DTHROTTLE_UPDATE_TRACES") != nullptr) std::ofstream(entry.path()) << now;
      CHECK(now == golden);
    }
  }
  return traces;
}

}    // namespace dthrottle::testing
