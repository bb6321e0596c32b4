// The parts of a daemon that has started, and what commands ask of them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "admin/admin.h"
#include "daemon/counting.h"
#include "daemon/holding.h"
#include "daemon/kept_rules.h"
#include "daemon/memory.h"
#include "daemon/peering.h"
#include "daemon/penalizing.h"
#include "daemon/reloading.h"
#include "daemon/own_limits_watch.h"
#include "daemon/retention_watch.h"
#include "daemon/shedding.h"
#include "daemon/upgrade.h"
#include "config/settings.h"
#include "frontend/frontend.h"

namespace dthrottle {

struct Running final : AdminHost {
  // The log must outlive it.
  Running(Settings in_force, Log& log_of_all);

  Settings settings_in_force;    // without rules and overrides
  Duration rules_since{};        // since 1970: when the rules in force were set; 0: they are those of the settings file
  Log& log;
  const Instant started;
  const Duration started_since_1970;

  // Set when they start. Nothing below is used before.
  std::optional<TableMemory> memory;
  std::optional<KeptRules> kept_rules;
  std::unique_ptr<Limiter> table_limiter;
  std::optional<Counting> counting;
  std::optional<Penalizing> penalizing;
  std::optional<Holding> holding;    // none: nothing can be held
  std::optional<Peering> peering;
  std::optional<Shedding> shedding;
  std::optional<RetentionWatch> retention_watch;
  std::optional<OwnLimitsWatch> own_limits_watch;
  std::vector<std::unique_ptr<Part>> dismissed;    // of the program before
  std::vector<FrontEnd*> listening;                // front ends that have started
  std::vector<Part*> list;                         // all that have started, in order
  std::optional<Reloading> reloading;
  std::optional<dthrottle::Upgrade> upgrade;
  std::shared_ptr<const Rulebook> base;    // what the settings file says, until reloading has it
  std::vector<Extension*> extension_list;
  std::function<LeaseStatus(std::string_view)> leases = [](std::string_view) { return LeaseStatus(); };

  Limiter& limiter() override { return *table_limiter; }
  const Settings& settings() const override { return settings_in_force; }
  ProcessCounts Counts() const override;
  std::vector<PeerStatus> Peers() const override { return peering->Peers(); }
  ShedStatus Shed() const override { return shedding->Status(); }
  LeaseStatus Leases(std::string_view resource) override { return leases(resource); }
  Result<void> ReportShed(double value) override { return shedding->Report(value); }
  std::span<Extension* const> extensions() const override { return extension_list; }
  Holds* holds() override { return holding ? &holding->holds() : nullptr; }
  Result<void> Indicate(const Tag& tag, double value) override { return peering->Indicate(tag, value); }
  const Dividing* dividing() const override { return peering->dividing(); }
  bool LookAtCapacity(const std::function<void(CapacityExchange&)>& look) const override {
    return peering->LookAtCapacity(look);
  }
  void Reload(std::function<void(const ReloadOutcome&)> done) override { reloading->Ask(std::move(done)); }
  void Upgrade(std::function<void(const Result<std::string>&)> done) override { upgrade->Ask(std::move(done)); }
  void Audit(std::string_view text) const override;
  void AuditOfAnyone(std::string_view text) const override;
};

}    // namespace dthrottle
