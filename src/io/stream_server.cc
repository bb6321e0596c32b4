#include "io/stream_server.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace dthrottle {

namespace {

constexpr std::size_t kReadsPerFlush = 4;    // full ones
constexpr std::uint32_t kIdleTicks = 8;
constexpr std::uint64_t kDrainTickMs = 10;
constexpr unsigned kDrainTicksMax = 200;    // 2 s

template <class T>
T* Owner(const void* handle) {
  return static_cast<T*>(static_cast<const uv_handle_t*>(handle)->data);
}

}    // namespace

StreamServer::StreamServer(uv_loop_t* loop, std::size_t read_bytes, std::size_t rest_bytes_max, Duration idle_timeout)
    : loop_(loop),
      read_bytes_(read_bytes),
      rest_bytes_max_(rest_bytes_max),
      arena_(kReadsPerFlush * (read_bytes + rest_bytes_max)) {
  DT_CHECK(uv_check_init(loop_, &turn_end_) == 0 && uv_timer_init(loop_, &idle_timer_) == 0 &&
           uv_timer_init(loop_, &drain_timer_) == 0);
  turn_end_.data = idle_timer_.data = drain_timer_.data = this;
  DT_CHECK(uv_check_start(&turn_end_, [](uv_check_t* h) { Owner<StreamServer>(h)->Flush(); }) == 0);
  set_idle_timeout(idle_timeout);
}

StreamServer::~StreamServer() {
  DT_CHECK(connections_.empty());
}

void StreamServer::Close() {
  for (auto* handle : {reinterpret_cast<uv_handle_t*>(&turn_end_), reinterpret_cast<uv_handle_t*>(&idle_timer_),
                       reinterpret_cast<uv_handle_t*>(&drain_timer_)}) {
    if (uv_is_closing(handle) == 0) uv_close(handle, nullptr);
  }
}

void StreamServer::Take(int fd) {
  Connection* c = MakeConnection().release();
  c->server_ = this;
  c->index_ = connections_.size();
  c->heard_at_ = idle_ticks_;
  const bool opened = OpenStream(loop_, fd, c->uv_);
  c->uv_.handle.data = c;
  connections_.push_back(c);
  ++counts_.accepted;
  if (!opened) return End(*c);
  StartReading(*c);
}

void StreamServer::StartReading(Connection& c) {
  const auto on_alloc = [](uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
    auto& connection = *Owner<Connection>(handle);
    StreamServer& server = *connection.server_;
    const std::string_view rest = connection.rest();
    DT_CHECK(rest.size() <= server.rest_bytes_max_);
    char* const at = server.arena_.data() + server.arena_used_;
    std::memcpy(at, rest.data(), rest.size());
    *buffer = uv_buf_init(at + rest.size(), static_cast<unsigned>(server.read_bytes_));
  };
  const auto on_read = [](uv_stream_t* stream, ssize_t n, const uv_buf_t* buffer) {
    auto& connection = *Owner<Connection>(stream);
    connection.server_->OnRead(connection, n, buffer->base);
  };
  if (uv_read_start(&c.uv_.stream, on_alloc, on_read) != 0) End(c);
}

// ---- The turn ----

void StreamServer::OnRead(Connection& c, ssize_t n, const char* data) {
  if (n == 0) return;    // nothing there after all
  if (n < 0) {
    Flush();    // it may have asked in this very turn
    if (c.closing_) return;
    if (n == UV_EOF) return Finish(c);
    return End(c);
  }
  heard_ = true;
  c.heard_at_ = idle_ticks_;
  const std::size_t rest = c.rest().size();
  const std::string_view bytes(data - rest, rest + static_cast<std::size_t>(n));
  const bool goes_on = OnBytes(c, bytes);
  arena_used_ += bytes.size();
  if (!goes_on) {
    uv_read_stop(&c.uv_.stream);
    finishing_.push_back(&c);
  }
  const bool full = arena_used_ + read_bytes_ + rest_bytes_max_ > arena_.size();
  if (full || static_cast<std::size_t>(n) == read_bytes_) Flush();
}

void StreamServer::Flush() {
  if (arena_used_ == 0) return;
  Answer();
  arena_used_ = 0;
  for (Connection* c : std::exchange(finishing_, {})) Finish(*c);
}

