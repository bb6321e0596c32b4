#include "lab/workload.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/siphash.h"

namespace dthrottle::lab {

namespace {

constexpr int kRateSteps = 100;    // in which a rate moves to another one

}    // namespace

std::uint32_t HostOfTag(std::string_view tag, std::size_t hosts, std::uint64_t seed) {
  return static_cast<std::uint32_t>(SipHash<1, 3>({seed, 0}, tag) % hosts);
}

ArrivalStream::ArrivalStream(const Workload& workload, std::size_t hosts, std::uint64_t seed, Prng prng)
    : workload_(workload),
      hosts_(hosts),
      prng_(prng),
      host_ranks_(hosts, workload.spread == Workload::Spread::kZipf ? workload.host_exponent : 0),
      tag_ranks_(workload.tags, workload.tag_exponent) {
  DT_CHECK(workload.rate > 0 && workload.tags > 0 && hosts > 0 && workload.group > 0 && workload.group <= hosts);
  DT_CHECK(workload.off == Duration::zero() || workload.on > Duration::zero());
  DT_CHECK(!workload.rate_at_end || workload.until < WorldTime::max());
  if (workload.spread != Workload::Spread::kSticky) return;
  for (std::size_t i = 0; i < workload.tags; ++i) hosts_of_tags_.push_back(HostOfTag(TagOf(workload, i), hosts, seed));
}

// The rate is constant between changes, so the next query comes when its integral has grown by one, or by an
// exponential variable of mean one.
std::optional<Arrival> ArrivalStream::Next() {
  double left = workload_.poisson ? Exponential(prng_) : 1;
  for (;;) {
    TakeTurns(since_);
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
  Arrival arrival{at, PickHost(tag), tag, workload_.cost, workload_.wait};
  for (std::size_t first = workload_.tags; first < TagsOf(workload_); first += workload_.with_tags) {
    arrival.with.push_back(first + prng_.Below(workload_.with_tags));
  }
  if (workload_.takes != Workload::Takes::kTokens) arrival.stay = PickStay();
  return arrival;
}

Stay ArrivalStream::PickStay() {
  Stay stay{workload_.takes, workload_.lasts, workload_.cost};
  if (workload_.poisson) {
    stay.lasts = Duration(static_cast<Duration::rep>(static_cast<double>(stay.lasts.count()) * Exponential(prng_)));
  }
  if (workload_.takes != Workload::Takes::kHold) return stay;
  if (workload_.used_max != 0) {
    stay.used = workload_.used_min + static_cast<Cost>(prng_.Below(workload_.used_max - workload_.used_min + 1));
  }
  const double fate = Uniform(prng_);
  stay.lost = fate < workload_.lost;
  if (fate < workload_.lost + workload_.released) stay.used = 0;
  if (stay.lost) stay.lasts = workload_.ttl;
  if (stay.lasts <= workload_.ttl) return stay;
  // It comes back whole before it is settled, and what it was taken for goes on (protocol/ask.md 20).
  stay.lost = true;
  stay.lasts = workload_.ttl;
  stay.used_late = std::exchange(stay.used, 0);
  return stay;
}

void ArrivalStream::TakeTurns(Duration since) {
  if (workload_.off == Duration::zero()) return;
  while (since >= turn_ends_) {
    on_ = !on_;
    const Duration mean = on_ ? workload_.on : workload_.off;
    const auto random = static_cast<double>(mean.count()) * (workload_.random_turns ? Exponential(prng_) : 1);
    turn_ends_ += Duration(std::max<Duration::rep>(static_cast<Duration::rep>(random), 1));
  }
}

double ArrivalStream::RateAfter(Duration since) const {
  const Duration flash = since - workload_.flash_after;
  const bool crowd = flash >= Duration::zero() && flash < workload_.flash_lasts;
  const bool on = workload_.off == Duration::zero() || on_;
  double rate = workload_.rate;
  if (workload_.rate_at_end) {
    const auto step = static_cast<double>(since / StepOfRate()) + 0.5;
    rate += (*workload_.rate_at_end - rate) * std::min(step / kRateSteps, 1.0);
  }
  return rate * (on ? 1 : workload_.quiet) * (crowd ? workload_.flash_factor : 1);
}

Duration ArrivalStream::StepOfRate() const {
  return std::max<Duration>((workload_.until - workload_.from) / kRateSteps, Duration(1));
}

Duration ArrivalStream::NextChangeAfter(Duration since) const {
  const Duration flash = workload_.flash_after;
  Duration next = WorldTime::max() - std::max(workload_.from, WorldTime{});
  if (workload_.off > Duration::zero()) next = turn_ends_;
  if (workload_.rate_at_end) next = std::min(next, (since / StepOfRate() + 1) * StepOfRate());
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
      return hosts_of_tags_[tag];
    case Workload::Spread::kGroup:
      for (; since_ >= group_until_; group_until_ += workload_.stays) {
        const auto further =
            workload_.group + prng_.Below(std::max<std::uint64_t>(hosts_ - 2 * workload_.group + 1, 1));
        first_ = static_cast<std::uint32_t>((first_ + further) % hosts_);
      }
      return static_cast<std::uint32_t>((first_ + prng_.Below(workload_.group)) % hosts_);
  }
  return 0;
}

}    // namespace dthrottle::lab
