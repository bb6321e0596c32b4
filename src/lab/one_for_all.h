// One bucket for all: a host of its own that is asked everything the hosts of a fleet are asked, and hears of nobody.
// What it serves is the ideal that a fleet is measured against.
//
// It runs the limiter that the hosts run, so it knows whatever a rule can say: tags that are charged with others,
// quotas, places, waits, penalties, fair shares and tags that are exempt. Its clock is right, and nothing befalls it.
#pragma once

#include "lab/clock.h"
#include "lab/host.h"

namespace dthrottle::lab {

class OneForAll final : private Surroundings {
 public:
  // It goes by `options.rules`, and has a table as large as `options` says. `wall` must outlive it.
  OneForAll(const HostOptions& options, const WallClock& wall, Prng prng, WorldTime now);

  // The host, with everything done that it does by itself until then. REQUIRES: `now` never goes back.
  SimHost& At(WorldTime now);

 private:
  void Send(const Parcel& /*parcel*/) override {}    // there is nobody
  void Reported(std::uint32_t /*host*/, const Entries& /*entries*/) override {}
  void Debited(std::uint32_t /*host*/, const Entries& /*entries*/) override {}
  Duration Date() const override { return wall_.Date(now_); }

  const WallClock& wall_;
  WorldTime now_;
  WorldTime wakes_;    // wants to be called
  SimHost host_;
};

}    // namespace dthrottle::lab
