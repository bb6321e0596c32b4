// Answers questions on the connections of one loop: AskTurn with sockets around it.
#pragma once

#include <uv.h>

#include <cstdint>
#include <memory>

#include "frontend/ask/turn.h"
#include "frontend/gateway_calls.h"
#include "frontend/turn_server.h"

namespace dthrottle {

class AskServer final : public TurnServer<AskTurn> {
 public:
  // Uses `lane` of the limiter on its thread; see AskTurn. `gateway`: the connections are of dthrottle-grpc, and may
  // count. What is pointed to must outlive this object.
  AskServer(uv_loop_t* loop, Limiter& limiter, Holds* holds, LaneUse lane, Prng prng, std::size_t tag_bytes_max,
            Duration idle_timeout, GatewayCalls* gateway = nullptr, TakeReport take_report = nullptr);

  // Ends connections until so many places of the tag with this hash have come back, perhaps more: returns how many.
  std::uint32_t TakeBack(std::uint64_t hash, std::uint32_t places);

  // Connections that were closed because they began with an HTTP request.
  std::uint64_t spoke_http() const { return spoke_http_; }

 private:
  static constexpr std::size_t kReadBytes = 16 * 1024;
  static constexpr std::size_t kTagsPerFlush = 256;
  struct AskConnection;

  std::unique_ptr<Connection> MakeConnection() override;
  Then OnBytes(Connection& connection, std::string_view bytes) override;

  GatewayCalls* const gateway_;    // null: of applications
  std::uint64_t spoke_http_ = 0;
};

}    // namespace dthrottle
