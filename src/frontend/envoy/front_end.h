// Envoy's rate limit service over gRPC as a front end: key "envoy", settings [envoy].
#pragma once

#include "frontend/ask/server.h"
#include "frontend/grpc/gateway_front_end.h"

namespace dthrottle {

class EnvoyFrontEnd final : public GatewayFrontEnd {
 public:
  explicit EnvoyFrontEnd(FrontEndHost& host) : GatewayFrontEnd(host) {}

  // Fails if the settings want it, and the program that speaks gRPC is not installed or cannot use their certificates.
  static Result<void> Check(const Settings& settings) {
    return CheckProgram("envoy.tcp", settings.envoy.tcp, settings);
  }

  std::string_view key() const override { return "envoy"; }
  std::string_view doing() const override { return "answering Envoy"; }
  Room room() const override;
  void Start() override;
  bool Owns(std::string_view name) const override { return name == key() || name == kQuestions; }
  void Reload(std::vector<std::string>& problems) override;
  void Count(ProcessCounts& counts) const override;

 private:
  static constexpr std::string_view kQuestions = "envoy-questions";

  void SetBounds();

  GatewayCalls calls_;
  std::optional<AskServer> questions_;    // from Start on
};

}    // namespace dthrottle
