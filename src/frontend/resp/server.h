// Answers clients of Redis on the connections of one loop: RespTurn with sockets around it.
#pragma once

#include <uv.h>

#include <cstdint>
#include <memory>

#include "frontend/resp/reader.h"
#include "frontend/resp/turn.h"
#include "frontend/turn_server.h"

namespace dthrottle {

class RespServer final : public TurnServer<RespTurn> {
 public:
  // Uses `lane` of the limiter on its thread; see RespTurn.
  RespServer(uv_loop_t* loop, Limiter& limiter, BroughtLimits* brought, std::size_t lane, Prng prng,
             std::size_t tag_bytes_max, Duration idle_timeout);

 private:
  static constexpr std::size_t kReadBytes = 16 * 1024;
  struct RespConnection;

  std::unique_ptr<Connection> MakeConnection() override;
  Then OnBytes(Connection& connection, std::string_view bytes) override;
  RespStatus Status() const;

  Limiter& limiter_;
  BroughtLimits* const brought_;
  const Instant started_;
  std::uint64_t ids_ = 0;
};

}    // namespace dthrottle
