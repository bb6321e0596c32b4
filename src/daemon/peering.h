// The daemon's part in a fleet: when this host is among its peers (daemon/peer_session.h), what it goes on with there,
// and who owns tags.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "admin/snapshot.h"
#include "config/settings.h"
#include "daemon/owner_list.h"
#include "daemon/peer_session.h"
#include "io/files.h"
#include "io/log.h"
#include "io/part.h"
#include "io/slices.h"
#include "io/task_queue.h"
#include "io/timer.h"
#include "limiter/limiter.h"

namespace dthrottle {

class Peering final : public Part {
 public:
  // All must outlive it.
  Peering(uv_loop_t* loop, Limiter& limiter, const Settings& settings, Log& log, TaskQueue& tasks,
          std::vector<Tenant*> tenants);
  ~Peering() override;

  // Begins to share limits if the settings want it; a host without peers has nothing else of this part. `kept` is what
  // Keep has added in the program or the start before, or empty: parts of limits are in force at once. A daemon that
  // `took_over` has queries waiting, so it opens its ports in the next turn, and again and again if it cannot. Throws
  // StartFailure.
  void Start(std::string_view kept, bool took_over);

  // Tells the peers what they do not know yet and ends the thread, while the loop goes on, and then calls `left` on it:
  // within some seconds. What is served from then on waits in the table for the next start.
  void Leave(std::function<void()> left) override;
  void Return() override;

  void Reload(std::vector<std::string>& problems) override;
  void Count(ProcessCounts& counts) const override;

  // After Leave or Close: all that another Peering needs to go on as this one, for its peers after a pause. One at the
  // most may use it.
  void Keep(std::vector<HandedSection>& sections) const override;

  // Tells the peers what they do not know yet, and ends the thread; takes half a second at most.
  void Close() override;

  std::vector<PeerStatus> Peers() const;

  // What an application reports of itself, where that is the indicator.
  Result<void> Indicate(const Tag& tag, double value);

  // The limiter's half of dividing limits; null where none is divided.
  Dividing* dividing() const { return session_ ? session_->dividing() : nullptr; }
  // This host's part of a tag for leases. A host without others has the whole; one that has not begun to divide has
  // nothing yet.
  std::optional<LeasePart> PartForLeases(std::string_view tag, const LeaseUse& use);
  // The same as PeerThread::LookAtCapacity.
  bool LookAtCapacity(const std::function<void(CapacityExchange&)>& look) const;

 private:
  void TakeKept(std::string_view kept);
  std::shared_ptr<CountedStreams> Counted();
  tl::expected<void, StartFailure> Open();
  void Connect(PeerThread::Options& options);
  bool Turn(Instant end);
  bool Drain(Instant end);
  void EndThread();
  const OwnerAddresses* ListOfOwners() const;
  void StartOwnerList();
  bool AwaitsList() const;
  void OnOwnerList();

  uv_loop_t* loop_;
  Limiter& limiter_;
  const Settings& settings_;
  Log& log_;
  TaskQueue& tasks_;
  const std::vector<Tenant*> tenants_;
  Slices slices_;
  std::optional<MappedRegion> counted_;      // how far this host has counted others, as an owner; none before
  Timer retry_;                              // the ports could not be opened
  std::unique_ptr<PeerSession> session_;     // the last; null before the first
  std::unique_ptr<OwnerList> owner_list_;    // null: the settings have it, or there is none
  PeerSession::Kept kept_;                   // to go on with
  std::function<void()> leaving_;            // called when it has left
  Instant leave_by_{};
  bool away_ = true;    // until Start, and from Leave to Start
  bool shares_ = false;
  bool stopped_ = false;
};

}    // namespace dthrottle
