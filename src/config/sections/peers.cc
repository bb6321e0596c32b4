// The section [peers] of the settings.
#include <set>

#include "base/host_name.h"
#include "bus/owners/owners.h"
#include "config/findings.h"
#include "config/kinds.h"
#include "config/sections.h"

namespace dthrottle {

namespace {

// What says whom connect and owners name, and how these are reached.
constexpr std::string_view kWay[] = {"spread", "etcd", "transport", "key_file"};

// Tokens of a subject, none of which is empty.
bool IsSubjectPrefix(const std::string& text) {
  const bool dots = text.starts_with('.') || text.ends_with('.') || text.find("..") != std::string::npos;
  return IsHostName(text) && !dots;
}

}    // namespace

Section PeersSection() {
  using S = Settings;
  using namespace std::chrono_literals;
  return {
      "peers",
      "The other hosts, with which limits are shared. Every host tells all others each period what it served, and they "
      "debit it.",
      {
          Text<S>("name", "\"\"", "a name of up to 64 letters, digits and \"_-.\", or \"\" for the host's",
                  MEMBER(S, peers.name), "What the other hosts call this one. With keys, its .pub file has that name.",
                  [](const std::string& text) { return text.empty() || IsHostName(text); }),
          Parsed<S, Endpoint>("bind", "\"tcp://127.0.0.1:7314\"",
                              "a numeric address such as \"tcp://127.0.0.1:7314\", or \"\" for none",
                              MEMBER(S, peers.bind),
                              "Where this host listens for the others, once there are any in *connect*. Anything but "
                              "loopback needs keys.",
                              ParseBind, FormatBind),
          ReloadsUnless(
              kWay,
              TextList<S>("connect",
                          "a list of addresses such as \"tcp://10.0.0.2:7314\", \"tcp://web2.example.org:7314#web2\" "
                          "or \"srv://_dthrottle._tcp.example.org\"",
                          MEMBER(S, peers.connect),
                          "Where the other hosts' daemons listen. Names are looked up again and again, all their "
                          "addresses count, and the last good answer holds. A host's own address may be in the list "
                          "and is passed over, so one file serves a fleet. With keys, each address needs the name of "
                          "its key: after a # here, or in its .pub file. Without entries this host limits alone. "
                          "*connect*, *owners*, *owner* and *authorized_keys* wait for the next start where *spread*, "
                          "*etcd*, *transport* or *key_file* changes, which only a start can.",
                          [](const std::string& text) { return ParsePeerEntry(text).has_value(); })),
          Choice<S, PeerSpread>(
              "spread", "\"all\"", MEMBER(S, peers.spread),
              "Whom a host tells what it served: all others, which suits up to some 250 hosts; or the *owners* of the "
              "tags only, which keep the levels for everybody, so that what a host costs follows its own tags and not "
              "the number of hosts. Then *connect* has the addresses of the owners alone, and they need none of the "
              "other hosts'."),
          ReloadsUnless(kWay, TextList<S>(
              "owners", "a list of up to 64 names of hosts, each once", MEMBER(S, peers.owners),
              "With spread = \"owners\": what the owners are called, the same on all hosts; 3 to 16 of them do. A host "
              "whose name is in the list owns a part of the tags. While one is away, hosts go on with its last word. A "
              "reload with another list on one owner puts that list in force on all hosts, and tags move with the hits "
              "that were counted; reload the other hosts too, so that they know the addresses and begin with that "
              "list.",
              IsHostName)),
          TextList<S>(
              "etcd", kEtcdUrlsAllowed, MEMBER(S, peers.etcd),
              "With spread = \"owners\": members of etcd's cluster, version 3.4 or later, that has the list of owners "
              "with their addresses, in place of *owners* and *connect*. Hosts with *owner* enter themselves; one "
              "that is lost is taken out, and the others take over its tags. Without etcd the list stays as it is.",
              IsEtcdUrl),
          Text<S>("etcd_key", "\"dthrottle/owners\"", "text of 1 to 180 bytes, without / at its end",
                  MEMBER(S, peers.etcd_key),
                  "The key of the list there. Hosts that are to own tags have theirs below it: KEY/NAME.",
                  [](const std::string& text) {
                    return !text.empty() && text.size() <= 180 && NoControls(text) && !text.ends_with('/');
                  }),
          DurationKey<S>(
              "etcd_ttl", "\"5s\"", 3s, 1h, MEMBER(S, peers.etcd_ttl),
              "How long an owner stays one without news from it, in whole seconds. One that is lost is replaced "
              "within this and a second. A restart that takes less changes nothing."),
          EtcdCaFile<S>(MEMBER(S, peers.etcd_ca_file)),
          EtcdCertificateFile<S>(MEMBER(S, peers.etcd_certificate_file)),
          EtcdKeyFile<S>(MEMBER(S, peers.etcd_key_file)),
          ReloadsUnless(kWay, Flag<S>(
              "owner", "false", MEMBER(S, peers.owner),
              "Whether this host is to own tags, by the list of *etcd*. A reload with false hands its tags over; "
              "stop it when owners_giving is 0.")),
          Text<S>("advertise", "\"\"", "an address such as \"tcp://10.0.0.2:7314\", or \"\" for that of bind",
                  MEMBER(S, peers.advertise), "Where the other hosts reach this one, as *etcd* tells them.",
                  [](const std::string& text) { return text.empty() || IsPeerAddress(text); }),
          Choice<S, PeerTransport>(
              "transport", "\"zeromq\"", MEMBER(S, peers.transport),
              "What reports and levels travel over: connections between hosts, or servers of NATS, to which each host "
              "has one connection, so that no host opens a port and none has a list of addresses. NATS needs spread = "
              "\"owners\" and the module dthrottle-nats.so. Without a server hosts go on by the last levels."),
          TextList<S>(
              "nats", "a list of servers such as \"nats://127.0.0.1:4222\" or \"tls://nats-1.example.org:4222\"",
              MEMBER(S, peers.nats),
              "With transport = \"nats\": the servers, of which a host uses one, and another if that is gone; a "
              "cluster tells of its others. Anything but loopback needs tls://, and *nats_credentials* or "
              "*nats_certificate*.",
              [](const std::string& text) { return ParseNatsServer(text).has_value(); }),
          Text<S>("nats_subject", "\"dthrottle\"", "1 to 64 letters, digits and \"_-\", with dots between",
                  MEMBER(S, peers.nats_subject),
                  "What subjects begin with. Fleets on the same servers have different ones.", IsSubjectPrefix),
          Text<S>(
              "nats_credentials", "\"\"", "an absolute path, or \"\" for none", MEMBER(S, peers.nats_credentials),
              "What this host proves itself to the server by, in a file that nobody else may read: the seed of an nkey "
              "(SU...), a line user:password, or a user's JWT with its seed as nsc writes it.",
              IsPath),
          Text<S>("nats_ca", "\"\"", "an absolute path, or \"\" for none", MEMBER(S, peers.nats_ca),
                  "Certificates of who signs the servers' (PEM). Required for tls://.", IsPath),
          Text<S>("nats_certificate", "\"\"", "an absolute path, or \"\" for none", MEMBER(S, peers.nats_certificate),
                  "This host's certificate and what it rests on (PEM), where the server asks for one.", IsPath),
          Text<S>("nats_key", "\"\"", "an absolute path, or \"\" for none", MEMBER(S, peers.nats_key),
                  "Its private key (PEM), which nobody else may read.", IsPath),
          DurationKey<S>(
              "period", "\"5s\"", 100ms, 5min, MEMBER(S, peers.period),
              "The time between two reports. What a host serves is unknown to the others for at most so long."),
          Text<S>("key_file", "\"\"", "an absolute path, or \"\" for none", MEMBER(S, peers.key_file),
                  "The key pair of this host, which nobody else may read; dthrottlectl keygen makes one. Required "
                  "unless every address is loopback.",
                  IsPath),
          ReloadsUnless(kWay, Text<S>(
              "authorized_keys", "\"\"", "an absolute path, or \"\" for none", MEMBER(S, peers.authorized_keys),
              "The directory with the public key of every host that is heard, NAME.pub. A reload reads it again.",
              IsPath)),
          Integer<S>("watched_tags", "4096", 512, 1'000'000, MEMBER(S, peers.watched_tags),
                     "How many tags may be reported early, or foretold, at a time; rounded up to a power of two. Each "
                     "takes 600 bytes and 32 for every peer. Others are reported once a period, and what is refused "
                     "room is counted (watches_crowded)."),
          BytesKey<S>("history", "\"64MiB\"", std::uint64_t{1} << 20, kMemoryBytesMax, MEMBER(S, peers.history),
                      "Reports that are kept to be sent again to a host that missed them; the oldest go first. What is "
                      "no longer there is lost for that host, and counted."),
          Reloads(Integer<S>(
              "max_frames", "1000", 100, 1'000'000, MEMBER(S, peers.max_frames),
              "How many frames of one peer are read in a second, on average over ten. What a peer sends above this and "
              "the next two is asked for again later, as it allows; the news of other peers is not delayed. What was "
              "cut is counted by peer (dthrottled_peer_cut_total) and shown by peers.")),
          Reloads(
              Integer<S>("max_entries", "200000", 1000, 100'000'000, MEMBER(S, peers.max_entries),
                         "How many tags with hits one peer may report in a second, likewise. A tag counts each time.")),
          Reloads(Integer<S>("max_hits", "100000000", 1000, 4'000'000'000, MEMBER(S, peers.max_hits),
                             "How many hits one peer may report in a second, likewise; a query of cost n is n hits. "
                             "Raise it where costs are large, such as bytes.")),
          Reloads(Integer<S>("max_new_tags", "100000", 100, 100'000'000, MEMBER(S, peers.max_new_tags),
                             "How many tags without a bucket on this host one peer may report in a second, likewise, "
                             "but what is above it is dropped. Another site may report as many for each of its hosts. "
                             "A tag whose bucket has been full is new again.")),
          DurationKey<S>("resolve_interval", "\"30s\"", 1s, 24h, MEMBER(S, peers.resolve_interval),
                         "How often names in *connect* are looked up again."),
          Text<S>("name_servers", "\"\"",
                  "addresses such as \"127.0.0.1:8600\", with commas between, or \"\" for the system's",
                  MEMBER(S, peers.name_servers), "The servers that are asked for names.", NoControls),
      }};
}

namespace {

// What a host costs that hears everything, as measured with 500 to 1,000 peers: for each frame, and for each tag in it.
constexpr double kFrameSeconds = 40e-6, kEntrySeconds = 66e-9, kTagsAssumed = 1000, kCoreMost = 0.05;

void WarnOfMesh(Findings& f) {
  const auto& peers = f.settings().peers;
  const double hosts = HostsOf(f.settings()), frames = (hosts - 1) / Seconds(peers.period);
  const double core = frames * (kFrameSeconds + kTagsAssumed * kEntrySeconds);
  if (core <= kCoreMost) return;
  f.Warn("", fmt::format(
                 "peers.spread = \"all\" with {:g} hosts: each of them hears {:.0f} frames a second, which take "
                 "{:.1f} % of a core where hosts share {:g} tags a period; with \"owners\" it hears what its own tags "
                 "need",
                 hosts, frames, 100 * core, kTagsAssumed));
}

void CheckSpread(Findings& f) {
  const auto& peers = f.settings().peers;
  if (peers.spread == PeerSpread::kAll) {
    for (const auto& [key, given] :
         {std::pair("owners", !peers.owners.empty()), std::pair("etcd", !peers.etcd.empty())}) {
      if (given) f.Error("", fmt::format("peers.{} with peers.spread = \"all\": must be \"owners\"", key));
    }
    return peers.enabled() ? WarnOfMesh(f) : void();
  }
  if (!peers.etcd.empty()) return;
  const std::set<std::string_view> names(peers.owners.begin(), peers.owners.end());
  if (names.empty() || names.size() != peers.owners.size() || names.size() > Owners::kMost) {
    f.Error("", fmt::format("peers.owners has {} names, {} of them different: must be 1 to {} with peers.spread = "
                            "\"owners\", each once",
                            peers.owners.size(), names.size(), Owners::kMost));
  }
}

bool IsAnyAddress(const Endpoint& e) {
  return e.host == "0.0.0.0" || e.host == "::";
}

void CheckEtcd(Findings& f) {
  const auto& peers = f.settings().peers;
  if (peers.etcd.empty()) {
    if (peers.owner)
      f.Error("", "peers.owner with peers.etcd = []: must be false, since peers.owners says who owns tags");
    return;
  }
  if (!peers.owners.empty() || !peers.connect.empty()) {
    f.Error("", "peers.owners or peers.connect with peers.etcd: must be [], because etcd has the list");
  }
  f.WholeSeconds("peers.etcd_ttl", peers.etcd_ttl);
  if (peers.owner && peers.transport == PeerTransport::kZeroMq && peers.advertise.empty() && IsAnyAddress(peers.bind)) {
    f.Error("", fmt::format("peers.advertise is \"\" with peers.owner and peers.bind = \"{}\": must be an address that "
                            "other hosts reach",
                            FormatBind(peers.bind)));
  }
}

// A server takes some 9 us for each delivery, measured with 200 hosts, and a mesh needs one for each pair of hosts.
constexpr double kDeliverySeconds = 9e-6;
constexpr double kMeshHosts = 300;

void CheckNatsFiles(Findings& f) {
  const auto& peers = f.settings().peers;
  std::size_t tls = 0;
  for (const std::string& text : peers.nats) {
    const NatsServer server = *ParseNatsServer(text);
    tls += server.tls;
    if (server.at.is_loopback()) continue;
    if (!server.tls) f.Error("", fmt::format("peers.nats = \"{}\" is not loopback: must begin with tls://", text));
    if (!peers.nats_credentials.empty() || !peers.nats_certificate.empty()) continue;
    f.Error("", fmt::format("peers.nats = \"{}\" is not loopback: must have peers.nats_credentials or "
                            "peers.nats_certificate with it, or anybody could speak for a host",
                            text));
  }
  if (tls != 0 && tls != peers.nats.size()) f.Error("", "peers.nats has nats:// and tls://: must be all of one kind");
  if (tls != 0 && peers.nats_ca.empty()) {
    f.Error("", "peers.nats_ca is \"\": must be a file such as \"/etc/ssl/certs/ca-certificates.crt\" with tls://");
  }
  if (peers.nats_certificate.empty() != peers.nats_key.empty()) {
    f.Error("", "one of peers.nats_certificate and peers.nats_key is \"\": must be both or neither");
  }
  if (tls == 0 && !peers.nats_certificate.empty()) {
    f.Error("", "peers.nats_certificate with nats://: must be tls://");
  }
}

void CheckNats(Findings& f) {
  const auto& peers = f.settings().peers;
  if (peers.transport != PeerTransport::kNats) {
    if (!peers.nats.empty()) f.Error("", "peers.nats with peers.transport = \"zeromq\": must be \"nats\"");
    return;
  }
  if (peers.nats.empty()) f.Error("", "peers.nats is []: must name a server with peers.transport = \"nats\"");
  if (peers.spread != PeerSpread::kOwners) {
    const double deliveries = kMeshHosts * kMeshHosts / Seconds(peers.period);
    f.Error("",
            fmt::format(
                "peers.transport = \"nats\" with peers.spread = \"all\": must be \"owners\", because each "
                "report to everybody is a delivery for each pair of hosts: {:g} hosts need {:.0f} a second, {:.0f} % "
                "of a server's core, and twice as many hosts four times that",
                kMeshHosts, deliveries, 100 * deliveries * kDeliverySeconds));
  }
  if (!peers.connect.empty()) {
    f.Error("", "peers.connect with peers.transport = \"nats\": must be [], because hosts connect to peers.nats");
  }
  if (!peers.key_file.empty() || !peers.authorized_keys.empty()) {
    f.Error("",
            "peers.key_file or authorized_keys with peers.transport = \"nats\": must be \"\", because the server's "
            "permissions bind what a host says to it");
  }
  CheckNatsFiles(f);
}

}    // namespace

void CheckOwned(Findings& f) {
  const Settings& s = f.settings();
  if (s.peers.spread != PeerSpread::kOwners) return;
  for (std::size_t i = 0; i < s.rules.size(); ++i) {
    const Rule& rule = s.rules[i];
    if (rule.share != Share::kCapacity || rule.mode == Mode::kOff) continue;
    f.Error(f.rules[i], fmt::format("rule \"{}\": share = \"capacity\" with peers.spread = \"owners\": must be "
                                    "\"all\", because owners do not pass that on",
                                    rule.name));
  }
}

void CheckHostKeys(Findings& f, const HostSockets& s) {
  if (s.key_file.empty() != s.authorized_keys.empty()) {
    f.Error("", fmt::format("one of {0}.key_file and {0}.authorized_keys is \"\": must be both or neither", s.section));
  }
  if (!s.key_file.empty()) return;
  const auto complain = [&](std::string_view key, const std::string& address) {
    f.Error("",
            fmt::format("{0}.{1} = \"{2}\" is not loopback: must have {0}.key_file and {0}.authorized_keys with it, "
                        "or anybody could speak for a {3}",
                        s.section, key, address, s.whom));
  };
  if (s.bind.enabled() && !IsLoopback(s.bind)) complain("bind", FormatBind(s.bind));
  for (const std::string& entry : s.connect) {
    if (!ParsePeerEntry(entry)->is_loopback()) complain("connect", entry);
  }
}

void CheckPeers(Findings& f) {
  const auto& peers = f.settings().peers;
  CheckSpread(f);
  CheckEtcd(f);
  CheckNats(f);
  if (!peers.enabled() || peers.transport == PeerTransport::kNats) return;
  if (!peers.bind.enabled()) {
    f.Error("", "peers.bind is \"\": must be an address, since peers.connect names other hosts");
  }
  CheckHostKeys(f, {"peers", "peer", peers.bind, peers.connect, peers.key_file, peers.authorized_keys});
  if (peers.key_file.empty() && !peers.advertise.empty() && !ParsePeerEntry(peers.advertise)->is_loopback()) {
    f.Error("", fmt::format("peers.advertise = \"{}\" is not loopback: must have peers.key_file and "
                            "peers.authorized_keys with it, or anybody could speak for a peer",
                            peers.advertise));
  }
}

double HostsOf(const Settings& settings) {
  const auto& peers = settings.peers;
  if (peers.transport == PeerTransport::kNats) return static_cast<double>(peers.named() + 1);
  const bool listed =
      std::find(peers.connect.begin(), peers.connect.end(), FormatBind(peers.bind)) != peers.connect.end();
  return static_cast<double>(peers.connect.size() + (listed ? 0 : 1));
}

}    // namespace dthrottle
