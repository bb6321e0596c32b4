// How frames travel between hosts: what the peer thread needs of ZeroMQ, or of what stands in its place.
//
// A carrier has links, which lead to the hosts that this one speaks to, and knows routes back to hosts that spoke first. It
// tells the exchange which links there are, and brings the frames that come, with the name that their way proves. The
// peer thread makes it and calls it, but for Open; nothing in it blocks but Wait.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "admin/snapshot.h"
#include "base/result.h"
#include "bus/exchange.h"
#include "io/log.h"

namespace dthrottle {

class Carrier : public Transport {
 public:
  // Hears what comes; Read alone calls it.
  class Listener {
   public:
    // On a connection that another host opened. `proven`: what that host is called; empty: nothing proves it.
    virtual void OnRequest(const Route& route, std::string_view proven, std::string_view frame) = 0;
    // On a link.
    virtual void OnAnswer(LinkId link, std::string_view frame) = 0;
    // Frames of the links wait, because the limiter is behind.
    virtual bool backlogged() const = 0;

   protected:
    ~Listener() = default;
  };

  // What a carrier works with; it outlives the carrier. Exchange and counters belong to the peer thread.
  struct Host {
    const std::string& name;    // of this host
    Exchange& exchange;
    Listener& listener;
    PeerThreadCounts& counts;
    std::function<void(LogLevel, std::string)> log;
    std::function<void()> wake;    // ends Wait. Any thread
  };

  virtual ~Carrier() = default;

  // Opens ports, so that an address in use is told here. Before the peer thread runs.
  virtual Result<void> Open() = 0;
  // Gives what was sent 200 ms to go out, and ends all connections.
  virtual void Close() = 0;

  // Does what is due; returns when it wants to be called again.
  virtual Instant Tick(Instant now) = 0;
  // Returns at `until` at the latest, or when there is something to read, or `wake_fd` can be read.
  virtual void Wait(Instant until, int wake_fd) = 0;
  // Hands some of what has come to the listener.
  virtual void Read(Instant now) = 0;

  // Looks at how the links are doing, given what the exchange says of each, and adds what leads to no link, with link 0
  // and a reason.
  virtual void Watch(std::vector<PeerStatus>& peers, const ExchangeCounts& counts, Instant now) = 0;

  // Other peers, as Settings::peers.called() has them.
  virtual void SetConnect(const std::vector<std::string>& connect, Instant now) = 0;
  // The authorized keys are others; `removed`: one that was authorized is no longer.
  virtual void OnKeys(bool removed, Instant now) = 0;
};

using MakeCarrier = std::function<std::unique_ptr<Carrier>(const Carrier::Host&)>;

}    // namespace dthrottle
