// The seeds under which a property of simulated hosts is looked at.
//
//   DTHROTTLE_SIM_SEED=n     that seed only
//   DTHROTTLE_SIM_RUNS=n     so many in place of those that the test asks for
//   DTHROTTLE_SIM_FIRST=n    from this one on
#pragma once

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "test/support/sanitized.h"

namespace dthrottle::testing {

// `count` seeds; fewer under a sanitizer.
inline std::vector<std::uint64_t> Seeds(std::uint64_t count) {
  const auto wanted = [](const char* name, std::uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
  };
  if (const char* one = std::getenv("DTHROTTLE_SIM_SEED")) return {std::strtoull(one, nullptr, 10)};
  std::vector<std::uint64_t> seeds(Fewer(wanted("DTHROTTLE_SIM_RUNS", count)));
  std::iota(seeds.begin(), seeds.end(), wanted("DTHROTTLE_SIM_FIRST", 1));
  return seeds;
}

}    // namespace dthrottle::testing
