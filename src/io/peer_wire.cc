#include "io/peer_wire.h"

#include "io/library_input.h"

namespace dthrottle {

namespace {

zmq::message_t MessageOf(const Frame& frame) {
  // Subscribers' queues share the bytes; the last one to send them lets go, in libzmq's thread.
  return {const_cast<char*>(frame->data()), frame->size(), [](void*, void* held) { delete static_cast<Frame*>(held); },
          new Frame(frame)};
}

}    // namespace

zmq::socket_t MakeRouter(zmq::context_t& context) {
  zmq::socket_t s(context, zmq::socket_type::router);
  s.set(zmq::sockopt::linger, 0);
  s.set(zmq::sockopt::maxmsgsize, kWireBytesMax);
  // A connection that has died is noticed within about 8 s, whether something is under way on it or not. Heartbeats of
  // ZMTP would be the obvious way; a slow reader with heartbeats aborts the process (_input_stopped).
  s.set(zmq::sockopt::tcp_keepalive, 1);
  s.set(zmq::sockopt::tcp_keepalive_idle, 5);
  s.set(zmq::sockopt::tcp_keepalive_intvl, 2);
  s.set(zmq::sockopt::tcp_keepalive_cnt, 3);
  s.set(zmq::sockopt::tcp_maxrt, 8000);
  s.set(zmq::sockopt::connect_timeout, 2000);
  s.set(zmq::sockopt::handshake_ivl, 5000);
  s.set(zmq::sockopt::reconnect_ivl, 100);    // libzmq adds chance by itself
  s.set(zmq::sockopt::reconnect_ivl_max, 2000);
  s.set(zmq::sockopt::backlog, 1024);
  return s;
}

bool IsV6(const Endpoint& endpoint) {
  return endpoint.host.find(':') != std::string::npos;
}

bool SendPart(zmq::socket_t& socket, zmq::message_t& part, bool more) {
  return zmq_msg_send(part.handle(), socket.handle(), ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
}

bool SendTo(zmq::socket_t& router, std::string_view route, const Frame& frame) {
  zmq::message_t head(route.data(), route.size()), body = MessageOf(frame);
  return SendPart(router, head, true) && SendPart(router, body, false);
}

bool ReadMessage(Inbox& inbox, int& parts, std::uint64_t& malformed) {
  for (; parts > 0; --parts) {
    zmq::message_t part;
    if (zmq_msg_recv(part.handle(), inbox.socket.handle(), ZMQ_DONTWAIT) < 0) return false;
    const bool more = part.more();
    if (inbox.part < inbox.envelope) inbox.route = part.to_string_view();
    if (inbox.part == inbox.envelope) inbox.body = std::move(part);
    ++inbox.part;
    if (more) continue;
    LibraryMessageTaken(zmq_msg_get(inbox.body.handle(), ZMQ_SRCFD));
    if (std::exchange(inbox.part, 0) == inbox.envelope + 1) return --parts, true;
    ++malformed;
  }
  return false;
}

}    // namespace dthrottle
