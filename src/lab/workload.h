// Queries as they come: when, to which host, about which tag.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/names.h"
#include "base/prng.h"
#include "base/tokens.h"
#include "lab/clock.h"
#include "lab/sampling.h"

namespace dthrottle::lab {

struct Workload {
  // When. Bursts are steady or Poisson while they are on; a flash crowd multiplies the rate for a while.
  double rate = 1;    // queries/s while on
  bool poisson = false;
  Duration on{}, off{};         // in turns, on first; always on if `off` is zero
  bool random_turns = false;    // as long as that on average, exponentially distributed
  double quiet = 0;             // of the rate, while off
  Duration flash_after{}, flash_lasts{};
  double flash_factor = 1;
  std::optional<double> rate_at_end{};    // from `from` to `until` the rate moves there from `rate`, in steps
  WorldTime from{}, until = WorldTime::max();

  // Where to.
  enum class Spread {
    kInTurns,
    kUniform,
    kZipf,      // host 0 gets most
    kSticky,    // all queries about one tag to one host
    kGroup,     // only to `group` hosts, uniform, for `stays`; then to as many others, from anywhere on
  };
  Spread spread = Spread::kUniform;
  double host_exponent = 1;    // of kZipf
  std::size_t group = 1;       // of kGroup; 1: all to one host
  Duration stays = std::chrono::seconds(2);

  // About whom: tags are `tag` with a number behind it, or just `tag` if there is one.
  std::string tag = "client";
  std::size_t tags = 1;
  double tag_exponent = 0;    // 0: all alike
  Cost cost = 1;
  Duration wait{};    // a query rather waits so long than being refused, where its rule has a delay

  // What a query takes: tokens for good; tokens that it holds until what it has used is known; or, beside tokens, a place
  // of every tag whose rule has `in_flight`.
  enum class Takes { kTokens, kHold, kPlace };
  Takes takes = Takes::kTokens;
  Duration lasts = std::chrono::seconds(1);      // a hold, or a place; on average, where `poisson`
  Cost used_min = 0, used_max = 0;    // tokens that a hold has used, evenly distributed; used_max 0: what it costs
  double released = 0, lost = 0;      // parts of the holds that have used nothing: given back, or never settled
  Duration ttl = std::chrono::minutes(1);    // after which what is not settled comes back

  // A query is a question about a tag of these as well, and is served if all of its tags have what it costs. Each is one
  // tag, or `with_tags` of them, numbered and all alike.
  std::vector<std::string> with{};
  std::size_t with_tags = 1;
};

inline constexpr std::string_view kTakesNames[] = {"tokens", "hold", "place"};
constexpr std::span<const std::string_view> Names(Workload::Takes) {
  return kTakesNames;
}

inline constexpr std::string_view kSpreadNames[] = {"in-turns", "uniform", "zipf", "sticky", "group"};
constexpr std::span<const std::string_view> Names(Workload::Spread) {
  return kSpreadNames;
}

// All of them: those of `tag`, then those of each of `with`.
inline std::size_t TagsOf(const Workload& workload) {
  return workload.tags + workload.with.size() * workload.with_tags;
}

// The tag of that number, below TagsOf(workload).
inline std::string TagOf(const Workload& workload, std::size_t number) {
  const auto named = [](const std::string& stem, std::size_t tags, std::size_t n) {
    return tags == 1 ? stem : stem + std::to_string(n);
  };
  if (number < workload.tags) return named(workload.tag, workload.tags, number);
  number -= workload.tags;
  return named(workload.with[number / workload.with_tags], workload.with_tags, number % workload.with_tags);
}

// What becomes of what a query takes for a while.
struct Stay {
  Workload::Takes takes{};
  Duration lasts{};
  Cost used = 0;        // tokens of each tag, of a hold
  bool lost = false;    // nobody settles it while it lasts
  Cost used_late = 0;    // tokens of each tag, of a hold that goes on when its time is over and it has come back
};

struct Arrival {
  WorldTime at;
  std::uint32_t host;
  std::size_t tag;    // below Workload::tags
  Cost cost;
  Duration wait{};                   // as Workload::wait
  std::vector<std::size_t> with{};    // further tags of the same question, below TagsOf(workload)
  std::optional<Stay> stay{};         // of what takes more than tokens
};

// The host that all queries about the tag go to where they are sticky.
std::uint32_t HostOfTag(std::string_view tag, std::size_t hosts, std::uint64_t seed);

class ArrivalStream {
 public:
  // `seed`: of the hosts that tags stick to, the same for all workloads of a fleet.
  ArrivalStream(const Workload& workload, std::size_t hosts, std::uint64_t seed, Prng prng);

  // None when the workload is over.
  std::optional<Arrival> Next();

 private:
  void TakeTurns(Duration since);
  double RateAfter(Duration since) const;
  Duration StepOfRate() const;
  Duration NextChangeAfter(Duration since) const;
  std::uint32_t PickHost(std::size_t tag);
  Stay PickStay();

  Workload workload_;
  std::size_t hosts_;
  Prng prng_;
  Zipf host_ranks_, tag_ranks_;
  std::vector<std::uint32_t> hosts_of_tags_;    // of kSticky
  Duration since_{};    // workload_.from
  double part_ = 0;     // of a nanosecond, beyond that
  bool on_ = false;
  Duration turn_ends_{};    // of being on or off, after workload_.from
  std::uint32_t turn_ = 0;
  std::uint32_t first_ = 0;    // of the group
  Duration group_until_{};
};

}    // namespace dthrottle::lab
