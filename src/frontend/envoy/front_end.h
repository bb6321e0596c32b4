// Envoy's services for rate limits and quotas, over gRPC, as a front end: key "envoy", settings [envoy]. Quotas are leases.
#pragma once

#include "frontend/ask/server.h"
#include "frontend/grpc/front_end.h"
#include "frontend/lease/front_end.h"

namespace dthrottle {

class EnvoyFrontEnd final : public GatewayFrontEnd {
 public:
  // `lease` must outlive this object.
  EnvoyFrontEnd(FrontEndHost& host, LeaseFrontEnd& lease) : GatewayFrontEnd(host, kGrpcProgram), lease_(lease) {}

  // Fails if the settings want it, and the program that speaks gRPC is not installed or cannot use their certificates.
  static Result<void> Check(const Settings& settings) {
    return CheckProgram(kGrpcProgram, "envoy.tcp", settings.envoy.tcp, settings);
  }

  std::string_view key() const override { return "envoy"; }
  std::string_view doing() const override { return "answering Envoy"; }
  Room room() const override;
  FrontEnd* rests_on() const override { return &lease_; }
  bool has_room() const override { return true; }
  void Start() override;
  bool Owns(std::string_view name) const override { return name == key() || name == kQuestions || name == kQuotas; }
  void Reload(std::vector<std::string>& problems) override;
  void Count(ProcessCounts& counts) const override;

 private:
  static constexpr std::string_view kQuestions = "envoy-questions", kQuotas = "envoy-quotas";

  void SetBounds();

  LeaseFrontEnd& lease_;
  GatewayCalls calls_, reports_;
  // From Start on:
  std::optional<AskServer> questions_;
  std::optional<LeaseSocket> quotas_;
};

}    // namespace dthrottle
