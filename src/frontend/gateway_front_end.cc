#include "frontend/gateway_front_end.h"

#include <fmt/format.h>
#include <sysexits.h>

#include <utility>

#include "admin/admin.h"

namespace dthrottle {

namespace {

// The program of the daemon before, which says farewell to its clients.
struct Dismissed final : Part {
  explicit Dismissed(std::unique_ptr<Child> leaving) : child(std::move(leaving)) {}

  void Close() override { child.reset(); }

  std::unique_ptr<Child> child;
};

std::vector<std::string> TlsOf(const Settings& settings) {
  const auto& tls = settings.tls;
  if (!tls.enabled()) return {};
  return {tls.certificate_file, tls.key_file, tls.client_ca_file};
}

}    // namespace

Result<void> GatewayFrontEnd::CheckProgram(const GatewayProgram& program, std::string_view address,
                                           const Endpoint& endpoint, const Settings& settings) {
  if (!endpoint.enabled()) return {};
  const auto good = CheckGateway(program, TlsOf(settings));
  if (!good) return Fail(fmt::format("{}: {}", address, good.error().message));
  return {};
}

void GatewayFrontEnd::CheckStart(Result<void> (*check)(const Settings&)) const {
  if (host_.took_over()) return;
  if (const auto good = check(host_.admin.settings()); !good) throw StartFailure{EX_CONFIG, good.error().message};
}

void GatewayFrontEnd::StartProgram(std::vector<std::string> words, std::vector<Gateway::Lines> lines) {
  const Gateway::Options options{program_, std::move(words), key(), TlsOf(host_.admin.settings())};
  gateway_.emplace(host_.loop, host_.log, options, std::move(lines));
  gateway_->Start(host_.handed.Take(key()));
}

std::unique_ptr<Part> GatewayFrontEnd::Dismiss(const HandedSection& section) {
  if (section.key != key()) return nullptr;
  return std::make_unique<Dismissed>(Gateway::Dismiss(host_.loop, section));
}

}    // namespace dthrottle
