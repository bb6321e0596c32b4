#include "frontend/envoy/front_end.h"

#include "admin/admin.h"
#include "io/fresh.h"
#include "rule/rulebook.h"

namespace dthrottle {

FrontEnd::Room EnvoyFrontEnd::room() const {
  return {{host_.admin.settings().envoy.max_connections, 2}};
}

void EnvoyFrontEnd::Start() {
  const Settings& settings = host_.admin.settings();
  CheckStart(Check);
  SetBounds();
  questions_.emplace(host_.loop, host_.admin.limiter(), nullptr, LaneUse{0, key()}, FreshPrng(),
                     settings.query.max_tag_bytes, Duration::zero(), &calls_);
  quotas_.emplace(
      host_.loop, lease_.leasing().server(), Duration::zero(),
      [this](BootInstant now) { lease_.leasing().Follow(now); }, &reports_);
  StartProgram(GrpcWords("envoy", settings.envoy.idle_timeout), {{kQuestions, *questions_}, {kQuotas, *quotas_}});
}

// In force once a call after this one has been answered.
void EnvoyFrontEnd::SetBounds() {
  const auto& envoy = host_.admin.settings().envoy;
  calls_.calls_max = reports_.calls_max = envoy.max_calls;
  calls_.further = {static_cast<std::uint32_t>(envoy.headers), host_.admin.limiter().rules().any_own()};
}

void EnvoyFrontEnd::Reload(std::vector<std::string>&) {
  SetBounds();
}

void EnvoyFrontEnd::Count(ProcessCounts& counts) const {
  const Gateway::Counts grpc = gateway_->counts();
  CountSockets(grpc.accepted, counts.envoy);
  counts.envoy.calls = calls_.calls;
  counts.envoy.reports = reports_.calls;
  counts.envoy.calls_refused = calls_.refused + reports_.refused;
  counts.envoy.calls_invalid = calls_.invalid + questions_->turn().counts().errors;
  counts.envoy.limits_refused = questions_->turn().limits_refused();
  counts.envoy.refused = questions_->turn().counts().refused;
  counts.envoy.restarts = grpc.restarts;
  counts.over_long += questions_->turn().over_long();
}

}    // namespace dthrottle
