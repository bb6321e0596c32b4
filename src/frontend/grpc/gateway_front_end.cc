#include "frontend/grpc/gateway_front_end.h"

#include <fmt/format.h>

#include <utility>

#include "admin/admin.h"

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

Result<void> GatewayFrontEnd::CheckProgram(std::string_view address, const Endpoint& endpoint,
                                           const Settings& settings) {
  if (!endpoint.enabled()) return {};
  const auto good = CheckGrpcProgram(TlsOf(settings));
  if (!good) return Fail(fmt::format("{}: {}", address, good.error().message));
  return {};
}

void GatewayFrontEnd::StartProgram(std::string_view services, Duration idle_timeout,
                                   std::vector<GrpcGateway::Lines> lines) {
  const GrpcGateway::Options options{GrpcProgram(), services, key(), idle_timeout, TlsOf(host_.admin.settings())};
  gateway_.emplace(host_.loop, host_.log, options, std::move(lines));
  gateway_->Start(host_.handed.Take(key()));
}

std::unique_ptr<Part> GatewayFrontEnd::Dismiss(const HandedSection& section) {
  if (section.key != key()) return nullptr;
  return std::make_unique<Dismissed>(GrpcGateway::Dismiss(host_.loop, section));
}

}    // namespace dthrottle
