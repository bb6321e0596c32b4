// What a connection keeps of others: it all comes back when the connection ends, but waits that are to be kept.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "hold/hold_table.h"
#include "hold/waits.h"

namespace dthrottle {

// What a question has entered by one of its tags. Reloads change what is charged with a tag, so the places are named.
struct Entered {
  std::uint64_t tag;                     // its hash
  std::vector<std::uint64_t> places;     // hashes of tags that it has a place of: this one and those charged with it

  auto operator<=>(const Entered&) const = default;
  static void Fields(auto& state, auto& self) { state(self.tag, self.places); }
};

struct Holder {
  std::vector<HoldId> holds;                         // that end with it; perhaps some that have ended
  std::map<std::uint64_t, std::uint32_t> places;     // how many, by the hash of their tag
  std::map<Entered, std::uint32_t> entered;          // how often: what `give` gives back
  Waits waits;                                       // what it was told to wait for

  static constexpr std::uint32_t kVersion = 9;    // for ReadState
  static void Fields(auto& state, auto& self) { state(self.holds, self.places, self.entered, self.waits); }
};

}    // namespace dthrottle
