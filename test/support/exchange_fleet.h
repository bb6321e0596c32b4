// Hosts with an Exchange each on the virtual network (lab/network.h), and behind each a limiter that is a list of tags
// with their hits. Nothing happens but in Run(), and the same seed gives the same.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bus/codec.h"
#include "bus/exchange.h"
#include "lab/sampling.h"
#include "lab/world.h"

namespace dthrottle::testing {

using namespace std::chrono_literals;
using lab::Channel;

class ExchangeFleet;

struct ExchangeHost final : Transport {
  ExchangeHost(ExchangeFleet& f, std::uint32_t i, std::string n) : fleet(f), index(i), name(std::move(n)) {}

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

  // To the host and over the link that the route names.
  void SendTo(const Route& route, Channel channel, const Frame& frame);

  ExchangeFleet& fleet;
  std::uint32_t index;
  std::string name;
  Duration skew{};    // of its clock
  Exchange::Options options;
  std::size_t to_limiter_items = 64;
  std::map<LinkId, std::optional<std::uint32_t>> links;    // to which host; none: to nobody

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

// `connection` is the link of the host that asked.
struct Packet : lab::Parcel {
  Message message;
};

class ExchangeFleet : public lab::World {
 public:
  explicit ExchangeFleet(std::uint64_t seed = 1) : World(kHostsMax, {.lossy = true}, seed) {
    network().filter = [this](const lab::Parcel& parcel) {
      return Passes(parcel) && !cut.contains(std::minmax(parcel.from, parcel.to));
    };
    World::Run(lab::After(now.time_since_epoch()));
  }

  ExchangeHost& Add(const std::string& name) {
    hosts.push_back(std::make_unique<ExchangeHost>(*this, static_cast<std::uint32_t>(hosts.size()), name));
    ExchangeHost& host = *hosts.back();
    host.options.name = name;
    host.options.version = "1.0";
    host.options.period = 1s;
    return host;
  }

  ExchangeHost& operator[](std::size_t i) { return *hosts[i]; }

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
      World::Run(World::now() + step);
      now = Instant(World::now().time_since_epoch());
      for (auto& host : hosts) {
        if (host->running) host->Work(now + host->skew);
      }
    }
  }

  void Deliver(lab::Parcel parcel) override {
    now = Instant(World::now().time_since_epoch());
    ExchangeHost& to = *hosts[parcel.to];
    if (!to.running) return;
    if (parcel.channel == Channel::kPublished && to.exchange->backlogged() && patient) {
      return Postpone(std::move(parcel), World::now() + 1ms);
    }
    const Instant then = now + to.skew;
    if (parcel.channel != Channel::kRequest) return to.exchange->OnAnswer(parcel.connection, *parcel.frame, then);
    to.exchange->OnRequest(std::to_string(parcel.from) + " " + std::to_string(parcel.connection),
                           identity.empty() ? hosts[parcel.from]->name : identity, *parcel.frame, then);
  }
  using World::Postpone;

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

  // Whether the filter lets it pass. Without one nobody wants to know what it says.
  bool Passes(const lab::Parcel& parcel) {
    if (!filter) return true;
    Packet packet{parcel, {}};
    codec.Decode(*parcel.frame, packet.message);
    return filter(packet);
  }

  static constexpr std::size_t kHostsMax = 16;
  Instant now = FromNanoseconds(100'000'000'000);    // the world's time
  Duration step = 5ms;                               // between two looks of a host at its work
  lab::LaneOptions& lanes = network().options();
  std::set<std::pair<std::uint32_t, std::uint32_t>> cut;    // pairs between which nothing goes
  std::function<bool(const Packet&)> filter;                // false: lost
  std::string identity;                                     // of all requests, instead of the true one
  bool patient = true;                                      // reads nothing while an exchange is backlogged
  std::vector<std::unique_ptr<ExchangeHost>> hosts;
  Codec codec;
};

inline void ExchangeHost::SendTo(const Route& route, Channel channel, const Frame& frame) {
  const std::size_t space = route.find(' ');
  fleet.network().Send({channel, index, static_cast<std::uint32_t>(std::stoul(route.substr(0, space))),
                        static_cast<LinkId>(std::stoul(route.substr(space + 1))), frame},
                       fleet.World::now());
}

inline bool ExchangeHost::Publish(const Route& route, const Frame& frame) {
  SendTo(route, Channel::kPublished, frame);
  return true;
}

inline void ExchangeHost::Ask(LinkId link, const Frame& frame) {
  if (const auto it = links.find(link); it != links.end() && it->second) {
    fleet.network().Send({Channel::kRequest, index, *it->second, link, frame}, fleet.World::now());
  }
}

inline void ExchangeHost::Answer(const Route& route, const Frame& frame) {
  SendTo(route, Channel::kAnswer, frame);
}

inline void ExchangeHost::Start(Instant now) {
  running = true;
  now += skew;
  links.clear();
  outgoing.clear();
  to_peers = std::make_unique<ToPeersRing>(16);
  from_peers = std::make_unique<FromPeersRing>(to_limiter_items);
  exchange = std::make_unique<Exchange>(options, *to_peers, *from_peers, *this, Prng(fleet.prng().Next()), now);
  reported = now;
  next_report = now + options.period;
  for (auto& other : fleet.hosts) {
    for (const auto& [link, target] : other->links) {
      if (target == index && other->running) other->exchange->OnConnected(link);
    }
  }
}

inline void ExchangeHost::Link(const std::string& address, Instant now) {
  LinkId link = 100 + static_cast<LinkId>(links.size());
  std::optional<std::uint32_t> target;
  // "b#2" is a second address of "b".
  for (auto& other : fleet.hosts) {
    if (other->name == address.substr(0, address.find('#'))) target = other->index;
  }
  if (target && !links.contains(*target)) link = *target;
  links[link] = target;
  exchange->AddLink(link, address, now + skew);
}

inline ToPeers& ExchangeHost::Item(ToPeers::Kind kind, Instant now, std::uint64_t number) {
  ToPeers& item = outgoing.emplace_back();
  item.kind = kind;
  item.from = reported;
  item.to = now;
  item.snapshot = number;
  return item;
}

inline void ExchangeHost::Report(Instant now) {
  for (std::size_t i = 0; i < unreported.size(); ++i) {
    if (i % entries_per_frame == 0) Item(ToPeers::Kind::kHits, now);
    outgoing.back().entries.Add({unreported[i].first, false}, unreported[i].second, 0);
    if (options.account) options.account->TookHits(unreported[i].second);
  }
  unreported.clear();
  Item(ToPeers::Kind::kPeriodEnd, now);
  reported = now;
}

inline void ExchangeHost::GiveSnapshot(std::uint64_t number, Instant now) {
  // As the real one: what is in the table has been handed over.
  for (const auto& [tag, hits] : unreported) {
    Item(ToPeers::Kind::kHits, now).entries.Add({tag, false}, hits, 0);
    if (options.account) options.account->TookHits(hits);
  }
  unreported.clear();
  Item(ToPeers::Kind::kSnapshotBegin, now, number);
  std::size_t i = 0;
  for (const auto& [tag, hits] : table) {
    if (i++ % entries_per_part == 0) Item(ToPeers::Kind::kSnapshotPart, now, number);
    outgoing.back().entries.Add({tag, false}, hits, 0);
  }
  Item(ToPeers::Kind::kSnapshotEnd, now, number);
}

inline void ExchangeHost::Work(Instant now) {
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
