#include "tls/relay.h"

#include <openssl/err.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace dthrottle {

Relay::Relay(uv_loop_t* loop, SSL_CTX* context, int client, std::function<int()> connect,
             std::function<void(Relay*)> ended)
    : loop_(loop), connect_(std::move(connect)), ended_(std::move(ended)), tls_(SSL_new(context)) {
  if (!Open(client_, client)) return;
  const bool begins = tls_ != nullptr && SSL_set_fd(tls_.get(), client) == 1;
  begins ? Watch(client_, UV_READABLE) : End();
}

Relay::~Relay() = default;

bool Relay::Open(Side& side, int fd) {
  side.fd = fd;
  side.poll.data = this;
  if (uv_poll_init(loop_, &side.poll, fd) != 0) {
    ::close(fd);
    side.fd = -1;
    return false;
  }
  ++open_;
  return true;
}

void Relay::Close(Side& side) {
  if (side.fd < 0) return;
  uv_poll_stop(&side.poll);
  ::shutdown(side.fd, SHUT_RDWR);    // the daemon has another descriptor of the client
  ::close(std::exchange(side.fd, -1));
  uv_close(reinterpret_cast<uv_handle_t*>(&side.poll), [](uv_handle_t* h) {
    auto* const relay = static_cast<Relay*>(h->data);
    if (--relay->open_ > 0) return;
    const auto ended = std::move(relay->ended_);    // which destroys the object
    ended(relay);
  });
}

void Relay::Watch(Side& side, int events) {
  if (side.fd < 0) return;
  if (events == 0) return void(uv_poll_stop(&side.poll));
  uv_poll_start(&side.poll, events, [](uv_poll_t* h, int, int) { static_cast<Relay*>(h->data)->Turn(); });
}

void Relay::End() {
  if (std::exchange(ending_, true)) return;
  tls_.reset();
  Close(client_);
  Close(daemon_);
}

void Relay::Leave() {
  if (ending_) return;
  if (!let_in()) return End();
  Turn();
  in_.ended = true;
  Turn();
}

// Goes as far as the sockets let it, and waits for what is missing.
void Relay::Turn() {
  if (ending_) return;
  wants_ = 0;
  Step step = let_in() ? Step::kOn : Accept();
  for (int round = 0; step == Step::kOn && round < kRounds; ++round) {
    const Step in = FromClient();
    const Step out = in == Step::kEnd ? in : ToClient();
    if (out == Step::kEnd) return End();
    if (in == Step::kWait && out == Step::kWait) break;
  }
  if (step == Step::kEnd) return End();
  if (!out_.empty() && wants_ == 0) wants_ = UV_WRITABLE;    // others have their turn
  const bool reads = let_in() && in_.empty() && !in_.ended;
  Watch(client_, wants_ | (reads ? UV_READABLE : 0));
  Watch(daemon_, (out_.empty() && !out_.ended ? UV_READABLE : 0) | (in_.empty() ? 0 : UV_WRITABLE));
}

// What comes of a call of TLS that did not succeed.
Relay::Step Relay::Blocked(int result) {
  const int error = SSL_get_error(tls_.get(), result);
  ERR_clear_error();
  if (error == SSL_ERROR_WANT_READ) wants_ |= UV_READABLE;
  if (error == SSL_ERROR_WANT_WRITE) wants_ |= UV_WRITABLE;
  return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? Step::kWait : Step::kEnd;
}

Relay::Step Relay::Accept() {
  const int done = SSL_accept(tls_.get());
  if (done != 1) return Blocked(done);
  const int fd = connect_();
  return fd >= 0 && Open(daemon_, fd) ? Step::kOn : Step::kEnd;
}

Relay::Step Relay::FromClient() {
  if (in_.empty() && !in_.ended) {
    const int read = SSL_read(tls_.get(), in_.bytes.data(), static_cast<int>(kBytes));
    if (read > 0) {
      in_.begin = 0;
      in_.end = static_cast<std::size_t>(read);
    } else if (SSL_get_error(tls_.get(), read) == SSL_ERROR_ZERO_RETURN) {
      in_.ended = true;
    } else {
      return Blocked(read);
    }
  }
  if (!in_.empty()) {
    const ssize_t sent = ::send(daemon_.fd, in_.bytes.data() + in_.begin, in_.end - in_.begin, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN ? Step::kWait : Step::kEnd;
    in_.begin += static_cast<std::size_t>(sent);
  }
  if (in_.empty() && in_.ended && !std::exchange(told_, true)) ::shutdown(daemon_.fd, SHUT_WR);
  return in_.ended ? Step::kWait : Step::kOn;
}

Relay::Step Relay::ToClient() {
  if (out_.empty() && !out_.ended) {
    const ssize_t read = ::recv(daemon_.fd, out_.bytes.data(), kBytes, 0);
    if (read < 0) return errno == EAGAIN ? Step::kWait : Step::kEnd;
    out_.begin = 0;
    out_.end = static_cast<std::size_t>(read);
    out_.ended = read == 0;
  }
  if (out_.ended && out_.empty()) {
    SSL_shutdown(tls_.get());    // says so, and waits for nobody
    return Step::kEnd;
  }
  const int sent = SSL_write(tls_.get(), out_.bytes.data() + out_.begin, static_cast<int>(out_.end - out_.begin));
  if (sent <= 0) return Blocked(sent);
  out_.begin += static_cast<std::size_t>(sent);
  return Step::kOn;
}

}    // namespace dthrottle
