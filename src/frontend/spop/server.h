// Answers HAProxy on the connections of one loop: SpopTurn with sockets around it.
#pragma once

#include <uv.h>

#include <memory>
#include <vector>

#include "frontend/spop/turn.h"
#include "io/stream_server.h"

namespace dthrottle {

class SpopServer final : public StreamServer {
 public:
  // Uses `lane` of the limiter on its thread; see SpopTurn.
  SpopServer(uv_loop_t* loop, Limiter& limiter, std::size_t lane, Prng prng, std::size_t tag_bytes_max,
             Duration idle_timeout);

  const SpopTurn& turn() const { return turn_; }

 private:
  static constexpr std::size_t kReadBytes = 16 * 1024;
  static constexpr std::size_t kTagsPerFlush = 256;
  struct SpopConnection;

  std::unique_ptr<Connection> MakeConnection() override;
  Then OnBytes(Connection& connection, std::string_view bytes) override;
  void Answer() override;

  SpopTurn turn_;

  struct Segment {
    Connection* connection;
    std::size_t replies;
  };
  std::vector<Segment> segments_;    // of the turn
};

}    // namespace dthrottle
