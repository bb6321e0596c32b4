// The thread between hosts: owns the carrier of frames, which is ZeroMQ if no other is given, the Exchange and, where limits
// are divided, the CapacityExchange. Query threads make no call into a carrier; the main thread talks to this one through
// rings and a mailbox.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "admin/snapshot.h"
#include "base/prng.h"
#include "base/result.h"
#include "bus/exchange.h"
#include "bus/tenant.h"
#include "capacity/capacity_exchange.h"
#include "config/settings.h"
#include "io/carrier.h"
#include "io/etcd_owners.h"
#include "io/keys.h"
#include "io/log.h"
#include "io/resolver.h"
#include "share/capacity/dividing.h"

namespace dthrottle {

// What the CapacityExchange needs from outside.
struct CapacityOptions {
  CapacitySettings settings;    // REQUIRES: CheckCapacitySettings
  std::string state_file;       // empty: none
};

class PeerThread {
 public:
  struct Options {
    MakeCarrier carrier = {};            // empty: ZeroMQ
    Endpoint bind;                       // numeric; of ZeroMQ, as are the next
    std::vector<std::string> connect;    // ParsePeerEntry
    Exchange::Options exchange;
    std::optional<CapacityOptions> capacity;    // none: no limit is divided
    std::string capacity_life;                  // as CapacityExchange::Options::life
    std::uint64_t seed = 0;
    std::optional<KeyPair> keys;    // none: no encryption, no proof
    AuthorizedKeys authorized;      // REQUIRES: none if there are no keys
    Resolver::Options resolver;
    std::size_t ring_items = 256;    // to the exchange; an item is at most about 125 KiB
    // From the exchange. Few, because peers take turns only where hits wait behind it.
    std::size_t heard_items = 16;
    std::size_t send_bytes = 256u << 20;      // waiting for subscribers that are slow; shared among them
    std::size_t receive_bytes = 64u << 20;    // waiting to be read here, from all peers
    std::vector<Tenant*> tenants = {};        // called by the peer thread; they outlive it

    // Called by the peer thread; must not block, nor call back.
    std::function<void(LogLevel, std::string)> log;
    std::function<void()> wake;    // something is in the FromPeers ring
  };

  explicit PeerThread(Options options);
  ~PeerThread();    // stops

  // Opens the port, so that an address in use is told here, and starts the thread. Call once.
  Result<void> Start();

  // Publishes what is in the ToPeers ring, gives subscribers 200 ms to take it, and ends. Returns within about half a
  // second whatever the peers do. The rings keep what is in them.
  void Stop();

  // Whether the exchange goes on with the life that it was given.
  bool resumed() const;
  // The owners of tags that were in force when it began: those of the settings, or of the life that goes on.
  std::shared_ptr<const Owners> owners_at_start() const;

  // ---- Between Stop and the end, for an orderly restart ----

  // Passes on what lies between the exchanges and the limiter. True when that is nothing; call it in turns with the
  // limiter's half until then.
  bool Drain();
  // For Exchange::Options::life, and for capacity_life. Empty: nothing to go on with.
  std::string ExchangeLife();
  std::string CapacityLife();

  // ---- The rest is for one other thread, while this one runs ----

  ToPeersRing& to_peers();
  FromPeersRing& from_peers();

  // To be called after pushing to the one ring, and after popping from the other where it was full. Any thread.
  void Notify();

  // Take effect in a moment. A key that is gone is cut off at once, together with everybody else for about 0.2 s: what
  // is missed meanwhile is asked for and sent again.
  void ReloadKeys(AuthorizedKeys authorized);
  void SetConnect(std::vector<std::string> connect);
  void SetOwners(std::vector<std::string> names);    // as Exchange::SetOwners
  void ObeyOwners(std::shared_ptr<const Owners> list);    // as Exchange::ObeyOwners
  void SetCeilings(const PeerCeilings& ceilings);

  // Begins to divide, goes on with other settings, or ends it.
  void SetCapacity(std::optional<CapacityOptions> capacity);
  ToCapacityRing& to_capacity();
  FromCapacityRing& from_capacity();

  // Looks into the CapacityExchange while its thread waits; false if there is none, or it is busy for some 20 ms.
  bool LookAtCapacity(const std::function<void(CapacityExchange&)>& look) const;

  // These are as they were at most about a second ago. Entries of `connect` that lead to no connection are among the
  // peers, with link 0 and the reason.
  std::vector<PeerStatus> Peers() const;
  ExchangeCounts Counts() const;
  EtcdOwners::View OwnersView() const;    // null where everybody hears everything
  PeerThreadCounts OwnCounts() const;
  CapacityCounts CapacityCountsNow() const;    // all 0 where no limit is divided

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}    // namespace dthrottle
