// Lease lines as a front end: key "lease", settings [lease]. It also owns the lease server, on which gRPC rests.
#pragma once

#include "frontend/frontend.h"
#include "frontend/lease/leasing.h"

namespace dthrottle {

class LeaseFrontEnd final : public FrontEnd {
 public:
  explicit LeaseFrontEnd(FrontEndHost& host) : host_(host) {}

  std::string_view key() const override { return "lease"; }
  std::string_view doing() const override { return "granting leases"; }
  Room room() const override;
  void Start() override;
  void Take(int fd) override { leasing_->lines().Take(fd); }
  void TakeUp(const HandedConnection& connection) override { leasing_->lines().TakeUp(connection); }
  std::size_t connections() const override { return leasing_->lines().connections(); }
  void Hold(Handover& handover) override { leasing_->lines().Hold(key(), handover.connections); }
  void Release() override { leasing_->lines().Release(); }
  void Reload(std::vector<std::string>&) override { leasing_->Reload(); }
  void Count(ProcessCounts& counts) const override;
  void Keep(std::vector<HandedSection>& sections) const override;
  void Leave(std::function<void()> done) override;
  void Return() override;
  void Drain(std::function<void()> done) override { leasing_->Leave(std::move(done)); }
  void Close() override { leasing_->Close(); }

  // From Start on.
  Leasing& leasing() { return *leasing_; }

 private:
  std::string Address() const;

  FrontEndHost& host_;
  std::optional<Leasing> leasing_;
};

}    // namespace dthrottle
