#include "lab/figure_render.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "base/check.h"

namespace dthrottle::lab {
namespace {

constexpr int kWholeWidth = 960, kPartWidth = 480, kHeight = 400;    // of a panel, pixels; one a row, or several
constexpr std::size_t kNameWidth = 43;                               // of a finding, bytes

std::size_t Rows(const Figure& figure) {
  return figure.columns.front().values.size();
}

std::string Number(double value) {
  return std::isnan(value) ? "not reached" : fmt::format("{:.6g}", value);
}

std::string Expected(const Finding& finding) {
  if (!finding.expected) return "";
  const auto& [low, high] = *finding.expected;
  const std::string low_text = Number(low), high_text = Number(high);
  return fmt::format("{} {}", finding.as_expected() ? "expected" : "NOT",
                     low_text == high_text ? low_text : low_text + " to " + high_text);
}

// How gnuplot is to draw it.
std::string With(Stroke stroke) {
  switch (stroke) {
    case Stroke::kSolid:
      return "lines linewidth 2";
    case Stroke::kDashed:
      return "lines linewidth 2 dashtype 2";
    case Stroke::kThin:
      return "lines linewidth 1";
    case Stroke::kBars:
      return "boxes fillstyle solid noborder";
  }
  return "lines";
}

std::string CurveCommand(const Curve& curve) {
  return fmt::format("$data using 1:{} with {} linecolor rgb \"{}\" {}", curve.column + 1, With(curve.stroke),
                     curve.colour, curve.title.empty() ? "notitle" : fmt::format("title \"{}\"", curve.title));
}

std::string PanelCommands(const Panel& panel) {
  std::string out = fmt::format("set title \"{}\"\nset xlabel \"{}\" offset 0,0.5\nset ylabel \"{}\"\n{} logscale x\n",
                                panel.title, panel.x_label, panel.y_label, panel.log_x ? "set" : "unset");
  fmt::format_to(std::back_inserter(out), "set xrange [{}:{}]\n", panel.x.low, panel.x.high);
  fmt::format_to(std::back_inserter(out), "set yrange {}\n",
                 panel.y ? fmt::format("[{}:{}]", panel.y->low, panel.y->high) : "[*:*]");
  for (const Curve& curve : panel.curves) {
    out += (&curve == &panel.curves.front() ? "plot " : ", \\\n  ") + CurveCommand(curve);
  }
  return out + "\n";
}

}    // namespace

std::string RenderFindings(const Recipe& recipe, const Figure& figure, std::uint64_t seed) {
  std::string out = fmt::format("{}: {} (seed {})\n", recipe.name, recipe.title, seed);
  for (const Finding& finding : figure.findings) {
    std::string line =
        fmt::format("  {:<{}} {:>11}   {:<28}", finding.what, kNameWidth, Number(finding.value), Expected(finding));
    if (!finding.printed.empty()) line += "print: " + finding.printed;
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string RenderCsv(const Figure& figure) {
  std::string out;
  for (const Column& column : figure.columns) {
    DT_CHECK(column.values.size() == Rows(figure));
    out += (out.empty() ? "" : ",") + column.name;
  }
  out += '\n';
  for (std::size_t row = 0; row < Rows(figure); ++row) {
    for (std::size_t i = 0; i < figure.columns.size(); ++i) {
      if (i > 0) out += ',';
      const double value = figure.columns[i].values[row];
      if (!std::isnan(value)) fmt::format_to(std::back_inserter(out), "{:.9g}", value);
    }
    out += '\n';
  }
  return out;
}

Picture RenderPicture(const Figure& figure) {
  const std::size_t across = figure.panels_a_row, down = (figure.panels.size() + across - 1) / across;
  Picture picture;
  picture.width = across == 1 ? kWholeWidth : kPartWidth * static_cast<int>(across);
  picture.height = kHeight * static_cast<int>(down);
  std::string& out = picture.script;
  out = "$data << EOD\n";
  for (std::size_t row = 0; row < Rows(figure); ++row) {
    for (const Column& column : figure.columns) fmt::format_to(std::back_inserter(out), "{:.7g} ", column.values[row]);
    out += '\n';
  }
  fmt::format_to(std::back_inserter(out),
                 "EOD\nset grid linetype 1 linewidth 0.5 linecolor rgb \"#d0d0d0\"\nset boxwidth 0.8\nset key below\n"
                 "set multiplot layout {},{}\n",
                 down, across);
  for (const Panel& panel : figure.panels) out += PanelCommands(panel);
  out += "unset multiplot\n";
  return picture;
}

}    // namespace dthrottle::lab
