// What a connection keeps of others: it all comes back when the connection ends.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "hold/hold_table.h"
#include "hold/waits.h"

namespace dthrottle {

struct Holder {
  std::vector<HoldId> holds;                      // that end with it; perhaps some that have ended
  std::map<std::uint64_t, std::uint32_t> places;     // how many, by the hash of their tag
  std::map<std::uint64_t, std::uint32_t> entered;    // tags by which it has them, and how often: they or what is charged
  Waits waits;                                      // what it was told to wait for

  static constexpr std::uint32_t kVersion = 5;    // for ReadState
  static void Fields(auto& state, auto& self) { state(self.holds, self.places, self.entered, self.waits); }
};

}    // namespace dthrottle
