// Frames between hosts over ZeroMQ:
//
//   ROUTER in    bound to port p   the peers' hellos and requests, and back on the same connections our reports and
//                                  answers
//   ROUTER out   connected         our hellos and requests, the peers' reports and answers
//   PAIR         inproc            tells when a connection of ROUTER out has come up, so that a hello goes out at once
//   REP          inproc with keys: says who may connect (ZAP)
//
// Each link is a connection of its own, and what comes by it is said by the host that it leads to. With keys every
// connection is CURVE: a link proves the key of the host there, and a request comes with the name that its key proves,
// so nobody speaks in the name of another. Without keys anybody who can connect is heard, so that is for loopback only.
//
// What strangers can make it do is bounded: frames by MAXMSGSIZE, reading by a budget a turn, what waits for a slow
// subscriber by a count for each.
#pragma once

#include "bus/gathering.h"
#include "io/carrier.h"
#include "io/peer_links.h"
#include "io/peer_server.h"
#include "io/resolver.h"

namespace dthrottle {

class ZeroMqCarrier : public Carrier {
 public:
  // `options` are the peer thread's, whose keys and addresses change.
  ZeroMqCarrier(const PeerThread::Options& options, const Host& host);

  Result<void> Open() override;
  void Close() override;
  Instant Tick(Instant now) override;
  void Wait(Instant until, int wake_fd) override;
  void Read(Instant now) override;
  void Watch(std::vector<PeerStatus>& peers, const ExchangeCounts& counts, Instant now) override;
  void SetConnect(const std::vector<std::string>& connect, Instant now) override;
  void OnKeys(bool removed, Instant now) override;

  // Transport
  void Ask(LinkId link, const Frame& frame) override { links_.Ask(link, frame); }
  void Answer(const Route& route, const Frame& frame) override;
  bool Publish(const Route& route, const Frame& frame) override;

 private:
  enum { kWake, kRequests, kAnswers, kConnections, kZap, kFixed };    // places in items_; names being looked up follow

  void Pause(Instant until, int wake_fd);
  void ReadRequests();
  void ReadAnswers(Instant now);
  void WatchEndless(Instant now);

  const PeerThread::Options& options_;
  const Host host_;
  PeerThreadCounts& counts_;
  zmq::context_t context_{1};    // the only one of the process: ends of contexts with CURVE get in each other's way
  Resolver resolver_;
  PeerServer server_;
  PeerLinks links_;
  std::vector<zmq::pollitem_t> items_;
  Instant trim_at_ = Instant::max();    // when to give freed memory back
  Gathering gathering_;                 // of reports on the wire
};

}    // namespace dthrottle
