// Hosts with an Exchange each on a network in memory that loses, doubles and delays what it is told to, and behind each
// a limiter that is a list of tags with their hits. Nothing happens but in Run(), and the same seed gives the same.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "report/codec.h"
#include "report/exchange.h"

namespace dthrottle::testing {

using namespace std::chrono_literals;

class Network;

struct NetworkHost final : Transport {
  NetworkHost(Network& n, int i, std::string host_name) : network(n), index(i), name(std::move(host_name)) {}

  bool Publish(const Route& route, const Frame& frame) override;
  void Ask(LinkId link, const Frame& frame) override;
  void Answer(const Route& route, const Frame& frame) override;

  void Start(Instant now);
  void Link(const std::string& address, Instant now);    // the link is the number of the host so named, or a new one
  void Hit(const std::string& tag, std::uint64_t hits = 1) {
    table[tag] += hits;
    unreported.push_back({tag, hits});
  }
  void Work(Instant now);
  void Report(Instant now);
  void GiveSnapshot(std::uint64_t number, Instant now);
  ToPeers& Item(ToPeers::Kind kind, Instant now, std::uint64_t number = 0);

  PeerStatus Peer(const std::string& address, Instant now) const {
    for (const PeerStatus& status : exchange->Peers(now)) {
      if (status.address == address) return status;
    }
    return {};
  }
  ExchangeCounts Counts() const { return exchange->Counts(); }

  Network& network;
  int index;
  std::string name;
  Duration skew{};    // of its clock
  Exchange::Options options;
  std::size_t to_limiter_items = 64;
  std::map<LinkId, int> links;    // to which host

  bool running = false, sharing = true, gives_snapshots = true, paused = false;
  std::size_t entries_per_frame = 1000, entries_per_part = 2;
  std::map<std::string, std::uint64_t> table, debits;    // hits by tag: with snapshots; of debits alone
  std::vector<FromPeers> received;
  std::vector<std::pair<std::string, std::uint64_t>> unreported;
  std::vector<ToPeers> outgoing;
  Instant reported{}, next_report{};

  std::unique_ptr<ToPeersRing> to_peers;
  std::unique_ptr<FromPeersRing> from_peers;
  std::unique_ptr<Exchange> exchange;
};

enum class Way { kPublished, kRequest, kAnswer };

struct Packet {
  int from, to;
  Way way;
  LinkId link;    // of who asked
  Frame frame;
  Message message;
};

class Network {
 public:
  explicit Network(std::uint64_t seed = 1) : prng(seed) {}

  NetworkHost& Add(const std::string& name) {
    hosts.push_back(std::make_unique<NetworkHost>(*this, static_cast<int>(hosts.size()), name));
    NetworkHost& host = *hosts.back();
    host.options.name = name;
    host.options.version = "1.0";
    host.options.period = 1s;
    return host;
  }

  NetworkHost& operator[](std::size_t i) { return *hosts[i]; }

  // Everybody starts and is linked to everybody else, and has joined when this returns.
  void Mesh() {
    for (auto& host : hosts) host->Start(now);
    for (auto& host : hosts) {
      for (auto& other : hosts) {
        if (host != other) host->Link(other->name, now);
      }
    }
    Run(900ms);
  }

  void Run(Duration time) {
    for (const Instant end = now + time; now < end;) {
      now += step;
      while (!packets.empty() && packets.begin()->first <= now) {
        const Packet packet = std::move(packets.begin()->second);
        packets.erase(packets.begin());
        Deliver(packet);
      }
      for (auto& host : hosts) {
        if (host->running) host->Work(now + host->skew);
      }
    }
  }

  void Send(int from, int to, Way way, LinkId link, const Frame& frame) {
    Packet packet{from, to, way, link, frame, {}};
    codec.Decode(*frame, packet.message);
    if (filter && !filter(packet)) return;
    if (cut.count({std::min(from, to), std::max(from, to)}) != 0) return;
    for (int copies = Happens(doubled) ? 2 : 1; copies > 0; --copies) {
      if (Happens(lost)) continue;
      const Duration late(jitter == Duration(0) ? 0 : static_cast<Duration::rep>(prng.Below(jitter.count())));
      packets.emplace(now + delay + late, packet);
    }
  }

  void Deliver(const Packet& packet) {
    NetworkHost& to = *hosts[packet.to];
    if (!to.running || (packet.way == Way::kPublished && to.exchange->backlogged() && patient)) {
      if (to.running) packets.emplace(now + 1ms, packet);
      return;
    }
    const Instant then = now + to.skew;
    if (packet.way != Way::kRequest) to.exchange->OnAnswer(packet.link, *packet.frame, then);
    if (packet.way == Way::kRequest) {
      const std::string& name = hosts[packet.from]->name;
      to.exchange->OnRequest(std::to_string(packet.from) + " " + std::to_string(packet.link),
                             identity.empty() ? name : identity, *packet.frame, then);
    }
  }

  // What can be said of `message` at all: the codec refuses to write the rest, and nobody could read it.
  static void Permit(Message& message) {
    const auto kind = std::clamp(static_cast<int>(message.kind), 1, static_cast<int>(MessageKind::kSnapshotEnd));
    message.kind = static_cast<MessageKind>(kind);
    const auto near = [](Instant t) { return std::clamp(t, Instant(-kSinceOriginMax), Instant(kSinceOriginMax)); };
    message.to = near(message.to);
    message.from = std::min(near(message.from), message.to);
    message.period = std::clamp(message.period, Duration(), kPeriodMax);
    if (message.kind != MessageKind::kRepeat) message.ranges.clear();
    for (SequenceRange& r : message.ranges) r.last = std::max(r.first, r.last);
    if (message.kind != MessageKind::kSnapshotEnd) message.positions.clear();
    if (message.kind != MessageKind::kReport && message.kind != MessageKind::kSnapshot) message.entries.Clear();
  }

