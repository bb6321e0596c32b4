// What the figures of both papers are made with.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capacity/graph.h"
#include "lab/figure.h"

namespace dthrottle::lab {

using Values = std::vector<double>;

// Told apart by those who do not see all colours (Okabe and Ito 2008).
inline constexpr std::string_view kBlack = "#000000", kOrange = "#e69f00", kGreen = "#009e73", kBlue = "#0072b2",
                                  kRed = "#d55e00";
// In an order: dark to light, in print as well (viridis).
inline constexpr std::string_view kScale[] = {"#440154", "#482878", "#3e4a89", "#31688e", "#26828e",
                                              "#1f9e89", "#35b779", "#6ece58", "#a5cb2b", "#dcbe10"};

// Columns with these names and no rows.
std::vector<Column> Columns(std::span<const std::string> names);

// One row; `values` holds one a column.
void AddRow(std::vector<Column>& columns, std::span<const double> values);

double Sum(std::span<const double> values);

// Throttled amount alias spare bandwidth of each limiter, GDRL eq (14).
Values Indicate(std::span<const double> demands, std::span<const double> shares);

// One round of GDRL eq (7), DST eq (3), with these indicators. Shares stay at 0 or above.
void Round(const Graph& graph, std::span<const double> q, double gain, std::span<double> shares);

// Rounds from 1 to `last` to draw over a logarithmic axis: all at first, then `a_decade`.
std::vector<int> LogRounds(int last, int a_decade);

}    // namespace dthrottle::lab
