#include "limiter/retention.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace dthrottle {

namespace {

constexpr std::size_t kSampleCells = 64 * 24;    // a look takes some 50 us
constexpr Duration kLongest = std::chrono::hours(24 * 365);
constexpr double kEvictedMin = 0.01;    // a second; less is nothing

}    // namespace

void Retention::Forgot(std::size_t rule, bool refusing) {
  rules_[rule].evicted.fetch_add(1, std::memory_order_relaxed);
  if (refusing) rules_[rule].refusing.fetch_add(1, std::memory_order_relaxed);
}

void Retention::Sample(Table& table, const std::function<std::size_t(LimitIndex)>& rule_of, Instant now) {
  const Instant before = std::exchange(sampled_at_, now);
  if (before == Instant::min() || now <= before) return;
  const double elapsed_s = Seconds(now - before);

  class Sample final : public SlotVisitor {
   public:
    Sample(std::size_t rules, const std::function<std::size_t(LimitIndex)>& rule_of) : tags(rules), rule_of_(rule_of) {}
    bool Visit(const Tag&, const Slot& slot, const Waste&) override {
      ++tags[rule_of_(slot.limit)];
      return true;
    }
    std::vector<std::uint32_t> tags;

   private:
    const std::function<std::size_t(LimitIndex)>& rule_of_;
  } sample(rules_.size(), rule_of);

  const auto quiet = [](const Counts& c) {
    return c.evicted_per_s == 0 && c.evicted.load(std::memory_order_relaxed) == c.seen;
  };
  if (std::all_of(rules_.begin(), rules_.end(), quiet)) return;
  const std::size_t cells = std::min(kSampleCells, table.cells());
  if (next_cell_ + cells > table.cells()) next_cell_ = 0;
  table.VisitSome(next_cell_, cells, sample, now);

  const double tags_for_each = static_cast<double>(table.cells()) / static_cast<double>(cells);
  const double weight = 1 - std::exp(-elapsed_s / Seconds(kAveraged));
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    Counts& c = rules_[i];
    const std::uint64_t evicted = c.evicted.load(std::memory_order_relaxed);
    const double tags = sample.tags[i] * tags_for_each;
    const bool first = c.evicted_per_s == 0;
    c.tags += (first ? 1 : weight) * (tags - c.tags);
    c.evicted_per_s += weight * (static_cast<double>(evicted - c.seen) / elapsed_s - c.evicted_per_s);
    if (c.evicted_per_s < kEvictedMin) c.evicted_per_s = 0;
    c.seen = evicted;
  }
}

Retention::Totals Retention::totals(std::size_t rule) const {
  const Counts& c = rules_[rule];
  return {c.evicted.load(std::memory_order_relaxed) - c.base.evicted,
          c.refusing.load(std::memory_order_relaxed) - c.base.refusing};
}

std::optional<Duration> Retention::of(std::size_t rule) const {
  const Counts& c = rules_[rule];
  if (c.evicted_per_s == 0) return std::nullopt;
  return DurationOf(std::min(std::max(c.tags, 1.0) / c.evicted_per_s, Seconds(kLongest)));
}

void Retention::Reassign(std::size_t rule) {
  Counts& c = rules_[rule];
  c.base = {c.evicted.load(std::memory_order_relaxed), c.refusing.load(std::memory_order_relaxed)};
  c.seen = c.base.evicted;
  c.tags = c.evicted_per_s = 0;
}

}    // namespace dthrottle
