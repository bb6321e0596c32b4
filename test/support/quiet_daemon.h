// What commands and front ends need from a daemon, where a test has nothing to say of it but the limiter.
#pragma once

#include "admin/admin.h"
#include "config/keys.h"

namespace dthrottle::testing {

class QuietDaemon : public AdminHost {
 public:
  const Settings& settings() const override { return settings_; }
  ProcessCounts Counts() const override { return {}; }
  std::vector<PeerStatus> Peers() const override { return {}; }
  ShedStatus Shed() const override { return {}; }
  LeaseStatus Leases(std::string_view) override { return {}; }
  Result<void> ReportShed(double) override { return Fail("not wanted"); }
  void Reload(std::function<void(const ReloadOutcome&)> done) override { done({true, {}}); }
  void Upgrade(std::function<void(const Result<std::string>&)> done) override { done(Fail("not now")); }

 protected:
  QuietDaemon() { settings_.admin.http_decides = true; }
  ~QuietDaemon() = default;

  Settings settings_ = DefaultSettings();
};

}    // namespace dthrottle::testing
