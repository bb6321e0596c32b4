// A picture of a paper, computed anew: its data, how they are drawn, and numbers to hold against the print.
//
// Data only. What computes them is in figures.h, what writes them in figure_render.h.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dthrottle::lab {

struct Column {
  std::string name;              // of the CSV, as in "limiter_3_q"
  std::vector<double> values;    // one a row; NaN: there is none
};

enum class Stroke { kSolid, kDashed, kThin, kBars };

struct Curve {
  std::size_t column;         // in Figure::columns
  std::string title;          // in the key; empty: not there
  std::string_view colour;    // as in "#0072b2"
  Stroke stroke = Stroke::kSolid;
};

struct Range {
  double low, high;
};

struct Panel {
  std::string title, x_label, y_label;    // labels with their unit
  std::vector<Curve> curves;              // later ones are drawn over earlier ones
  Range x;
  std::optional<Range> y;    // none: what the data need
  bool log_x = false;
};

// A number that tells whether the figure came out.
struct Finding {
  std::string what;                 // with its unit
  double value;                     // NaN: it did not happen
  std::optional<Range> expected;    // by theory, or by many seeds
  std::string printed;              // what the paper says; empty: nothing

  bool as_expected() const { return !expected || (value >= expected->low && value <= expected->high); }
};

struct Figure {
  std::vector<Column> columns;    // the first is what the x axis has
  std::vector<Panel> panels;
  std::size_t panels_a_row = 1;
  std::vector<Finding> findings;
};

}    // namespace dthrottle::lab
