// What a host that owns tags counts.
#pragma once

#include <cstdint>

namespace dthrottle {

// Entries that everybody is told of.
struct NearCounts {
  std::uint64_t told = 0;
  std::uint64_t cut = 0;    // and not told, because there were too many
  std::uint64_t waiting = 0;    // for the next frame, now
};

struct OwningCounts {
  std::uint64_t tags = 0;         // that hosts use, now
  std::uint64_t pushes = 0;       // times that all users of a tag were told
  std::uint64_t told = 0;         // entries, to one host each
  NearCounts near;
  std::uint64_t crowded = 0;      // tags that gave way to others here, or had no room
};

}    // namespace dthrottle
