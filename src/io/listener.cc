#include "io/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "config/values.h"
#include "io/clock.h"

namespace dthrottle {

namespace {

constexpr int kBacklog = 4096;    // the kernel cuts it to net.core.somaxconn
constexpr int kAcceptsPerTurn = 64;
constexpr Duration kPause = std::chrono::milliseconds(50);

tl::unexpected<SocketError> ListenFailed(const std::string& where, const char* what, int fd = -1) {
  const int code = errno;
  if (fd >= 0) ::close(fd);
  return tl::unexpected(SocketError{code, fmt::format("{}: {}: {}", where, what, std::strerror(code))});
}

// The kernel's, not that of io/library_accept, which is for libraries.
int Accept(int fd) {
  return static_cast<int>(::syscall(SYS_accept4, fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

int OpenSpare() {
  return ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}

// Whether somebody answers at a Unix socket. A full backlog is an answer too, and so is a socket of the other type.
bool IsAlive(const sockaddr_un& address) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool connected = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  const bool alive = connected || errno == EAGAIN || errno == EPROTOTYPE;
  ::close(fd);
  return alive;
}

}    // namespace

SocketResult<int> ListenUnix(const std::string& path, std::uint32_t mode, bool packets) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  DT_CHECK(path.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, path.data(), path.size());
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) {
      errno = EEXIST;
      return ListenFailed(path, "is there and is not a socket");
    }
    if (IsAlive(address)) {
      errno = EADDRINUSE;
      return ListenFailed(path, "another process listens there");
    }
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
      return ListenFailed(path, "nobody listens on the socket there, and it cannot be removed");
    }
  }
  const int fd = ::socket(AF_UNIX, (packets ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return ListenFailed(path, "cannot make a socket");
  // The socket is born with its permissions: there is no moment at which somebody else may connect.
  const mode_t before = ::umask(static_cast<mode_t>(~mode & 0777));
  const int bound = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  ::umask(before);
  if (bound != 0) return ListenFailed(path, "cannot bind", fd);
  if (::listen(fd, kBacklog) != 0) return ListenFailed(path, "cannot listen", fd);
  return fd;
}

namespace {

// Bound, and not listening yet.
SocketResult<int> BindTcp(const Endpoint& endpoint) {
  const std::string where = FormatEndpoint(endpoint);
  sockaddr_storage storage{};
  socklen_t size;
  if (endpoint.host.find(':') == std::string::npos) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(endpoint.port);
    DT_CHECK(::inet_pton(AF_INET, endpoint.host.c_str(), &v4->sin_addr) == 1);
    size = sizeof *v4;
  } else {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(endpoint.port);
    DT_CHECK(::inet_pton(AF_INET6, endpoint.host.c_str(), &v6->sin6_addr) == 1);
    size = sizeof *v6;
  }
  const int fd = ::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return ListenFailed(where, "cannot make a socket");
  const int yes = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (storage.ss_family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&storage), size) != 0) return ListenFailed(where, "cannot bind", fd);
  return fd;
}

}    // namespace

SocketResult<int> ListenTcp(const Endpoint& endpoint) {
  const auto fd = BindTcp(endpoint);
  if (fd && ::listen(*fd, kBacklog) != 0) return ListenFailed(FormatEndpoint(endpoint), "cannot listen", *fd);
  return fd;
}

SocketResult<void> TryTcp(const Endpoint& endpoint) {
  const auto fd = BindTcp(endpoint);
  if (!fd) return tl::unexpected(fd.error());
  ::close(*fd);
  return {};
}

std::string DescribeSocket(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return "unknown";
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_UNIX) {
    return fmt::format("unix:{}", reinterpret_cast<const sockaddr_un*>(&storage)->sun_path);
  }
  if (storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage);
    return fmt::format("tcp:[{}]:{}", ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text), ntohs(v6->sin6_port));
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage);
  return fmt::format("tcp:{}:{}", ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text), ntohs(v4->sin_port));
}

bool IsSocket(int fd, int type, bool listening) {
  int its_type = 0, accepts = 0;
  socklen_t size = sizeof its_type;
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &its_type, &size) != 0 || its_type != type) return false;
  size = sizeof accepts;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) == 0 && (accepts != 0) == listening;
}

