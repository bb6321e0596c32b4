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
#include "config/settings.h"
#include "io/log.h"
#include "io/peer_thread.h"
#include "io/task_queue.h"
#include "limiter/dividing.h"
#include "limiter/limiter.h"
#include "limiter/sharing.h"

namespace dthrottle {

class Peering {
 public:
  // All must outlive it. `kept` is what Kept() has said in the program or the start before, or empty; parts of limits
  // are in force at once. REQUIRES: settings.peers.enabled().
  Peering(uv_loop_t* loop, Limiter& limiter, const Settings& settings, Log& log, TaskQueue& tasks,
          std::string_view kept);
  ~Peering();

  // Reads the keys, opens the ports and begins to report, or goes on where it has left. The reason if it cannot, with
  // nothing begun. May be called again after Leave.
  Result<void> Start();

  // Tells the peers what they do not know yet and ends the thread, while the loop goes on, and then calls `left` on it:
  // within some seconds. What is served from then on waits in the table for the next start.
  void Leave(std::function<void()> left);

  // Of settings that a reload may change, and of the directory of keys.
  void Reload(const Settings& settings, std::vector<std::string>& problems);

  // Tells the peers what they do not know yet, and ends the thread; takes half a second at most. The loop must run once
  // more.
  void Stop();

  // After Leave or Stop: all that another Peering needs to go on as this one, for its peers after a pause. One at the
  // most may use it.
  std::string Kept() const;

  // There is something to tell the peers. Any thread; after Stop the loop's only.
  void Wake() {
    if (!stopped_) uv_async_send(&wake_);
  }

  std::vector<PeerStatus> Peers() const;
  PeerCounts Counts() const;

  // The limiter's half of dividing limits; null where none is divided.
  const Dividing* dividing() const { return dividing_.get(); }
  Dividing* dividing() { return dividing_.get(); }
  // As PeerThread::LookAtCapacity.
  bool LookAtCapacity(const std::function<void(CapacityExchange&)>& look) const;

 private:
  Result<std::optional<KeyPair>> ReadKeys(AuthorizedKeys& authorized);
  void LendReserve();
  void Divide(bool begin);
  void StartWork();
  void OnWork();
  void SetTimer();
  void CountPeers(Instant now);
  void TellAccuracy();
  void EndThread();
  bool Settle(Instant now);
  void OnSettling();
  void Keep();

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
  uv_async_t wake_;      // the other half has something
  uv_timer_t timer_;     // a report is due
  uv_idle_t working_;    // while there are slices to do
  Prng prng_;
  std::unique_ptr<PeerThread> thread_;
  std::unique_ptr<Sharing> sharing_;
  std::unique_ptr<Dividing> dividing_;
  std::string name_;    // of this host, since Start
  KeptState kept_;      // to go on with
  Instant counted_at_{};
  std::function<void()> leaving_;    // called when it has left
  Instant leave_by_{};
  bool away_ = true;    // until Start, and from Leave to Start
  std::thread ender_;
  bool stopped_ = false;
};

}    // namespace dthrottle
