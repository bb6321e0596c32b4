#include "frontend/spop/server.h"

#include "base/prng.h"
#include "base/state.h"
#include "io/clock.h"

namespace dthrottle {

struct SpopServer::SpopConnection final : Connection {
  SpopReader reader;
  SpopClient client;

  std::string_view rest() const override { return reader.rest(); }
  std::string state() const override { return WriteState(SpopClient::kVersion, client); }
  bool Restore(std::string_view rest, std::string_view state) override {
    reader.PutBack(rest);
    return ReadState(state, SpopClient::kVersion, client);
  }
};

SpopServer::SpopServer(uv_loop_t* loop, Limiter& limiter, std::size_t lane, Prng prng, std::size_t tag_bytes_max,
                       Duration idle_timeout)
    : TurnServer(loop, {kReadBytes, SpopReader::kFrameBytesMax + SpopReader::kLengthBytes}, idle_timeout, limiter, lane,
                 prng, tag_bytes_max) {}

std::unique_ptr<StreamServer::Connection> SpopServer::MakeConnection() {
  return std::make_unique<SpopConnection>();
}

StreamServer::Then SpopServer::OnBytes(Connection& connection, std::string_view bytes) {
  auto& c = static_cast<SpopConnection&>(connection);
  struct Sink {
    SpopTurn& turn;
    SpopClient& client;

    bool OnFrame(const SpopFrame& frame) {
      turn.OnFrame(client, frame);
      return !client.leaving;
    }
  } sink{turn_, c.client};
  const std::size_t before = turn_.size();
  if (!c.reader.Read(bytes, sink)) turn_.OnNoFrame(c.client);
  Asked(connection, before);
  if (c.client.leaving) return Then::kEnd;
  return turn_.tags() >= kTagsPerFlush ? Then::kAnswer : Then::kRead;
}

}    // namespace dthrottle
