// Where the daemon listens: each front end's sockets, and the keys that set them. The one list of them, for the sockets
// and for the checks of a file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "config/settings.h"

namespace dthrottle {

class Findings;

struct Endpoints {
  std::string unix_path;    // empty: no Unix socket
  std::uint32_t unix_mode = 0;
  Endpoint tcp{};
  bool knows_clients = false;    // over TCP, by certificates
  bool packets = false;          // the Unix socket keeps messages apart
};

struct ListenerKeys {
  std::string_view name;                 // of the front end, or "peers"
  std::string_view unix_key, tcp_key;    // "section.key"; empty: it has no such socket
  std::string_view strangers;            // what strangers may do who reach the TCP address; empty: nothing to warn of
  Endpoints (*at)(const Settings&);
};

std::span<const ListenerKeys> AllListeners();

// Where the settings want the front end of that name to listen.
Endpoints EndpointsOf(const Settings& settings, std::string_view name);

// No two TCP sockets have one address; applications find one socket at least.
void CheckListeners(Findings& findings);

}    // namespace dthrottle
