// The daemon's part in a fleet: the limiter's half of the exchange of reports on the main loop, a slice at a time, and
// the thread with the other half.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "admin/snapshot.h"
#include "base/prng.h"
#include "config/settings.h"
#include "daemon/owner_list.h"
#include "io/log.h"
#include "io/part.h"
#include "io/peer_thread.h"
#include "io/task_queue.h"
#include "limiter/limiter.h"
#include "share/capacity/dividing.h"
#include "share/debit/sharing.h"

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

  // Whether this host shares limits with others.
  bool shares() const { return shares_; }

  // Tells the peers what they do not know yet and ends the thread, while the loop goes on, and then calls `left` on it:
  // within some seconds. What is served from then on waits in the table for the next start.
  void Leave(std::function<void()> left) override;
  void Return() override;

  void Reload(std::vector<std::string>& problems) override;
  void Count(ProcessCounts& counts) const override { counts.peers = Counts(); }

  // After Leave or Close: all that another Peering needs to go on as this one, for its peers after a pause. One at the
  // most may use it.
  void Keep(std::vector<HandedSection>& sections) const override;

  // Tells the peers what they do not know yet, and ends the thread; takes half a second at most.
  void Close() override;

  // There is something to tell the peers. Any thread; after Close the loop's only.
  void Wake() {
    if (!stopped_) uv_async_send(&wake_);
  }

  std::vector<PeerStatus> Peers() const;

  // What an application reports of itself, where that is the indicator.
  Result<void> Indicate(const Tag& tag, double value);

  // The limiter's half of dividing limits; null where none is divided.
  const Dividing* dividing() const { return dividing_.get(); }
  Dividing* dividing() { return dividing_.get(); }
  // This host's part of a tag for leases. A host without others has the whole; one that has not begun to divide has
  // nothing yet.
  std::optional<LeasePart> PartForLeases(std::string_view tag, const LeaseUse& use);
  // As PeerThread::LookAtCapacity.
  bool LookAtCapacity(const std::function<void(CapacityExchange&)>& look) const;

 private:
  PeerCounts Counts() const;
  void TakeKept(std::string_view kept);
  Result<void> Open();
  void Connect(PeerThread::Options& options);
  void GoOn(bool divides);
  void LendReserve();
  void Divide(bool begin);
  void StartWork();
  void OnWork();
  void SetTimer();
  void CountPeers(Instant now);
  void TellAccuracy();
  void EndThread();
  bool Drain(Instant now);
  void OnDraining();
  void KeepAll();
  void ReloadOwners();
  const OwnerAddresses* ListOfOwners() const;
  void StartOwnerList();
  bool AwaitsList() const;
  void OnOwnerList();

  struct KeptState {
    std::uint64_t start = 0;    // number of the start that wrote it
    std::string exchange, capacity, sharing, dividing;

    static void Fields(auto& state, auto& self) {
      state(self.start, self.exchange, self.capacity, self.sharing, self.dividing);
    }
  };

  uv_loop_t* loop_;
  Limiter& limiter_;
  const Settings& settings_;
  Log& log_;
  TaskQueue& tasks_;
  const std::vector<Tenant*> tenants_;
  uv_async_t wake_;      // the other half has something
  uv_timer_t timer_;     // a report is due
  uv_idle_t working_;    // while there are slices to do
  uv_timer_t retry_;     // the ports could not be opened
  Prng prng_;
  std::unique_ptr<PeerThread> thread_;
  std::unique_ptr<Sharing> sharing_;
  std::unique_ptr<Dividing> dividing_;
  std::unique_ptr<OwnerList> owner_list_;    // null: the settings have it, or there is none
  std::string name_;    // of this host, since Start
  std::vector<std::string> owners_;    // that the settings named last
  KeptState kept_;      // to go on with
  Instant counted_at_{};
  std::function<void()> leaving_;    // called when it has left
  Instant leave_by_{};
  bool away_ = true;    // until Start, and from Leave to Start
  std::thread ender_;
  bool shares_ = false;
  bool stopped_ = false;
};

}    // namespace dthrottle
