// Three to five hosts share hits over a network that loses, doubles and delays, and the last of them lies: on its own
// links and connections it says what the input says, in its own name and in others'. Never a crash, and once the
// trouble is over every hit of the honest hosts has been debited at each of the others exactly once.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "test/support/network.h"

using namespace dthrottle;
using namespace std::chrono_literals;
using dthrottle::testing::Network;
using dthrottle::testing::NetworkHost;

namespace {

// What the input decides, a byte at a time; zeros when it is over.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}
  bool over() const { return at_ == end_; }
  std::uint8_t Byte() { return over() ? std::uint8_t{0} : *at_++; }
  // A number near 0, near 2^n or near 2^64.
  std::uint64_t Number() {
    const std::uint8_t shape = Byte();
    if (shape < 128) return shape;
    return (shape == 255 ? ~std::uint64_t{0} : std::uint64_t{1} << (shape & 63)) - (Byte() & 3);
  }
  std::string Rest(std::size_t most) {
    const auto n = std::min<std::size_t>(most, static_cast<std::size_t>(end_ - at_));
    std::string bytes(reinterpret_cast<const char*>(at_), n);
    at_ += n;
    return bytes;
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

struct Fleet : Network {
  Fleet(std::size_t hosts_of_all, std::uint64_t seed) : Network(seed) {
    step = 20ms;
    for (std::size_t i = 0; i < hosts_of_all; ++i) {
      NetworkHost& host = Add(std::string(1, static_cast<char>('a' + i)));
      host.options.identities_proven = true;
      host.skew = 1s * static_cast<int>(100 * i);
    }
    Mesh();
    Run(3s);
  }
  std::size_t honest() const { return hosts.size() - 1; }
  int liar() const { return static_cast<int>(honest()); }

  void Hit(std::size_t host, std::uint8_t hits) {
    const std::string tag = hosts[host]->name + std::to_string(told++);
    hosts[host]->Hit(tag, hits);
    truth[tag] = {host, hits};
  }

  // Whatever the codec can write, to one of the honest.
  void Lie(Input& input) {
    const std::size_t to = input.Byte() % honest();
    const bool answer = input.Byte() % 2 == 0;
    std::string frame;
    if (input.Byte() % 8 == 0) {
      frame = input.Rest(input.Byte());
    } else {
      Message m;
      m.kind = static_cast<MessageKind>(1 + input.Byte() % 9);
      m.sender = hosts[input.Byte() % hosts.size()]->name;
      m.incarnation = input.Number();
      m.sequence = input.Number();
      m.ring_low = input.Number();
      m.from = FromNanoseconds(static_cast<std::int64_t>(input.Number()));
      m.to = FromNanoseconds(static_cast<std::int64_t>(input.Number()));
      m.period = Duration(static_cast<std::int64_t>(input.Number()));
      m.snapshot = input.Number();
      m.ranges.push_back({input.Number(), input.Number()});
      m.positions.push_back({hosts[input.Byte() % hosts.size()]->name, input.Number(), input.Number()});
      m.entries.Add({"lie", false}, 1 + input.Number() % kHitsMax, 0);
      frame = Encode(m);
    }
    Exchange& exchange = *hosts[to]->exchange;
    const Instant then = now + hosts[to]->skew;
    if (answer) return exchange.OnAnswer(static_cast<LinkId>(liar()), frame, then);
    exchange.OnRequest(std::to_string(liar()) + " " + std::to_string(to), hosts.back()->name, frame, then);
  }

  struct Truth {
    std::size_t host;
    std::uint64_t hits;
  };
  std::map<std::string, Truth> truth;
  int told = 0;
};

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, std::min<std::size_t>(size, 600));
  Fleet fleet(3 + input.Byte() % 3, 1 + input.Byte());
  while (!input.over()) {
    const std::uint8_t what = input.Byte();
    switch (what % 6) {
      case 0: {
        const std::size_t host = input.Byte() % fleet.honest();
        fleet.Hit(host, static_cast<std::uint8_t>(1 + input.Byte() % 100));
        break;
      }
      case 1:
        fleet.Run(20ms * (1 + input.Byte()));
        break;
      case 2:
        fleet.lost = input.Byte() % 50;
        fleet.doubled = input.Byte() % 50;
        fleet.jitter = 1ms * (input.Byte() * 4);
        break;
      default:
        fleet.Lie(input);
    }
  }
  for (std::size_t host = 0; host < fleet.honest(); ++host) fleet.Hit(host, 1);
  fleet.lost = fleet.doubled = 0;
  fleet.jitter = 1ms;
  fleet.Run(30s);
  for (std::size_t host = 0; host < fleet.honest(); ++host) {
    for (const auto& [tag, truth] : fleet.truth) {
      if (truth.host != host && fleet[host].debits[tag] != truth.hits) std::abort();
    }
  }
  return 0;
}
