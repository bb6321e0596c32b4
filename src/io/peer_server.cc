#include "io/peer_server.h"

#include <algorithm>
#include <cerrno>

#include "base/check.h"

namespace dthrottle {

namespace {

constexpr char kZapAddress[] = "inproc://zeromq.zap.01";
constexpr Duration kBindRetry = std::chrono::milliseconds(5), kBindSlow = std::chrono::seconds(1);

}    // namespace

void PeerServer::Open() {
  // Before the port: a handshake finds nobody to ask otherwise and fails.
  zap_ = zmq::socket_t(context_, zmq::socket_type::rep);
  zap_.set(zmq::sockopt::linger, 0);
  zap_.bind(kZapAddress);
  MakeSocket();
}

void PeerServer::MakeSocket() {
  requests_ = Inbox(MakeRouter(context_), 1);
  zmq::socket_t& socket = requests_.socket;
  socket.set(zmq::sockopt::rcvhwm, kWaitingMax);
  // A send says when the connection is gone, or its queue is full: a slow subscriber misses reports and asks for them.
  socket.set(zmq::sockopt::router_mandatory, 1);
  socket.set(zmq::sockopt::sndhwm,
             static_cast<int>(std::clamp<std::size_t>(options_.send_bytes / kFrameBytesMax, 16, 65536)));
  socket.set(zmq::sockopt::ipv6, IsV6(options_.bind));
  if (!options_.keys) return;
  socket.set(zmq::sockopt::curve_server, 1);
  socket.set(zmq::sockopt::curve_secretkey, options_.keys->secret_key);
  socket.set(zmq::sockopt::zap_domain, kZapDomain);
}

bool PeerServer::Bind(std::string& why) {
  const std::string url = FormatBind(options_.bind);
  if (zmq_bind(requests_.socket.handle(), url.c_str()) == 0) return true;
  why = fmt::format("{}: cannot listen: {}", url, zmq_strerror(errno));
  return false;
}

void PeerServer::Close(int linger_ms) {
  if (open()) requests_.socket.set(zmq::sockopt::linger, linger_ms);
  requests_.socket.close();
  zap_.close();
}

void PeerServer::Restart(Instant now) {
  ++counts_.rebinds;
  requests_.socket.close();
  bind_at_ = now;
  bind_complaint_ = now + kBindSlow;
}

void PeerServer::Rebind(Instant now) {
  std::string why;
  try {
    if (!open()) MakeSocket();
    if (Bind(why)) {
      bind_at_ = Instant::max();
      return;
    }
  } catch (const zmq::error_t& error) {    // memory or descriptors are short
    why = error.what();
    requests_.socket.close();
  }
  // The closed socket gives its port back in a thread of libzmq, soon.
  bind_at_ = now + kBindRetry;
  if (now < bind_complaint_) return;
  bind_complaint_ = now + kSayEvery;
  Say(options_, LogLevel::kWarning, "{}; trying again", why);
}

void PeerServer::OnZapRequest(Instant now) {
  for (int i = 0; i < kPartsPerTurn; ++i) {
    std::vector<zmq::message_t> parts;
    do {
      parts.emplace_back();
      if (zmq_msg_recv(parts.back().handle(), zap_.handle(), ZMQ_DONTWAIT) < 0) return;
    } while (parts.back().more());
    AnswerZap(parts, now);
  }
}

// RFC 27: version, request, domain, address, identity, mechanism, key in; version, request, status, text, user,
// metadata out. libzmq asks from its own thread, so that one thread can serve both sides.
void PeerServer::AnswerZap(std::span<const zmq::message_t> parts, Instant now) {
  DT_CHECK(parts.size() >= 6);
  const std::string* name = nullptr;
  char key[kKeyChars + 1] = "";
  if (parts.size() == 7 && parts[5].to_string_view() == "CURVE" && parts[6].size() == kKeyChars / 5 * 4) {
    zmq_z85_encode(key, parts[6].data<std::uint8_t>(), parts[6].size());
    name = options_.authorized.NameOf(key);
  }
  const bool good = name != nullptr || !options_.keys;
  const std::string_view user = name != nullptr ? std::string_view(*name) : "";
  const std::string_view reply[] = {
      "1.0", parts[1].to_string_view(), good ? "200" : "400", good ? "OK" : "not authorized", user, ""};
  for (std::size_t k = 0; k < std::size(reply); ++k) {
    zmq::message_t part(reply[k].data(), reply[k].size());
    SendPart(zap_, part, k + 1 < std::size(reply));
  }
  if (!options_.keys) return;
  ++(good ? counts_.allowed : counts_.denied);
  if (good) return;
  ++unsaid_;
  if (now - said_ < kSayEvery) return;
  said_ = now;
  Say(options_, LogLevel::kWarning, "turned away {} connections of keys that are not authorized, last {} from {}",
      std::exchange(unsaid_, 0), key, parts[3].to_string_view());
}

}    // namespace dthrottle
