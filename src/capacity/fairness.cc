#include "capacity/fairness.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace dthrottle {

double JainIndex(std::span<const double> q) {
  DT_CHECK(!q.empty());
  const double sum = std::accumulate(q.begin(), q.end(), 0.0);
  const double squares = std::inner_product(q.begin(), q.end(), q.begin(), 0.0);
  return squares > 0 ? sum * sum / (static_cast<double>(q.size()) * squares) : 1;
}

double Spread(std::span<const double> q) {
  DT_CHECK(!q.empty());
  const auto [least, most] = std::ranges::minmax(q);
  return most - least;
}

void OverThrottling::Add(std::span<const double> limits, std::span<const double> requests) {
  DT_CHECK(limits.size() == requests.size());
  for (std::size_t i = 0; i < limits.size(); ++i) accepted_ += std::min(limits[i], requests[i]);
  ideal_ += std::min(std::accumulate(limits.begin(), limits.end(), 0.0),
                     std::accumulate(requests.begin(), requests.end(), 0.0));
}

}    // namespace dthrottle
