// Answers HAProxy on the connections of one loop: SpopTurn with sockets around it.
#pragma once

#include <uv.h>

#include <memory>

#include "frontend/spop/turn.h"
#include "frontend/turn_server.h"

namespace dthrottle {

class SpopServer final : public TurnServer<SpopTurn> {
 public:
  // Uses `lane` of the limiter on its thread; see SpopTurn.
  SpopServer(uv_loop_t* loop, Limiter& limiter, std::size_t lane, Prng prng, std::size_t tag_bytes_max,
             Duration idle_timeout);

 private:
  static constexpr std::size_t kReadBytes = 16 * 1024;
  static constexpr std::size_t kTagsPerFlush = 256;
  struct SpopConnection;

  std::unique_ptr<Connection> MakeConnection() override;
  Then OnBytes(Connection& connection, std::string_view bytes) override;

};

}    // namespace dthrottle
