#include "io/stream_server.h"

#include <fmt/format.h>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace dthrottle {

namespace {

constexpr Duration kDrainTick = std::chrono::milliseconds(10);
constexpr unsigned kDrainTicksMax = 200;    // 2 s

}    // namespace

int StreamServer::Connection::fd() const {
  uv_os_fd_t fd = -1;
  return uv_fileno(&uv_.handle, &fd) == 0 ? fd : -1;
}

std::string StreamServer::Connection::Peer() const {
  ucred user{};
  socklen_t size = sizeof user;
  if (::getsockopt(fd(), SOL_SOCKET, SO_PEERCRED, &user, &size) != 0) return "somebody";
  return fmt::format("user {}, process {}", user.uid, user.pid);
}

StreamServer::StreamServer(uv_loop_t* loop, const Sizes& sizes, Duration idle_timeout, AliveBy alive_by)
    : alive_by_(alive_by),
      idle_(loop,
            [this] {
              EndIf([this](const Connection& c) {
                const bool ends = idle_.IsIdle(c.alive_at_) && !c.waits_for_long();
                if (ends) counts_.idle_closed.Add();
                return ends;
              });
            }),
      drain_timer_(loop, [this] { OnDrainTick(); }),
      read_bytes_(sizes.read_bytes),
      arena_(sizes) {
  DT_CHECK(uv_check_init(loop, &turn_end_) == 0 && uv_idle_init(loop, &turn_again_) == 0);
  turn_end_.data = turn_again_.data = this;
  DT_CHECK(uv_check_start(&turn_end_, [](uv_check_t* h) { Owner<StreamServer>(h)->OnTurnEnd(); }) == 0);
  set_idle_timeout(idle_timeout);
}

StreamServer::~StreamServer() {
  DT_CHECK(connections_.empty());
}

void StreamServer::Close() {
  idle_.Close();
  drain_timer_.Close();
  for (auto* handle : {reinterpret_cast<uv_handle_t*>(&turn_end_), reinterpret_cast<uv_handle_t*>(&turn_again_)}) {
    if (uv_is_closing(handle) == 0) uv_close(handle, nullptr);
  }
}

