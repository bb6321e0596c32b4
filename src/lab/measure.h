// How far a fleet is from one bucket for all, and what that took: the figures that dthrottle-sim prints.
//
// Over and under are summed over seconds and tags, so that too much now does not make up for too little later, nor one
// client for another.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lab/fleet.h"

namespace dthrottle::lab {

struct Measures {
  double asked = 0, served = 0, ideal = 0;    // tokens; ideal: what one bucket for all serves
  double over = 0, under = 0;                 // % of ideal, in seconds with more or less than ideal
  double excess = 0;                          // tokens above burst + rate x time, in the worst window of the worst tag
  double waited = 0, wait_mean = 0, wait_max = 0;    // % of served tokens, and s that they waited
  double holds = 0, lost = 0;    // taken; not settled
  double returned = 0;           // % of the tokens that were held
  double overused = 0;           // %, used beyond burst + rate x time, where tokens are held; the worst tag
  double places = 0, places_over = 0;    // taken at once, of the tag with most; of them, beyond in_flight
  double by_workers = 0;         // %, decided by workers themselves, of the queries
  double quota = 0, quota_over = 0;    // %, served of a quota in a period, the most of all; tokens beyond one
  double fairness = 0;                        // Jain's index of the parts that hosts serve of what they are asked
  double silence = 0, ideal_silence = 0;      // s; the longest a tag was asked for and refused without a break
  double frames = 0, entries = 0, bytes = 0;    // a host and second: frames sent, tags in reports made
};

// The same as a table, for printing.
struct MeasureKind {
  std::string_view name, unit;
  double Measures::*value;
  int decimals;
  std::string_view meaning;
  double Measures::*where = nullptr;    // nobody wants to see it where this is 0
};
std::span<const MeasureKind> MeasureKinds();

// One second of a run, all tags together; over and under are sums over tags.
struct Second {
  std::uint64_t asked = 0, served = 0, ideal = 0, over = 0, under = 0;    // tokens
};

class Meter {
 public:
  // Seconds are counted from `begin`. Nothing is noted of before.
  Meter(const Fleet& fleet, WorldTime begin);

  void Note(const Decision& decision);

  // Everything until now. `sent` are the fleet's counts since the beginning. Call once.
  Measures Finish(Duration lasted, const FleetCounts& sent);

  const std::vector<Second>& seconds() const { return seconds_; }

 private:
  struct TagState {
    std::size_t second = 0;    // that the next two are of
    std::uint64_t served = 0, ideal = 0;
    double excess = 0;    // tokens served above rate x time since the worst beginning
    double excess_max = 0;
    Duration wait_max{};
    WorldTime last{};
    std::optional<WorldTime> refused_since, ideal_refused_since;
  };
  struct HostState {
    std::uint64_t asked = 0, served = 0;
  };

  void Close(TagState& tag);
  void Spend(TagState& tag, const Decision& decision) const;
  void NoteAccounts(Measures& measures) const;
  Second& At(std::size_t second);

  const Fleet& fleet_;
  WorldTime begin_;
  std::vector<TagState> tags_;
  std::vector<HostState> hosts_;
  std::vector<Second> seconds_;
  Duration silence_{}, ideal_silence_{};
  double waited_ = 0, token_seconds_ = 0;    // tokens; times the s that they waited
};

}    // namespace dthrottle::lab
