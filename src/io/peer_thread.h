// The wire between hosts: one thread of its own that owns every ZeroMQ socket, the name resolver, the Exchange and,
// where limits are divided, the CapacityExchange.
// Query threads make no call into ZeroMQ; the main thread talks to this one through two rings and a mailbox.
//
//   XPUB        bound to port p       this host's reports, to whoever subscribes
//   SUB         connected             the peers' reports
//   ROUTER in   bound to port p + 1   the peers' requests, and our answers
//   ROUTER out  connected             our requests, and the peers' answers; all that the CapacityExchange says
//   REP         inproc                with keys: says who may connect (ZAP)
//
// Without keys anybody who can connect is heard, so that is for loopback only. With keys every connection is CURVE,
// only the authorized ones get past the handshake, and a request comes with the name that its key proves. Reports do
// not: a subscriber is not told who published. Peers with a key are one domain of trust.
//
// What strangers can make it do is bounded: frames by MAXMSGSIZE, subscriptions by hanging up on whoever wants another
// topic than ours (their tree grew by hundreds of megabytes in two seconds otherwise), reading by a budget a turn.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "capacity/capacity_exchange.h"
#include "config/settings.h"
#include "io/keys.h"
#include "io/log.h"
#include "io/resolver.h"
#include "limiter/dividing.h"
#include "report/exchange.h"

namespace dthrottle {

struct PeerThreadCounts {
  std::uint64_t allowed = 0;      // handshakes of authorized keys; each peer makes two
  std::uint64_t denied = 0;       // handshakes of other keys
  std::uint64_t hung_up = 0;      // connections ended because they subscribed to what nobody publishes
  std::uint64_t malformed = 0;    // messages of more parts than any has
  std::uint64_t unsent = 0;       // requests and answers dropped because nobody takes them
  std::uint64_t redials = 0;      // connections made anew because nothing came of them
  std::uint64_t rebinds = 0;      // times the ports were closed and opened to cut off a removed key
  std::uint64_t lookups = 0;      // of names
  std::uint64_t lookups_failed = 0;
  std::uint64_t unsaved = 0;    // times that the state of the CapacityExchange could not be written
};

// What the CapacityExchange needs from outside.
struct CapacityOptions {
  CapacitySettings settings;    // REQUIRES: CheckCapacitySettings
  std::string state_file;       // empty: none
};

class PeerThread {
 public:
  struct Options {
    Endpoint bind;                       // numeric; the port above it is used too
    std::vector<std::string> connect;    // ParsePeerEntry
    Exchange::Options exchange;
    std::optional<CapacityOptions> capacity;    // none: no limit is divided
    std::uint64_t seed = 0;
    std::optional<KeyPair> keys;    // none: no encryption, no proof
    AuthorizedKeys authorized;      // REQUIRES: none if there are no keys
    Resolver::Options resolver;
    std::size_t ring_items = 256;             // of each ring; an item is at most about 125 KiB
    std::size_t send_bytes = 256u << 20;      // waiting for subscribers that are slow; shared among them
    std::size_t receive_bytes = 64u << 20;    // waiting to be read here, from all peers

    // Called by the peer thread; must not block, nor call back.
    std::function<void(LogLevel, std::string)> log;
    std::function<void()> wake;    // something is in the FromPeers ring
  };

  explicit PeerThread(Options options);
  ~PeerThread();    // stops

  // Opens the ports, so that an address in use is told here, and starts the thread. Call once.
  Result<void> Start();

  // Publishes what is in the ToPeers ring, gives subscribers 200 ms to take it, and ends. Returns within about half a
  // second whatever the peers do. The rings keep what is in them.
  void Stop();

  // ---- The rest is for one other thread, while this one runs ----

  ToPeersRing& to_peers();
  FromPeersRing& from_peers();

  // To be called after pushing to the one ring, and after popping from the other where it was full. Any thread.
  void Notify();

  // Take effect in a moment. A key that is gone is cut off at once, together with everybody else for about 0.2 s: what
  // is missed meanwhile is asked for and sent again.
  void ReloadKeys(AuthorizedKeys authorized);
  void SetConnect(std::vector<std::string> connect);

  // Begins to divide, goes on with other settings, or ends it.
  void SetCapacity(std::optional<CapacityOptions> capacity);
  ToCapacityRing& to_capacity();
  FromCapacityRing& from_capacity();

  // Looks into the CapacityExchange while its thread waits; false if there is none, or it is busy for some 20 ms.
  bool LookAtCapacity(const std::function<void(CapacityExchange&)>& look) const;

  // As of at most a quarter of a second ago. Entries of `connect` that lead to no connection are among the peers, with
  // link 0 and the reason.
  std::vector<PeerStatus> Peers() const;
  ExchangeCounts Counts() const;
  PeerThreadCounts OwnCounts() const;
  CapacityCounts CapacityCountsNow() const;    // all 0 where no limit is divided

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}    // namespace dthrottle
