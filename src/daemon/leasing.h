// The daemon's lease server: the pure one, the sockets for its clients, and the election that says whether it may
// grant. On the main loop.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "admin/snapshot.h"
#include "base/result.h"
#include "config/settings.h"
#include "frontend/grpc_leases.h"
#include "frontend/lease_parent.h"
#include "frontend/lease_socket.h"
#include "io/elector.h"
#include "io/log.h"
#include "lease/server.h"
#include "limiter/dividing.h"

namespace dthrottle {

class Leasing {
 public:
  // All must outlive it. `seed` is random. REQUIRES: settings.lease.enabled().
  Leasing(uv_loop_t* loop, const Settings& settings, Log& log, std::uint64_t seed);

  // Campaigns to be master at `address`, where lease clients reach this host. Again after Resign.
  void Campaign(const std::string& address);

  // Before the first Campaign: what Keep() has said in the program or the start before.
  void Resume(std::string_view kept);
  // What is leased out, for the program or the start after this one: none where mastership is won by an election, which
  // is given away instead.
  std::string Keep() const;

  // Grants nothing any more, and calls `done` when the others may know.
  void Resign(std::function<void()> done);
  bool elected() const { return settings_.lease.elector == LeaseElector::kEtcd; }

  // Serves a connected socket, which becomes this object's, or turns it away.
  void Take(int fd);

  // The connections of lease clients that speak lines.
  StreamServer& lines() { return socket_; }

  // Begins to speak gRPC on what TakeGrpc gets; fails where this build cannot.
  Result<void> ServeGrpc();
  // The same soon, for a daemon that others wait for: the library is loaded in another thread, and connections wait
  // until it is there. A failure is logged, and closes them.
  void ServeGrpcSoon();
  void TakeGrpc(int fd);

  // When other settings are in force.
  void Reload();

  // Where resources with source = "capacity" have theirs from: this host's part of the tag of their name. None: there
  // is none.
  using PartOf = std::function<std::optional<Dividing::LeasePart>(std::string_view tag, const Dividing::LeaseUse& use)>;
  void TakeParts(PartOf part_of) { part_of_ = std::move(part_of); }

  // Resigns, answers what has arrived, and calls `done`.
  void Leave(std::function<void()> done);

  // Closes what it has on the loop, which must run once more.
  void Close();

  LeaseStatus Status(std::string_view resource);
  LeaseCounts Counts() const;

 private:
  struct GrpcLoading;

  bool HasRoom();
  void OnGrpcLoaded(const Result<void>& loaded);
  void Follow(BootInstant now);
  void HoldParts(BootInstant now);
  void AskParent(BootInstant now);
  void HearParent(const std::vector<lease::ParentRequest>& asked, BootInstant at,
                  const Result<std::vector<std::string>>& answers);
  void OnTick();
  void SayElection();
  std::unique_ptr<Elector> MakeElector(const std::string& address);

  uv_loop_t* loop_;
  const Settings& settings_;
  Log& log_;
  uv_timer_t tick_;
  lease::LeaseServer server_;
  std::unique_ptr<Elector> elector_;    // from the first Campaign on
  LeaseSocket socket_;
  std::unique_ptr<GrpcLeases> grpc_;    // null where nothing listens for it, and while it is loaded
  GrpcLoading* grpc_loading_ = nullptr;
  std::vector<int> grpc_waiting_;    // connections
  bool closed_ = false;
  PartOf part_of_;
  std::unique_ptr<LeaseParent> parent_;    // null for a root
  BootInstant ask_at_{};                   // the parent, at the earliest
  std::optional<BootInstant> heard_;       // it, last
  std::string parent_trouble_;
  std::uint64_t parent_asks_ = 0, parent_failures_ = 0;
  std::uint64_t rejected_full_ = 0;
  std::uint64_t terms_ = 0;     // times that this host became master
  std::string without_part_;    // the resource that was complained of last
  std::string said_;            // of the election, last
  std::string kept_;            // by Leave
};

}    // namespace dthrottle
