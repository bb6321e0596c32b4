// Queries as they come: when, to which host, about which tag.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/prng.h"
#include "base/tokens.h"
#include "sim/clock.h"
#include "sim/sampling.h"

namespace dthrottle::sim {

struct Workload {
  // When. Bursts are steady or Poisson while they are on; a flash crowd multiplies the rate for a while.
  double rate = 1;    // queries/s while on
  bool poisson = false;
  Duration on{}, off{};    // in turns, on first; always on if `off` is zero
  Duration flash_after{}, flash_lasts{};
  double flash_factor = 1;
  WorldTime from{}, until = WorldTime::max();

  // Where to.
  enum class Spread {
    kInTurns,
    kUniform,
    kZipf,      // host 0 gets most
    kSticky,    // all queries about one tag to one host
  };
  Spread spread = Spread::kUniform;
  double host_exponent = 1;    // of kZipf

  // About whom: tags are `tag` with a number behind it, or just `tag` if there is one.
  std::string tag = "client";
  std::size_t tags = 1;
  double tag_exponent = 0;    // 0: all alike
  Cost cost = 1;
};

struct Arrival {
  WorldTime at;
  std::uint32_t host;
  std::size_t tag;    // below Workload::tags
};

class ArrivalStream {
 public:
  ArrivalStream(const Workload& workload, std::size_t hosts, Prng prng);

  // None when the workload is over.
  std::optional<Arrival> Next();

 private:
  double RateAfter(Duration since) const;
  Duration NextChangeAfter(Duration since) const;
  std::uint32_t PickHost(std::size_t tag);

  Workload workload_;
  std::size_t hosts_;
  Prng prng_;
  Zipf host_ranks_, tag_ranks_;
  Duration since_{};    // workload_.from
  double part_ = 0;     // of a nanosecond, beyond that
  std::uint32_t turn_ = 0;
};

}    // namespace dthrottle::sim
