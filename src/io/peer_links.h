// The connections from this host to its peers, which its hellos go out on and their reports come in on.
//
// libzmq connects anew by itself when a connection breaks, but gives up for good when a handshake fails: the other side
// had other keys for a moment, or something else listened on its port. So a link that does not come up is dialed again.
#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/peer_wire.h"

namespace dthrottle {

class PeerLinks {
 public:
  PeerLinks(const PeerThread::Options& options, zmq::context_t& context, Exchange& exchange, PeerThreadCounts& counts)
      : options_(options), context_(context), exchange_(exchange), counts_(counts) {}

  // Throws zmq::error_t where memory or descriptors are short.
  void Open();
  void Close();

  // Makes the links what the resolver and the keys say they should be.
  void Reconcile(const Resolver& resolver, Instant now);
  // Some that they do not name stay until the exchange no longer needs them, as long as their keys are known.
  bool keeps() const { return keeps_; }
  // Looks at how the links are doing, given what the exchange says of each, and dials those again that do not come up.
  // Adds the addresses and entries that lead to no link.
  void Watch(std::vector<PeerStatus>& peers, Instant now);

  void Ask(LinkId link, const Frame& frame);

  Inbox& answers() { return answers_; }
  // The link that the message in answers() came by; 0: it is of an earlier dial.
  LinkId Answering() const;

  // Tells when a connection has come up.
  zmq::socket_t& connections() { return connections_; }
  void OnConnections();

 private:
  static constexpr Duration kPatienceMin = std::chrono::seconds(1);

  // A connection to a peer.
  struct Link {
    LinkId id = 0;
    Endpoint endpoint;
    std::uint32_t dials = 0;
    std::string server_key;
    std::string name;       // that the key belongs to; empty without keys
    bool broken = false;    // the outgoing pipe is gone
    Instant dialed{};
    Duration patience = kPatienceMin;    // until it is dialed again
    PeerState state = PeerState::kConnecting;
  };
  struct Wanted {
    Endpoint endpoint;
    std::string key, name, address;
  };

  static std::string RouteOf(const Link& link);
  const std::string* KeyFor(const Resolver::Address& address, std::string& why) const;
  std::map<std::string, Wanted> WantedLinks(const Resolver& resolver);
  void DeadEnd(const std::string& address, PeerState state, std::string reason);
  bool HasKey(const Link& link) const;
  void Drop(const std::map<std::string, Wanted>& wanted, Instant now);
  void Dial(Link& link, Instant now);
  void HangUp(Link& link);
  void Judge(Link& link, const PeerStatus& peer, Instant now);

  const PeerThread::Options& options_;
  zmq::context_t& context_;
  Exchange& exchange_;
  PeerThreadCounts& counts_;
  Inbox answers_;
  zmq::socket_t connections_;
  std::map<std::string, Link> links_;    // by "10.0.0.2:7314"
  std::unordered_map<LinkId, Link*> by_id_;
  LinkId last_link_ = 0;
  bool keeps_ = false;
  std::vector<PeerStatus> dead_ends_;    // addresses and entries that lead to no link
  std::set<std::string> complaints_;     // said already, of these among others
};

}    // namespace dthrottle
