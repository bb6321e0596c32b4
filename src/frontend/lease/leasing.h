// The daemon's lease server: the server itself, the sockets for its clients, and the election that says whether it may
// grant. It runs on the main loop.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "admin/snapshot.h"
#include "base/result.h"
#include "config/settings.h"
#include "frontend/lease/borrowing.h"
#include "frontend/lease/resources.h"
#include "frontend/lease/socket.h"
#include "io/elector.h"
#include "io/log.h"
#include "io/slices.h"
#include "io/timer.h"
#include "lease/server.h"
#include "share/capacity/dividing.h"

namespace dthrottle {

class Leasing {
 public:
  // All must outlive it. `seed` is random. REQUIRES: settings.lease.enabled().
  Leasing(uv_loop_t* loop, const Settings& settings, Log& log, std::uint64_t seed);

  // Campaigns to be master at `address`, where lease clients reach this host. Again after Resign.
  void Campaign(const std::string& address);

  // Goes on with what Keep() returned in the program or the start before. REQUIRES: Campaign has not been called.
  void Resume(std::string_view kept);
  // Returns what is leased out, for the program or the start after this one. Nothing where mastership is won by an
  // election, as that is given away instead.
  std::string Keep() const;

  // Stops granting, and calls `done` when the other hosts may know.
  void Resign(std::function<void()> done);
  bool elected() const { return settings_.lease.elector == LeaseElector::kEtcd; }

  // The connections of lease clients that speak lines.
  LeaseSocket& lines() { return socket_; }
  const LeaseSocket& lines() const { return socket_; }

  // For front ends that answer out of the same server. Follow brings its mastership up to the election's, before
  // answers of this instant.
  lease::LeaseServer& server() { return server_; }
  void Follow(BootInstant now);

  // Follows settings that have changed.
  void Reload();

  // Tells where resources with source = "capacity" have theirs from: this host's part of the tag of their name, or
  // nothing if it has no part.
  using PartOf = std::function<std::optional<LeasePart>(std::string_view tag, const LeaseUse& use)>;
  void TakeParts(PartOf part_of) { part_of_ = std::move(part_of); }

  // Resigns, answers what has arrived, and calls `done`.
  void Leave(std::function<void()> done);

  // Closes what it has on the loop, which must run once more.
  void Close();

  LeaseStatus Status(std::string_view resource);
  LeaseCounts Counts() const;

 private:
  void UseResources();
  void HoldParts(BootInstant now);
  void OnTick();
  void SayElection();
  std::unique_ptr<Elector> MakeElector(const std::string& address);

  uv_loop_t* loop_;
  const Settings& settings_;
  Log& log_;
  Timer tick_;
  Slices expiring_;    // leases that have ended together
  LeaseResources resources_;
  lease::LeaseServer server_;
  std::unique_ptr<Elector> elector_;    // from the first Campaign on
  LeaseSocket socket_;
  PartOf part_of_;
  std::optional<Borrowing> borrowing_;    // none for a root
  std::uint64_t terms_ = 0;     // times that this host became master
  std::string without_part_;    // the resource that the last complaint was about
  std::string said_;            // the last message about the election
  std::string kept_;            // what Leave has kept, before it resigned
};

}    // namespace dthrottle
