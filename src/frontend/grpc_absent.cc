#include "frontend/grpc_leases.h"

namespace dthrottle {

Result<void> GrpcLeases::Load() {
  return {};
}

Result<std::unique_ptr<GrpcLeases>> GrpcLeases::Make(uv_loop_t*, lease::LeaseServer&, const Options&,
                                                     std::function<void(BootInstant)>) {
  return Fail("this dthrottled was built without gRPC");
}

}    // namespace dthrottle
