#include "io/stream_server.h"

#include <fmt/format.h>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace dthrottle {

namespace {

constexpr std::size_t kFullReadsPerFlush = 4;
constexpr std::size_t kArenaBytesMin = 64 * 1024;

}    // namespace

std::string StreamServer::Connection::Peer() const {
  int fd = -1;
  ucred user{};
  socklen_t size = sizeof user;
  if (uv_fileno(&uv_.handle, &fd) != 0 || ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &size) != 0) {
    return "somebody";
  }
  return fmt::format("user {}, process {}", user.uid, user.pid);
}

StreamServer::StreamServer(uv_loop_t* loop, const Sizes& sizes, Duration idle_timeout, AliveBy alive_by)
    : loop_(loop), sizes_(sizes), alive_by_(alive_by) {
  DT_CHECK(uv_check_init(loop_, &turn_end_) == 0 && uv_idle_init(loop_, &turn_again_) == 0 &&
           uv_timer_init(loop_, &idle_timer_) == 0 && uv_timer_init(loop_, &drain_timer_) == 0);
  turn_end_.data = turn_again_.data = idle_timer_.data = drain_timer_.data = this;
  DT_CHECK(uv_check_start(&turn_end_, [](uv_check_t* h) { Owner<StreamServer>(h)->OnTurnEnd(); }) == 0);
  set_idle_timeout(idle_timeout);
}

StreamServer::~StreamServer() {
  DT_CHECK(connections_.empty());
}

void StreamServer::Close() {
  for (auto* handle : {reinterpret_cast<uv_handle_t*>(&turn_end_), reinterpret_cast<uv_handle_t*>(&turn_again_),
                       reinterpret_cast<uv_handle_t*>(&idle_timer_), reinterpret_cast<uv_handle_t*>(&drain_timer_)}) {
    if (uv_is_closing(handle) == 0) uv_close(handle, nullptr);
  }
}

// It is closing afterwards if the descriptor was no good.
void StreamServer::Open(Connection& c, int fd) {
  c.server_ = this;
  c.index_ = connections_.size();
  c.alive_at_ = idle_ticks_;
  const bool opened = OpenStream(loop_, fd, c.uv_);
  c.uv_.handle.data = &c;
  connections_.push_back(&c);
  if (connections_.size() == 1) {
    arena_.resize(std::max(kArenaBytesMin, kFullReadsPerFlush * (sizes_.read_bytes + sizes_.rest_bytes_max)));
    StartIdleTimer();
  }
  if (!opened) End(c);
}

void StreamServer::Take(int fd) {
  Connection& c = *MakeConnection().release();
  counts_.accepted.Add();
  Open(c, fd);
  if (!c.closing_) StartReading(c);
}

// The unread rest may be whole: the process before this one may have been about to read it again.
void StreamServer::TakeUp(const HandedConnection& handed) {
  auto made = MakeConnection();
  if (handed.unread.size() > sizes_.rest_bytes_max || !made->Restore(handed.unread, handed.state)) {
    return void(::close(handed.fd));
  }
  Connection& c = *made.release();
  Open(c, handed.fd);
  if (c.closing_) return;
  if (idle_tick_ > Duration::zero()) {
    const auto ticks = std::clamp<std::int64_t>(handed.silent / idle_tick_, 0, kIdleTicks);
    c.alive_at_ -= static_cast<std::uint32_t>(ticks);
  }
  c.at_end_ = handed.ending;
  c.paused_ = !handed.unread.empty();
  if (!handed.unsent.empty()) {
    c.unsent_.assign(handed.unsent.begin(), handed.unsent.end());
    c.writing_ = true;
    SendUnsent(c);
  } else if (c.at_end_) {
    HangUp(c);
  } else if (c.paused_) {
    ReadAgain(c);
  } else {
    StartReading(c);
  }
}

void StreamServer::Hold(std::string_view front, std::vector<HandedConnection>& handed) {
  Flush();
  for (Connection* c : connections_) {
    uv_read_stop(&c->uv_.stream);
    HandedConnection& h = handed.emplace_back();
    uv_os_fd_t fd = -1;
    DT_CHECK(uv_fileno(&c->uv_.handle, &fd) == 0);
    h.fd = fd;
    h.front = front;
    h.unread = c->rest();
    h.state = c->state();
    h.silent = (idle_ticks_ - c->alive_at_) * idle_tick_;
    h.ending = c->at_end_;
    if (!c->writing_) continue;
    // What libuv has not written yet is the end of what it was given.
    const std::size_t left = uv_stream_get_write_queue_size(&c->uv_.stream);
    h.unsent.assign(c->sending_.end() - static_cast<std::ptrdiff_t>(left), c->sending_.end());
    h.unsent.append(c->unsent_.begin(), c->unsent_.end());
  }
}

void StreamServer::Release() {
  for (std::size_t i = connections_.size(); i-- > 0;) {    // End moves the last one here
    Connection& c = *connections_[i];
    if (!c.writing_ && !c.paused_ && !c.at_end_ && !c.waits_) StartReading(c);
  }
}

// Puts the connection's rest where the next bytes are going to be, and returns where it ends.
char* StreamServer::PutRest(const Connection& c) {
  const std::string_view rest = c.rest();
  DT_CHECK(rest.size() <= sizes_.rest_bytes_max);
  char* const at = arena_.data() + arena_used_;
  std::memcpy(at, rest.data(), rest.size());
  return at + rest.size();
}

