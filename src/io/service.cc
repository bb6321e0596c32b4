#include "io/service.h"

#include <fmt/format.h>
#include <systemd/sd-daemon.h>

#include <cstdlib>

namespace dthrottle {

void Service::Ready(const std::string& status) const {
  sd_notify(0, fmt::format("READY=1\nSTATUS={}", status).c_str());
}

void Service::Reloading(Instant now) const {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
  sd_notify(0, fmt::format("RELOADING=1\nMONOTONIC_USEC={}", us).c_str());
}

void Service::Stopping() const {
  sd_notify(0, "STOPPING=1\nSTATUS=Answering what has been asked");
}

void Service::Alive() const {
  sd_notify(0, "WATCHDOG=1");
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
