// Serves the lease protocol on the connections of one loop: lease_lines with sockets around it.
#pragma once

#include <uv.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "frontend/lease/lines.h"
#include "io/stream_server.h"
#include "lease/server.h"

namespace dthrottle {

class LeaseSocket final : public StreamServer {
 public:
  // `before_answers` is called with the instant at which the lines of a turn are answered, and brings the server's
  // mastership up to it. `gateway`: the connections are of the gateway (frontend/lease/lines.h). What is pointed to
  // must outlive this object.
  LeaseSocket(uv_loop_t* loop, lease::LeaseServer& server, Duration idle_timeout,
              std::function<void(BootInstant)> before_answers, GatewayCalls* gateway = nullptr);

  std::uint64_t lines() const { return lines_; }
  // Connections that were closed because they began with an HTTP request.
  std::uint64_t spoke_http() const { return spoke_http_; }

 private:
  static constexpr std::size_t kReadBytes = 16 * 1024;
  struct LeaseConnection;

  std::unique_ptr<Connection> MakeConnection() override;
  Then OnBytes(Connection& connection, std::string_view bytes) override;
  void Answer() override;

  lease::LeaseServer& server_;
  const std::function<void(BootInstant)> before_answers_;
  GatewayCalls* const gateway_;    // null: of clients
  std::uint64_t lines_ = 0, spoke_http_ = 0;

  struct Segment {
    Connection* connection;
    LeaseLines lines;    // in the arena
  };
  std::vector<Segment> segments_;    // of the turn
  std::string answers_;
};

}    // namespace dthrottle
