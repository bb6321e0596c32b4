// The list of parts: settings, table, limiter, query threads, listeners, admin socket, signals. Nothing is reachable
// from anywhere else.
#pragma once

#include <uv.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "admin/admin.h"
#include "config/load.h"
#include "config/settings.h"
#include "daemon/ceilings.h"
#include "daemon/leasing.h"
#include "daemon/peering.h"
#include "daemon/retention_watch.h"
#include "daemon/shedding.h"
#include "frontend/http_server.h"
#include "frontend/resp_server.h"
#include "io/admin_server.h"
#include "io/child.h"
#include "io/files.h"
#include "io/handover.h"
#include "io/listener.h"
#include "io/log.h"
#include "io/query_server.h"
#include "io/service.h"
#include "io/task_queue.h"
#include "limiter/dividing.h"
#include "limiter/limiter.h"

namespace dthrottle {

// A reason not to start, with the exit code that says so (sysexits.h).
struct StartFailure {
  int exit_code;
  std::string message;
};

// How this process was started, for it to become the same program again.
struct Launch {
  std::string program;              // OwnProgram
  std::vector<std::string> args;    // without argv[0]
};

class Daemon final : private AdminHost {
 public:
  // `path` is the settings file, read again at each reload; defaults under /run/dthrottle go to `runtime_dir`.
  // `handed` is what a daemon that became this one has left.
  Daemon(std::string path, std::string runtime_dir, Settings settings, Launch launch, Handover handed, Log& log);
  ~Daemon();

  // Opens the table and the sockets and starts the threads. Throws StartFailure, with nothing started.
  void Start();

  // Answers until SIGTERM or SIGINT. REQUIRES: Start() has returned. Call once.
  void Run();

 private:
  struct Worker;
  struct ReloadWork;

  // Start, and the opposite
  void StopListening();
  void CloseHandles();
  void StartPeering();
  void ReturnToPeers();
  void MakeWorkers();
  void Listen();
  void ListenOn(int fd, const std::string& key, const std::string& address);
  void AddUnix(const std::string& key, const std::string& path, std::uint32_t mode);
  void AddTcp(const std::string& key, const Endpoint& endpoint);
  Listener::OnAccept Taker(std::string_view front);
  int TakeHandedListener(const std::string& key, const std::string& address);
  void CloseHandedListeners();
  std::string OpenTable();
  void PrepareMemory();
  void TakeHandedConnections();
  bool took_over() const { return handed_.held_at != Instant(); }
  void OpenBroughtLimits();
  void TakeKeptSections();
  void WriteKeptSections();
  void RaiseDescriptorLimit();
  void DividePlaces();
  PlaceBounds BoundsOf(std::string_view key) const;
  void OnCrowd(std::string_view front, const std::string& place, Places::Answer answer);
  void WatchSignals();
  void StartWatchdog();

  // Running
  void OnQueryConnection(int fd);
  Worker& LeastBusy();
  void OnRespConnection(int fd);
  void OnHttpConnection(int fd);
  void OnWatchdogTick();
  void StartReload();
  void FinishReload(std::unique_ptr<ReloadWork> work);
  void PutInForce(std::unique_ptr<ReloadWork> work);
  void CampaignForLeases();
  std::optional<Dividing::LeasePart> PartForLeases(std::string_view tag, const Dividing::LeaseUse& use);
  void ReloadPeering(std::vector<std::string>& problems);
  void StartBackground();
  void OnBackground();
  void FreeElsewhere(std::shared_ptr<const Rulebook> rules);
  void Stop(int signal);
  void OnDrained();

  // Going over to another program (upgrade.cc)
  struct Held;
  void OnUpgradeChecked(const ChildOutcome& outcome);
  void ContinueUpgrade();
  void GoOver();
  std::shared_ptr<Held> HoldQueries();
  StreamServer* FrontServer(std::string_view front);
  Handover WhatIsLeft(Held& held);
  std::vector<HandedSection> KeptSections() const;
  void EndUpgrade(const Result<std::string>& outcome);

  // AdminHost
  Limiter& limiter() override { return *limiter_; }
  const Settings& settings() const override { return settings_; }
  ProcessCounts Counts() const override;
  std::vector<PeerStatus> Peers() const override;
  ShedStatus Shed() const override { return shedding_->Status(); }
  LeaseStatus Leases(std::string_view resource) override;
  Result<void> ReportShed(double value) override { return shedding_->Report(value); }
  const Dividing* dividing() const override { return peering_ != nullptr ? peering_->dividing() : nullptr; }
  bool LookAtCapacity(const std::function<void(CapacityExchange&)>& look) const override {
    return peering_ != nullptr && peering_->LookAtCapacity(look);
  }
  void Reload(std::function<void(const ReloadOutcome&)> done) override;
  void Upgrade(std::function<void(const Result<std::string>&)> done) override;

  const std::string path_;
  const std::string runtime_dir_;
  Settings settings_;    // without rules and overrides
  const Launch launch_;
  Handover handed_;    // what is not in use yet
  Log& log_;
  Service service_;
  const Instant started_;

  uv_loop_t loop_;
  uv_signal_t on_term_, on_int_, on_hup_, on_usr2_;
  uv_timer_t watchdog_, peers_retry_;
  uv_idle_t background_;

  std::optional<MappedRegion> region_;
  std::thread memory_thread_;    // claims the table's memory, and puts it into huge pages
  std::atomic<bool> stop_memory_thread_{false};
  std::unique_ptr<Limiter> limiter_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<TaskQueue> tasks_;    // for this thread
  std::unique_ptr<Peering> peering_;    // null where limits are not shared
  std::unique_ptr<Shedding> shedding_;
  std::unique_ptr<RetentionWatch> retention_watch_;
  std::unique_ptr<Leasing> leasing_;    // null where nothing listens for it
  std::unique_ptr<AdminServer> admin_;
  std::unique_ptr<HttpServer> http_;    // null where nothing listens for it
  std::optional<MappedRegion> brought_region_;
  std::unique_ptr<BroughtLimits> brought_;    // null: rules decide for clients of Redis too
  std::unique_ptr<RespServer> resp_;          // null where they have no socket
  struct Listening {
    std::string key, address;    // as in HandedListener
    std::unique_ptr<Listener> listener;
  };
  std::vector<Listening> listeners_;
  Ceilings ceilings_;
  std::uint64_t descriptors_at_start_ = 0;
  std::vector<std::string> socket_files_;    // that we made and remove
  std::vector<std::string> places_;          // where queries are answered, for people

  ProcessCounts counts_;    // what this thread counts
  Instant settings_put_in_force_;
  bool stopping_ = false;
  std::size_t draining_ = 0;
  bool http_drained_ = false;

  bool reloading_ = false;
  std::unique_ptr<ReloadWork> pending_;    // read, and waiting for the table to finish with the reload before
  std::vector<std::function<void(const ReloadOutcome&)>> asked_, answering_;

  enum class Upgrading { kNo, kChecking, kSettling, kLeavingPeers, kGoing };
  Upgrading upgrading_ = Upgrading::kNo;
  bool left_peers_ = false;
  bool left_leases_ = false;
  std::unique_ptr<Child> check_;    // the program, asked whether it could take over
  std::function<void(const Result<std::string>&)> upgrade_asked_;
};

}    // namespace dthrottle