void StreamServer::Write(Connection& c, std::string_view answers) {
  if (c.closing_ || answers.empty()) return;
  if (c.writing_) {    // two reads in one turn, and the first one's answers did not fit
    c.unsent_.insert(c.unsent_.end(), answers.begin(), answers.end());
    return;
  }
  uv_buf_t buffer = uv_buf_init(const_cast<char*>(answers.data()), static_cast<unsigned>(answers.size()));
  const int sent = uv_try_write(&c.uv_.stream, &buffer, 1);
  if (sent == static_cast<int>(answers.size())) return;
  if (sent < 0 && sent != UV_EAGAIN) return End(c);
  const std::size_t done = sent < 0 ? 0 : static_cast<std::size_t>(sent);
  c.unsent_.assign(answers.begin() + static_cast<std::ptrdiff_t>(done), answers.end());
  c.writing_ = true;
  ++counts_.stalled;
  uv_read_stop(&c.uv_.stream);
  SendUnsent(c);
}

void StreamServer::SendUnsent(Connection& c) {
  c.sending_ = std::exchange(c.unsent_, {});
  uv_buf_t buffer = uv_buf_init(c.sending_.data(), static_cast<unsigned>(c.sending_.size()));
  c.write_.data = &c;
  const auto on_written = [](uv_write_t* write, int status) {
    auto& connection = *static_cast<Connection*>(write->data);
    connection.server_->OnWritten(connection, status);
  };
  if (uv_write(&c.write_, &c.uv_.stream, &buffer, 1, on_written) != 0) End(c);
}

void StreamServer::OnWritten(Connection& c, int status) {
  if (c.closing_) return;
  if (status != 0) return End(c);
  if (!c.unsent_.empty()) return SendUnsent(c);
  c.writing_ = false;
  c.sending_ = {};
  if (c.at_end_) return End(c);
  heard_ = true;    // it will be, if it has asked more meanwhile
  StartReading(c);
}

// ---- Ends ----

// Reads no more, and ends once all answers are sent.
void StreamServer::Finish(Connection& c) {
  if (c.closing_) return;
  c.at_end_ = true;
  uv_read_stop(&c.uv_.stream);
  if (!c.writing_) End(c);
}

void StreamServer::End(Connection& c) {
  if (c.closing_) return;
  c.closing_ = true;
  ++counts_.closed;
  connections_.back()->index_ = c.index_;
  std::swap(connections_[c.index_], connections_.back());
  connections_.pop_back();
  uv_close(&c.uv_.handle, [](uv_handle_t* handle) { delete Owner<Connection>(handle); });
}

void StreamServer::set_idle_timeout(Duration timeout) {
  uv_timer_stop(&idle_timer_);
  if (timeout == Duration::zero()) return;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout / kIdleTicks).count();
  const auto tick = static_cast<std::uint64_t>(std::max<std::int64_t>(ms, 1));
  DT_CHECK(uv_timer_start(
               &idle_timer_, [](uv_timer_t* t) { Owner<StreamServer>(t)->OnIdleTick(); }, tick, tick) == 0);
}

void StreamServer::OnIdleTick() {
  ++idle_ticks_;
  for (std::size_t i = connections_.size(); i-- > 0;) {    // End moves the last one here
    Connection& c = *connections_[i];
    if (idle_ticks_ - c.heard_at_ <= kIdleTicks) continue;
    ++counts_.idle_closed;
    End(c);
  }
}

void StreamServer::Drain(std::function<void()> on_drained) {
  if (on_drained_ != nullptr) return;
  on_drained_ = std::move(on_drained);
  heard_ = true;
  const auto on_tick = [](uv_timer_t* t) { Owner<StreamServer>(t)->OnDrainTick(); };
  DT_CHECK(uv_timer_start(&drain_timer_, on_tick, kDrainTickMs, kDrainTickMs) == 0);
}

// What was in a socket when draining began is read in the turn after, so a tick in which nobody was heard means that
// nothing is left to answer, but on connections that are not read from because they still have answers to take.
void StreamServer::OnDrainTick() {
  const bool late = ++drain_ticks_ > kDrainTicksMax;
  const bool silent = !std::exchange(heard_, false);
  for (std::size_t i = connections_.size(); i-- > 0;) {
    Connection& c = *connections_[i];
    if (late || (silent && !c.writing_)) End(c);
  }
  if (!connections_.empty()) return;
  uv_timer_stop(&drain_timer_);
  on_drained_();
}

}    // namespace dthrottle
