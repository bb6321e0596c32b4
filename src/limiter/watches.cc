#include "limiter/watches.h"

namespace dthrottle {

Watch* Watches::Add(std::uint64_t hash, const Tag& tag, Tokens level, Tokens unreported, Duration rests, Instant now) {
  if (hash == 0) return nullptr;
  const std::size_t set = hash >> shift_;
  std::optional<std::size_t> best;
  for (std::size_t way = 0; way < kWays; ++way) {
    const std::optional<Watch>& watch = watches_[set * kWays + way];
    if (!watch.has_value()) {
      best = way;
      break;
    }
    if (!watch->forecast.Idle(rests, now)) continue;
    if (!best || watch->forecast.active_at() < watches_[set * kWays + *best]->forecast.active_at()) best = way;
  }
  if (!best) {
    crowded_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  std::optional<Watch>& watch = watches_[set * kWays + *best];
  if (!watch.has_value()) used_.fetch_add(1, std::memory_order_relaxed);
  watch.emplace(tag, level, unreported, now);
  SetActive(&*watch, false);
  sets_[set].hashes[*best].store(hash, std::memory_order_relaxed);
  return &*watch;
}

void Watches::Remove(Watch* watch) {
  const std::size_t index = IndexOf(watch);
  Set(active_, index, false);
  watches_[index].reset();
  sets_[index / kWays].hashes[index % kWays].store(0, std::memory_order_relaxed);
  used_.fetch_sub(1, std::memory_order_relaxed);
}

}    // namespace dthrottle
