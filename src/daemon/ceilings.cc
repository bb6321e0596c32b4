#include "daemon/ceilings.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <vector>

#include "io/admin_server.h"

namespace dthrottle {

namespace {

constexpr std::uint64_t kFiles = 48;    // settings, keys, names, lease servers: what is opened for a while
// Between hosts: each has two connections, and there may be as many strangers.
constexpr std::uint32_t kPeerConnections = 4096;

}    // namespace

std::uint32_t Ceilings::Of(std::string_view key) const {
  if (key == "http.unix") return http_unix;
  const std::string_view front = key.substr(0, key.find('.'));
  return front == "query" ? query : front == "admin" ? admin : front == "http" ? http : front == "resp" ? resp : lease;
}

Ceilings DivideDescriptors(const Settings& settings, std::uint64_t limit, std::uint64_t in_use) {
  const std::uint64_t kept = in_use + std::min(kFiles, limit / 8);
  const std::uint32_t http = settings.admin.http_connections;
  // Where there are not enough, queries have most, and the Unix socket of a web server more than what anybody reaches.
  // A service manager may pass a socket for any of them, whatever the settings say.
  const std::vector<PlacesWanted> wanted = {
      {settings.query.max_connections, 32},
      {static_cast<std::uint32_t>(AdminServer::kConnectionsMax), 2},
      {http, 1},
      {http, 2},
      {settings.resp.max_connections, 4},
      {settings.lease.max_connections, 2},
      {settings.peers.enabled() ? kPeerConnections : 0, 2},
  };
  const std::vector<std::uint32_t> given = DividePlaces(limit > kept ? limit - kept : 0, wanted);
  Ceilings ceilings{given[0], given[1], given[2], given[3], given[4], given[5], given[6]};
  const bool used[] = {true,
                       true,
                       settings.admin.http.enabled(),
                       !settings.admin.http_unix_path.empty(),
                       settings.resp.enabled(),
                       settings.lease.enabled()};
  for (std::size_t i = 0; i < std::size(used); ++i) {
    ceilings.cut = ceilings.cut || (used[i] && given[i] < wanted[i].want);
  }
  return ceilings;
}

std::uint64_t OpenDescriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator all("/proc/self/fd", error);
  return error ? kFiles : static_cast<std::uint64_t>(std::distance(begin(all), end(all)));
}

}    // namespace dthrottle
