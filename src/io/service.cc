// What libsystemd does, in its few lines: the library brings five others along.
#include "io/service.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/number.h"

namespace dthrottle {

namespace {

// Does what sd_notify(3) does, which waits for ever while the manager's queue is full. With flags of send(2).
void Notify(std::string_view state, int flags) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::strlen(path);
  if (length >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const timeval patience{0, std::chrono::duration_cast<std::chrono::microseconds>(Service::kPatience).count()};
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  ::sendto(fd, state.data(), state.size(), MSG_NOSIGNAL | flags, reinterpret_cast<const sockaddr*>(&address),
           static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length));
  ::close(fd);
}

constexpr std::uint64_t kSocketsMax = 1024;

// None: the variable is not there, or is no number.
std::optional<std::uint64_t> NumberIn(const char* variable) {
  const char* const text = std::getenv(variable);
  std::uint64_t value = 0;
  return text != nullptr && ParseNumber(text, value) ? std::optional(value) : std::nullopt;
}

// What the manager says may be for the process that started this one.
bool IsForUs(const char* variable) {
  return std::getenv(variable) == nullptr || NumberIn(variable) == static_cast<std::uint64_t>(::getpid());
}

}    // namespace

void Service::Ready(const std::string& status) const {
  // A further line would be another variable.
  Notify(fmt::format("READY=1\nSTATUS={}", std::string_view(status).substr(0, status.find('\n'))), 0);
}

void Service::Reloading(Instant now) const {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
  Notify(fmt::format("RELOADING=1\nMONOTONIC_USEC={}", us), 0);
}

void Service::Stopping() const {
  Notify("STOPPING=1\nSTATUS=Answering what has been asked", 0);
}

void Service::Alive() const {
  Notify("WATCHDOG=1", MSG_DONTWAIT);    // the next will do
}

// The same as sd_watchdog_enabled(3).
std::optional<Duration> Service::watchdog() const {
  const auto us = NumberIn("WATCHDOG_USEC");
  if (us.value_or(0) == 0 || !IsForUs("WATCHDOG_PID")) return std::nullopt;
  return std::chrono::microseconds(*us);
}

// The same as sd_listen_fds_with_names(3), which unsets the variables too.
std::vector<Service::Socket> Service::TakeSockets() const {
  constexpr int kFirst = 3;
  std::vector<Socket> sockets;
  const auto n = NumberIn("LISTEN_FDS");
  const char* const text = std::getenv("LISTEN_FDNAMES");
  std::string_view names(text != nullptr ? text : "");
  if (n && *n <= kSocketsMax && std::getenv("LISTEN_PID") != nullptr && IsForUs("LISTEN_PID")) {
    for (int fd = kFirst; fd < kFirst + static_cast<int>(*n); ++fd) {
      const std::string_view name = names.substr(0, names.find(':'));
      names.remove_prefix(std::min(name.size() + 1, names.size()));
      sockets.push_back({fd, std::string(name)});
    }
  }
  for (const char* variable : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) ::unsetenv(variable);
  return sockets;
}

}    // namespace dthrottle
