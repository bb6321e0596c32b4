// What an orderly stop has left, with bytes changed at some places: it is gone on with or not, and whatever is gone on
// with works. The input says which bytes: (place, difference), three bytes each.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/state.h"
#include "bus/exchange.h"
#include "capacity/capacity_exchange.h"
#include "capacity/topology.h"
#include "lease/server.h"

using namespace dthrottle;
using namespace std::chrono_literals;

namespace {

struct Wire final : CapacityTransport, Transport {
  void Send(std::string_view peer, std::string_view frame) override { sent.emplace_back(peer, frame); }
  void Save(std::string_view) override {}
  bool Publish(const Route&, const Frame&) override { return true; }
  void Ask(LinkId, const Frame&) override {}
  void Answer(const Route&, const Frame&) override {}
  std::vector<std::pair<std::string, std::string>> sent;
};

constexpr Instant kStopped(41s);

// Three hosts that divide a tag, with gifts, a log, and a client's log.
struct Dividers {
  using Lives = std::array<std::string, 3>;

  // They go on with these lives; empty ones begin.
  Dividers(const Lives& lives, BootInstant begin) : now(begin) {
    for (std::size_t i = 0; i < lives.size(); ++i) {
      hosts.push_back(std::make_unique<CapacityExchange>(
          CapacityExchange::Options{.name = names[i], .incarnation = 1, .life = lives[i]},
          CapacitySettings{.members = {"a", "b", "c"}, .graph = CompleteTopology(3), .tags_max = 100}, wires[i],
          Prng(1), now));
    }
  }
  void Run(int turns) {
    for (; turns > 0; --turns) {
      now += 500ms;
      for (auto& host : hosts) host->Tick(now);
      for (int hops = 0; hops < 4; ++hops) {
        for (int i = 0; i < 3; ++i) {
          for (const auto& [peer, frame] : std::exchange(wires[i].sent, {})) {
            hosts[static_cast<std::size_t>(peer[0] - 'a')]->OnMessage(names[i], frame, now);
          }
        }
      }
    }
  }

  const char* names[3] = {"a", "b", "c"};
  Wire wires[3];
  std::vector<std::unique_ptr<CapacityExchange>> hosts;
  BootInstant now;
};

// The lives of hosts that have given each other parts.
Dividers::Lives LivesOfDividers() {
  Dividers d({}, BootInstant(1s));
  const TagDemand much{{1, 1}, 1, 2.0}, little{{2, 2}, 1, 0.1};
  for (auto& host : d.hosts) host->SetDemand({&little, 1});
  d.hosts[0]->SetDemand({&much, 1});
  while (d.now < OnBootClock(kStopped)) d.Run(1);
  if (d.hosts[0]->Counts(d.now).gifts + d.hosts[1]->Counts(d.now).gifts == 0) std::abort();
  return {d.hosts[0]->Life(), d.hosts[1]->Life(), d.hosts[2]->Life()};
}

void TryCapacity(auto change) {
  static const Dividers::Lives lives = LivesOfDividers();
  Dividers d({change(lives[0]), lives[1], lives[2]}, OnBootClock(kStopped));
  std::vector<TagShare> shares;
  while (d.hosts[0]->TakeShares(shares)) continue;
  d.Run(30);
}

// A host that shares hits with one other.
struct Sharer {
  Sharer(std::string life, Instant begin) : now(begin) {
    Exchange::Options options;
    options.name = "a";
    options.period = 1s;
    options.life = std::move(life);
    exchange = std::make_unique<Exchange>(std::move(options), to, from, wire, Prng(1), now);
  }

  Wire wire;
  ToPeersRing to{8};
  FromPeersRing from{8};
  Instant now;
  std::unique_ptr<Exchange> exchange;
};

std::string LifeOfSharer() {
  Sharer s("", Instant(10s));
  while (s.now < kStopped) {
    ToPeers item;
    item.kind = ToPeers::Kind::kPeriodEnd;
    item.from = item.to = s.now;
    item.entries.Add({"tag", false}, 3, 0);
    s.to.TryPush(std::move(item));
    s.exchange->Tick(s.now += 1s);
  }
  s.exchange->AddLink(1, "b", s.now);
  s.exchange->Drain(s.now);
  return s.exchange->Life(s.now);
}

void TryExchange(auto change) {
  static const std::string life = LifeOfSharer();
  Sharer s(change(life), kStopped);
  s.exchange->AddLink(1, "b", s.now);
  for (int i = 0; i < 30; ++i) s.exchange->Tick(s.now += 1s);
  s.exchange->Peers(s.now);
  s.exchange->Drain(s.now);
  s.exchange->Life(s.now);
}

struct Leaser {
  lease::LeaseServer server{{.id = "n"}, *lease::Templates::Make({{.identifier_glob = "*", .capacity = 10}})};
  lease::ResourceRequest request{.resource = "r", .wants = 8};

  void Ask(const char* client, int s) { server.GetCapacity(client, {&request, 1}, At(s)); }
  static BootInstant At(int s) { return BootInstant(std::chrono::seconds(s)); }
};

std::string KeptOfLeaser() {
  Leaser l;
  l.server.BecomeMaster({.epoch = 7});
  for (const char* client : {"a", "b"}) l.Ask(client, 100);
  return l.server.Keep();
}

void TryLeases(auto change) {
  static const std::string kept = KeptOfLeaser();
  Leaser l;
  if (!l.server.Resume(change(kept))) return;
  for (int s = 100; s < 300; s += 20) {
    l.server.Expire(Leaser::At(s));
    l.Ask("c", s);
    l.server.Resources(Leaser::At(s));
  }
  l.server.Keep();
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto changed = [data, size](std::string bytes) {
    for (std::size_t i = 0; i + 3 <= size && !bytes.empty(); i += 3) {
      char& at = bytes[(data[i] * 256u + data[i + 1]) % bytes.size()];
      at = static_cast<char>(at ^ data[i + 2]);
    }
    return bytes;
  };
  TryCapacity(changed);
  TryExchange(changed);
  TryLeases(changed);
  return 0;
}
