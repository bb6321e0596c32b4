// The services of dthrottle-grpc, each over a channel to the daemon, which must outlive it.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>

#include <memory>

#include "gateway/channel.h"

namespace dthrottle {

// doorman.Capacity, by lease lines.
std::unique_ptr<grpc::Service> MakeLeaseService(Channel& channel);

// envoy.service.ratelimit.v3.RateLimitService, by questions.
std::unique_ptr<grpc::Service> MakeLimitService(Channel& channel);

// envoy.service.rate_limit_quota.v3.RateLimitQuotaService, by lease lines.
std::unique_ptr<grpc::Service> MakeQuotaService(Channel& channel);

}    // namespace dthrottle
