#include "frontend/resp/server.h"

#include <algorithm>
#include <utility>

#include "base/prng.h"
#include "io/clock.h"

namespace dthrottle {

struct RespServer::RespConnection final : Connection {
  explicit RespConnection(std::uint64_t& last_id) : ids(last_id) { client.id = ++ids; }

  std::uint64_t& ids;    // of the server: the last that was given
  RespReader reader;
  RespClient client;

  std::string_view rest() const override { return reader.rest(); }
  std::string state() const override { return SaveRespClient(client); }
  bool Restore(std::string_view rest, std::string_view state) override {
    reader.PutBack(rest);
    if (state.empty()) return true;
    auto saved = LoadRespClient(state);
    if (!saved) return false;
    client = std::move(*saved);
    ids = std::max(ids, client.id);
    return true;
  }
};

RespServer::RespServer(uv_loop_t* loop, Limiter& limiter, BroughtLimits* brought, std::size_t lane, Prng prng,
                       std::size_t tag_bytes_max, Duration idle_timeout)
    : TurnServer(loop, {kReadBytes, RespReader::kRestBytesMax}, idle_timeout, limiter, brought, lane, prng, tag_bytes_max,
                 [this] { return Status(); }),
      limiter_(limiter),
      brought_(brought),
      started_(Now()) {}

RespStatus RespServer::Status() const {
  const std::uint64_t memory =
      limiter_.table().region_bytes() + (brought_ != nullptr ? brought_->table().region_bytes() : 0);
  return {Now() - started_, connections(), counts().accepted.Read(), turn_.counts().commands, memory};
}

std::unique_ptr<StreamServer::Connection> RespServer::MakeConnection() {
  return std::make_unique<RespConnection>(ids_);
}

StreamServer::Then RespServer::OnBytes(Connection& connection, std::string_view bytes) {
  auto& c = static_cast<RespConnection&>(connection);
  struct Sink {
    RespTurn& turn;
    RespClient& client;
    const std::size_t texts_max;

    bool OnCommand(RespArguments arguments) {
      turn.Add(client, arguments);
      if (turn.text_bytes() > texts_max) turn.AddProtocolError(client, {"too many replies are asked for at once"});
      return !client.leaving;
    }
  };
  const std::size_t before = turn_.size();
  Sink sink{turn_, c.client, turn_.text_bytes() + RespTurn::kReplyBytesMax};
  if (const auto read = c.reader.Read(bytes, sink); !read) turn_.AddProtocolError(c.client, read.error());
  Asked(connection, before);
  return c.client.leaving ? Then::kEnd : Then::kRead;
}

}    // namespace dthrottle
