#include "capacity/divide.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace dthrottle {
namespace {

double Sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Enough for everybody.
ClientLimits Uncut(std::span<const double> requests, double limit) {
  ClientLimits division;
  division.limits.assign(requests.begin(), requests.end());
  division.reserve = limit - Sum(requests);
  return division;
}

}    // namespace

ClientLimits DivideByRatio(std::span<const double> requests, double limit) {
  DT_CHECK(limit >= 0);
  const double wanted = Sum(requests);
  if (wanted <= limit) return Uncut(requests, limit);
  ClientLimits division;
  for (const double request : requests) division.limits.push_back(limit / wanted * request);
  return division;
}

double LevelOf(std::span<double> requests, double limit) {
  if (Sum(requests) <= limit) return std::numeric_limits<double>::infinity();
  std::ranges::sort(requests);
  double level = limit / static_cast<double>(requests.size());
  for (std::size_t j = 0; j + 1 < requests.size() && requests[j] < level; ++j) {
    level += (level - requests[j]) / static_cast<double>(requests.size() - 1 - j);
  }
  return level;
}

double LevelOf(std::span<WeightedRequest> requests, double limit) {
  std::ranges::sort(requests, {}, [](const WeightedRequest& its) { return its.request / its.weight; });
  double weights = 0;
  for (const WeightedRequest& its : requests) weights += its.weight;
  for (const WeightedRequest& its : requests) {
    const double level = std::max(limit, 0.0) / weights;
    if (its.request > its.weight * level) return level;
    limit -= its.request, weights -= its.weight;
  }
  return std::numeric_limits<double>::infinity();
}

ClientLimits DivideByLevel(std::span<const double> requests, double limit) {
  DT_CHECK(limit >= 0);
  if (Sum(requests) <= limit) return Uncut(requests, limit);
  std::vector<double> ascending(requests.begin(), requests.end());
  ClientLimits division;
  division.level = LevelOf(ascending, limit);
  for (const double request : requests) division.limits.push_back(std::min(request, division.level));
  return division;
}

}    // namespace dthrottle
