// The settings as data (DESIGN section 9). What each one means, allows and defaults to stands in keys.cc, once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"
#include "rule/rule.h"
#include "shed/signal.h"

namespace dthrottle {

// A numeric address to listen on. An empty host means: do not.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;

  bool enabled() const { return !host.empty(); }
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// The form in which HTTP answers state a limit.
enum class HttpHeaders { kDraft10, kDraft03, kBoth, kOff };

inline constexpr std::string_view Name(HttpHeaders headers) {
  constexpr std::string_view kNames[] = {"draft-10", "draft-03", "both", "off"};
  return kNames[static_cast<int>(headers)];
}

struct Settings {
  struct {
    std::string unix_path;    // empty: no Unix socket
    std::uint32_t unix_mode = 0;
    Endpoint tcp;
    std::uint32_t threads = 0;
    std::uint32_t max_tag_bytes = 0;
    std::uint32_t max_connections = 0;
    Duration idle_timeout{};
  } query;
  struct {
    std::string unix_path;
    std::uint32_t unix_mode = 0;
    Endpoint tcp;
    Endpoint http;
    std::string http_unix_path;
    std::uint32_t http_unix_mode = 0;
    std::uint32_t http_connections = 0;
    Duration http_timeout{};
    HttpHeaders http_headers{};
  } admin;
  struct {
    std::uint64_t memory = 0;    // bytes
    std::string file;            // empty: memory of the process
  } table;
  struct {
    std::string name;    // empty: the host's
    Endpoint bind;
    std::vector<std::string> connect;    // as PeerEntry
    Duration period{};
    std::string key_file;
    std::string authorized_keys;    // a directory
    std::uint64_t history = 0;      // bytes
    Duration resolve_interval{};
    std::string name_servers;

    bool enabled() const { return !connect.empty(); }
  } peers;
  struct {
    ShedSignal signal{};
    std::string cgroup;    // below /sys/fs/cgroup, or absolute; empty: the daemon's own, or the host for pressure
    ShedBound low, high;
    Duration interval{};
    Duration expiry{};
  } shed;
  struct {
    Endpoint tcp;
    std::string unix_path;    // empty: no Unix socket
    std::uint32_t unix_mode = 0;
    std::uint32_t max_connections = 0;
    Duration idle_timeout{};    // zero: none
    bool accept_limits = false;
    std::uint64_t memory = 0;    // bytes, for limits that are brought

    bool enabled() const { return tcp.enabled() || !unix_path.empty(); }
  } resp;
  std::vector<Rule> rules;
  std::vector<Override> overrides;
};

}    // namespace dthrottle
