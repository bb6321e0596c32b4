// Serves HTTP on connections that somebody else accepts: libmicrohttpd, turned by our loop. Its epoll descriptor is
// polled like any socket, and what it wants to do at once is done in the next turn, so that queries come in between.
//
// It is given connections and not listening sockets, because its own accepting spins where descriptors run out. Nor is
// its timeout used: that one counts silence, and a byte now and then would hold a connection for hours. Here a
// connection has to finish a request within `timeout` of the one before, or of its beginning.
#pragma once

#include <uv.h>

#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "frontend/http_service.h"

struct MHD_Connection;
struct MHD_Daemon;

namespace dthrottle {

struct HttpLimits {
  std::uint32_t connections_max = 0;
  Duration timeout{};
};

class HttpServer {
 public:
  // What one connection takes: a request and the fields of its answer have to fit, or it ends.
  static constexpr std::size_t kConnectionBytes = 16 * 1024;
  // A request's line and fields, with what is remembered of them, or it is answered 431.
  static constexpr std::size_t kRequestBytesMax = kConnectionBytes - 2 * 1024;

  // `clock` tells the time, monotonic.
  HttpServer(uv_loop_t* loop, AdminHost& host, Prng prng, const HttpLimits& limits, Instant (*clock)());

  // REQUIRES: Close() was called, and the loop has run since.
  ~HttpServer();

  // Serves a connected socket, which becomes this object's. One too many is closed at once.
  void Take(int fd, bool is_tcp);

  // From now on a connection ends with its next answer, and /healthz says why.
  void Stop();

  // Answers what has arrived, now.
  void Settle();

  // Answers what has arrived and closes every connection; the loop must run once more.
  void Close();

  HttpCounts Counts() const;

 private:
  struct Connection;
  struct Callbacks;

  void Turn();
  int Respond(MHD_Connection* to, Connection& c, const char* method);
  void Touch(Connection& c);
  void OnDeadline();
  void AwaitDeadline();

  HttpService service_;
  const HttpLimits limits_;
  Instant (*const clock_)();
  MHD_Daemon* mhd_ = nullptr;
  int epoll_fd_ = -1;
  uv_poll_t poll_;
  uv_timer_t next_turn_, deadline_;
  std::list<Connection> connections_;    // those that have waited longest in front
  bool taking_tcp_ = false;              // of the connection that is being handed to libmicrohttpd
  bool stopping_ = false;
  HttpCounts counts_;
};

}    // namespace dthrottle
