#include "lab/figure_parts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "capacity/indicator.h"
#include "capacity/transfer.h"

namespace dthrottle::lab {

std::vector<Column> Columns(std::span<const std::string> names) {
  std::vector<Column> columns;
  for (const std::string& name : names) columns.push_back({name, {}});
  return columns;
}

void AddRow(std::vector<Column>& columns, std::span<const double> values) {
  DT_CHECK(values.size() == columns.size());
  for (std::size_t i = 0; i < values.size(); ++i) columns[i].values.push_back(values[i]);
}

double Sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

Values Indicate(std::span<const double> demands, std::span<const double> shares) {
  Values q;
  q.reserve(demands.size());
  for (std::size_t i = 0; i < demands.size(); ++i) q.push_back(ThrottledAmount().Value({demands[i], shares[i]}));
  return q;
}

void Round(const Graph& graph, std::span<const double> q, double gain, std::span<double> shares) {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Values flows = Flows(graph, q, gain);
  CutFlows(graph, shares, Values(shares.size(), kInfinity), flows);
  Apply(graph, flows, shares);
}

std::vector<int> LogRounds(int last, int a_decade) {
  std::vector<int> rounds;
  for (double at = 1; at < last; at = std::max(at + 1, std::round(at * std::pow(10, 1.0 / a_decade)))) {
    rounds.push_back(static_cast<int>(at));
  }
  rounds.push_back(last);
  return rounds;
}

}    // namespace dthrottle::lab
