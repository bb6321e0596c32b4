// The section [lease] of the settings.
#include "base/host_name.h"
#include "config/findings.h"
#include "config/kinds.h"
#include "config/sections.h"
#include "lease/address.h"

namespace dthrottle {

namespace {

constexpr const char* kLeaseAddressAllowed =
    "an address such as \"tcp:10.0.0.1:7315\" or \"unix:/run/dthrottle/lease.sock\", with \",grpc:10.0.0.1:7316\" "
    "behind it or \"grpc:10.0.0.1:7316\" alone where there is gRPC, or \"\" for none";

bool IsTcpAddress(std::string_view text) {
  const auto endpoint = ParseEndpoint(text);
  return endpoint && endpoint->enabled() && endpoint->port != 0;
}

bool IsLineAddress(std::string_view text) {
  if (text.starts_with("tcp:") || text.starts_with(lease::kTlsPrefix)) return IsTcpAddress(text.substr(4));
  return text.starts_with("unix:/") && IsSocketPath(std::string(text.substr(5))) && text.find(' ') == std::string::npos;
}

bool IsLeaseAddress(const std::string& text) {
  const std::string_view line = lease::LineAddress(text), grpc = lease::GrpcAddress(text);
  return (line.empty() || IsLineAddress(line)) && (grpc.empty() || IsTcpAddress(grpc)) &&
         lease::JoinAddresses(line, grpc) == text;
}

}    // namespace

Section LeaseSection() {
  using S = Settings;
  using namespace std::chrono_literals;
  return {
      "lease",
      "Leases for batch clients, who ask how fast they may go instead of being refused; see dthrottle-protocol(7). "
      "Nobody is served unless there is an address. What there is to lease says [[resource]].",
      {
          SocketPath<S>("unix", "\"\"", MEMBER(S, lease.unix_path),
                        "The Unix stream socket for lease clients of this host."),
          FileMode<S>("unix_mode", "\"0660\"", MEMBER(S, lease.unix_mode),
                      "The permissions of that socket. A user that may write to it may take and release the leases of "
                      "any client."),
          Address<S>("tcp", "\"\"", false, MEMBER(S, lease.tcp),
                     "The TCP address for those of other hosts. There is no password and nothing is encrypted: the "
                     "network has to keep strangers away. Port 0 takes any free port and logs it."),
          Address<S>("tls", "\"\"", false, MEMBER(S, lease.tls),
                     "The TCP address for the same lines by TLS, with the certificate of [tls]."),
          Address<S>("grpc", "\"\"", false, MEMBER(S, lease.grpc),
                     "The TCP address for clients that ask by gRPC, the interface doorman.Capacity of "
                     "protocol/doorman.proto, with the field numbers of the public system. Only in a build with gRPC. "
                     "Encrypted with a certificate in [tls]; otherwise there is no password and nothing is."),
          Integer<S>("grpc_max_calls", "1000", 1, 100'000, MEMBER(S, lease.grpc_max_calls),
                     "The most gRPC calls that wait for their answers; one more is told RESOURCE_EXHAUSTED, and "
                     "counted. A call has at most 1 MiB, and a connection 100 calls at once."),
          Integer<S>("grpc_max_resources", "500", 1, 10'000, MEMBER(S, lease.grpc_max_resources),
                     "The most resources that one gRPC call may ask for; a larger one is told INVALID_ARGUMENT, and "
                     "counted. Each takes some 2 us, in which no query of the main thread is answered."),
          Reloads(Integer<S>("max_connections", "2048", 1, 1'000'000, MEMBER(S, lease.max_connections),
                             "The most lease clients connected at once. One more is closed at once, and counted. Each "
                             "takes about 1 KiB, and up to 1 MiB while it does not read its answers.")),
          Reloads(DurationKey<S>("idle_timeout", "\"5m\"", 0s, 24h * 365, MEMBER(S, lease.idle_timeout),
                                 "A connection on which nothing arrives for as long is closed; with \"0s\" none is. "
                                 "Leases go on without a connection.")),
          Text<S>("address", "\"\"", kLeaseAddressAllowed, MEMBER(S, lease.address),
                  "Where lease clients reach this host, as it stands in the election and in answers of hosts that are "
                  "not master. Without it the first there is of *tcp*, *tls* and *unix*, and *grpc*.",
                  IsLeaseAddress),
          Choice<S, LeaseElector>("elector", "\"none\"", MEMBER(S, lease.elector),
                                  "Which of several hosts grants leases: \"none\", each host by itself, for a single "
                                  "one or where hosts have parts of the capacity; \"static\", the one whose address is "
                                  "*master*; \"etcd\", whoever etcd elects, one at most at any time."),
          Text<S>("master", "\"\"", kLeaseAddressAllowed, MEMBER(S, lease.master),
                  "The address of the master, for \"static\".", IsLeaseAddress),
          TextList<S>("etcd", kEtcdUrlsAllowed, MEMBER(S, lease.etcd),
                      "Members of etcd's cluster, version 3.4 or later, for the elector \"etcd\" and for "
                      "*etcd_resources*: the next one is asked where one does not answer.",
                      IsEtcdUrl),
          Text<S>("etcd_key", "\"dthrottle/lease/master\"", "text of 1 to 255 bytes", MEMBER(S, lease.etcd_key),
                  "The key that stands for mastership there. Hosts with the same key elect one master among them.",
                  [](const std::string& text) { return !text.empty() && text.size() <= 255 && NoControls(text); }),
          DurationKey<S>("etcd_ttl", "\"5s\"", 3s, 1h, MEMBER(S, lease.etcd_ttl),
                         "How long mastership lasts without news from the master, in whole seconds. A master that is "
                         "lost is replaced within this and a second; one that etcd does not answer stops granting a "
                         "second before it is over."),
          EtcdCaFile<S>(MEMBER(S, lease.etcd_ca_file)),
          EtcdCertificateFile<S>(MEMBER(S, lease.etcd_certificate_file)),
          EtcdKeyFile<S>(MEMBER(S, lease.etcd_key_file)),
          Text<S>("etcd_resources", "\"\"", "text of up to 255 bytes, or \"\" for none", MEMBER(S, lease.etcd_resources),
                  "A key of etcd whose value, up to 40 KiB, is the [[resource]] tables of all lease servers, in place of "
                  "those of this file. It is watched, and read every two seconds besides; a bad one changes nothing. "
                  "This file's tables are in force until it has been read, and where there is no such key.",
                  [](const std::string& text) { return text.size() <= 255 && NoControls(text); }),
          DurationKey<S>("etcd_patience", "\"5m\"", 3s, 24h * 365, MEMBER(S, lease.etcd_patience),
                         "How long the resources of etcd stay as they are while no member of it answers. From then on "
                         "each client of a resource gets up to its *safe_capacity*, if it has one."),
          Text<S>("node", "\"\"", "a name of up to 64 letters, digits and \"_-.\", or \"\"", MEMBER(S, lease.node),
                  "The node of the server tree that this server is of, the same for all that may become its master; "
                  "the parent knows it by that. Without it, the host's name.",
                  [](const std::string& text) { return text.empty() || IsHostName(text); }),
          TextList<S>(
              "parent", "a list of addresses such as \"tcp:10.0.0.1:7315\" or \"unix:/run/dthrottle/lease.sock\"",
              MEMBER(S, lease.parent),
              "Where the lease servers of the next level toward the root listen for lines without TLS: every host that "
              "may be master there. This server then gets its capacity from them and hands out what it holds, for no "
              "longer than it holds it. Needs *level*. Without any it is a root, and capacity is that of [[resource]].",
              IsLineAddress),
          Integer<S>("level", "0", 0, lease::kLevelMax, MEMBER(S, lease.level),
                     "How far the node is from the root of the tree, which is 0. With every level a refresh interval "
                     "is shorter by its resource's *decay_factor*."),
          DurationKey<S>(
              "min_request_interval", "\"1s\"", 0s, 1h, MEMBER(S, lease.min_request_interval),
              "A client that asks again for the same resource within this time gets the answer that it has. At most "
              "half of the shortest refresh interval on this *level*, or punctual clients would be turned away."),
          Integer<S>("max_clients", "200000", 1, 10'000'000, MEMBER(S, lease.max_clients),
                     "The most leases at once, of all resources together; whoever comes then gets none, and is "
                     "counted. Each takes some 400 bytes."),
          Reloads(Choice<S, lease::Unknown>(
              "unknown", "\"refuse\"", MEMBER(S, lease.unknown),
              "What becomes of a request for a resource that no [[resource]] is for: \"refuse\", it gets no lease, so a "
              "typing error is not unlimited; \"honour\", it gets what it wants, and is counted (*lease_honoured*).")),
          Integer<S>("max_resources", "10000", 1, 1'000'000, MEMBER(S, lease.max_resources),
                     "The most resources with leases at once."),
      }};
}

void CheckLease(Findings& f) {
  const auto& lease = f.settings().lease;
  if (!lease.enabled()) return;
  if (!lease.parent.empty() && lease.level == 0) {
    f.Error("lease.parent", "lease.level = 0: must be at least 1 with lease.parent, one more than its level");
  }
  for (const std::string& parent : lease.parent) {
    if (parent == "unix:" + lease.unix_path || (lease.tcp.enabled() && parent == "tcp:" + FormatEndpoint(lease.tcp))) {
      f.Error("lease.parent", fmt::format("lease.parent has {}: must be another host's", Quote(parent)));
    }
    if (parent.starts_with(lease::kTlsPrefix)) {
      f.Error("lease.parent",
              fmt::format("lease.parent has {}: must begin with \"tcp:\" or \"unix:\", as a server speaks no TLS to "
                          "its parent",
                          Quote(parent)));
    }
  }
  const bool anywhere = lease.tcp.host == "0.0.0.0" || lease.tcp.host == "::";
  if (lease.elector != LeaseElector::kNone && anywhere && lease.address.empty()) {
    f.Error(
        "lease.tcp",
        fmt::format(
            "lease.address is \"\": must be where others reach this host, since lease.tcp = \"{}\" is every address",
            FormatEndpoint(lease.tcp)));
  }
  if (lease.elector == LeaseElector::kStatic && lease.master.empty()) {
    f.Error("lease.elector", "lease.master is \"\": must be an address with lease.elector = \"static\"");
  }
  if (!lease.etcd_resources.empty() && lease.etcd.empty() && !f.wrong("lease")) {
    f.Error("lease.etcd_resources", "lease.etcd is []: must have an address with lease.etcd_resources");
  }
  if (lease.elector != LeaseElector::kEtcd) return;
  if (lease.etcd.empty() && !f.wrong("lease")) {
    f.Error("lease.elector", "lease.etcd is []: must have an address with lease.elector = \"etcd\"");
  }
  f.WholeSeconds("lease.etcd_ttl", lease.etcd_ttl);
}

}    // namespace dthrottle
