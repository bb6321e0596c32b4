#include "tally/lane.h"

#include <algorithm>
#include <bit>

namespace dthrottle {

void Lane::Sample(const Tag& tag, std::uint64_t hash, bool served, Prng& prng, Instant now) {
  // Uniform on 1 .. 2 stride - 1, so `stride` on average: no rhythm in the queries can hide from it.
  until_sample_ = 1 + prng.Below(2 * stride_ - 1);
  const std::lock_guard lock(top_mutex_);
  (served ? served_ : throttled_).Add(tag, hash, stride_, now);
}

void Lane::AddTimes(const Tag& tag, std::uint64_t hash, bool served, std::uint64_t times, Instant now) {
  const std::lock_guard lock(top_mutex_);
  (served ? served_ : throttled_).Add(tag, hash, times, now);
}

void Lane::Tick(std::uint64_t queries, Instant now) {
  queries_in_tick_ += queries;
  if (queries_in_tick_ > 2 * kSamplesPerTick * stride_) stride_ *= 2;
  if (now < tick_ends_) return;
  stride_ = std::bit_floor(std::max<std::uint64_t>(queries_in_tick_ / kSamplesPerTick, 1));
  queries_in_tick_ = 0;
  tick_ends_ = now + kTick;
}

void Lane::AddTop(TopSums& served, TopSums& throttled, Instant now) const {
  const std::lock_guard lock(top_mutex_);
  served_.AddTo(served, now);
  throttled_.AddTo(throttled, now);
}

}    // namespace dthrottle
