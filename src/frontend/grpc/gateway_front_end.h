// A front end whose clients speak gRPC: everything of it but the lines that it answers.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "frontend/frontend.h"
#include "frontend/grpc/gateway.h"

namespace dthrottle {

class GatewayFrontEnd : public FrontEnd {
 public:
  explicit GatewayFrontEnd(FrontEndHost& host) : host_(host) {}

  void Take(int fd) override { gateway_->Take(fd); }
  void TakeUp(const HandedConnection& connection) override { gateway_->TakeUp(connection); }
  std::unique_ptr<Part> Dismiss(const HandedSection& section) override;
  std::size_t connections() const override { return gateway_->connections(); }
  void Hold(Handover& handover) override { gateway_->Hold(handover); }
  void Release() override { gateway_->Release(); }
  void Drain(std::function<void()> done) override { gateway_->Drain(std::move(done)); }
  void Close() override { gateway_->Close(); }

 protected:
  // Fails if gRPC is wanted at `endpoint`, the value of the key `address`, and its program is not installed or cannot use
  // the certificates of [grpc].
  static Result<void> CheckProgram(std::string_view address, const Endpoint& endpoint, const Settings& settings);

  // Starts the program with these services, or goes on with it. The servers of `lines` must outlive this object.
  void StartProgram(std::string_view services, Duration idle_timeout, std::vector<GrpcGateway::Lines> lines);

  FrontEndHost& host_;
  std::optional<GrpcGateway> gateway_;    // from StartProgram on
};

}    // namespace dthrottle
