#include "frontend/ask/server.h"

#include <utility>

#include "base/prng.h"
#include "base/state.h"
#include "frontend/ask/reader.h"
#include "io/clock.h"

namespace dthrottle {

struct AskServer::AskConnection final : Connection {
  explicit AskConnection(AskServer& its) : turn(its.turn_), gateway(its.gateway_) {}
  ~AskConnection() override { turn.returns().Leave(holder, Now()); }

  // What goes over beside the unfinished line.
  struct State {
    std::string reader;
    Holder holder;

    static void Fields(auto& state, auto& self) { state(self.reader, self.holder); }
  };

  void OnLine(std::string_view line) {
    const bool counts = gateway != nullptr && line.starts_with(GatewayCalls::kCount);
    const auto counted = counts ? gateway->Count(line.substr(GatewayCalls::kCount.size())) : std::nullopt;
    counted ? turn.OnAnswered(*counted) : turn.OnLine(line, holder);
  }
  void OnTooLong() { turn.OnTooLong(); }

  std::string_view rest() const override { return reader.rest(); }
  std::string state() const override { return WriteState(Holder::kVersion, State{reader.state(), holder}); }
  bool Restore(std::string_view rest, std::string_view bytes) override {
    State state;
    if (!ReadState(bytes, Holder::kVersion, state)) return false;
    reader.Restore(rest, state.reader);
    holder = std::move(state.holder);
    turn.returns().TakeUp(holder);
    return true;
  }

  // The kernel says when a program on this host has died; of another host only its silence is heard.
  bool waits_for_long() const override { return !is_tcp() && turn.returns().HasAny(holder, Now()); }

  AskTurn& turn;
  GatewayCalls* const gateway;
  AskReader reader;
  Holder holder;
};

AskServer::AskServer(uv_loop_t* loop, Limiter& limiter, Holds* holds, LaneUse lane, Prng prng,
                     std::size_t tag_bytes_max, Duration idle_timeout, GatewayCalls* gateway, TakeReport take_report)
    : TurnServer(loop, {kReadBytes, AskReader::kLineBytesMax}, idle_timeout, limiter, holds, lane, prng, tag_bytes_max,
                 std::move(take_report)),
      gateway_(gateway) {
  if (gateway != nullptr) turn_.TakeOnlyAllowedLimits();
}

std::uint32_t AskServer::TakeBack(std::uint64_t hash, std::uint32_t places) {
  std::uint32_t back = 0;
  EndIf([&](Connection& connection) {
    Holder& holder = static_cast<AskConnection&>(connection).holder;
    const auto its = holder.places.find(hash);
    if (back >= places || its == holder.places.end()) return false;
    back += its->second;
    turn_.returns().Leave(holder, Now());
    return true;
  });
  return back;
}

std::unique_ptr<StreamServer::Connection> AskServer::MakeConnection() {
  return std::make_unique<AskConnection>(*this);
}

StreamServer::Then AskServer::OnBytes(Connection& connection, std::string_view bytes) {
  auto& c = static_cast<AskConnection&>(connection);
  if (c.reader.IsBrowser(bytes)) {
    ++spoke_http_;
    return Then::kEnd;
  }
  const std::size_t before = turn_.size();
  c.reader.Read(bytes, c);
  Asked(connection, before);
  return turn_.tags() >= kTagsPerFlush ? Then::kAnswer : Then::kRead;
}

}    // namespace dthrottle
