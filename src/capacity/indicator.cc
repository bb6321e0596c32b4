#include "capacity/indicator.h"

#include <array>
#include <cmath>

#include "base/number.h"

namespace dthrottle {
namespace {

class Amount final : public Indicator {
 public:
  std::string_view name() const override { return "throttled-amount"; }
  bool Defined(const Load&) const override { return true; }
  double Value(const Load& load) const override { return load.demand - load.capacity; }
  double Capacity(double demand, double q) const override { return demand - q; }
  double InverseSlope(double, double) const override { return 1; }
};

class Ratio final : public Indicator {
 public:
  std::string_view name() const override { return "throttled-ratio"; }
  bool Defined(const Load& load) const override { return load.demand > 0; }
  double Value(const Load& load) const override { return (load.demand - load.capacity) / load.demand; }
  double Capacity(double demand, double q) const override { return demand * (1 - q); }
  double InverseSlope(double demand, double) const override { return demand; }
};

class Logarithm final : public Indicator {
 public:
  std::string_view name() const override { return "log-ratio"; }
  bool Defined(const Load& load) const override { return load.demand > 0 && load.capacity > 0; }
  double Value(const Load& load) const override { return std::log(load.demand / load.capacity); }
  double Capacity(double demand, double q) const override { return demand * std::exp(-q); }
  double InverseSlope(double demand, double q) const override { return demand * std::exp(-q); }
};

class MeanResponse final : public Indicator {
 public:
  std::string_view name() const override { return "response-time"; }
  bool Defined(const Load& load) const override { return load.capacity > load.demand; }
  double Value(const Load& load) const override { return 1 / (load.capacity - load.demand); }
  double Capacity(double demand, double q) const override { return demand + 1 / q; }
  double InverseSlope(double, double q) const override { return 1 / (q * q); }
};

class Measure final : public Indicator {
 public:
  std::string_view name() const override { return "reported"; }
  bool Defined(const Load& load) const override { return load.demand > 0; }
  double Value(const Load& load) const override { return std::log(load.demand); }
  double Capacity(double, double) const override { return 0; }
  double InverseSlope(double, double) const override { return 1; }
};

}    // namespace

const Indicator& Reported() {
  static const Measure indicator;
  return indicator;
}

std::optional<double> ReadReport(std::string_view text) {
  constexpr double kReportMax = 1e12;
  double value = 0;
  if (!ParseNumber(text, value) || !(value > 0 && value <= kReportMax)) return {};
  return value;
}

const Indicator& ThrottledAmount() {
  static const Amount indicator;
  return indicator;
}

const Indicator& ThrottledRatio() {
  static const Ratio indicator;
  return indicator;
}

const Indicator& LogRatio() {
  static const Logarithm indicator;
  return indicator;
}

const Indicator& ResponseTime() {
  static const MeanResponse indicator;
  return indicator;
}

std::span<const Indicator* const> Indicators() {
  static const std::array<const Indicator*, 4> all{&ThrottledAmount(), &ThrottledRatio(), &LogRatio(), &ResponseTime()};
  return all;
}

const Indicator* FindIndicator(std::string_view name) {
  if (name == "spare-bandwidth") return &ThrottledAmount();
  if (name == Reported().name()) return &Reported();
  for (const Indicator* indicator : Indicators()) {
    if (indicator->name() == name) return indicator;
  }
  return nullptr;
}

}    // namespace dthrottle
