// What an operator writes about a limit. Plain data, checked by config/ before it gets here.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/names.h"
#include "base/time.h"
#include "base/tokens.h"
#include "rule/address.h"
#include "rule/derivation.h"
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

// How what this host may serve of a tag is divided among the tags that are charged with it (Rule::also of their rules).
enum class Among {
  kFirst,    // who asks first
  kRatio,    // each gets the same share of what it asks for
  kLevel,    // each gets what it asks for, up to the same level
};
DT_NAMES(Among, "first", "ratio", "level")

// What a site goes on with while another one is not heard (share/sites).
enum class CutOff {
  kFull,    // the whole limit
  kPart,    // its own part of it
};
DT_NAMES(CutOff, "full", "part")

// Networks whose addresses a rule is for.
struct RuleNetworks {
  std::vector<std::string> given;    // as settings name them
  std::string file;                  // or the file that lists them
  std::shared_ptr<const std::vector<Network>> list;
};

// After so many refusals within a time a tag is refused at once for a while (penalty/penalties.h).
struct Penalty {
  std::uint32_t after = 0;    // refusals; 0: there is none
  Duration within = std::chrono::minutes(1);
  Duration lasts = std::chrono::minutes(10);
  bool doubling = false;    // one that begins soon after another ended lasts twice as long
};

// How long a quota's period is.
enum class Per { kHour, kDay, kWeek, kMonth };
DT_NAMES(Per, "hour", "day", "week", "month")

// Which periods: those of a wall clock.
struct QuotaCalendar {
  Per per = Per::kDay;
  std::string time_zone = "UTC";    // a name of the IANA database

  friend bool operator==(const QuotaCalendar&, const QuotaCalendar&) = default;
};

struct Rule {
  std::string name;                    // unique
  std::optional<std::string> match;    // glob; a rule without one is the default
  std::optional<RuleNetworks> networks;    // of what stands behind the literal beginning of `match`; none: any
  Tokens burst = 10;
  double rate = 1;    // tokens/s
  std::uint32_t max_own_limit = 0;     // requests, most of a limit that a tag names itself; 0: none (rule/own_limit.h)
  Share share = Share::kDebit;
  Mode mode = Mode::kEnforce;
  std::optional<Tokens> max_debt;       // most that peers' hits may take a bucket below zero
  std::optional<Tokens> max_unheard;    // of kForecast: most that a host serves before peers can know
  std::optional<Duration> horizon;      // peers' hits older than this are dropped
  double tolerance = 0;                 // % of over-admission that nobody needs to know of; 0: any
  std::uint32_t in_flight = 0;          // places that may be taken of a tag at once; 0: any number
  bool fail_closed = false;             // clients are to refuse while no daemon answers
  bool shed = false;                    // refuse some queries when the host runs hot
  std::uint32_t shed_priority = 0;      // below kShedPriorities; the lowest are refused first
  Duration delay{};                     // most that a question may be made to wait instead of being refused
  Penalty penalty;
  std::uint64_t quota = 0;              // tokens that all hosts serve of a tag in a period; 0: any number (quota/quotas.h)
  QuotaCalendar calendar;               // of the quota
  std::vector<Derivation> also;         // tags that are charged with one of the rule's
  Among among = Among::kFirst;          // the tags that are charged with one of the rule's
  CutOff cut_off = CutOff::kFull;
  double weight = 1;                    // of the rule's tags, where one that they are charged to is divided by level
  static constexpr std::size_t kAlsoMax = 8;
};

// Another burst and rate for one exact tag; everything else comes from the rule that the tag matches.
struct Override {
  std::string tag;
  Tokens burst;
  double rate;                 // tokens/s
  std::optional<Mode> mode;    // the rule's, if absent
  std::optional<std::uint64_t> quota{};    // as well
  std::optional<double> weight{};          // as well
};

}    // namespace dthrottle
