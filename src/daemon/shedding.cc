#include "daemon/shedding.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/state.h"
#include "config/values.h"
#include "io/clock.h"
#include "io/thread_pool.h"
#include "limiter/shedder.h"
#include "rule/rulebook.h"

namespace dthrottle {

// What the thread pool does. It may come back when other settings are in force, and then counts for nothing.
struct Shedding::Measurement {
  ShedSignal signal;
  std::string cgroup;
  Result<GaugeReading> reading;
};

namespace {

struct KeptReport {
  static constexpr std::uint32_t kVersion = 1;
  double value = 0;
  Instant at{};

  static void Fields(auto& state, auto& self) { state(self.value, self.at); }
};

std::string Shown(ShedSignal signal, double value) {
  if (IsMemory(signal)) return FormatBytes(static_cast<std::uint64_t>(std::clamp(value, 0.0, 0x1p63)));
  return FormatNumber(value) + (signal == ShedSignal::kPressure ? "%" : "");
}

}    // namespace

Shedding::Shedding(uv_loop_t* loop, Limiter& limiter, const Settings& settings, Log& log)
    : loop_(loop), limiter_(limiter), settings_(settings), log_(log), timer_(loop, [this] { OnTimer(); }) {}

void Shedding::Start(std::string_view left) {
  Follow();
  const Instant now = Now();
  KeptReport kept;
  if (signal_ != ShedSignal::kReported || !ReadState(left, KeptReport::kVersion, kept)) return;
  if (now - kept.at > settings_.shed.expiry) return;
  sample_ = Sample{{kept.value, 0}, kept.at};
  note_.clear();
  Apply(now);
}

// Only a reported value is kept: others are measured anew, and this one might not be reported again before it expires.
void Shedding::Keep(std::vector<HandedSection>& sections) const {
  if (signal_ != ShedSignal::kReported || !sample_) return;
  sections.push_back({kSection, -1, WriteState(KeptReport::kVersion, KeptReport{sample_->reading.value, sample_->at})});
}

// The settings and the rules in force.
void Shedding::Follow() {
  const auto& shed = settings_.shed;
  active_ = limiter_.rules().shed_priorities().any();
  if (shed.signal != signal_ || shed.cgroup != cgroup_ || !active_) sample_.reset(), failing_ = false;
  signal_ = shed.signal;
  cgroup_ = shed.cgroup;
  if (!sample_) note_ = signal_ == ShedSignal::kReported ? "nothing is reported" : "";
  Apply(Now());
  active_ ? timer_.StartNowAndEvery(shed.interval) : timer_.Stop();
}

Result<void> Shedding::Report(double value) {
  if (signal_ != ShedSignal::kReported) {
    return dthrottle::Fail(
        fmt::format("shed.signal is \"{}\", and a value is taken only for \"reported\"", Name(signal_)));
  }
  ++counts_.samples;
  sample_ = Sample{{value, 0}, Now()};
  note_.clear();
  Apply(sample_->at);
  return {};
}

void Shedding::OnTimer() {
  Apply(Now());
  if (signal_ != ShedSignal::kReported && !measuring_) Measure();
}

void Shedding::Measure() {
  const auto read = [](Measurement& m) {
    const auto source = GaugeSource(m.signal, m.cgroup);
    m.reading = source ? ReadGauge(m.signal, *source) : tl::unexpected(source.error());
  };
  measuring_ = true;
  InThreadPool(loop_, Measurement{signal_, cgroup_, {}}, read, [this](Measurement& m) { OnMeasured(m); });
}

void Shedding::OnMeasured(const Measurement& m) {
  measuring_ = false;
  if (!active_ || m.signal != signal_ || m.cgroup != cgroup_) return;
  if (!m.reading) return Fail(m.reading.error().message);
  ++counts_.samples;
  const bool of_host = !m.reading->limited && settings_.shed.low.kind != ShedBound::Kind::kBytes;
  if (of_host && note_.empty()) {
    log_.Warning(
        "shed.signal: the control group has no memory.max below the host's memory, {}, and is measured against it",
        FormatBytes(static_cast<std::uint64_t>(m.reading->maximum)));
  }
  if (failing_) log_.Notice("shed.signal: {} can be measured again", Name(signal_));
  failing_ = false;
  note_ = of_host ? "there is no memory.max below the host's memory" : "";
  sample_ = Sample{*m.reading, Now()};
  Apply(sample_->at);
}

void Shedding::Fail(const std::string& why) {
  ++counts_.failures;
  if (!failing_) log_.Warning("shed.signal: {}: nothing is shed", why);
  failing_ = true;
  note_ = why;
  sample_.reset();
  Apply(Now());
}

void Shedding::Apply(Instant now) {
  if (sample_ && now - sample_->at > settings_.shed.expiry) {
    ++counts_.expired;
    note_ = "the last value is older than shed.expiry";
    log_.Warning("shed.signal: the last value of \"{}\" is older than shed.expiry = {}: nothing is shed", Name(signal_),
                 FormatDuration(settings_.shed.expiry));
    sample_.reset();
  }
  const bool before = limiter_.shedder().any();
  if (sample_) {
    limiter_.shedder().Shed(limiter_.rules().shed_priorities(), Curve(), sample_->reading.value);
  } else {
    limiter_.shedder().Stop();
  }
  if (limiter_.shedder().any() == before) return;
  if (before) {
    log_.Notice("shedding ends");
  } else {
    log_.Warning("shedding begins: \"{}\" is at {}", Name(signal_), Shown(signal_, sample_->reading.value));
  }
}

ShedStatus Shedding::Status() const {
  ShedStatus status;
  status.signal = signal_;
  if (signal_ != ShedSignal::kReported) status.source = GaugeSource(signal_, cgroup_).value_or("");
  status.note = active_ ? note_ : "no rule has shed = true";
  if (!sample_) return status;
  status.value = sample_->reading.value;
  status.maximum = sample_->reading.maximum;
  status.curve = Curve();
  status.age = Now() - sample_->at;
  return status;
}

ShedCounts Shedding::Counts() const {
  ShedCounts counts = counts_;
  counts.blind = active_ && !sample_;
  if (sample_ && Curve().high() > 0) counts.signal = std::max(0.0, sample_->reading.value / Curve().high());
  return counts;
}

}    // namespace dthrottle
