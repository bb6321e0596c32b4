// The three plots of "Graceful degradation with the logistic function", with the curves that the daemon sheds by.
//
// The post's numbers: 3 GiB are there, and throttling begins at 3e9 bytes.
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include "lab/figure_parts.h"
#include "lab/figures.h"
#include "shed/curve.h"

namespace dthrottle::lab {
namespace {

constexpr double kLow = 3e9, kHigh = 3221225472, kMiddle = 3110612736;
constexpr double kFrom = 2.95e9, kTo = 3.3e9;    // of the x axis
constexpr int kPoints = 701;

// What the code printed in the post computes, literally: integers without a sign, and .01 for .99.
double AsPrinted(double x) {
  const auto current = static_cast<std::uint64_t>(x), allocated = static_cast<std::uint64_t>(kHigh),
             range = static_cast<std::uint64_t>(kHigh - kLow);
  if (current < allocated - range) return 0;
  if (current > allocated + range) return 1;
  const std::uint64_t x0 = allocated - range / 2;
  const double k = -std::log(1 / 0.01 - 1) / static_cast<double>(allocated - x0);
  return 1 / (1 + std::exp(-k * static_cast<double>(current - x0)));
}

Panel PanelOf(std::string title) {
  Panel panel;
  panel.title = std::move(title);
  panel.x_label = "memory, GB";
  panel.y_label = "probability of a rejection";
  panel.x = {kFrom / 1e9, kTo / 1e9};
  panel.y = {0, 1.02};
  return panel;
}

// A row for each point between the bounds and around them.
template <class Row>
Figure Over(const std::array<std::string, 5>& names, Row&& row) {
  Figure figure;
  figure.columns = Columns(names);
  for (int i = 0; i < kPoints; ++i) AddRow(figure.columns, row(kFrom + (kTo - kFrom) * i / (kPoints - 1)));
  return figure;
}

Range Around(double value, double by) {
  return {value - by, value + by};
}

Figure Curves() {
  const ShedCurve logistic(kLow, kHigh), linear(kLow, kHigh, CurveShape::kLinear), step(kLow, kHigh, CurveShape::kStep);
  return Over({"memory_gb", "step", "linear", "logistic", "as_printed"}, [&](double x) {
    return Values{x / 1e9, step.RejectionProbability(x), linear.RejectionProbability(x),
                  logistic.RejectionProbability(x), AsPrinted(x)};
  });
}

}    // namespace

Figure ShedFigure1(const FigureOptions&) {
  Figure figure = Curves();
  Panel panel = PanelOf("between 3e9 bytes and 3 GiB");
  panel.curves = {{1, "step", kBlack, Stroke::kDashed}, {2, "linear", kBlue}};
  figure.panels = {panel};
  const ShedCurve linear(kLow, kHigh, CurveShape::kLinear);
  figure.findings = {
      {"linear at 3e9 bytes", linear.RejectionProbability(kLow), Around(0, 1e-12), "0"},
      {"linear at 3 GiB", linear.RejectionProbability(kHigh), Around(1, 1e-12), "1"},
      {"linear at a tenth of the range", linear.RejectionProbability(kLow + (kHigh - kLow) / 10), Around(0.1, 1e-9),
       "10 %"},
  };
  return figure;
}

Figure ShedFigure2(const FigureOptions&) {
  constexpr double kAround = 6;
  const double k = 1;    // steepness; 1 is what the picture has
  Figure figure;
  figure.columns = Columns(std::array<std::string, 2>{"x", "logistic"});
  for (int i = 0; i < kPoints; ++i) {
    const double x = kAround * (2.0 * i / (kPoints - 1) - 1);
    AddRow(figure.columns, Values{x, 1 / (1 + std::exp(-k * x))});
  }
  Panel panel = PanelOf("L = 1, k = 1, x0 = 0");
  panel.x_label = "x";
  panel.y_label = "f(x)";
  panel.x = {-kAround, kAround};
  panel.curves = {{1, "1 / (1 + exp(-k (x - x0)))", kBlue}};
  figure.panels = {panel};
  figure.findings = {{"f(0)", figure.columns[1].values[kPoints / 2], Around(0.5, 1e-12), "0.5"}};
  return figure;
}

Figure ShedFigure3(const FigureOptions&) {
  Figure figure = Curves();
  Panel panel = PanelOf("between 3e9 bytes and 3 GiB");
  panel.curves = {{1, "step", kBlack, Stroke::kDashed},
                  {2, "linear", kOrange},
                  {4, "the code as printed", kRed, Stroke::kThin},
                  {3, "logistic", kBlue}};
  figure.panels = {panel};
  const ShedCurve curve(kLow, kHigh);
  figure.findings = {
      {"logistic at 3e9 bytes", curve.Logistic(kLow), Around(0.01, 1e-9), "0.01000000841"},
      {"logistic in the middle", curve.Logistic(kMiddle), Around(0.5, 1e-9), ""},
      {"logistic at 3 GiB", curve.Logistic(kHigh), Around(0.99, 1e-9), "0.98999999158"},
      {"logistic at a tenth of the range", curve.Logistic(kLow + (kHigh - kLow) / 10), Around(0.0246963, 1e-6), ""},
      {"as printed: at a quarter of the range", AsPrinted(kLow + (kHigh - kLow) / 4), Around(0, 1e-12), ""},
      {"as printed: at three quarters", AsPrinted(kLow + (kHigh - kLow) * 3 / 4), Around(0.0913, 1e-3), ""},
      {"as printed: at 3 GiB", AsPrinted(kHigh), Around(0.01, 1e-3), ""},
  };
  return figure;
}

}    // namespace dthrottle::lab
