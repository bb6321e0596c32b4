#include "sim/workload.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace dthrottle::sim {

ArrivalStream::ArrivalStream(const Workload& workload, std::size_t hosts, Prng prng)
    : workload_(workload),
      hosts_(hosts),
      prng_(prng),
      host_ranks_(hosts, workload.spread == Workload::Spread::kZipf ? workload.host_exponent : 0),
      tag_ranks_(workload.tags, workload.tag_exponent) {
  DT_CHECK(workload.rate > 0 && workload.tags > 0 && hosts > 0);
  DT_CHECK(workload.off == Duration::zero() || workload.on > Duration::zero());
}

// The rate is constant between changes, so the next query comes when its integral has grown by one, or by an
// exponential variable of mean one.
std::optional<Arrival> ArrivalStream::Next() {
  double left = workload_.poisson ? Exponential(prng_) : 1;
  for (;;) {
    const double rate = RateAfter(since_) / 1e9;
    const Duration change = NextChangeAfter(since_);
    const double wait = left / rate + part_;    // endless while the rate is zero
    if (wait < static_cast<double>((change - since_).count())) {
      since_ += Duration(static_cast<Duration::rep>(wait));
      part_ = wait - std::floor(wait);
      break;
    }
    if (workload_.from + change >= workload_.until) return std::nullopt;
    left -= rate * (static_cast<double>((change - since_).count()) - part_);
    part_ = 0;
    since_ = change;
  }
  const WorldTime at = workload_.from + since_;
  if (at >= workload_.until) return std::nullopt;
  const std::size_t tag = workload_.tags == 1 ? 0 : tag_ranks_(prng_);
  return Arrival{at, PickHost(tag), tag};
}

double ArrivalStream::RateAfter(Duration since) const {
  const Duration on = workload_.on, off = workload_.off, flash = since - workload_.flash_after;
  if (off > Duration::zero() && since % (on + off) >= on) return 0;
  const bool crowd = flash >= Duration::zero() && flash < workload_.flash_lasts;
  return workload_.rate * (crowd ? workload_.flash_factor : 1);
}

Duration ArrivalStream::NextChangeAfter(Duration since) const {
  const Duration on = workload_.on, off = workload_.off, flash = workload_.flash_after;
  Duration next = WorldTime::max() - std::max(workload_.from, WorldTime{});
  if (off > Duration::zero()) {
    const Duration into = since % (on + off);
    next = since - into + (into < on ? on : on + off);
  }
  for (const Duration change : {flash, flash + workload_.flash_lasts}) {
    if (change > since) next = std::min(next, change);
  }
  return next;
}

std::uint32_t ArrivalStream::PickHost(std::size_t tag) {
  switch (workload_.spread) {
    case Workload::Spread::kInTurns:
      return turn_++ % static_cast<std::uint32_t>(hosts_);
    case Workload::Spread::kUniform:
      return static_cast<std::uint32_t>(prng_.Below(hosts_));
    case Workload::Spread::kZipf:
      return static_cast<std::uint32_t>(host_ranks_(prng_));
    case Workload::Spread::kSticky:
      return static_cast<std::uint32_t>(Prng(tag).Below(hosts_));
  }
  return 0;
}

}    // namespace dthrottle::sim
