// What an orderly stop has left, with bytes changed at some places: it is gone on with or not, and whatever is gone on
// with works. The input says which bytes: (place, difference), three bytes each.
#include <cstdint>
#include <cstdlib>
#include <string>
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

// Three hosts that divide a tag; the life is that of the first, with gifts, a log, and a client's log.
struct Dividers {
  Dividers() {
    for (int i = 0; i < 3; ++i) hosts.push_back(Make(i, {}));
    const TagDemand much{{1, 1}, 1, 2.0}, little{{2, 2}, 1, 0.1};
    for (auto& host : hosts) host->SetDemand({&little, 1}, now);
    hosts[0]->SetDemand({&much, 1}, now);
    Run(80);
    if (hosts[0]->Counts(now).gifts + hosts[1]->Counts(now).gifts == 0) std::abort();
    life = hosts[0]->Life();
  }
  std::unique_ptr<CapacityExchange> Make(int i, std::string its_life) {
    return std::make_unique<CapacityExchange>(
        CapacityExchange::Options{.name = names[i], .incarnation = 1, .life = std::move(its_life)},
        CapacitySettings{.members = {"a", "b", "c"}, .graph = CompleteTopology(3), .tags_max = 100}, wires[i], Prng(1),
        now);
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
  Instant now = Instant(1s);
  std::string life;
};

void TryCapacity(auto change) {
  Dividers d;
  d.hosts[0].reset();
  d.hosts[0] = d.Make(0, change(d.life));
  std::vector<TagShare> shares;
  while (d.hosts[0]->TakeShares(shares)) continue;
  d.Run(30);
}

void TryExchange(auto change) {
  const auto make = [](std::string life, Wire& wire, ToPeersRing& to, FromPeersRing& from, Instant now) {
    Exchange::Options options;
    options.name = "a";
    options.period = 1s;
    options.life = std::move(life);
    return std::make_unique<Exchange>(std::move(options), to, from, wire, Prng(1), now);
  };
  Wire wire;
  ToPeersRing to(8);
  FromPeersRing from(8);
  Instant now(10s);
  auto before = make("", wire, to, from, now);
  for (int i = 0; i < 3; ++i) {
    ToPeers item;
    item.kind = ToPeers::Kind::kPeriodEnd;
    item.from = item.to = now;
    item.entries.Add({"tag", false}, 3, 0);
    to.TryPush(std::move(item));
    before->Tick(now += 1s);
  }
  before->AddLink(1, "b", now);
  before->Drain(now);
  auto after = make(change(before->Life(now)), wire, to, from, now);
  after->AddLink(1, "b", now);
  for (int i = 0; i < 30; ++i) after->Tick(now += 1s);
  after->Peers(now);
  after->Drain(now);
  after->Life(now);
}

void TryLeases(auto change) {
  const auto make = [] {
    return lease::LeaseServer({.id = "n"}, *lease::Templates::Make({{.identifier_glob = "*", .capacity = 10}}));
  };
  auto before = make(), after = make();
  const auto at = [](int s) { return BootInstant(std::chrono::seconds(s)); };
  before.BecomeMaster({.epoch = 7});
  const lease::ResourceRequest request{.resource = "r", .wants = 8};
  for (const char* client : {"a", "b"}) before.GetCapacity(client, {&request, 1}, at(100));
  if (!after.Resume(change(before.Keep()))) return;
  for (int s = 100; s < 300; s += 20) {
    after.Expire(at(s));
    after.GetCapacity("c", {&request, 1}, at(s));
    after.Resources(at(s));
  }
  after.Keep();
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
