// Reaching what is measured: its address, its sockets, and the CPU time of its process.
#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace dthrottle::bench {

// The run cannot go on: says why and ends with status 2.
[[noreturn]] inline void Die(std::string_view why) {
  fmt::print(stderr, "dthrottle-load: {}\n", why);
  std::exit(2);
}

inline std::uint64_t ReadClockNs(clockid_t clock) {
  timespec now{};
  if (clock_gettime(clock, &now) != 0) Die(fmt::format("cannot read a clock: {}", std::strerror(errno)));
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

inline std::uint64_t NowNs() {
  return ReadClockNs(CLOCK_MONOTONIC);
}

// The clock that counts the CPU time of all threads of `pid`, exact to the nanosecond, unlike the ticks in
// /proc.
inline clockid_t CpuClockOf(pid_t pid) {
  clockid_t clock{};
  if (const int error = clock_getcpuclockid(pid, &clock); error != 0) {
    Die(fmt::format("no CPU clock for process {}: {}", pid, std::strerror(error)));
  }
  return clock;
}

// A connected, blocking stream socket. `target` is unix:PATH or tcp:HOST:PORT.
inline int Connect(const std::string& target) {
  int fd = -1;
  if (target.starts_with("unix:")) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = target.substr(5);
    if (path.empty() || path.size() >= sizeof(address.sun_path)) Die("unix: needs a path of 1 to 107 bytes");
    path.copy(address.sun_path, path.size());
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  } else if (const auto colon = target.rfind(':'); target.starts_with("tcp:") && colon > 3) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const std::string host = target.substr(4, colon - 4);
    if (const int error = getaddrinfo(host.c_str(), target.c_str() + colon + 1, &hints, &found); error != 0) {
      Die(fmt::format("{}: {}", target, gai_strerror(error)));
    }
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool connected = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0;
    freeaddrinfo(found);
    const int on = 1;
    if (connected && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0) return fd;
  } else {
    Die("--target must be unix:PATH or tcp:HOST:PORT");
  }
  Die(fmt::format("cannot connect to {}: {}", target, std::strerror(errno)));
}

}    // namespace dthrottle::bench
