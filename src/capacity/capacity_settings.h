// What hosts that share a capacity agree on, and what follows from it alone: digests, witnesses, reserves, patience.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "capacity/graph.h"
#include "capacity/indicator.h"

namespace dthrottle {

// Parts of one tag's capacity. Grow-only sums of them last for years: 2^64 / 2^32 moves of everything.
using Parts = std::uint64_t;
inline constexpr Parts kWhole = Parts{1} << 32;

// A tag under a rule: a digest, the same on every host. Two tags with one digest would have one ledger, so that each
// of them still keeps to its capacity.
struct CapacityKey {
  std::uint64_t high = 0, low = 0;
  friend auto operator<=>(const CapacityKey&, const CapacityKey&) = default;
  static void Fields(auto& state, auto& self) { state(self.high, self.low); }
};
// `rule` is the same number on every host for the same rule (a hash of its name). Tags of up to kTagBytesMax bytes, or
// the digest of a longer one.
CapacityKey CapacityKeyOf(std::uint64_t rule, std::string_view tag, bool is_digest);

// What hosts must agree on, except where it says otherwise.
struct CapacitySettings {
  std::vector<std::string> members;    // names, ascending, no two alike, with this host's own; 1 to kMembersMax
  Graph graph;                         // nodes are members, in that order; connected; see topology.h
  double reserve = 0.1;                // of the equal share C/N: what each host has whatever happens; 0 to 1
  std::uint64_t digest = 0;            // of the rules that share; members, graph and reserve are added to it
  Duration interval = std::chrono::seconds(1);    // of rounds
  Duration lease = std::chrono::seconds(10);      // how long a host counts as alive; at least 4 intervals
  double drift_max = 0.01;                        // clocks run at rates within 1 +- this
  const Indicator* indicator = &ThrottledAmount();
  std::optional<double> gain = {};    // parts of C for a difference of one in the indicator of load/C; none: from
                                      // GDRL (15), half the local bound. This host's own business.
  std::size_t tags_max = 10'000;      // ledgers; this host's own business
};
inline constexpr std::size_t kMembersMax = 1024;

// Names by which this host is a member; fails with a sentence for people.
Result<void> CheckCapacitySettings(const CapacitySettings& settings, std::string_view name);

// The same on every host with the same members, neighbours, weights, rules and reserve, in whatever order links were
// written; never 0.
std::uint64_t DigestOf(const CapacitySettings& settings);

// How long a witness waits until nobody can hold a lease that it granted last at the beginning: clocks may differ.
Duration PatienceOf(const CapacitySettings& settings);

Parts ReserveParts(const CapacitySettings& settings);

// Up to kWitnessesMax, spread over the names, which as a rule are numbered by rack.
std::vector<std::string> WitnessesOf(const std::vector<std::string>& members);
inline constexpr std::size_t kWitnessesMax = 7;
inline constexpr std::size_t kDegreeMax = 64;    // neighbours of a host

inline std::size_t Majority(std::size_t of) {
  return of / 2 + 1;
}

// A number of a host, 64 bits that two hosts hardly share.
std::uint64_t NameNumber(std::string_view name);

}    // namespace dthrottle
