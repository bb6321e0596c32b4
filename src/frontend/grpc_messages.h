// Leases over gRPC without gRPC: messages of protocol/doorman.proto in, messages out. They come from strangers: what
// cannot be is a sentence for them, and nothing has changed then.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"
#include "base/time.h"
#include "doorman.pb.h"
#include "lease/server.h"

namespace dthrottle {

// One instant on two clocks: the one that leases are measured by, and the one of the wire.
struct GrpcInstant {
  BootInstant now{};
  Duration since_1970{};
};

Result<void> Answer(const doorman::GetCapacityRequest& request, std::size_t resources_max, lease::LeaseServer& server,
                    GrpcInstant at, doorman::GetCapacityResponse& answer);
Result<void> Answer(const doorman::GetServerCapacityRequest& request, std::size_t resources_max,
                    lease::LeaseServer& server, GrpcInstant at, doorman::GetServerCapacityResponse& answer);
Result<void> Answer(const doorman::ReleaseCapacityRequest& request, std::size_t resources_max,
                    lease::LeaseServer& server, GrpcInstant at, doorman::ReleaseCapacityResponse& answer);
Result<void> Answer(const doorman::DiscoveryRequest& request, std::size_t resources_max, lease::LeaseServer& server,
                    GrpcInstant at, doorman::DiscoveryResponse& answer);

}    // namespace dthrottle
