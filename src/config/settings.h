// The settings as data. What each one means, allows and defaults to stands in keys.cc, once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/names.h"
#include "base/time.h"
#include "config/http_headers.h"
#include "lease/resource.h"
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

// The hosts that exchange capacity with each other.
enum class CapacityGraph { kRegular, kList, kFile };
DT_NAMES(CapacityGraph, "regular", "list", "file")

// "web-1 web-2 0.5": two hosts that are neighbours, and the weight of their link.
struct CapacityLink {
  std::string a, b;
  double weight = 1;
};

// How the master of lease servers is found.
enum class LeaseElector { kNone, kStatic, kEtcd };
DT_NAMES(LeaseElector, "none", "static", "etcd")

// What becomes of a system call that the daemon has no use for.
enum class CallFilter { kOn, kLog, kOff };
DT_NAMES(CallFilter, "on", "log", "off")

// To whom hosts say what they served.
enum class PeerSpread { kAll, kOwners };
DT_NAMES(PeerSpread, "all", "owners")

enum class PeerTransport { kZeroMq, kNats };
DT_NAMES(PeerTransport, "zeromq", "nats")

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
    Endpoint http;
    bool http_decides = false;              // over TCP
    std::vector<std::string> http_hosts;    // names that a request over TCP may ask for
    std::vector<std::string> http_fields;   // that a tag may name in braces
    std::uint32_t http_trusted_hops = 0;
    bool http_forgives = false;
    bool audit = false;
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
    PeerSpread spread = PeerSpread::kAll;
    std::vector<std::string> owners;     // names of hosts; of kOwners, but those of etcd
    bool owner = false;                  // this host is to own tags, by etcd's list
    std::string advertise;               // where the others reach it, as ParsePeerEntry; empty: at `bind`
    std::vector<std::string> etcd;       // none: the list is in the settings
    std::string etcd_key;
    Duration etcd_ttl{};
    std::string etcd_ca_file, etcd_certificate_file, etcd_key_file;
    PeerTransport transport = PeerTransport::kZeroMq;
    std::vector<std::string> nats;    // as ParseNatsServer
    std::string nats_subject, nats_credentials, nats_ca, nats_certificate, nats_key;
    Duration period{};
    std::string key_file;
    std::string authorized_keys;    // a directory
    std::uint32_t watched_tags = 0;
    std::uint64_t history = 0;                                                        // bytes
    std::uint32_t max_frames = 0, max_entries = 0, max_hits = 0, max_new_tags = 0;    // of one peer, a second
    Duration resolve_interval{};
    std::string name_servers;

    bool enabled() const { return !connect.empty() || !nats.empty() || !etcd.empty(); }
    bool listens() const { return enabled() && transport == PeerTransport::kZeroMq; }
    // Whom this host calls: addresses, or over NATS names.
    const std::vector<std::string>& called() const { return transport == PeerTransport::kNats ? owners : connect; }
    std::size_t named() const { return called().size(); }    // hosts
  } peers;
  struct {
    std::string name;                    // of this host's site; empty: there is one site
    std::vector<std::string> others;     // names of the other sites
    Endpoint bind;                       // numeric
    std::vector<std::string> connect;    // as ParsePeerEntry
    Duration period{};
    std::string key_file, authorized_keys;    // empty: no encryption
    double part = 0;                          // of limits, while another site is not heard; 0: not said

    bool enabled() const { return !name.empty(); }
  } sites;
  struct {
    Duration interval{}, lease{};
    std::vector<std::string> members;    // empty: whose keys are authorized
    CapacityGraph graph{};
    std::uint32_t degree = 0;
    std::vector<std::string> links;    // as ParseCapacityLink
    std::string graph_file;            // as dthrottle-plan reads it
    double reserve = 0;                // of the equal share
    std::string indicator;
    double gain = 0;    // 0: automatic
    std::uint32_t tags_max = 0;
    std::string state_file;    // empty: beside the table
  } capacity;
  struct {
    ShedSignal signal{};
    std::string cgroup;    // below /sys/fs/cgroup, or absolute; empty: the daemon's own, or the host for pressure
    ShedBound low, high;
    CurveShape curve{};
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
  struct {
    std::string unix_path;    // empty: no Unix socket
    std::uint32_t unix_mode = 0;
    Endpoint tcp;
    std::uint32_t max_connections = 0;
    Duration idle_timeout{};
  } ask;
  struct {
    std::uint32_t max_holds = 0;
    Duration max_ttl{};
  } hold;
  struct {
    std::string file;            // empty: memory of the process
    std::uint64_t memory = 0;    // bytes
  } quota;
  struct {
    std::string unix_path;    // empty: no Unix socket
    std::uint32_t unix_mode = 0;
    Endpoint tcp;
    std::uint32_t max_connections = 0;
    Duration idle_timeout{};
  } spop;
  struct {
    std::uint32_t entries = 0;    // of a worker's page; 0: there are none
    std::uint32_t max_connections = 0;
  } page;
  struct {
    Endpoint tcp;
    std::uint32_t max_connections = 0;
    std::uint32_t max_calls = 0;
    Duration idle_timeout{};    // zero: none
    HttpHeaders headers{};
  } envoy;
  struct {
    std::string unix_path;    // empty: no Unix socket
    std::uint32_t unix_mode = 0;
    Endpoint tcp, tls;
    Endpoint grpc;
    std::uint32_t grpc_max_calls = 0;
    std::uint32_t grpc_max_resources = 0;    // of one call
    std::uint32_t max_connections = 0;
    Duration idle_timeout{};
    std::string node;    // of the server tree; empty: the host's name
    std::uint32_t level = 0;
    std::vector<std::string> parent;    // addresses; empty: this is a root
    Duration min_request_interval{};
    std::uint32_t max_clients = 0;
    std::uint32_t max_resources = 0;
    lease::Unknown unknown{};
    std::string address;    // as clients have it; empty: by tcp or unix_path
    LeaseElector elector{};
    std::string master;               // an address
    std::vector<std::string> etcd;    // URLs
    std::string etcd_key;
    Duration etcd_ttl{};
    std::string etcd_ca_file, etcd_certificate_file, etcd_key_file;
    std::string etcd_resources;    // a key; empty: resources are those of the file
    Duration etcd_patience{};

    bool enabled() const { return tcp.enabled() || tls.enabled() || !unix_path.empty() || grpc.enabled(); }
  } lease;
  struct {
    std::string certificate_file, key_file, client_ca_file;    // empty: no TLS; the last: clients need no certificate

    bool enabled() const { return !certificate_file.empty(); }
  } tls;
  struct {
    std::vector<std::string> keys;    // as ParseOperatorKey
    std::string limits_file;          // empty: beside the table
    std::string http_token_file, http_key_file;
  } operators;
  struct {
    double source_share = 0;    // of a socket's connections
    std::string user;           // to become, when started as root; empty: nobody else
    CallFilter seccomp{};
  } process;
  std::vector<Rule> rules;
  std::vector<Override> overrides;
  std::vector<lease::ResourceTemplate> resources;
};

}    // namespace dthrottle
