// What a round of sharing costs: hosts in one process, every tag asked for at every host, and shares on the move.
//
//   capacity_bench [HOSTS [TAGS]]     default 1,000 hosts and 1,000 tags, 4 neighbours each
//
// A round is everything that comes of one tick of every host: beats and grants, gifts, log, acknowledgements, encoded
// and decoded. Hosts tick one after the other, spread over the interval as they are by chance in a fleet, and what one
// says has arrived before the next one ticks. CPU time of this thread; the wires cost nothing and lose nothing. In all
// of these rounds nearly every ledger gives on nearly every edge; with demands that rest, rounds get cheap. The first
// one also makes the logs of a million ledgers, and half of its time is the kernel's, for memory never used before.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/prng.h"
#include "capacity/capacity_exchange.h"
#include "capacity/topology.h"
#include "test/bench/measure.h"

using namespace dthrottle;
using namespace std::chrono_literals;

namespace {

struct Frame {
  std::uint32_t from, to;
  std::string bytes;
};

std::deque<Frame> wire;
std::unordered_map<std::string, std::uint32_t> numbers;

struct Wire final : CapacityTransport {
  std::uint32_t host = 0;
  void Send(std::string_view peer, std::string_view frame) override {
    wire.push_back({host, numbers.at(std::string(peer)), std::string(frame)});
  }
  void Save(std::string_view) override {}
};

}    // namespace

int main(int argc, char** argv) {
  const auto hosts = static_cast<std::uint32_t>(argc > 1 ? std::atoi(argv[1]) : 1000);
  const int tags = argc > 2 ? std::atoi(argv[2]) : 1000;
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < hosts; ++i) {
    names.push_back(fmt::format("host-{:04}", i));
    numbers[names.back()] = i;
  }
  std::vector<CapacityKey> keys;
  for (int t = 0; t < tags; ++t) keys.push_back(CapacityKeyOf(1, fmt::format("tag-{}", t), false));

  std::vector<Wire> wires(hosts);
  std::vector<std::unique_ptr<CapacityExchange>> fleet;
  BootInstant now = BootInstant(1000s);
  const CapacitySettings settings{.members = names, .graph = RegularTopology(hosts, 4)};
  for (std::uint32_t i = 0; i < hosts; ++i) {
    wires[i].host = i;
    fleet.push_back(std::make_unique<CapacityExchange>(CapacityExchange::Options{.name = names[i]}, settings, wires[i],
                                                       Prng(i), now));
  }
  std::uint64_t frames = 0, bytes = 0;
  const auto round = [&] {
    for (auto& host : fleet) {
      now += settings.interval / hosts;
      host->Tick(now);
      for (; !wire.empty(); wire.pop_front()) {
        const Frame& frame = wire.front();
        ++frames;
        bytes += frame.bytes.size();
        fleet[frame.to]->OnMessage(names[frame.from], frame.bytes, now);
      }
    }
  };
  const auto gifts = [&] {
    std::uint64_t sum = 0;
    for (const auto& host : fleet) sum += host->Counts(now).gifts;
    return sum;
  };
  for (int i = 0; i < 5; ++i) round();    // a generation, leases, best friends
  Prng prng(1);
  for (auto& host : fleet) {
    std::vector<TagDemand> demands;
    for (const CapacityKey& key : keys)
      demands.push_back({key, 1, static_cast<double>(prng.Below(2000)) / 1000 / hosts});
    host->SetDemand(demands);
  }
  std::printf("%u hosts, %d tags, everywhere asked for; CPU time of one thread\n", hosts, tags);
  std::vector<double> seconds;
  for (int i = 1; i <= 12; ++i) {
    const double before = CpuSeconds();
    const std::uint64_t given = gifts();
    frames = bytes = 0;
    round();
    seconds.push_back(CpuSeconds() - before);
    std::printf("round %2d: %6.3f s, %8lu gifts, %7lu frames, %5.1f MB\n", i, seconds.back(), gifts() - given, frames,
                static_cast<double>(bytes) / 1e6);
  }
  std::printf("a round: %.3f s (median; goal 1)\n", Median(seconds));
}
