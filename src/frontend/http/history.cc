#include "frontend/http/history.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "rule/rulebook.h"

namespace dthrottle {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kQuantile = 0.99;

std::uint32_t Fitting(std::uint64_t number) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(number, UINT32_MAX - 1));
}

// The bound below which 99 of 100 of what was counted between the two lie; nothing if nothing was counted.
std::optional<std::uint32_t> PercentileUs(const HistogramTotals& before, const HistogramTotals& after) {
  std::uint64_t all = 0, below = 0;
  for (std::size_t i = 0; i < after.counts.size(); ++i) all += after.counts[i] - before.counts[i];
  if (all == 0) return std::nullopt;
  for (std::size_t i = 0; i < kHistogramBounds.size(); ++i) {
    below += after.counts[i] - before.counts[i];
    if (static_cast<double>(below) >= kQuantile * static_cast<double>(all)) {
      return Fitting(static_cast<std::uint64_t>(kHistogramBounds[i].count() / 1000));
    }
  }
  return Fitting(static_cast<std::uint64_t>(kHistogramBounds.back().count() / 1000));
}

}    // namespace

History::Counted History::CountedNow(const Snapshot& snapshot, const Limiter& limiter) {
  Counted counted;
  counted.all = limiter.tally().GrandTotals();
  counted.unmatched = snapshot.unmatched;
  counted.latency = snapshot.process.answered_in;
  counted.lag = snapshot.process.loop_lag;
  counted.cpu = snapshot.process.cpu;
  const auto& rules = limiter.rules().rules();
  for (std::size_t i = 0; i < std::min(rules.size(), kRules); ++i) {
    counted.rules.push_back(rules[i].name);
    counted.by_rule.push_back(limiter.tally().Totals(i));
  }
  return counted;
}

// The first call only looks where counts stand.
void History::Take(const Snapshot& snapshot, const Limiter& limiter, Instant now) {
  Counted counted = CountedNow(snapshot, limiter);
  const bool first = due_ == Instant();
  const Duration took = now - last_;
  last_ = now;
  due_ = now + kStep;
  if (!first) {
    RuleTotals d = counted.all;
    d -= before_.all;
    Point& point = points_[taken_++ % kPoints];
    point.served = Fitting(d.served + counted.unmatched - before_.unmatched);
    point.throttled = Fitting(d.throttled);
    point.shadowed = Fitting(d.shadowed);
    point.shed = Fitting(d.shed);
    point.latency_us = PercentileUs(before_.latency, counted.latency).value_or(kNone);
    point.lag_us = PercentileUs(before_.lag, counted.lag).value_or(kNone);
    point.cpu_permille = Fitting(static_cast<std::uint64_t>(1000 * Seconds(counted.cpu - before_.cpu) / Seconds(took)));
    point.memory_kib = Fitting(snapshot.process.resident_bytes / 1024);
    for (std::size_t i = 0; i < kRules; ++i) {
      const bool known = i < counted.rules.size() && i < before_.rules.size() && counted.rules[i] == before_.rules[i];
      point.rule_served[i] = known ? Fitting(counted.by_rule[i].served - before_.by_rule[i].served) : kNone;
      point.rule_throttled[i] = known ? Fitting(counted.by_rule[i].throttled - before_.by_rule[i].throttled) : kNone;
    }
  }
  before_ = std::move(counted);
}

std::string History::Render(Instant now) const {
  const std::size_t n = std::min(taken_, kPoints);
  const auto column = [&](auto value_of) {
    Json values = Json::array();
    for (std::size_t i = taken_ - n; i < taken_; ++i) {
      const std::uint32_t value = value_of(points_[i % kPoints]);
      values.push_back(value == kNone ? Json() : Json(value));
    }
    return values;
  };
  Json all = {{"step_s", Seconds(kStep)}, {"last_s_ago", Seconds(now - last_)}};
  all["served"] = column([](const Point& p) { return p.served; });
  all["throttled"] = column([](const Point& p) { return p.throttled; });
  all["shadowed"] = column([](const Point& p) { return p.shadowed; });
  all["shed"] = column([](const Point& p) { return p.shed; });
  all["latency_us"] = column([](const Point& p) { return p.latency_us; });
  all["lag_us"] = column([](const Point& p) { return p.lag_us; });
  all["cpu_permille"] = column([](const Point& p) { return p.cpu_permille; });
  all["memory_kib"] = column([](const Point& p) { return p.memory_kib; });
  Json rules = Json::array();
  for (std::size_t i = 0; i < before_.rules.size(); ++i) {
    rules.push_back({{"rule", before_.rules[i]},
                     {"served", column([&](const Point& p) { return p.rule_served[i]; })},
                     {"throttled", column([&](const Point& p) { return p.rule_throttled[i]; })}});
  }
  all["rules"] = std::move(rules);
  return all.dump() + "\n";
}

}    // namespace dthrottle
