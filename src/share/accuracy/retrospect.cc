#include "share/accuracy/retrospect.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace dthrottle {

namespace {

using namespace std::chrono_literals;

constexpr int kLagPeriods = 3;          // the oldest hits that a report carries in order (share/debit/sharing.cc)
constexpr Duration kLagMore = 250ms;    // for its way
constexpr Duration kWindow = 1s;
constexpr Tokens kIntervalMemory = 100;    // hits
constexpr double kRecovered = 0.25;        // of the burst

// Bins make a whole window, as many as there is room for while they wait to be settled; 32 are fine enough.
std::int64_t BinsPerWindow(Duration waits, std::size_t bins) {
  for (std::int64_t n = 32; n > 1; n /= 2) {
    if (waits * n <= kWindow * static_cast<std::int64_t>(bins)) return n;
  }
  return 1;
}

}    // namespace

Retrospect::Retrospect(Tokens level, Duration period, Instant now)
    : lag_(kLagPeriods * period + kLagMore), one_for_all_(std::max(level, 0.0)), hosts_(level) {
  const Duration waits = lag_ + 2 * period + kWindow;
  window_ = BinsPerWindow(waits, kBins);
  width_ = kWindow / window_;
  while (window_ == 1 && waits > width_ * static_cast<std::int64_t>(kBins)) width_ *= 2;
  settled_ = last_ = BinOf(now);
}

// Spreads `tokens` evenly over [from, to]; returns the part of them that is before the first bin not settled.
Tokens Retrospect::Spread(Tokens tokens, Instant from, Instant to, float Bin::*kind) {
  const Instant open(width_ * settled_);
  const std::int64_t last = std::min<std::int64_t>(BinOf(to), settled_ + kBins - 1);
  std::int64_t bin = std::max(std::min(BinOf(from), last), settled_);
  if (to < open) return tokens;
  const double density = to > from ? tokens / Seconds(to - from) : 0;
  const Tokens late = from < open ? density * Seconds(open - from) : 0;
  Tokens left = tokens - late;
  Tokens part = density * Seconds(Instant(width_ * (bin + 1)) - std::max(from, open));    // of the first
  for (; bin < last; ++bin) {
    At(bin).*kind += static_cast<float>(part);
    left -= part;
    part = density * Seconds(width_);
  }
  At(last).*kind += static_cast<float>(left);
  last_ = std::max(last_, last);
  return late;
}

Tokens Retrospect::Served(Tokens hits, Tokens refused, Instant first, Instant from, Instant to) {
  if (hits <= 0) return 0;
  const Tokens one = std::min(hits, 1.0);
  interval_ += (Seconds(to - first) - interval_) * hits / (hits + kIntervalMemory);
  if (refused > 0) {
    Spread(refused * one / hits, first, first, &Bin::refused);
    Spread(refused * (1 - one / hits), from, to, &Bin::refused);
  }
  return Spread(one, first, first, &Bin::hits) + Spread(hits - one, from, to, &Bin::hits);
}

void Retrospect::Refused(Tokens tokens, Instant from, Instant to) {
  Spread(tokens, from, to, &Bin::refused);
}

Deviation Retrospect::Settle(Tokens burst, double rate, Instant now) {
  Deviation sum;
  const std::int64_t end = BinOf(now - lag_);
  const Tokens refill = rate * Seconds(width_);
  if (end - settled_ > static_cast<std::int64_t>(kBins)) {    // nobody looked for long
    settled_ = end - kBins;
    bins_.fill({});
    one_for_all_ = hosts_ = burst, beyond_ = 0, empty_ = false;
  }
  for (; settled_ < end; ++settled_) {
    const Bin bin = std::exchange(At(settled_), {});
    const Tokens serves = std::min<Tokens>(bin.hits + bin.refused, one_for_all_ + refill);
    one_for_all_ = std::min(burst, one_for_all_ + refill - serves);
    hosts_ = std::min(burst, hosts_ + refill - bin.hits);
    beyond_ += bin.hits - serves;
    if (serves < bin.hits + bin.refused) {
      empty_ = true;
    } else if (empty_ && one_for_all_ > kRecovered * burst) {
      empty_ = false;
      sum.blurred += std::min(rate * interval_ / 2, burst);
    }
    if ((settled_ + 1) % window_ != 0) continue;
    (beyond_ > 0 ? sum.over : sum.under) += std::abs(beyond_);
    beyond_ = 0;
  }
  return sum;
}

}    // namespace dthrottle
