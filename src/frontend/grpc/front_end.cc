#include "frontend/grpc/front_end.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdint>

#include "admin/admin.h"

namespace dthrottle {

std::vector<std::string> GrpcWords(std::string_view services, Duration idle_timeout) {
  const auto idle = std::chrono::ceil<std::chrono::milliseconds>(idle_timeout).count();
  return {std::string(services), std::to_string(std::min<std::int64_t>(idle, INT_MAX))};
}

void GrpcFrontEnd::Start() {
  const Settings& settings = host_.admin.settings();
  CheckStart(Check);
  SetBounds();
  lines_.emplace(
      host_.loop, lease_.leasing().server(), Duration::zero(),
      [this](BootInstant now) { lease_.leasing().Follow(now); }, &calls_);
  StartProgram(GrpcWords("leases", settings.lease.idle_timeout), {{kLines, *lines_}});
}

// In force once a call after this one has been answered.
void GrpcFrontEnd::SetBounds() {
  const auto& lease = host_.admin.settings().lease;
  calls_.calls_max = lease.grpc_max_calls;
  calls_.further = {lease.grpc_max_resources};
}

void GrpcFrontEnd::Reload(std::vector<std::string>&) {
  SetBounds();
}

void GrpcFrontEnd::Count(ProcessCounts& counts) const {
  const Gateway::Counts grpc = gateway_->counts();
  CountSockets(grpc.accepted, counts.lease);
  counts.lease.grpc_connections = gateway_->connections();
  counts.lease.grpc_calls = calls_.calls;
  counts.lease.grpc_refused = calls_.refused;
  counts.lease.grpc_invalid = calls_.invalid;
  counts.lease.grpc_restarts = grpc.restarts;
}

}    // namespace dthrottle
