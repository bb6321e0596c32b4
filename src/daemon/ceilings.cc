#include "daemon/ceilings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "config/listeners.h"

namespace dthrottle {

namespace {

constexpr std::uint64_t kFiles = 48;    // settings, keys, names, lease servers: what is opened for a while
// Between hosts: each has two connections, and there may be as many strangers.
constexpr std::uint32_t kPeerConnections = 4096;

// Whether the settings want TCP connections that take their places from the room of `owner`.
bool ListensFor(const FrontEnd& owner, const std::vector<std::unique_ptr<FrontEnd>>& front_ends,
                const Settings& settings) {
  return std::ranges::any_of(front_ends, [&](const auto& front) {
    return Ceilings::Owner(*front) == &owner && EndpointsOf(settings, front->key()).tcp.enabled();
  });
}

}    // namespace

// Every front end gets room: a service manager may pass a socket for any of them, whatever the settings say.
Ceilings DivideDescriptors(const std::vector<std::unique_ptr<FrontEnd>>& front_ends, const Settings& settings,
                           std::uint64_t limit, std::uint64_t in_use) {
  struct Taker {
    std::uint32_t* room;
    bool listens;
    std::string name;
  };
  Ceilings ceilings;
  std::vector<PlacesWanted> wanted = {{settings.peers.listens() ? kPeerConnections : 0, 2}};
  std::vector<Taker> takers = {{&ceilings.peers, false, "peers"}};
  for (const auto& front : front_ends) {
    if (!front->has_room()) continue;
    const FrontEnd::Room room = front->room();
    const Endpoints at = EndpointsOf(settings, front->key());
    Ceilings::Room& ceiling = ceilings.rooms[front.get()];
    const bool unix_apart = room.unix_socket.want > 0;
    wanted.push_back(room.all);
    const bool listens = ListensFor(*front, front_ends, settings) || (!unix_apart && !at.unix_path.empty());
    takers.push_back({&ceiling.all, listens, std::string(front->key())});
    if (!unix_apart) continue;
    wanted.push_back(room.unix_socket);
    takers.push_back({&ceiling.unix_socket, !at.unix_path.empty(), fmt::format("{}.unix", front->key())});
  }
  const std::uint64_t kept = in_use + std::min(kFiles, limit / 8);
  const std::vector<std::uint32_t> given = DividePlaces(limit > kept ? limit - kept : 0, wanted);
  for (std::size_t i = 0; i < takers.size(); ++i) {
    *takers[i].room = given[i];
    if (!takers[i].listens || given[i] >= wanted[i].want) continue;
    ceilings.cut.push_back(fmt::format("{} has {} of {}", takers[i].name, given[i], wanted[i].want));
  }
  return ceilings;
}

std::uint64_t OpenDescriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator all("/proc/self/fd", error);
  return error ? kFiles : static_cast<std::uint64_t>(std::distance(begin(all), end(all)));
}

}    // namespace dthrottle
