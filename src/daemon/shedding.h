// Load shedding: measures [shed] on a timer and tells the limiter how much to refuse. Files are read in libuv's thread
// pool, one measurement at a time: some of them take the kernel milliseconds, and no query waits for them.
//
// Whatever is not known refuses nothing: no file, no report, a value older than shed.expiry.
#pragma once

#include <uv.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "admin/snapshot.h"
#include "config/settings.h"
#include "io/log.h"
#include "io/memory_gauge.h"
#include "io/part.h"
#include "io/timer.h"
#include "limiter/limiter.h"

namespace dthrottle {

class Shedding final : public Part {
 public:
  static constexpr const char* kSection = "shed";

  // All must outlive it.
  Shedding(uv_loop_t* loop, Limiter& limiter, const Settings& settings, Log& log);

  // Begins, with what was reported to the program before: `left` by its Keep.
  void Start(std::string_view left);

  void Reload(std::vector<std::string>&) override { Follow(); }

  // A value for ShedSignal::kReported, in force at once. The reason if it is not wanted.
  Result<void> Report(double value);

  ShedStatus Status() const;
  void Count(ProcessCounts& counts) const override { counts.shed = Counts(); }

  void Keep(std::vector<HandedSection>& sections) const override;

  void Close() override { timer_.Close(); }

 private:
  struct Measurement;
  struct Sample {
    GaugeReading reading;
    Instant at;
  };

  ShedCounts Counts() const;
  void Follow();
  void OnTimer();
  void Measure();
  void OnMeasured(const Measurement& measurement);
  void Fail(const std::string& why);
  void Apply(Instant now);
  ShedCurve Curve() const {
    const auto& shed = settings_.shed;
    return CurveOf(shed.curve, shed.low, shed.high, sample_->reading.maximum);
  }

  uv_loop_t* loop_;
  Limiter& limiter_;
  const Settings& settings_;
  Log& log_;
  Timer timer_;
  ShedSignal signal_{};
  std::string cgroup_;
  std::optional<Sample> sample_;
  std::string note_;    // why there is no sample, or what is special about it
  ShedCounts counts_;
  bool active_ = false;    // some rule sheds
  bool measuring_ = false;
  bool failing_ = false;    // and it has been said
};

}    // namespace dthrottle
