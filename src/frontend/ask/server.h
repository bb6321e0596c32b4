// Answers questions on the connections of one loop: AskTurn with sockets around it.
#pragma once

#include <uv.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "frontend/ask/turn.h"
#include "frontend/gateway_calls.h"
#include "io/stream_server.h"

namespace dthrottle {

class AskServer final : public StreamServer {
 public:
  // Uses `lane` of the limiter on its thread; see AskTurn. `gateway`: the connections are of dthrottle-grpc, and may
  // count. What is pointed to must outlive this object.
  AskServer(uv_loop_t* loop, Limiter& limiter, Holds* holds, LaneUse lane, Prng prng, std::size_t tag_bytes_max,
            Duration idle_timeout, GatewayCalls* gateway = nullptr, TakeReport take_report = nullptr);

  const AskTurn& turn() const { return turn_; }
  // Connections that were closed because they began with an HTTP request.
  std::uint64_t spoke_http() const { return spoke_http_; }

 private:
  static constexpr std::size_t kReadBytes = 16 * 1024;
  static constexpr std::size_t kTagsPerFlush = 256;
  struct AskConnection;

  std::unique_ptr<Connection> MakeConnection() override;
  Then OnBytes(Connection& connection, std::string_view bytes) override;
  void Answer() override;

  AskTurn turn_;
  GatewayCalls* const gateway_;    // null: of applications
  std::uint64_t spoke_http_ = 0;

  struct Segment {
    Connection* connection;
    std::size_t lines;
  };
  std::vector<Segment> segments_;    // of the turn
};

}    // namespace dthrottle
