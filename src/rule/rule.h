// What an operator writes about a limit. Plain data, checked by config/ before it gets here.
#pragma once

#include <optional>
#include <string>

#include "base/names.h"
#include "base/time.h"
#include "base/tokens.h"
#include "shed/signal.h"

namespace dthrottle {

// How hosts share a limit.
enum class Share {
  kLocal,       // this host alone
  kDebit,       // every host debits what the others served
  kForecast,    // the same, and between reports they foretell each other's (share/forecast/forecast.h)
  kCapacity,    // each has a part of the rate, and gives some of it to who needs it more
};
DT_NAMES(Share, "local", "debit", "forecast", "capacity")

enum class Mode {
  kEnforce,
  kShadow,    // decide and count, but always answer OK
  kOff,       // answer OK and keep nothing
};
DT_NAMES(Mode, "enforce", "shadow", "off")

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
  std::uint32_t in_flight = 0;          // places that may be taken of a tag at once, on this host; 0: any number
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

}    // namespace dthrottle