// It is closing afterwards if the descriptor was no good.
void StreamServer::Open(Connection& c, int fd) {
  c.server_ = this;
  c.index_ = connections_.size();
  c.alive_at_ = idle_.now();
  const bool opened = OpenStream(turn_end_.loop, fd, c.uv_);
  c.uv_.handle.data = &c;
  connections_.push_back(&c);
  if (connections_.size() == 1) {
    arena_.Open();
    idle_.Run(true);
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
  if (handed.unread.size() > arena_.sizes().rest_bytes_max || !made->Restore(handed.unread, handed.state)) {
    return void(::close(handed.fd));
  }
  Connection& c = *made.release();
  Open(c, handed.fd);
  if (c.closing_) return;
  c.alive_at_ = idle_.Before(handed.silent);
  c.at_end_ = handed.ending;
  c.paused_ = !handed.unread.empty();
  if (!handed.unsent.empty()) {
    if (!c.outgoing_.SendLater(handed.unsent)) End(c);
  } else if (c.at_end_) {
    Finish(c);
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
    h.fd = c->fd();
    DT_CHECK(h.fd >= 0);
    h.front = front;
    h.unread = c->rest();
    h.state = c->state();
    h.silent = idle_.Silence(c->alive_at_);
    h.ending = c->at_end_;
    h.unsent = c->outgoing_.Unsent();
  }
}

void StreamServer::Release() {
  for (std::size_t i = connections_.size(); i-- > 0;) {    // End moves the last one here
    Connection& c = *connections_[i];
    if (!c.outgoing_.waits() && !c.paused_ && !c.at_end_ && MayRead(c)) StartReading(c);
  }
}

void StreamServer::StartReading(Connection& c) {
  const auto on_alloc = [](uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
    auto& connection = *Owner<Connection>(handle);
    StreamServer& server = *connection.server_;
    if (connection.read_in_ == server.turn_) {    // libuv reads up to 32 times in a row
      *buffer = uv_buf_init(nullptr, 0);
      return;
    }
    *buffer = uv_buf_init(server.arena_.Put(connection.rest()), static_cast<unsigned>(server.read_bytes_));
  };
  const auto on_read = [](uv_stream_t* stream, ssize_t n, const uv_buf_t* buffer) {
    auto& connection = *Owner<Connection>(stream);
    connection.server_->OnRead(connection, n, buffer->base);
  };
  if (uv_read_start(&c.uv_.stream, on_alloc, on_read) != 0) End(c);
}

// Whether it waits for nothing, or keeps what comes and has room for one more read.
bool StreamServer::MayRead(const Connection& c) const {
  return !c.waits_ || (c.keeps_ && c.rest().size() + arena_.sizes().read_bytes <= arena_.sizes().rest_bytes_max);
}

// ---- The turn ----

void StreamServer::OnRead(Connection& c, ssize_t n, const char* data) {
  if (n == 0 || n == UV_ENOBUFS) return;    // nothing there after all, or more for the next turn
  if (n < 0) {
    Flush();    // it may have asked in this very turn
    if (c.closing_) return;
    if (n == UV_EOF) return Finish(c);
    return End(c);
  }
  heard_ = true;
  if (alive_by_ == AliveBy::kBytes) c.alive_at_ = idle_.now();
  const std::size_t rest = c.rest().size();
  c.read_in_ = turn_;
  full_reads_ += static_cast<std::size_t>(n) == read_bytes_;
  const Then then = Hear(c, {data - rest, rest + static_cast<std::size_t>(n)});
  if (then == Then::kAnswer || arena_.full()) Flush();
}

// `bytes` are the next in the arena.
StreamServer::Then StreamServer::Hear(Connection& c, std::string_view bytes) {
  const Then then = OnBytes(c, bytes);
  arena_.Keep(bytes.size());
  if (then == Then::kRead || then == Then::kAnswer) return then;
  c.keeps_ = then == Then::kKeep;
  c.waits_ = c.keeps_ || then == Then::kWait;
  if (c.keeps_ && MayRead(c)) return then;
  uv_read_stop(&c.uv_.stream);
  if (c.waits_) return then;
  c.paused_ = then == Then::kAgain;
  stopped_.push_back(&c);
  return then;
}

// In the next turn, so that one connection's pile of questions does not keep the others waiting.
void StreamServer::ReadAgain(Connection& c) {
  if (c.closing_ || c.outgoing_.waits()) return;    // it ends, or is read again when everything is written
  again_.push_back(&c);
  uv_idle_start(&turn_again_, [](uv_idle_t*) {});
}

void StreamServer::GoOn(Connection& c) {
  if (!std::exchange(c.waits_, false)) return;
  uv_read_stop(&c.uv_.stream);
  c.paused_ = true;
  ReadAgain(c);
}

void StreamServer::OnTurnEnd() {
  if (!again_.empty()) {
    for (Connection* c : std::exchange(again_, {})) {
      if (c->closing_) continue;
      if (arena_.full()) Flush();
      heard_ = true;
      c->paused_ = false;
      const std::size_t size = c->rest().size();
      const char* const end = arena_.Put(c->rest());
      const Then then = Hear(*c, {end - size, size});
      const bool reads = then == Then::kRead || then == Then::kAnswer || (then == Then::kKeep && MayRead(*c));
      if (reads) StartReading(*c);
    }
  } else {
    uv_idle_stop(&turn_again_);
  }
  Flush();
  ++turn_;
  const std::size_t part = kTurnBytes / std::max<std::size_t>(full_reads_, 1);
  read_bytes_ = std::clamp(part, kReadBytesMin, arena_.sizes().read_bytes);
  full_reads_ = 0;
}

void StreamServer::Flush() {
  if (arena_.empty()) return;
  Answer();
  arena_.Clear();
  for (Connection* c : std::exchange(stopped_, {})) c->paused_ ? ReadAgain(*c) : Finish(*c);
}

void StreamServer::Write(Connection& c, std::string_view answers) {
  if (c.closing_ || answers.empty()) return;
  if (alive_by_ == AliveBy::kAnswers) c.alive_at_ = idle_.now();
  const bool waited = c.outgoing_.waits();    // two reads in one turn, and the first one's answers did not fit
  if (!c.outgoing_.Send(answers)) return End(c);
  if (waited || !c.outgoing_.waits()) return;
  counts_.stalled.Add();
  uv_read_stop(&c.uv_.stream);
}

void StreamServer::OnWritten(Connection& c, int status) {
  if (c.closing_) return;
  if (status != 0) return End(c);
  if (c.at_end_) return Finish(c);
  heard_ = true;    // it will be, if it has asked more meanwhile
  if (!MayRead(c)) return;
  c.paused_ ? ReadAgain(c) : StartReading(c);
}

// ---- Ends ----

// A socket that is closed with bytes unread resets its connection, and the client may lose the last answer.
void StreamServer::Finish(Connection& c) {
  if (c.closing_) return;
  c.at_end_ = true;
  uv_read_stop(&c.uv_.stream);
  if (c.outgoing_.waits()) return;
  constexpr int kDiscardsMax = 16;
  uv_os_fd_t fd = -1;
  for (int i = 0; i < kDiscardsMax && uv_fileno(&c.uv_.handle, &fd) == 0; ++i) {
    if (::recv(fd, arena_.Put(""), arena_.sizes().read_bytes, MSG_DONTWAIT) <= 0) break;
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
  if (connections_.empty()) idle_.Run(false);
  uv_close(&c.uv_.handle, [](uv_handle_t* handle) { delete Owner<Connection>(handle); });
}

void StreamServer::EndIf(const std::function<bool(Connection&)>& ends) {
  for (std::size_t i = connections_.size(); i-- > 0;) {    // End moves the last one here
    if (ends(*connections_[i])) End(*connections_[i]);
  }
}

void StreamServer::Drain(std::function<void()> on_drained) {
  if (on_drained_ != nullptr) return;
  on_drained_ = std::move(on_drained);
  heard_ = true;
  drain_timer_.StartEvery(kDrainTick);
}

// What was in a socket when draining began is read in the turn after, so a tick in which nobody was heard means that
// nothing is left to answer, but on connections that are not read from because they still have answers to take.
void StreamServer::OnDrainTick() {
  const bool late = ++drain_ticks_ > kDrainTicksMax;
  const bool silent = !std::exchange(heard_, false);
  EndIf([&](const Connection& c) { return late || (silent && !c.outgoing_.waits() && !c.waits_); });
  if (!connections_.empty()) return;
  drain_timer_.Stop();
  on_drained_();
}

}    // namespace dthrottle
