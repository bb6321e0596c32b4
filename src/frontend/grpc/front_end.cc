#include "frontend/grpc/front_end.h"

#include <sysexits.h>

namespace dthrottle {

namespace {

// The gRPC program of the daemon before, which says farewell to its clients.
struct Dismissed final : Part {
  explicit Dismissed(std::unique_ptr<Child> leaving) : child(std::move(leaving)) {}

  void Close() override { child.reset(); }

  std::unique_ptr<Child> child;
};

std::vector<std::string> TlsOf(const Settings& settings) {
  const auto& grpc = settings.grpc;
  if (!grpc.tls()) return {};
  return {grpc.certificate_file, grpc.key_file, grpc.client_ca_file};
}

}    // namespace

Result<void> GrpcFrontEnd::Check(const Settings& settings) {
  if (!settings.lease.grpc.enabled()) return {};
  if (const auto good = CheckGrpcProgram(TlsOf(settings)); !good) return Fail("lease.grpc: " + good.error().message);
  return {};
}

void GrpcFrontEnd::Start() {
  const Settings& settings = host_.admin.settings();
  if (!host_.took_over()) {    // otherwise the program before has checked it
    if (const auto good = Check(settings); !good) throw StartFailure{EX_CONFIG, good.error().message};
  }
  const auto& lease = settings.lease;
  const GrpcGateway::Options options{GrpcProgram(), lease.idle_timeout, lease.grpc_max_calls, lease.grpc_max_resources,
                                     TlsOf(settings)};
  gateway_.emplace(host_.loop, lease_.leasing().server(), host_.log, options,
                   [this](BootInstant now) { lease_.leasing().Follow(now); });
  gateway_->Start(host_.handed.Take(GrpcGateway::kSection));
}

std::unique_ptr<Part> GrpcFrontEnd::Dismiss(const HandedSection& section) {
  if (section.key != GrpcGateway::kSection) return nullptr;
  return std::make_unique<Dismissed>(GrpcGateway::Dismiss(host_.loop, section));
}

void GrpcFrontEnd::Reload(std::vector<std::string>&) {
  const auto& lease = host_.admin.settings().lease;
  gateway_->SetBounds(lease.grpc_max_calls, lease.grpc_max_resources);
}

void GrpcFrontEnd::Count(ProcessCounts& counts) const {
  const GrpcGateway::Counts grpc = gateway_->counts();
  CountSockets(grpc.accepted, counts.lease);
  counts.lease.grpc_connections = gateway_->connections();
  counts.lease.grpc_calls = grpc.calls.calls;
  counts.lease.grpc_refused = grpc.calls.refused;
  counts.lease.grpc_invalid = grpc.calls.invalid;
  counts.lease.grpc_restarts = grpc.restarts;
}

}    // namespace dthrottle
