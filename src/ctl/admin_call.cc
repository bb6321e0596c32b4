#include "ctl/admin_call.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace dthrottle {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kUnanswered =
    "the daemon has closed the connection unanswered: its admin connections are all in use, or it leaves";

// One end of a conversation that has to be over by a deadline.
class Conversation {
 public:
  explicit Conversation(Clock::time_point deadline) : deadline_(deadline) {}
  ~Conversation() {
    if (fd_ >= 0) ::close(fd_);
  }
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  Result<void> Connect(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) return Fail(path + ": the path is too long");
    std::memcpy(address.sun_path, path.data(), path.size());
    fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    // A Unix socket connects at once or not at all.
    if (fd_ < 0 || ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return Fail(fmt::format("{}: {}", path, std::strerror(errno)));
    }
    return {};
  }

  Result<void> Send(std::string_view text) {
    while (!text.empty()) {
      if (const auto ready = Await(POLLOUT); !ready) return ready;
      const ssize_t n = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EPIPE) return Fail(kUnanswered);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return Fail(std::strerror(errno));
      if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
    }
    return {};
  }

  // An answer without the empty line that ends it.
  Result<std::string> Receive() {
    std::string answer;
    while (!answer.ends_with("\n\n")) {
      if (const auto ready = Await(POLLIN); !ready) return tl::unexpected(ready.error());
      char chunk[64 * 1024];
      const ssize_t n = ::recv(fd_, chunk, sizeof chunk, 0);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (answer.empty() && (n == 0 || errno == ECONNRESET)) return Fail(kUnanswered);
      if (n < 0) return Fail(std::strerror(errno));
      if (n == 0) return Fail("the daemon hung up in the middle of its answer");
      answer.append(chunk, static_cast<std::size_t>(n));
    }
    answer.pop_back();
    return answer;
  }

 private:
  Result<void> Await(short events) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
    pollfd poll_fd{fd_, events, 0};
    if (left <= 0 || ::poll(&poll_fd, 1, static_cast<int>(left)) == 0)
      return Fail("the daemon does not answer in time");
    return {};
  }

  const Clock::time_point deadline_;
  int fd_ = -1;
};

}    // namespace

std::string DefaultAdminSocket() {
  const std::string system = "/run/dthrottle/admin.sock";
  const char* xdg = std::getenv("XDG_RUNTIME_DIR");
  if (::access(system.c_str(), F_OK) == 0 || xdg == nullptr) return system;
  return std::string(xdg) + "/dthrottle/admin.sock";
}

Result<std::string> AskAdmin(const std::string& socket, const std::string& command, std::chrono::milliseconds patience) {
  Conversation conversation(Clock::now() + patience);
  if (const auto ok = conversation.Connect(socket); !ok) return tl::unexpected(ok.error());
  if (const auto ok = conversation.Send(command); !ok) return tl::unexpected(ok.error());
  return conversation.Receive();
}

}    // namespace dthrottle