  std::string Encode(Message message) {
    std::string frame;
    Permit(message);
    codec.Encode(message, frame);
    return frame;
  }

  bool Happens(int percent) { return percent > 0 && prng.Below(100) < static_cast<std::uint64_t>(percent); }

  Prng prng;
  Instant now = FromNanoseconds(100'000'000'000);
  Duration step = 5ms, delay = 1ms, jitter{};
  int lost = 0, doubled = 0;                    // percent
  std::set<std::pair<int, int>> cut;            // pairs between which nothing goes
  std::function<bool(const Packet&)> filter;    // false: lost
  std::string identity;                         // of all requests, instead of the true one
  bool patient = true;                          // reads nothing while an exchange is backlogged
  std::vector<std::unique_ptr<NetworkHost>> hosts;
  std::multimap<Instant, Packet> packets;
  Codec codec;
};

inline bool NetworkHost::Publish(const Route& route, const Frame& frame) {
  const std::size_t space = route.find(' ');
  network.Send(index, std::stoi(route.substr(0, space)), Way::kPublished,
               static_cast<LinkId>(std::stoul(route.substr(space + 1))), frame);
  return true;
}

inline void NetworkHost::Ask(LinkId link, const Frame& frame) {
  if (const auto it = links.find(link); it != links.end() && it->second >= 0) {
    network.Send(index, it->second, Way::kRequest, link, frame);
  }
}

inline void NetworkHost::Answer(const Route& route, const Frame& frame) {
  const std::size_t space = route.find(' ');
  network.Send(index, std::stoi(route.substr(0, space)), Way::kAnswer,
               static_cast<LinkId>(std::stoul(route.substr(space + 1))), frame);
}

inline void NetworkHost::Start(Instant now) {
  running = true;
  now += skew;
  links.clear();
  outgoing.clear();
  to_peers = std::make_unique<ToPeersRing>(16);
  from_peers = std::make_unique<FromPeersRing>(to_limiter_items);
  exchange = std::make_unique<Exchange>(options, *to_peers, *from_peers, *this, Prng(network.prng.Next()), now);
  reported = now;
  next_report = now + options.period;
  for (auto& other : network.hosts) {
    for (const auto& [link, target] : other->links) {
      if (target == index && other->running) other->exchange->OnConnected(link, now - skew + other->skew);
    }
  }
}

inline void NetworkHost::Link(const std::string& address, Instant now) {
  LinkId link = 100 + static_cast<LinkId>(links.size());
  int target = -1;
  // "b#2" is a second address of "b".
  for (auto& other : network.hosts) {
    if (other->name == address.substr(0, address.find('#'))) target = other->index;
  }
  if (target >= 0 && links.count(static_cast<LinkId>(target)) == 0) link = static_cast<LinkId>(target);
  links[link] = target;
  exchange->AddLink(link, address, now + skew);
}

inline ToPeers& NetworkHost::Item(ToPeers::Kind kind, Instant now, std::uint64_t number) {
  ToPeers& item = outgoing.emplace_back();
  item.kind = kind;
  item.from = reported;
  item.to = now;
  item.snapshot = number;
  return item;
}

inline void NetworkHost::Report(Instant now) {
  for (std::size_t i = 0; i < unreported.size(); ++i) {
    if (i % entries_per_frame == 0) Item(ToPeers::Kind::kHits, now);
    outgoing.back().entries.Add({unreported[i].first, false}, unreported[i].second, 0);
  }
  unreported.clear();
  Item(ToPeers::Kind::kPeriodEnd, now);
  reported = now;
}

inline void NetworkHost::GiveSnapshot(std::uint64_t number, Instant now) {
  // As the real one: what is in the table has been handed over.
  for (const auto& [tag, hits] : unreported) Item(ToPeers::Kind::kHits, now).entries.Add({tag, false}, hits, 0);
  unreported.clear();
  Item(ToPeers::Kind::kSnapshotBegin, now, number);
  std::size_t i = 0;
  for (const auto& [tag, hits] : table) {
    if (i++ % entries_per_part == 0) Item(ToPeers::Kind::kSnapshotPart, now, number);
    outgoing.back().entries.Add({tag, false}, hits, 0);
  }
  Item(ToPeers::Kind::kSnapshotEnd, now, number);
}

inline void NetworkHost::Work(Instant now) {
  FromPeers item;
  while (!paused && from_peers->TryPop(item)) {
    if (item.kind == FromPeers::Kind::kSnapshotWanted && gives_snapshots) GiveSnapshot(item.snapshot, now);
    for (const Entry& e : item.entries.list()) {
      const std::string tag(item.entries.tag(e).bytes);
      if (item.kind == FromPeers::Kind::kBuckets) {
        table[tag] = std::max(table[tag], e.value);
      } else {
        table[tag] += e.value;
        debits[tag] += e.value;
      }
    }
    received.push_back(std::move(item));
  }
  if (sharing && now >= next_report) {
    Report(now);
    next_report += options.period;
  }
  std::size_t sent = 0;
  while (sent < outgoing.size() && to_peers->TryPush(std::move(outgoing[sent]))) ++sent;
  outgoing.erase(outgoing.begin(), outgoing.begin() + static_cast<std::ptrdiff_t>(sent));
  exchange->Tick(now);
}

}    // namespace dthrottle::testing
