#include "io/query_server.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "io/clock.h"
#include "io/stream.h"
#include "query/http_line.h"

namespace dthrottle {

namespace {

constexpr std::uint32_t kIdleTicks = 8;
constexpr std::uint64_t kDrainTickMs = 10;
constexpr unsigned kDrainTicksMax = 200;    // 2 s

template <class T>
T* Owner(const void* handle) {
  return static_cast<T*>(static_cast<const uv_handle_t*>(handle)->data);
}

}    // namespace

struct QueryServer::Connection {
  StreamHandle uv;
  QueryServer* server;
  std::size_t index;    // in connections_
  Framer framer;
  std::vector<char> sending;    // answers that the socket had no room for, with libuv
  std::vector<char> unsent;     // answers behind them
  uv_write_t write;
  std::uint32_t heard_at;    // idle_ticks_
  bool writing = false;
  bool at_end = false;    // nothing more will come
  bool closing = false;
  bool is_new = false;    // over TCP, and its first line has not been read
};

QueryServer::QueryServer(uv_loop_t* loop, Limiter& limiter, std::size_t lane, const FramerLimits& limits, Prng prng,
                         Duration idle_timeout)
    : loop_(loop), limiter_(limiter), lane_(lane), limits_(limits), prng_(prng), idle_timeout_(idle_timeout) {
  DT_CHECK(uv_check_init(loop_, &turn_end_) == 0 && uv_timer_init(loop_, &idle_timer_) == 0 &&
           uv_timer_init(loop_, &drain_timer_) == 0 && uv_timer_init(loop_, &lag_timer_) == 0);
  turn_end_.data = idle_timer_.data = drain_timer_.data = lag_timer_.data = this;
  DT_CHECK(uv_check_start(&turn_end_, [](uv_check_t* h) { Owner<QueryServer>(h)->Flush(); }) == 0);
  StartIdleTimer();
  StartLagTimer();
  // A loop opens a descriptor with its first stream and keeps it. Were that an application's, it could take the one
  // that a listener has just given up to turn somebody away.
  auto* first = new StreamHandle;
  DT_CHECK(uv_pipe_init(loop_, &first->pipe, 0) == 0);
  uv_close(&first->handle, [](uv_handle_t* handle) { delete reinterpret_cast<StreamHandle*>(handle); });
}

QueryServer::~QueryServer() {
  DT_CHECK(connections_.empty());
}

void QueryServer::Close() {
  for (auto* handle : {reinterpret_cast<uv_handle_t*>(&turn_end_), reinterpret_cast<uv_handle_t*>(&idle_timer_),
                       reinterpret_cast<uv_handle_t*>(&drain_timer_), reinterpret_cast<uv_handle_t*>(&lag_timer_)}) {
    if (uv_is_closing(handle) == 0) uv_close(handle, nullptr);
  }
}

// It may be closing already, if the descriptor was no good.
QueryServer::Connection& QueryServer::Open(int fd) {
  auto* c = new Connection{};
  c->server = this;
  c->index = connections_.size();
  c->heard_at = idle_ticks_;
  const bool opened = OpenStream(loop_, fd, c->uv);
  c->uv.handle.data = c;
  connections_.push_back(c);
  if (!opened) End(*c);
  return *c;
}

void QueryServer::Take(int fd) {
  Connection& c = Open(fd);
  c.is_new = c.uv.handle.type == UV_TCP;
  if (!c.closing) StartReading(c);
}

void QueryServer::Take(const HandedConnection& handed) {
  Connection& c = Open(handed.fd);
  if (c.closing) return;
  const auto silent_ticks = handed.silent / std::max(idle_timeout_ / kIdleTicks, Duration(1));
  c.heard_at -= static_cast<std::uint32_t>(std::clamp<std::int64_t>(silent_ticks, 0, kIdleTicks));
  if (!c.framer.Restore({handed.unread, handed.state}, limits_)) return End(c);
  if (handed.unsent.empty()) {
    StartReading(c);
  } else {
    WriteLater(c, handed.unsent);
  }
}

std::vector<HandedConnection> QueryServer::Hold() {
  Flush();
  std::vector<HandedConnection> handed;
  for (Connection* c : connections_) {
    uv_read_stop(&c->uv.stream);
    HandedConnection& h = handed.emplace_back();
    uv_os_fd_t fd = -1;
    DT_CHECK(uv_fileno(&c->uv.handle, &fd) == 0);
    h.fd = fd;
    h.front = "query";
    Framer::State unfinished = c->framer.Save();
    h.unread = std::move(unfinished.rest);
    h.state = std::move(unfinished.over_long);
    h.silent = (idle_ticks_ - c->heard_at) * idle_timeout_ / kIdleTicks;
    if (!c->writing) continue;
    // What libuv has not written yet is the end of what it was given.
    const std::size_t left = uv_stream_get_write_queue_size(&c->uv.stream);
    h.unsent.assign(c->sending.end() - static_cast<std::ptrdiff_t>(left), c->sending.end());
    h.unsent.append(c->unsent.begin(), c->unsent.end());
  }
  return handed;
}

void QueryServer::Release() {
  for (std::size_t i = connections_.size(); i-- > 0;) {    // End moves the last one here
    if (!connections_[i]->writing) StartReading(*connections_[i]);
  }
}

void QueryServer::StartReading(Connection& c) {
  // The bytes of an unfinished line go in front of the new ones, so that every tag is in one piece.
  const auto on_alloc = [](uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
    auto& connection = *Owner<Connection>(handle);
    QueryServer& server = *connection.server;
    const std::string_view rest = connection.framer.rest();
    char* const at = server.arena_.data() + server.arena_used_;
    std::memcpy(at, rest.data(), rest.size());
    *buffer = uv_buf_init(at + rest.size(), kReadBytes);
  };
  const auto on_read = [](uv_stream_t* stream, ssize_t n, const uv_buf_t* buffer) {
    auto& connection = *Owner<Connection>(stream);
    connection.server->OnRead(connection, n, buffer->base);
  };
  if (uv_read_start(&c.uv.stream, on_alloc, on_read) != 0) End(c);
}

// ---- The turn ----

void QueryServer::OnRead(Connection& c, ssize_t n, const char* data) {
  if (n == 0) return;    // nothing there after all
  if (n < 0) {
    Flush();    // it may have asked in this very turn
    if (c.closing) return;
    c.at_end = true;
    if (n == UV_EOF && c.writing) {
      uv_read_stop(&c.uv.stream);    // the answers are still owed
    } else {
      End(c);
    }
    return;
  }
  heard_ = true;
  c.heard_at = idle_ticks_;
  if (segments_.empty()) turn_began_ = Now();
  const std::size_t before = queries_.size();
  const std::size_t rest = c.framer.rest().size();
  const std::string_view bytes(data - rest, rest + static_cast<std::size_t>(n));
  if (c.is_new && TurnedAway(c, bytes)) return;
  c.framer.Read(bytes, limits_, *this);
  if (queries_.size() == before) return;
  arena_used_ += bytes.size();
  segments_.push_back({&c, queries_.size() - before});
  const std::size_t next_read = kReadBytes + kTagBytesMax + 1;
  if (queries_.size() >= kQueriesPerFlush || n == kReadBytes || arena_used_ + next_read > kArenaBytes) Flush();
}

// A browser's request has lines that would be queries of whoever wrote the page. Unix sockets are out of its reach.
bool QueryServer::TurnedAway(Connection& c, std::string_view bytes) {
  const bool whole = bytes.find('\n') != std::string_view::npos;
  const bool cut = !whole && bytes.size() > limits_.tag_bytes_max;    // the framer keeps less than a longer line
  c.is_new = !whole && !cut;
  if (c.is_new || !BeginsWithHttp(bytes, cut)) return false;
  counters_.spoke_http.Add();
  End(c);
  return true;
}

void QueryServer::OnTag(std::string_view tag) {
  queries_.push_back({{tag, false}, 1, nullptr});
}

void QueryServer::OnOverLongTag(std::unique_ptr<OverLongReader> reader) {
  counters_.over_long.Add();
  over_long_tags_.push_back(std::make_unique<OverLongTag>(reader->Finish()));
  over_long_readers_.push_back(std::move(reader));
  const OverLongTag& tag = *over_long_tags_.back();
  queries_.push_back({{{tag.digest.data(), tag.digest.size()}, true}, 1, &tag});
}

void QueryServer::Flush() {
  if (segments_.empty()) return;
  verdicts_.resize(queries_.size());
  limiter_.Answer(queries_, verdicts_, lane_, prng_, Now());
  answers_.resize(kAnswerBytes * verdicts_.size());
  WriteAnswers(verdicts_, answers_);
  // Writing may end connections, but never starts one: the segments stay as they are.
  const char* next = answers_.data();
  for (const Segment& segment : segments_) {
    const std::size_t bytes = kAnswerBytes * segment.queries;
    if (!segment.connection->closing) Write(*segment.connection, {next, bytes});
    next += bytes;
  }
  counters_.answered_in.Add(Now() - turn_began_, queries_.size());
  segments_.clear();
  queries_.clear();
  over_long_tags_.clear();
  over_long_readers_.clear();
  arena_used_ = 0;
}

void QueryServer::Write(Connection& c, std::span<const char> answers) {
  if (c.writing) {    // two reads in one turn, and the first one's answers did not fit
    c.unsent.insert(c.unsent.end(), answers.begin(), answers.end());
    return;
  }
  uv_buf_t buffer = uv_buf_init(const_cast<char*>(answers.data()), static_cast<unsigned>(answers.size()));
  const int sent = uv_try_write(&c.uv.stream, &buffer, 1);
  if (sent == static_cast<int>(answers.size())) return;
  if (sent < 0 && sent != UV_EAGAIN) return End(c);
  const std::size_t done = sent < 0 ? 0 : static_cast<std::size_t>(sent);
  counters_.stalled.Add();
  uv_read_stop(&c.uv.stream);
  WriteLater(c, answers.subspan(done));
}

// REQUIRES: it is not read from, and nothing is being written.
void QueryServer::WriteLater(Connection& c, std::span<const char> answers) {
  c.unsent.assign(answers.begin(), answers.end());
  c.writing = true;
  SendUnsent(c);
}

void QueryServer::SendUnsent(Connection& c) {
  c.sending = std::exchange(c.unsent, {});
  uv_buf_t buffer = uv_buf_init(c.sending.data(), static_cast<unsigned>(c.sending.size()));
  c.write.data = &c;
  const auto on_written = [](uv_write_t* write, int status) {
    auto& connection = *static_cast<Connection*>(write->data);
    connection.server->OnWritten(connection, status);
  };
  if (uv_write(&c.write, &c.uv.stream, &buffer, 1, on_written) != 0) End(c);
}

void QueryServer::OnWritten(Connection& c, int status) {
  if (c.closing) return;
  if (status != 0) return End(c);
  if (!c.unsent.empty()) return SendUnsent(c);
  c.writing = false;
  c.sending = {};
  if (c.at_end) return End(c);
  heard_ = true;    // it will be, if it has asked more meanwhile
  StartReading(c);
}

// ---- Ends ----

void QueryServer::End(Connection& c) {
  if (c.closing) return;
  c.closing = true;
  counters_.closed.Add();
  connections_.back()->index = c.index;
  std::swap(connections_[c.index], connections_.back());
  connections_.pop_back();
  uv_close(&c.uv.handle, [](uv_handle_t* handle) { delete Owner<Connection>(handle); });
}

void QueryServer::set_idle_timeout(Duration timeout) {
  idle_timeout_ = timeout;
  StartIdleTimer();
}

void QueryServer::StartIdleTimer() {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(idle_timeout_ / kIdleTicks).count();
  const auto tick = static_cast<std::uint64_t>(std::max<std::int64_t>(ms, 1));
  DT_CHECK(uv_timer_start(
               &idle_timer_, [](uv_timer_t* t) { Owner<QueryServer>(t)->OnIdleTick(); }, tick, tick) == 0);
}

void QueryServer::OnIdleTick() {
  ++idle_ticks_;
  for (std::size_t i = connections_.size(); i-- > 0;) {    // End moves the last one here
    Connection& c = *connections_[i];
    if (idle_ticks_ - c.heard_at <= kIdleTicks) continue;
    counters_.idle_closed.Add();
    End(c);
  }
}

// The clock of timers goes by milliseconds, so that one of lag means nothing.
void QueryServer::StartLagTimer() {
  constexpr auto kTick = static_cast<std::uint64_t>(kLagTick / std::chrono::milliseconds(1));
  lag_tick_at_ = Now();
  const auto on_tick = [](uv_timer_t* t) {
    QueryServer& server = *Owner<QueryServer>(t);
    const Instant now = Now();
    server.counters_.loop_lag.Add(now - server.lag_tick_at_ - kLagTick);
    server.lag_tick_at_ = now;
  };
  DT_CHECK(uv_timer_start(&lag_timer_, on_tick, kTick, kTick) == 0);
}

void QueryServer::Drain(std::function<void()> on_drained) {
  if (on_drained_ != nullptr) return;
  on_drained_ = std::move(on_drained);
  heard_ = true;
  const auto on_tick = [](uv_timer_t* t) { Owner<QueryServer>(t)->OnDrainTick(); };
  DT_CHECK(uv_timer_start(&drain_timer_, on_tick, kDrainTickMs, kDrainTickMs) == 0);
}

// What was in a socket when draining began is read in the turn after, so a tick in which nobody was heard means that
// nothing is left to answer, but on connections that are not read from because they still have answers to take.
void QueryServer::OnDrainTick() {
  const bool late = ++drain_ticks_ > kDrainTicksMax;
  const bool silent = !std::exchange(heard_, false);
  for (std::size_t i = connections_.size(); i-- > 0;) {
    Connection& c = *connections_[i];
    if (late || (silent && !c.writing)) End(c);
  }
  if (!connections_.empty()) return;
  uv_timer_stop(&drain_timer_);
  on_drained_();
}

}    // namespace dthrottle
