// The service manager's side of a daemon: readiness, reloads, watchdog, and sockets that were opened for us. Without a
// service manager all of it does nothing; one that does not listen holds nobody up for longer than kPatience.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/time.h"

namespace dthrottle {

class Service {
 public:
  static constexpr Duration kPatience = std::chrono::milliseconds(100);

  void Ready(const std::string& status) const;
  void Reloading(Instant now) const;
  void Stopping() const;
  void Alive() const;    // feeds the watchdog

  // How often the watchdog wants to be fed, at least; none if there is no watchdog.
  std::optional<Duration> watchdog() const;

  // Sockets that were passed to us, by the name that their unit gives them (FileDescriptorName). Call once.
  struct Socket {
    int fd;
    std::string name;
  };
  std::vector<Socket> TakeSockets() const;
};

}    // namespace dthrottle
