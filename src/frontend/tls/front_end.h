// Lease lines by TLS as a front end: key "tls", setting lease.tls.
#pragma once

#include "frontend/gateway_front_end.h"
#include "frontend/lease/front_end.h"

namespace dthrottle {

inline constexpr GatewayProgram kTlsProgram{"dthrottle-tls", "dthrottle"};

class TlsFrontEnd final : public GatewayFrontEnd {
 public:
  // `lease` must outlive this object.
  TlsFrontEnd(FrontEndHost& host, LeaseFrontEnd& lease) : GatewayFrontEnd(host, kTlsProgram), lease_(lease) {}

  // Fails if the settings want TLS, and its program is not installed or cannot use the certificates of [tls].
  static Result<void> Check(const Settings& settings) {
    return CheckProgram(kTlsProgram, "lease.tls", settings.lease.tls, settings);
  }

  std::string_view key() const override { return "tls"; }
  std::string_view doing() const override { return "granting leases by TLS"; }
  Room room() const override { return lease_.room(); }
  FrontEnd* rests_on() const override { return &lease_; }
  void Start() override;
  bool Owns(std::string_view name) const override { return name == key() || name == kLines; }
  void Reload(std::vector<std::string>& problems) override;
  void Count(ProcessCounts& counts) const override;

 private:
  static constexpr std::string_view kLines = "tls-lines";

  LeaseFrontEnd& lease_;
  std::optional<LeaseSocket> lines_;    // from Start on
};

}    // namespace dthrottle
