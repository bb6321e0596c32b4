// What an operator writes about a limit. Plain data, checked by config/ before it gets here.
#pragma once

#include <optional>
#include <string>

#include "base/time.h"
#include "base/tokens.h"
#include "shed/signal.h"

namespace dthrottle {

// How hosts share a limit (DESIGN section 8).
enum class Share {
  kLocal,       // this host alone
  kDebit,       // every host debits what the others served
  kForecast,    // the same, and between reports they foretell each other's (limiter/forecast.h)
  kCapacity,    // each has a part of the rate, and gives some of it to who needs it more
};

enum class Mode {
  kEnforce,
  kShadow,    // decide and count, but always answer OK
  kOff,       // answer OK and keep nothing
};

struct Rule {
  std::string name;                    // unique
  std::optional<std::string> match;    // glob; a rule without one is the default
  Tokens burst = 10;
  double rate = 1;    // tokens/s
  Share share = Share::kDebit;
  Mode mode = Mode::kEnforce;
  std::optional<Tokens> max_debt;       // most that peers' hits may take a bucket below zero
  std::optional<Tokens> max_unheard;    // of kForecast: most that a host serves before peers can know
  std::optional<Duration> horizon;      // peers' hits older than this are dropped
  double tolerance = 0;                 // % of over-admission that nobody needs to know of; 0: any
  bool shed = false;                    // refuse some queries when the host runs hot
  std::uint32_t shed_priority = 0;      // below kShedPriorities; the lowest are refused first
};

// Another burst and rate for one exact tag; everything else comes from the rule that the tag matches.
struct Override {
  std::string tag;
  Tokens burst;
  double rate;                 // tokens/s
  std::optional<Mode> mode;    // the rule's, if absent
};

inline constexpr std::string_view Name(Share share) {
  constexpr std::string_view kNames[] = {"local", "debit", "forecast", "capacity"};
  return kNames[static_cast<int>(share)];
}

inline constexpr std::string_view Name(Mode mode) {
  constexpr std::string_view kNames[] = {"enforce", "shadow", "off"};
  return kNames[static_cast<int>(mode)];
}

}    // namespace dthrottle
