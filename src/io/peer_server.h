// The side of a host that its peers connect to: the port of reports, and with keys the answer to who may connect.
//
// A socket of libzmq cannot end one of its connections. So a key that is removed closes the port for everybody, and it
// is opened again a moment later.
#pragma once

#include <span>

#include "io/peer_wire.h"

namespace dthrottle {

class PeerServer {
 public:
  PeerServer(const PeerThread::Options& options, zmq::context_t& context, PeerThreadCounts& counts)
      : options_(options), context_(context), counts_(counts) {}

  // Makes the sockets. Throws zmq::error_t where memory or descriptors are short.
  void Open();
  // Opens the port; false: `why` says why not.
  bool Bind(std::string& why);
  // Waits `linger_ms` for what is being sent.
  void Close(int linger_ms);

  // Ends all connections and opens the port anew.
  void Restart(Instant now);
  Instant bind_at() const { return bind_at_; }    // when to call Rebind; max: the port is open
  void Rebind(Instant now);

  // Reports and answers. False, and errno says why: it does not go out.
  bool Send(const Route& route, const Frame& frame) { return open() && SendTo(requests_.socket, route, frame); }
  bool open() { return requests_.socket.handle() != nullptr; }    // not between two bindings

  Inbox& requests() { return requests_; }
  zmq::socket_t& zap() { return zap_; }
  void OnZapRequest(Instant now);

 private:
  void MakeSocket();
  void AnswerZap(std::span<const zmq::message_t> parts, Instant now);

  const PeerThread::Options& options_;
  zmq::context_t& context_;
  PeerThreadCounts& counts_;
  Inbox requests_;
  zmq::socket_t zap_;
  Instant bind_at_ = Instant::max(), bind_complaint_{};
  Instant said_{};    // when the log was told of keys that are not authorized
  std::uint64_t unsaid_ = 0;
};

}    // namespace dthrottle
