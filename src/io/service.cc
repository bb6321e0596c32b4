#include "io/service.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

namespace dthrottle {

namespace {

// As sd_notify(3), which waits for ever while the manager's queue is full. With flags of send(2).
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

}    // namespace

void Service::Ready(const std::string& status) const {
  Notify(fmt::format("READY=1\nSTATUS={}", status), 0);
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

std::optional<Duration> Service::watchdog() const {
  std::uint64_t us = 0;
  if (sd_watchdog_enabled(0, &us) <= 0) return std::nullopt;
  return std::chrono::microseconds(us);
}

std::vector<Service::Socket> Service::TakeSockets() const {
  std::vector<Socket> sockets;
  char** names = nullptr;
  const int n = sd_listen_fds_with_names(1, &names);
  for (int i = 0; i < n; ++i) {
    const char* name = names != nullptr && names[i] != nullptr ? names[i] : "";
    sockets.push_back({SD_LISTEN_FDS_START + i, name});
    std::free(names != nullptr ? names[i] : nullptr);
  }
  std::free(names);
  return sockets;
}

}    // namespace dthrottle
