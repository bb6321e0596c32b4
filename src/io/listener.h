// Listening sockets, and accepting from them through every shortage.
//
// libuv's own listener stops accepting for good when one uv_accept fails, so this one polls the socket and accepts by
// itself, a bounded number a turn. When descriptors run out it gives up a spare one to accept and close what waits:
// an application that is turned away at once carries on, one that is left waiting does not.
#pragma once

#include <uv.h>

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "io/places.h"
#include "io/readable.h"
#include "io/timer.h"

namespace dthrottle {

struct Endpoint;

struct SocketError {
  int code;    // errno
  std::string message;
};

template <class T>
using SocketResult = tl::expected<T, SocketError>;

// A listening Unix socket with these permissions; `packets`: it keeps messages apart. Replaces a socket that nobody
// listens on any more; EADDRINUSE if somebody does.
SocketResult<int> ListenUnix(const std::string& path, std::uint32_t mode, bool packets = false);

// A listening TCP socket.
SocketResult<int> ListenTcp(const Endpoint& endpoint);

// Whether a TCP socket could be bound there now. Nobody can connect to it meanwhile.
SocketResult<void> TryTcp(const Endpoint& endpoint);

// "unix:/path" or "tcp:address:port", as it is bound.
std::string DescribeSocket(int fd);

// Whether it is a socket of that type, such as SOCK_STREAM, that listens, or one that does not.
bool IsSocket(int fd, int type, bool listening);

// Whether a connection came by that listening socket, or by another that is bound to the same.
bool CameBy(int connection, int listening);

class Listener {
 public:
  // Takes what was accepted: a non-blocking descriptor that is now the callee's.
  using OnAccept = std::function<void(int fd)>;
  // Told the errno of a connection that could not be accepted.
  using OnFailure = std::function<void(int code)>;
  // Told that there is no place for a connection, and why. True: one was closed for it; false: it is closed itself.
  using OnCrowd = std::function<bool(int fd, Places::Answer)>;

  // Listens on `fd`, which becomes this object's.
  Listener(uv_loop_t* loop, int fd, PlaceBounds bounds, OnAccept on_accept, OnFailure on_failure, OnCrowd on_crowd);
  // Stops listening. The loop must run once more before it is closed.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Accepts everything that waits, without bound but the backlog's.
  void AcceptAll();

  int fd() const { return fd_; }
  Places& places() { return places_; }

 private:
  void AcceptSome(int most);
  bool AcceptOne();
  bool TurnOneAway(int code);
  void Pause();

  int fd_;
  int spare_fd_;
  OnAccept on_accept_;
  OnFailure on_failure_;
  OnCrowd on_crowd_;
  Places places_;
  Readable watch_;
  Timer retry_;
};

}    // namespace dthrottle
