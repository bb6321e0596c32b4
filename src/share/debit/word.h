// What a peer said of one tag in a report, and what this host makes of it.
#pragma once

#include <cstdint>
#include <optional>

#include "base/time.h"
#include "base/tokens.h"

namespace dthrottle {

// How far back the hits of a report may have happened, in periods.
inline constexpr int kReachPeriods = 3;

struct PeerWord {
  std::uint32_t peer;    // its number
  Tokens hits;           // served in (when, to]
  double demand;         // announced, tokens/s
  Instant when, to;
};

// What the owner of a tag says of all other hosts.
struct OwnersWord {
  double demand;    // tokens/s
  Tokens level;     // with all that they have served or are foretold to have
};

struct Heed {
  std::optional<Tokens> paid{};       // of the hits, by refill that was wasted; none: the bucket's account decides
  bool believed = true;               // false: the demand counts for less than was announced
  Instant hits_from{}, hits_to{};     // about when the hits but the first were served
  std::optional<Tokens> refused{};    // beside them, where all hosts serve the same part of what they are asked
  bool told_at_once = false;          // this host tells the certificate of its own hits before they are in a report

  // The times as the report states them.
  static Heed AsStated(const PeerWord& word) { return {.hits_from = word.when, .hits_to = word.to}; }
};

}    // namespace dthrottle
