#include "lab/world.h"

#include <utility>

#include "lab/sampling.h"

namespace dthrottle::lab {

HostClock RandomClock(Duration offset_max, std::int64_t drift_ppb_max, Prng& prng) {
  const Duration offset = Uniform(offset_max, prng);
  const auto drift = prng.Below(static_cast<std::uint64_t>(2 * drift_ppb_max + 1));
  return HostClock(offset, static_cast<std::int64_t>(drift) - drift_ppb_max);
}

void World::At(WorldTime at, std::function<void()> call) {
  calls_.push_back(std::move(call));
  events_.Push(at, {Event::Kind::kCall, {.from = static_cast<std::uint32_t>(calls_.size() - 1)}});
}

void World::Change(const Rift& rift, void (Network::*change)(std::uint32_t, std::uint32_t, WorldTime)) {
  for (std::uint32_t a = 0; a < size(); ++a) {
    if (!rift.inside[a]) continue;
    for (std::uint32_t b = 0; b < size(); ++b) {
      if (rift.inside[b]) continue;
      if (rift.out) (network_.*change)(a, b, now_);
      if (rift.in) (network_.*change)(b, a, now_);
    }
  }
}

void World::Run(WorldTime until) {
  while (!events_.empty() && events_.next() <= until) {
    now_ = events_.next();
    ++handled_;
    Event event = events_.Pop();
    for (std::size_t later : {3, 2, 1}) {
      if (const std::uint32_t host = events_.Coming(later); host != EventQueue::kNobody) Expect(host, later);
    }
    Handle(std::move(event));
  }
  now_ = until;
}

void World::Handle(Event event) {
  switch (event.kind) {
    case Event::Kind::kParcel:
      return Deliver(std::move(event.parcel));
    case Event::Kind::kArrival:
      return Arrive(event.parcel.from);
    case Event::Kind::kWake: {
      const std::uint32_t host = event.parcel.to;
      if (event.parcel.connection != wishes_[host].number) return;    // it has been woken since, and wished anew
      wishes_[host].at = WorldTime::max();
      return Wake(host);
    }
    case Event::Kind::kCall:
      return std::exchange(calls_[event.parcel.from], nullptr)();
  }
}

void World::WakeAt(std::uint32_t host, WorldTime at) {
  Wish& wish = wishes_[host];
  if (at == wish.at) return;
  wish.at = at;
  ++wish.number;
  if (at != WorldTime::max()) {
    events_.Push(at, {Event::Kind::kWake, {.to = host, .connection = wish.number}});
  }
}

}    // namespace dthrottle::lab
