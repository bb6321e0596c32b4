// The daemon: settings, table, limiter, and the list of parts that answer, share, shed and lease. Parts start in the
// order of the list and close in the opposite order. Nothing is reachable from anywhere else.
#pragma once

#include <uv.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/launch.h"
#include "daemon/orders.h"
#include "daemon/sockets.h"
#include "feature/feature.h"
#include "frontend/frontend.h"

namespace dthrottle {

class Rulebook;
struct Running;
struct Settings;

class Daemon {
 public:
  // `path` is the settings file, read again at each reload; defaults under /run/dthrottle go to `runtime_dir`.
  // `handed` is what a daemon that became this one has left.
  Daemon(std::string path, std::string runtime_dir, Settings settings, Launch launch, Handover handed, Log& log);
  ~Daemon();

  // Opens the table and the sockets and starts the threads. Throws StartFailure; what the program before has left is then
  // there for the next start.
  void Start();

  // Answers until SIGTERM or SIGINT. REQUIRES: Start() has returned. Call once.
  void Run();

 private:
  void MakeLimiter();
  std::shared_ptr<const Rulebook> RulesOf(std::uint64_t fingerprint) const;
  void SayTable(bool other_rules);
  void MakeHolding();
  void MakeReloading();
  void MakeUpgrade();
  void MakeParts();
  std::vector<Amendment> Amendments() const;
  std::vector<Tenant*> TenantsOf(Tenant* (Feature::*which)()) const;
  void TakeKeptSections();
  void TakeHandedConnections();
  bool AllBeat();
  Handover Left(bool with_rules) const;
  void Stop(int signal);
  void Drain(bool last);
  void OnDrained();
  void Close();
  void KeepSections(Instant written, const std::string& table);

  const std::string path_, runtime_dir_;
  const Launch launch_;
  Handover handed_;                     // what is not in use yet
  std::optional<Instant> handed_at_;    // when that was left; none: nothing was
  std::string table_before_;            // the table.file of the program before; empty: it had none, or there was none
  Log& log_;
  const Service service_{};
  const std::unique_ptr<Running> running_;
  Settings& settings_;    // that it has
  uv_loop_t loop_;
  std::optional<TaskQueue> tasks_;    // for this thread
  FrontEndHost front_host_;
  const Sockets::FrontEnds front_ends_;    // all that there are
  const std::vector<std::unique_ptr<Feature>> features_;
  Sockets sockets_;
  std::optional<Orders> orders_;
  bool stopping_ = false;
  bool drains_last_ = false;
  std::size_t draining_ = 0;    // front ends
};

}    // namespace dthrottle
