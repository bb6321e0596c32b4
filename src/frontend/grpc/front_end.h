// Leases over gRPC as a front end: key "grpc", setting lease.grpc.
#pragma once

#include "frontend/gateway_front_end.h"
#include "frontend/lease/front_end.h"

namespace dthrottle {

inline constexpr GatewayProgram kGrpcProgram{"dthrottle-grpc", "dthrottle-grpc"};

// The words that start it: what it serves, and the milliseconds after which connections without calls end; 0: never.
std::vector<std::string> GrpcWords(std::string_view services, Duration idle_timeout);

class GrpcFrontEnd final : public GatewayFrontEnd {
 public:
  // `lease` must outlive this object.
  GrpcFrontEnd(FrontEndHost& host, LeaseFrontEnd& lease) : GatewayFrontEnd(host, kGrpcProgram), lease_(lease) {}

  // Fails if the settings want gRPC, and its program is not installed or cannot use the certificates of [tls].
  static Result<void> Check(const Settings& settings) {
    return CheckProgram(kGrpcProgram, "lease.grpc", settings.lease.grpc, settings);
  }

  std::string_view key() const override { return "grpc"; }
  std::string_view doing() const override { return "granting leases by gRPC"; }
  Room room() const override { return lease_.room(); }
  FrontEnd* rests_on() const override { return &lease_; }
  void Start() override;
  bool Owns(std::string_view name) const override { return name == key() || name == kLines; }
  void Reload(std::vector<std::string>& problems) override;
  void Count(ProcessCounts& counts) const override;

 private:
  static constexpr std::string_view kLines = "gateway";

  void SetBounds();

  LeaseFrontEnd& lease_;
  GatewayCalls calls_;
  std::optional<LeaseSocket> lines_;    // from Start on
};

}    // namespace dthrottle
