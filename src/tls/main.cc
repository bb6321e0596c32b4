// dthrottle-tls: TLS in front of lease lines, for the daemon that starts it (frontend/gateway.h).
//
//     dthrottle-tls PROTOCOL CERTIFICATE KEY CLIENT_CA
//     dthrottle-tls check CERTIFICATE KEY CLIENT_CA    says whether TLS can begin with them
//
// Descriptor 3 is the socket that clients' connections come by. For each client that TLS lets in, the daemon gets a plain
// connection over the same socket. The program ends when that socket does, or by SIGTERM: what has arrived is answered.
// Files that have been replaced are in force for the next client.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sysexits.h>
#include <unistd.h>
#include <uv.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "io/descriptor.h"
#include "io/readable.h"
#include "io/timer.h"
#include "tls/context.h"
#include "tls/relay.h"
#include "tls/watch.h"

namespace dthrottle {

namespace {

constexpr std::uint64_t kHandshakeMsMax = 10'000;    // then the connection is closed
constexpr Duration kTick = std::chrono::seconds(1);
constexpr Duration kFarewell = std::chrono::seconds(1);    // for answers on their way

// The context of the files as they are.
class Certificates {
 public:
  Certificates(TlsFiles files, TlsContext context) : watch_(std::move(files)), context_(std::move(context)) {}

  // `now_ms` never goes back. Files that do not fit are passed over, and said so once.
  SSL_CTX* At(std::uint64_t now_ms) {
    if (!watch_.Changed(now_ms)) return context_.get();
    auto context = MakeTlsContext(watch_.files());
    if (context) {
      context_ = std::move(*context);
    } else {
      std::fprintf(stderr, "dthrottle-tls: %s; the certificate stays what it was\n", context.error().message.c_str());
    }
    return context_.get();
  }

 private:
  TlsFilesWatch watch_;
  TlsContext context_;
};

class Program {
 public:
  explicit Program(Certificates certificates) : certificates_(std::move(certificates)) {
    DT_CHECK(uv_loop_init(&loop_) == 0);
    for (uv_signal_t* const signal : {&terminate_, &interrupt_}) {
      DT_CHECK(uv_signal_init(&loop_, signal) == 0);
      signal->data = this;
    }
    tick_.emplace(&loop_, [this] { OnTick(); });
    farewell_.emplace(&loop_, [this] {
      for (auto& [relay, _] : relays_) relay->End();
    });
  }

  // Until the daemon or a signal ends it.
  void Run() {
    const auto leave = [](uv_signal_t* s, int) { static_cast<Program*>(s->data)->Leave(); };
    uv_signal_start(&terminate_, leave, SIGTERM);
    uv_signal_start(&interrupt_, leave, SIGINT);
    pipe_.emplace(&loop_, kGatewayPipe, [this] { OnPipe(); });
    uv_run(&loop_, UV_RUN_DEFAULT);
    DT_CHECK(relays_.empty());
    tick_.reset();
    farewell_.reset();
    uv_run(&loop_, UV_RUN_DEFAULT);
    DT_CHECK(uv_loop_close(&loop_) == 0);
  }

 private:
  void OnPipe() {
    bool ended = false;
    const int fd = ReceiveDescriptor(kGatewayPipe, ended);
    if (ended) return Leave();
    if (fd >= 0) Take(fd);
  }

  void Take(int fd) {
    const int now = 1;    // an answer does not wait for the one before to be acknowledged
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &now, sizeof now);
    uv_update_time(&loop_);
    auto relay = std::make_unique<Relay>(
        &loop_, certificates_.At(uv_now(&loop_)), fd, [] { return ConnectToDaemon(); },
        [this](Relay* over) { Forget(over); });
    if (!relay->open()) return;
    Relay* const key = relay.get();
    relays_.emplace(key, Begun{std::move(relay), uv_now(&loop_)});
    if (!tick_->due_in()) tick_->StartEvery(kTick);
  }

  // Our end of a connection whose other end the daemon gets; -1: there is none.
  static int ConnectToDaemon() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return -1;
    const int error = SendDescriptor(kGatewayPipe, ends[1]);
    ::close(ends[1]);
    if (error == 0) return ends[0];
    ::close(ends[0]);
    return -1;
  }

  // The loop ends with the last connection after Leave.
  void Forget(Relay* over) {
    relays_.erase(over);
    if (relays_.empty()) farewell_->Stop();
  }

  // Closes connections whose client takes too long to begin. Nothing ticks when all have begun.
  void OnTick() {
    bool some_begin = false;
    for (auto& [relay, begun] : relays_) {
      if (relay->let_in()) continue;
      some_begin = true;
      if (uv_now(&loop_) - begun.at_ms > kHandshakeMsMax) relay->End();
    }
    if (!some_begin) tick_->Stop();
  }

  void Leave() {
    if (std::exchange(leaves_, true)) return;
    for (uv_signal_t* const signal : {&terminate_, &interrupt_}) {
      uv_close(reinterpret_cast<uv_handle_t*>(signal), nullptr);
    }
    pipe_.reset();
    ::shutdown(kGatewayPipe, SHUT_RD);    // the daemon keeps the next ones for another program
    for (auto& [relay, _] : relays_) relay->Leave();
    tick_->Stop();
    if (!relays_.empty()) farewell_->StartOnce(kFarewell);
  }

  struct Begun {
    std::unique_ptr<Relay> relay;
    std::uint64_t at_ms;
  };

  Certificates certificates_;
  uv_loop_t loop_;
  uv_signal_t terminate_, interrupt_;
  std::optional<Readable> pipe_;    // until it leaves
  std::optional<Timer> tick_, farewell_;
  std::unordered_map<Relay*, Begun> relays_;
  bool leaves_ = false;
};

}    // namespace

}    // namespace dthrottle

int main(int argc, char** argv) {
  using namespace dthrottle;
  const bool checks = argc == 5 && std::string_view(argv[1]) == "check";
  if (!checks && (argc != 5 || argv[1] != std::to_string(kGatewayProtocol) || !IsSocket(kGatewayPipe))) {
    std::fprintf(stderr, "dthrottle-tls %s is started by a dthrottled that speaks version %u with it\n",
                 DTHROTTLE_VERSION, kGatewayProtocol);
    return EX_USAGE;
  }
  const TlsFiles files{argv[2], argv[3], argv[4]};
  auto context = MakeTlsContext(files);
  if (!context) {
    checks ? std::printf("%s", context.error().message.c_str())
           : std::fprintf(stderr, "dthrottle-tls: %s\n", context.error().message.c_str());
    return EX_CONFIG;
  }
  if (checks) return EX_OK;
  std::signal(SIGPIPE, SIG_IGN);
  Program(Certificates(files, std::move(*context))).Run();
  return EX_OK;
}
