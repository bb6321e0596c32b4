#include "frontend/ask/server.h"

#include "base/prng.h"
#include "frontend/ask/reader.h"
#include "io/clock.h"

namespace dthrottle {

struct AskServer::AskConnection final : Connection {
  AskReader reader;

  std::string_view rest() const override { return reader.rest(); }
  std::string state() const override { return reader.state(); }
  bool Restore(std::string_view rest, std::string_view state) override {
    reader.Restore(rest, state);
    return true;
  }
};

AskServer::AskServer(uv_loop_t* loop, Limiter& limiter, std::size_t lane, Prng prng, std::size_t tag_bytes_max,
                     Duration idle_timeout)
    : StreamServer(loop, {kReadBytes, AskReader::kLineBytesMax}, idle_timeout),
      turn_(limiter, lane, prng, tag_bytes_max) {}

std::unique_ptr<StreamServer::Connection> AskServer::MakeConnection() {
  return std::make_unique<AskConnection>();
}

StreamServer::Then AskServer::OnBytes(Connection& connection, std::string_view bytes) {
  auto& c = static_cast<AskConnection&>(connection);
  if (c.reader.IsBrowser(bytes)) {
    ++spoke_http_;
    return Then::kEnd;
  }
  const std::size_t before = turn_.lines();
  c.reader.Read(bytes, turn_);
  if (turn_.lines() > before) segments_.push_back({&connection, turn_.lines() - before});
  return turn_.tags() >= kTagsPerFlush ? Then::kAnswer : Then::kRead;
}

void AskServer::Answer() {
  turn_.Answer(Now());
  std::size_t first = 0;
  for (const auto& [connection, lines] : segments_) {
    Write(*connection, turn_.Answers(first, lines));
    first += lines;
  }
  segments_.clear();
  turn_.Clear();
}

}    // namespace dthrottle
