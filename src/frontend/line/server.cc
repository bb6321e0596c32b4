#include "frontend/line/server.h"

#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/prng.h"
#include "io/clock.h"
#include "query/http_line.h"

namespace dthrottle {

struct LineServer::LineConnection final : Connection {
  explicit LineConnection(const FramerLimits& framer_limits) : limits(framer_limits) {}

  const FramerLimits& limits;
  Framer framer;
  bool is_new = true;    // its first line has not been read

  std::string_view rest() const override { return framer.rest(); }
  std::string state() const override { return framer.Save().over_long; }
  bool Restore(std::string_view rest, std::string_view state) override {
    is_new = false;
    return framer.Restore({std::string(rest), std::string(state)}, limits);
  }
};

LineServer::LineServer(uv_loop_t* loop, Limiter& limiter, std::size_t lane, const FramerLimits& limits, Prng prng,
                       Duration idle_timeout)
    : StreamServer(loop, {kReadBytes, kTagBytesMax + 1}, idle_timeout),
      limiter_(limiter),
      lane_(lane),
      limits_(limits),
      prng_(prng),
      lag_timer_(loop, [this] { OnLagTick(); }),
      lag_tick_at_(Now()) {
  lag_timer_.StartEvery(kLagTick);
  // A loop opens a descriptor with its first stream and keeps it. If that stream were an application's, the loop could
  // take the descriptor that a listener has just given up to turn a connection away.
  auto* first = new StreamHandle;
  DT_CHECK(uv_pipe_init(loop, &first->pipe, 0) == 0);
  uv_close(&first->handle, [](uv_handle_t* handle) { delete reinterpret_cast<StreamHandle*>(handle); });
}

void LineServer::Close() {
  lag_timer_.Close();
  StreamServer::Close();
}

std::unique_ptr<StreamServer::Connection> LineServer::MakeConnection() {
  return std::make_unique<LineConnection>(limits_);
}

StreamServer::Then LineServer::OnBytes(Connection& connection, std::string_view bytes) {
  auto& c = static_cast<LineConnection&>(connection);
  if (segments_.empty()) turn_began_ = Now();
  if (c.is_new && c.is_tcp() && TurnedAway(c, bytes)) return Then::kEnd;
  const std::size_t before = queries_.size();
  c.framer.Read(bytes, limits_, *this);
  if (queries_.size() > before) segments_.push_back({&connection, queries_.size() - before});
  return queries_.size() >= kQueriesPerFlush ? Then::kAnswer : Then::kRead;
}

// The lines of a browser's request would be queries that the author of a web page has chosen. A browser cannot reach
// Unix sockets.
bool LineServer::TurnedAway(LineConnection& c, std::string_view bytes) {
  const std::size_t lf = bytes.find('\n');
  c.is_new = lf == std::string_view::npos;
  if (c.is_new || !BeginsWithHttp(c.framer.ends().append(bytes.substr(0, lf)), false)) return false;
  counters_.spoke_http.Add();
  return true;
}

void LineServer::OnTag(std::string_view tag) {
  queries_.push_back({{tag, false}, 1, nullptr});
}

void LineServer::OnOverLongTag(std::unique_ptr<OverLongReader> reader) {
  counters_.over_long.Add();
  over_long_tags_.push_back(std::make_unique<OverLongTag>(reader->Finish()));
  over_long_readers_.push_back(std::move(reader));
  const OverLongTag& tag = *over_long_tags_.back();
  queries_.push_back({{{tag.digest.data(), tag.digest.size()}, true}, 1, &tag});
}

void LineServer::Answer() {
  if (segments_.empty()) return;    // unfinished lines only
  verdicts_.resize(queries_.size());
  limiter_.Answer(queries_, verdicts_, lane_, prng_, Now());
  answers_.resize(kAnswerBytes * verdicts_.size());
  WriteAnswers(verdicts_, answers_);
  const char* next = answers_.data();
  for (const Segment& segment : segments_) {
    const std::size_t bytes = kAnswerBytes * segment.queries;
    Write(*segment.connection, {next, bytes});
    next += bytes;
  }
  counters_.answered_in.Add(Now() - turn_began_, queries_.size());
  segments_.clear();
  queries_.clear();
  over_long_tags_.clear();
  over_long_readers_.clear();
}

// libuv's timers count in milliseconds, so a lag of one means nothing.
void LineServer::OnLagTick() {
  const Instant now = Now();
  counters_.loop_lag.Add(now - std::exchange(lag_tick_at_, now) - kLagTick);
}

}    // namespace dthrottle
