#include "daemon/retention_watch.h"

#include <algorithm>

#include "io/clock.h"
#include "limiter/retention.h"
#include "rule/rulebook.h"
#include "tally/tally.h"

namespace dthrottle {

namespace {

constexpr Duration kWarnEvery = std::chrono::minutes(1);

}    // namespace

RetentionWatch::RetentionWatch(uv_loop_t* loop, Limiter& limiter, Log& log)
    : limiter_(limiter), log_(log), timer_(loop, [this] { OnTimer(Now()); }) {
  timer_.StartEvery(Retention::kEvery);
}

void RetentionWatch::OnTimer(Instant now) {
  limiter_.SampleRetention(now);
  if (now < quiet_until_) return;
  const Rulebook& rules = limiter_.rules();
  std::size_t worst = 0, short_of_time = 0;
  double worst_part = 1;
  for (std::size_t i = 0; i < rules.rules().size(); ++i) {
    const auto retention = limiter_.retention().of(limiter_.tally().counter(i));
    if (!retention.has_value()) continue;
    const double part = Seconds(*retention) / Seconds(ToDuration(rules.limit(static_cast<LimitIndex>(i)).shape.depth));
    if (part >= 1) continue;
    ++short_of_time;
    if (part < worst_part) worst = i, worst_part = part;
  }
  if (short_of_time == 0) return;
  quiet_until_ = now + kWarnEvery;
  log_.Warning(
      "table: buckets of the rule {} are forgotten after {:.3g} s and need {:.3g} s to fill{}: table.memory is too "
      "small "
      "for so many tags",
      rules.rules()[worst].name, Seconds(*limiter_.retention().of(limiter_.tally().counter(worst))),
      Seconds(ToDuration(rules.limit(static_cast<LimitIndex>(worst)).shape.depth)),
      short_of_time > 1 ? fmt::format(", those of {} more rules too", short_of_time - 1) : "");
}

}    // namespace dthrottle
