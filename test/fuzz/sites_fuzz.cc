// Three sites, of which the owner of one says, in its own name, what the input says. Never a crash, and the owners of
// the others count every hit of both their sites once.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "bus/codec.h"
#include "lab/fleet.h"
#include "test/support/host.h"
#include "test/support/input.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;
using lab::After;

constexpr std::uint32_t kHosts = 6, kSites = 3, kHonest = 4, kLiar = 4;    // owners are 0, 2 and 4

lab::FleetOptions ThreeSites() {
  lab::FleetOptions options;
  options.hosts = kHosts;
  options.owners = {"host-0", "host-2", "host-4"};
  options.rules =
      Rules("[[rule]]\nname=\"default\"\nburst=1000000\nrate=0.1\nshare=\"forecast\"\ncut_off=\"part\"\n"
            "in_flight=50\namong=\"level\"\npenalty={after=1000000, lasts=\"1m\"}\n");
  options.period = options.site_period = 200ms;
  options.lanes = {.delay = 10ms, .sites = kSites, .between_sites = 20ms};
  options.started_within = 100ms;
  return options;
}

Message Made(Input& input, const lab::Fleet& fleet) {
  Message m;
  m.kind = static_cast<MessageKind>(1 + input.Byte() % static_cast<int>(MessageKind::kTaken));
  m.sender = lab::HostName(kLiar);
  m.incarnation = input.Byte() % 2 == 0 ? 1 : input.Number();
  m.sequence = input.Number();
  m.ring_low = input.Byte();
  m.to = m.from = const_cast<lab::Fleet&>(fleet).host(kLiar).clock().Local(fleet.now());
  m.period = std::chrono::milliseconds(1 + input.Byte());
  m.snapshot = input.Number();
  m.hosts = input.Number();
  const std::uint8_t site = input.Byte();
  if (site % 4 != 0) m.site = "site-" + std::to_string(site % 4 - 1);
  if (m.kind == MessageKind::kOwners) m.names.list = {"host-4"}, m.owners = input.Number() | std::uint64_t{1} << 32;
  if (m.kind == MessageKind::kRepeat || m.kind == MessageKind::kClosed) {
    const std::uint64_t first = input.Number();
    m.ranges.push_back({first, std::max(first, input.Number())});
  }
  if (m.kind == MessageKind::kReport || m.kind == MessageKind::kSnapshot) {
    const std::uint8_t what = input.Byte();
    const std::string tag = "lie-" + std::to_string(what % 8);
    const std::uint64_t number = input.Number(), hits = 1 + number % kHitsMax;
    if (m.kind == MessageKind::kSnapshot) {
      m.entries.Add({tag, false}, hits, 0);
    } else if (what < 64) {
      m.entries.Add({tag, false}, hits, 0, {.demand = input.Number() % kDemandMax});
    } else if (what < 128) {
      m.entries.Add({tag, false}, 0, 0, {.places = number % kPlacesMax});
    } else if (what < 160) {
      m.entries.Add({tag, false}, 0, 0, {.refusals = 1 + number % kRefusalsMax});
    } else if (what < 192) {
      m.entries.Add({tag, false}, 0, 0, {.penalty = number % kPenaltyMsMax});
    } else {
      const std::uint64_t asked = input.Number() % MemberWord::kMost;
      const MemberWord word{number & MemberWord::kNameMax, asked, asked / 2, 1 + number % 5000};
      m.entries.Add({tag, false}, 0, 0, {.member = word});
    }
  }
  return m;
}

void Lie(Input& input, lab::Fleet& fleet, Codec& codec) {
  const std::uint32_t to = input.Byte() % 2 * 2;
  const auto channel = input.Byte() % 2 == 0 ? lab::Channel::kRequest : lab::Channel::kAnswer;
  auto frame = std::make_shared<std::string>();
  codec.Encode(Made(input, fleet), *frame);
  fleet.network().Send({channel, kLiar, to, 0, std::move(frame)}, fleet.now());
}

bool EachHitOnce(lab::Fleet& fleet) {
  for (const lab::Account& account : fleet.ledger().accounts()) {
    for (const std::uint32_t owner : {0u, 2u}) {
      const double off = fleet.host(owner).Level(account.tag, fleet.now()) - account.Level(fleet.now());
      if (std::abs(off) > 0.5) return false;
    }
  }
  return true;
}

void Play(Input& input) {
  lab::Fleet fleet(ThreeSites(), 1 + input.Byte());
  Codec codec;
  lab::WorldTime now = After(3s);
  fleet.Run(now);
  std::uint32_t tags = 0;
  while (!input.over()) {
    const std::uint8_t what = input.Byte();
    if (what % 8 == 1) {
      fleet.Ask(what / 8 % kHonest, "tag-" + std::to_string(tags++ % 16), 1 + what / 8);
    } else if (what % 8 == 2) {
      fleet.Run(now += what * 2ms);
    } else {
      Lie(input, fleet, codec);
    }
  }
  fleet.Run(now + 15s);
  if (!EachHitOnce(fleet)) std::abort();
}

}    // namespace
}    // namespace dthrottle::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dthrottle::testing::Input input(data, std::min<std::size_t>(size, 600));
  dthrottle::testing::Play(input);
  return 0;
}
