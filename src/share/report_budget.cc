#include "share/report_budget.h"

#include <algorithm>
#include <cmath>

namespace dthrottle {

namespace {

// The threshold's logarithm grows by this for each entry sent too many, and a part of it stays: a control loop whose
// damping is 0.7.
constexpr double kPerEntry = 0.2, kToStay = kPerEntry * kPerEntry;
constexpr double kSavedMin = -30, kSavedMax = 4;    // entries
constexpr double kSavedFirst = -2.5;                // what a tag begins with
// The threshold stays at its least until so many entries too many were sent. Until then every host hears of each hit,
// so a client that asks host after host has its burst once.
constexpr double kSavedFree = -7.5;
constexpr double kBaseMin = kPerEntry * kSavedFree;

}    // namespace

ReportBudget::ReportBudget() : saved_(kSavedFirst), base_(kBaseMin) {}

void ReportBudget::Step(const Pace& pace, double dt) {
  const double periods = dt / pace.period;
  saved_ = std::min(saved_ + periods, kSavedMax);
  if (saved_ > 0) base_ = std::max(base_ - kToStay * saved_ * periods, kBaseMin);
}

void ReportBudget::Sent(const Pace& pace, bool strayed) {
  saved_ = std::max(saved_ - 1, kSavedMin);
  if (strayed && saved_ < 0) base_ = std::min(base_ - kToStay * saved_, std::log(pace.ThresholdMax()));
}

Tokens ReportBudget::Threshold(const Pace& pace) const {
  return std::clamp(std::exp(base_ - kPerEntry * saved_), kThresholdMin, pace.ThresholdMax());
}

}    // namespace dthrottle
