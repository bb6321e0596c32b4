// ZeroMQ sockets as hosts use them: their options, messages read some at a time, frames sent without waiting.
#pragma once

#include <fmt/format.h>
#include <zmq.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "config/values.h"
#include "io/peer_thread.h"

namespace dthrottle {

inline constexpr int kPartsPerTurn = 128;    // read from one socket before the others get their turn
inline constexpr Duration kSayEvery = std::chrono::seconds(10);
// Messages of one connection that libzmq holds until they are read here; then it leaves the rest to TCP.
inline constexpr int kWaitingMax = 16, kWaitingMin = 4;
// Frames grow by a nonce and a code when they are encrypted.
inline constexpr std::int64_t kWireBytesMax =
    static_cast<std::int64_t>(std::max(kFrameBytesMax, kCapacityFrameBytesMax)) + 64;

// One of the sockets we read. A message may be cut by the end of a turn: `part` goes on in the next.
struct Inbox {
  Inbox() = default;
  Inbox(zmq::socket_t s, std::size_t parts_before) : socket(std::move(s)), envelope(parts_before) {}

  zmq::socket_t socket;
  std::size_t envelope = 0;    // parts before the body
  std::size_t part = 0;
  std::string route;
  zmq::message_t body;
};

inline constexpr char kZapDomain[] = "dthrottle";

// A socket for frames, with bounds on what it reads and on how long it waits. Throws zmq::error_t.
zmq::socket_t MakeRouter(zmq::context_t& context);

bool IsV6(const Endpoint& endpoint);

// False, and errno says why: the socket does not take it now.
bool SendPart(zmq::socket_t& socket, zmq::message_t& part, bool more);
bool SendTo(zmq::socket_t& router, std::string_view route, const Frame& frame);

// Reads the next whole message of a socket into `inbox`, from at most `parts` parts, which it counts down. False: there
// is none, or no part is left. `malformed` counts messages of more parts than ours have, which are dropped.
bool ReadMessage(Inbox& inbox, int& parts, std::uint64_t& malformed);

template <class... Args>
void Say(const PeerThread::Options& options, LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (options.log) options.log(level, fmt::format(format, std::forward<Args>(args)...));
}

}    // namespace dthrottle
