// Hosts on one network and in one order of events: what every fleet here and in the tests stands on. The same options
// and seed give the same run, bit for bit.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "base/prng.h"
#include "lab/clock.h"
#include "lab/events.h"
#include "lab/network.h"

namespace dthrottle::lab {

// A clock that shows up to `offset_max` at first and drifts by up to `drift_ppb_max` either way.
HostClock RandomClock(Duration offset_max, std::int64_t drift_ppb_max, Prng& prng);

// What parts some hosts from the rest.
struct Rift {
  std::vector<bool> inside;      // by host
  bool out = true, in = true;    // which lanes between the two sides it cuts
};

class World {
 public:
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void At(WorldTime at, std::function<void()> call);

  void Cut(const Rift& rift) { Change(rift, &Network::Cut); }
  void Mend(const Rift& rift) { Change(rift, &Network::Mend); }

  // Runs everything that happens until then.
  void Run(WorldTime until);

  WorldTime now() const { return now_; }
  std::uint64_t events() const { return handled_; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(wishes_.size()); }
  Network& network() { return network_; }
  const Network& network() const { return network_; }
  Prng& prng() { return prng_; }

 protected:
  World(std::size_t hosts, const LaneOptions& lanes, std::uint64_t seed)
      : prng_(seed), network_(hosts, lanes, events_, Prng(prng_.Next())), wishes_(hosts) {}
  virtual ~World() = default;

  virtual void Deliver(Parcel /*parcel*/) {}    // has arrived
  // A frame comes to the host so many deliveries later: brings what that needs from memory, a step at a time.
  virtual void Expect(std::uint32_t /*host*/, std::size_t /*later*/) {}
  virtual void Wake(std::uint32_t /*host*/) {}
  virtual void Arrive(std::uint32_t /*workload*/) {}    // its next query

  // Wakes the host then, and not when it wanted to be woken before; max(): not at all.
  void WakeAt(std::uint32_t host, WorldTime at);
  void ArriveAt(std::uint32_t workload, WorldTime at) { events_.Push(at, {Event::Kind::kArrival, {.from = workload}}); }
  // Delivers `parcel` again then, because the host could not take it.
  void Postpone(Parcel parcel, WorldTime until) { events_.Push(until, {Event::Kind::kParcel, std::move(parcel)}); }

 private:
  void Handle(Event event);
  void Change(const Rift& rift, void (Network::*change)(std::uint32_t from, std::uint32_t to, WorldTime now));

  struct Wish {
    WorldTime at = WorldTime::max();
    std::uint32_t number = 0;
  };
  WorldTime now_{};
  Prng prng_;
  EventQueue events_;
  Network network_;
  std::vector<Wish> wishes_;    // to be woken, by host
  std::deque<std::function<void()>> calls_;
  std::uint64_t handled_ = 0;
};

}    // namespace dthrottle::lab
