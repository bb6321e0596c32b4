// Leases over gRPC as a front end: key "grpc", setting lease.grpc.
#pragma once

#include "admin/admin.h"
#include "frontend/frontend.h"
#include "frontend/grpc/gateway.h"
#include "frontend/lease/front_end.h"

namespace dthrottle {

class GrpcFrontEnd final : public FrontEnd {
 public:
  // `lease` must outlive this object.
  GrpcFrontEnd(FrontEndHost& host, LeaseFrontEnd& lease) : host_(host), lease_(lease) {}

  // Fails if the settings want gRPC, and its program is not installed or cannot use the certificates of [grpc].
  static Result<void> Check(const Settings& settings);

  std::string_view key() const override { return GrpcGateway::kFront; }
  std::string_view doing() const override { return "granting leases by gRPC"; }
  Room room() const override { return lease_.room(); }
  FrontEnd* rests_on() const override { return &lease_; }
  void Start() override;
  void Take(int fd) override { gateway_->Take(fd); }
  bool Owns(std::string_view name) const override { return name == key() || name == GrpcGateway::kLinesFront; }
  void TakeUp(const HandedConnection& connection) override { gateway_->TakeUp(connection); }
  std::unique_ptr<Part> Dismiss(const HandedSection& section) override;
  std::size_t connections() const override { return gateway_->connections(); }
  void Hold(Handover& handover) override { gateway_->Hold(handover); }
  void Release() override { gateway_->Release(); }
  void Reload(std::vector<std::string>& problems) override;
  void Count(ProcessCounts& counts) const override;
  void Drain(std::function<void()> done) override { gateway_->Drain(std::move(done)); }
  void Close() override { gateway_->Close(); }

 private:
  FrontEndHost& host_;
  LeaseFrontEnd& lease_;
  std::optional<GrpcGateway> gateway_;    // from Start on
};

}    // namespace dthrottle
