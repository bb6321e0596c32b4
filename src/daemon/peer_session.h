// One stay of this host among its peers: the thread between hosts, and the limiter's halves of sharing and of dividing
// limits over its rings. It begins when the ports are open, and ends when the thread has ended and nothing is left
// between the two.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "admin/snapshot.h"
#include "base/time.h"
#include "config/settings.h"
#include "io/clock.h"
#include "io/etcd_owners.h"
#include "io/keys.h"
#include "io/log.h"
#include "io/peer_thread.h"
#include "limiter/limiter.h"
#include "share/capacity/dividing.h"
#include "share/debit/sharing.h"

namespace dthrottle {

// Until peers answer, this host uses only the reserve of divided limits, which no other host can hold.
void LendReserve(const Settings& settings, Limiter& limiter);

class PeerSession {
 public:
  // What the next one goes on with.
  struct Kept {
    std::uint64_t start = 0;    // number of the start that wrote it
    std::string exchange, capacity, sharing, dividing;

    static void Fields(auto& state, auto& self) {
      state(self.start, self.exchange, self.capacity, self.sharing, self.dividing);
    }
  };
  static constexpr std::uint32_t kKeptVersion = 1;    // for ReadState

  // They must outlive it, but for the name.
  struct Host {
    Limiter& limiter;
    const Settings& settings;
    Log& log;
    std::string name;
    std::shared_ptr<CountedStreams> counted{};    // null: nothing of that is kept
  };

  // Shares, and divides if the thread does, from what was `kept` of the session before. The thread has started. `peers`
  // as in Debits::ShareWith.
  PeerSession(Host host, std::unique_ptr<PeerThread> thread, bool divides, std::size_t peers, const Kept& kept);
  ~PeerSession() { Stop(); }

  PeerThread& thread() { return *thread_; }
  Dividing* dividing() const { return dividing_.get(); }    // null where no limit is divided

  // Works until `end`; whether there is more to do at once.
  bool Work(Instant end);
  // When there is something to do even if nothing arrives.
  Instant next() const;

  // Follows the settings, and adds a line for each that it cannot follow. `list` of owners: null where etcd has none.
  void Reload(const OwnerAddresses* list, std::vector<std::string>& problems);
  void Obey(const OwnerAddresses& list);

  void AddTo(PeerCounts& counts) const;

  // ---- The end ----

  // The same as Sharing::ReportNow.
  void ReportNow() { sharing_->ReportNow(Now()); }
  bool reporting() const { return sharing_->reporting(Now()); }
  // Does that here and now, until `end` at most.
  void ReportAll(Instant end);
  // Ends the thread, which takes a while, and then calls `stopped` on another thread. Call Stop then.
  void StopMeanwhile(std::function<void()> stopped);
  void Stop();
  // Moves what lies between the thread that has ended and the limiter, until `end`; true when that is nothing.
  bool Drain(Instant end);
  // Once it is drained.
  void Keep(Kept& kept);

 private:
  void Divide(bool begin);
  void ReloadOwners();
  void CountPeers(Instant now);
  void TellAccuracy();

  const Host host_;
  std::unique_ptr<PeerThread> thread_;
  std::unique_ptr<Sharing> sharing_;
  std::unique_ptr<Dividing> dividing_;
  std::vector<std::string> owners_;    // that the settings named last
  Instant counted_at_;
  std::thread ender_;
};

}    // namespace dthrottle