bool CameBy(int connection, int listening) {
  sockaddr_storage its{}, bound{};
  socklen_t its_size = sizeof its, bound_size = sizeof bound;
  if (::getsockname(connection, reinterpret_cast<sockaddr*>(&its), &its_size) != 0 ||
      ::getsockname(listening, reinterpret_cast<sockaddr*>(&bound), &bound_size) != 0 ||
      its.ss_family != bound.ss_family) {
    return false;
  }
  // A socket that is bound to no address accepts at each.
  const auto same = [](const auto& its_address, const auto& bound_address) {
    constexpr std::decay_t<decltype(bound_address)> kAny{};
    constexpr std::size_t kBytes = sizeof kAny;
    return std::memcmp(&bound_address, &kAny, kBytes) == 0 || std::memcmp(&bound_address, &its_address, kBytes) == 0;
  };
  if (its.ss_family == AF_INET) {
    const auto &a = reinterpret_cast<const sockaddr_in&>(its), &b = reinterpret_cast<const sockaddr_in&>(bound);
    return a.sin_port == b.sin_port && same(a.sin_addr, b.sin_addr);
  }
  if (its.ss_family == AF_INET6) {
    const auto &a = reinterpret_cast<const sockaddr_in6&>(its), &b = reinterpret_cast<const sockaddr_in6&>(bound);
    return a.sin6_port == b.sin6_port && same(a.sin6_addr, b.sin6_addr);
  }
  return its_size == bound_size && std::memcmp(&its, &bound, its_size) == 0;
}

Listener::Listener(uv_loop_t* loop, int fd, PlaceBounds bounds, OnAccept on_accept, OnFailure on_failure,
                   OnCrowd on_crowd)
    : fd_(fd),
      spare_fd_(OpenSpare()),
      on_accept_(std::move(on_accept)),
      on_failure_(std::move(on_failure)),
      on_crowd_(std::move(on_crowd)),
      places_(bounds),
      watch_(loop, fd_, [this] { AcceptSome(kAcceptsPerTurn); }),
      retry_(loop, [this] { watch_.GoOn(); }) {}

Listener::~Listener() {
  watch_.Stop();
  ::close(fd_);
  if (spare_fd_ >= 0) ::close(spare_fd_);
}

void Listener::AcceptAll() {
  AcceptSome(kBacklog);
}

void Listener::AcceptSome(int most) {
  for (int i = 0; i < most && AcceptOne(); ++i) {
  }
}

// Returns whether there may be another.
bool Listener::AcceptOne() {
  const int fd = Accept(fd_);
  if (fd >= 0) {
    Places::Answer answer;
    do {
      answer = places_.Take(fd, Now());
    } while (answer != Places::Answer::kTaken && on_crowd_(fd, answer));
    answer == Places::Answer::kTaken ? on_accept_(fd) : static_cast<void>(::close(fd));
    return true;
  }
  switch (errno) {
    case EAGAIN:
      return false;
    case EINTR:
      return true;
    case ECONNABORTED:
    case EPROTO:
      on_failure_(errno);    // it went before we came
      return true;
    case EMFILE:
    case ENFILE:
      return TurnOneAway(errno);
    default:
      on_failure_(errno);
      Pause();
      return false;
  }
}

// Returns whether there may be another.
bool Listener::TurnOneAway(int code) {
  if (spare_fd_ >= 0) ::close(spare_fd_);
  const int fd = Accept(fd_);
  const int error = errno;
  if (fd >= 0) ::close(fd);
  spare_fd_ = OpenSpare();
  if (fd < 0 && error == EAGAIN) return false;    // the system says "no descriptor" also where nobody waits
  on_failure_(code);
  if (fd >= 0) return true;
  Pause();    // somebody else took the descriptor: come back when there may be one
  return false;
}

// The socket stays readable, so without a pause the loop would turn as fast as it can for nothing.
void Listener::Pause() {
  watch_.Stop();
  retry_.StartOnce(kPause);
}

}    // namespace dthrottle
