// What a peer said of one tag in a report, and what this host makes of it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "base/report_place.h"
#include "base/time.h"
#include "base/tokens.h"

namespace dthrottle {

// How far back the hits of a report may have happened, in periods.
inline constexpr int kReachPeriods = 3;

// The party that says that hits were served: a peer, or another site of all its hosts.
struct Speaker {
  // The longest that settings allow: a peer may say an hour.
  static constexpr Duration kPeriodMax = std::chrono::minutes(5);

  Speaker(std::uint32_t peer = 0, Duration said = {}) : number(peer), period(std::min(said, kPeriodMax)) {}
  static Speaker Site(std::uint32_t site, std::uint64_t hosts, Duration period) {
    Speaker speaker(site);
    speaker.abroad = true, speaker.hosts = hosts, speaker.period = period;
    return speaker;
  }

  // A number that no peer has if it is a site.
  std::uint32_t from_whom() const { return abroad ? ~number : number; }

  std::uint32_t number;
  bool abroad = false;
  std::uint64_t hosts = 1;
  Duration period;    // of its reports, if it is longer than this host's
  ReportPlace place{};    // of the one that it says so in
};

struct PeerWord {
  std::uint32_t peer;    // its number
  Tokens hits;           // served in (when, to]
  double demand;         // announced, tokens/s
  Instant when, to;
  bool abroad = false;    // another site says it of all its hosts, and `peer` is the site's number
  Duration period{};      // of the peer's reports, if it is longer than this host's

  // The same as Speaker::from_whom.
  std::uint32_t from_whom() const { return abroad ? ~peer : peer; }
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
