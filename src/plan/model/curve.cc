// Graceful degradation: the logistic function between its bounds, and the two that it is compared with.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>

#include "io/number_option.h"
#include "plan/model/model.h"
#include "shed/curve.h"

namespace dthrottle::plan {
namespace {

struct CurveOptions {
  double low = 0, high = 1;
  Values at;
};

constexpr int kPoints = 21;

// `rescaled` is the logistic function without its steps of 0.01 at both ends.
Result<Table> Curves(const CurveOptions& options) {
  if (!(options.low < options.high)) return Fail("--low must be below --high: between equal bounds there is no curve");
  Values at = options.at;
  for (int i = 0; at.size() < kPoints && options.at.empty(); ++i) {
    at.push_back(options.low + (options.high - options.low) * i / (kPoints - 1));
  }
  const ShedCurve curve(options.low, options.high), linear(options.low, options.high, CurveShape::kLinear),
      step(options.low, options.high, CurveShape::kStep);
  Table table;
  table.columns = {"at", "logistic", "rescaled", "linear", "step"};
  for (const double x : at) {
    const double p = curve.RejectionProbability(x);
    const double rescaled = p == 0 || p == 1 ? p : (p - 0.01) / 0.98;
    table.rows.push_back({x, {p, rescaled, linear.RejectionProbability(x), step.RejectionProbability(x)}});
  }
  return table;
}

}    // namespace

void AddCurveModels(CLI::App& model, const Answer& answer) {
  CLI::App* curve = model.add_subcommand("curve", "Shedding: logistic, linear and step curves side by side");
  const auto options = std::make_shared<CurveOptions>();
  curve->add_option("--low", options->low, "Where rejections begin")->check(AnyNumber())->required();
  curve->add_option("--high", options->high, "From where all is rejected")->check(AnyNumber())->required();
  curve->add_option("--at", options->at, "Points; by itself 21 of them from low to high")
      ->delimiter(',')
      ->check(AnyNumber());
  curve->callback([=] { answer(Curves(*options)); });
}

}    // namespace dthrottle::plan