void StreamServer::StartReading(Connection& c) {
  const auto on_alloc = [](uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
    auto& connection = *Owner<Connection>(handle);
    StreamServer& server = *connection.server_;
    *buffer = uv_buf_init(server.PutRest(connection), static_cast<unsigned>(server.sizes_.read_bytes));
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
  if (alive_by_ == AliveBy::kBytes) c.alive_at_ = idle_ticks_;
  const std::size_t rest = c.rest().size();
  const Then then = Hear(c, {data - rest, rest + static_cast<std::size_t>(n)});
  if (then == Then::kAnswer || arena_is_full() || static_cast<std::size_t>(n) == sizes_.read_bytes) Flush();
}

// `bytes` are the next in the arena.
StreamServer::Then StreamServer::Hear(Connection& c, std::string_view bytes) {
  const Then then = OnBytes(c, bytes);
  arena_used_ += bytes.size();
  if (then == Then::kRead || then == Then::kAnswer) return then;
  uv_read_stop(&c.uv_.stream);
  if (c.waits_ = then == Then::kWait; c.waits_) return then;
  c.paused_ = then == Then::kAgain;
  (c.paused_ ? pausing_ : finishing_).push_back(&c);
  return then;
}

// In the next turn, so that one connection's pile of questions does not keep the others waiting.
void StreamServer::ReadAgain(Connection& c) {
  if (c.closing_ || c.writing_) return;    // it ends, or is read again when everything is written
  again_.push_back(&c);
  uv_idle_start(&turn_again_, [](uv_idle_t*) {});
}

void StreamServer::GoOn(Connection& c) {
  if (!std::exchange(c.waits_, false)) return;
  c.paused_ = true;
  ReadAgain(c);
}

void StreamServer::OnTurnEnd() {
  if (!again_.empty()) {
    for (Connection* c : std::exchange(again_, {})) {
      if (c->closing_) continue;
      if (arena_is_full()) Flush();
      heard_ = true;
      c->paused_ = false;
      const char* const end = PutRest(*c);
      const std::size_t size = c->rest().size();
      const Then then = Hear(*c, {end - size, size});
      if (then == Then::kRead || then == Then::kAnswer) StartReading(*c);
    }
  } else {
    uv_idle_stop(&turn_again_);
  }
  Flush();
}

void StreamServer::Flush() {
  if (arena_used_ == 0) return;
  Answer();
  arena_used_ = 0;
  for (Connection* c : std::exchange(finishing_, {})) Finish(*c);
  for (Connection* c : std::exchange(pausing_, {})) ReadAgain(*c);
}

void StreamServer::Write(Connection& c, std::string_view answers) {
  if (c.closing_ || answers.empty()) return;
  if (alive_by_ == AliveBy::kAnswers) c.alive_at_ = idle_ticks_;
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
  counts_.stalled.Add();
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
  if (c.at_end_) return HangUp(c);
  heard_ = true;    // it will be, if it has asked more meanwhile
  if (c.waits_) return;
  c.paused_ ? ReadAgain(c) : StartReading(c);
}

// ---- Ends ----

void StreamServer::Finish(Connection& c) {
  if (c.closing_) return;
  c.at_end_ = true;
  uv_read_stop(&c.uv_.stream);
  if (!c.writing_) HangUp(c);
}

// A socket that is closed with bytes unread resets its connection, and the client may lose the last answer.
void StreamServer::HangUp(Connection& c) {
  constexpr int kDiscardsMax = 16;
  uv_os_fd_t fd = -1;
  for (int i = 0; i < kDiscardsMax && uv_fileno(&c.uv_.handle, &fd) == 0; ++i) {
    if (::recv(fd, arena_.data() + arena_used_, sizes_.read_bytes, MSG_DONTWAIT) <= 0) break;
  }
  End(c);
}

void StreamServer::End(Connection& c) {
  if (c.closing_) return;
  c.closing_ = true;
  counts_.closed.Add();
  connections_.back()->index_ = c.index_;
  std::swap(connections_[c.index_], connections_.back());
  connections_.pop_back();
  std::erase(again_, &c);
  if (connections_.empty()) uv_timer_stop(&idle_timer_);
  uv_close(&c.uv_.handle, [](uv_handle_t* handle) { delete Owner<Connection>(handle); });
}

void StreamServer::EndIf(const std::function<bool(Connection&)>& ends) {
  for (std::size_t i = connections_.size(); i-- > 0;) {    // End moves the last one here
    if (ends(*connections_[i])) End(*connections_[i]);
  }
}

void StreamServer::set_idle_timeout(Duration timeout) {
  idle_tick_ = timeout / kIdleTicks;
  StartIdleTimer();
}

// While there is a connection, and a timeout.
void StreamServer::StartIdleTimer() {
  uv_timer_stop(&idle_timer_);
  if (connections_.empty() || idle_tick_ == Duration::zero()) return;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(idle_tick_).count();
  const auto tick = static_cast<std::uint64_t>(std::max<std::int64_t>(ms, 1));
  DT_CHECK(uv_timer_start(
               &idle_timer_, [](uv_timer_t* t) { Owner<StreamServer>(t)->OnIdleTick(); }, tick, tick) == 0);
}

void StreamServer::OnIdleTick() {
  ++idle_ticks_;
  for (std::size_t i = connections_.size(); i-- > 0;) {    // End moves the last one here
    Connection& c = *connections_[i];
    if (idle_ticks_ - c.alive_at_ <= kIdleTicks || c.waits_for_long()) continue;
    counts_.idle_closed.Add();
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
    if (late || (silent && !c.writing_ && !c.waits_)) End(c);
  }
  if (!connections_.empty()) return;
  uv_timer_stop(&drain_timer_);
  on_drained_();
}

}    // namespace dthrottle
