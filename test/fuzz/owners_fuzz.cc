// A fleet whose list of owners changes while one host says, in its own name, what the input says. Never a crash, and in
// the end no owner waits for anything. Where the liar owns nothing, and so is not believed about the list, the others
// have one list as well, and every hit that they served is counted once.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bus/codec.h"
#include "bus/owners/owners.h"
#include "lab/fleet.h"
#include "test/support/accuracy.h"
#include "test/support/input.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;
using lab::After;
using Names = std::vector<std::string>;

constexpr std::uint32_t kHosts = 4, kOwner = 1, kOther = 3;

lab::FleetOptions FleetOfFour() {
  lab::FleetOptions options;
  options.hosts = kHosts;
  options.owners = OwnerNames(2);
  options.rules = Rules("[[rule]]\nname=\"default\"\nburst=1000000\nrate=0.1\nshare=\"forecast\"\n");
  options.period = 200ms;
  options.lanes = {.delay = 10ms};
  options.started_within = 100ms;
  return options;
}

class Liar {
 public:
  Liar(lab::Fleet& fleet, std::uint32_t number) : fleet_(fleet), number_(number) {}

  // A frame to an owner or another host, as a request or as an answer.
  void Lie(Input& input) {
    const std::uint32_t to = (number_ + 1 + input.Byte() % (kHosts - 1)) % kHosts;
    const auto channel = input.Byte() % 2 == 0 ? lab::Channel::kRequest : lab::Channel::kAnswer;
    auto frame = std::make_shared<std::string>();
    codec_.Encode(Made(input, to), *frame);
    fleet_.network().Send({channel, number_, to, 0, std::move(frame)}, fleet_.now());
  }

 private:
  // An epoch that was, is, or may be.
  std::uint64_t Epoch(Input& input, std::uint32_t of) {
    const auto owners = fleet_.host(of).exchange().owners();
    switch (input.Byte() % 4) {
      case 0:
        return owners->epoch();
      case 1:
        return Owners(owners->names(), owners->number() + 1, owners->names()).epoch();
      case 2:
        return Owners(OwnerNames(2)).epoch();
      default:
        return input.Number();
    }
  }

  Message Made(Input& input, std::uint32_t to) {
    Message m;
    const int kind = 1 + input.Byte() % static_cast<int>(MessageKind::kTaken);
    m.kind = static_cast<MessageKind>(kind);
    m.sender = lab::HostName(number_);
    m.incarnation = input.Byte() % 2 == 0 ? 1 + input.Byte() : input.Number();
    m.sequence = input.Number();
    m.ring_low = input.Byte();
    m.to = m.from = fleet_.host(number_).clock().Local(fleet_.now());
    m.period = 200ms;
    m.last = input.Byte() % 2 == 0;
    m.snapshot = input.Number();
    m.owners = Epoch(input, to);
    m.stream = Epoch(input, to);
    m.parts = input.Number();
    if (m.kind == MessageKind::kOwners) {
      for (std::uint32_t i = 0, some = 1 + input.Byte(); i < kHosts; ++i) {
        if ((some >> i & 1) != 0) m.names.list.push_back(lab::HostName(i));
        if ((some >> (i + 4) & 1) != 0) m.before.list.push_back(lab::HostName(i));
      }
      if (m.names.list.empty()) m.names.list = OwnerNames(1);
      const std::uint64_t number = std::clamp<std::uint64_t>(input.Number(), 1, Owners::kNumberMost);
      m.owners = Owners(m.names.list, number).epoch();
    }
    if (m.kind == MessageKind::kClosed || m.kind == MessageKind::kRepeat) {
      const std::uint64_t first = input.Number();
      m.ranges.push_back({first, std::max(first, input.Number())});
    }
    if (m.kind == MessageKind::kReport || m.kind >= MessageKind::kLevels) {
      if (m.kind <= MessageKind::kNear || m.kind == MessageKind::kHandover) {
        m.entries.Add({"lie-" + std::to_string(input.Byte() % 8), false}, 1 + input.Byte(), 0);
      }
    }
    return m;
  }

  lab::Fleet& fleet_;
  const std::uint32_t number_;
  Codec codec_;
};

bool Settled(lab::Fleet& fleet, std::uint32_t liar) {
  for (std::uint32_t i = 0; i < kHosts; ++i) {
    const ExchangeCounts counts = fleet.host(i).exchange().Counts();
    if (i != liar && counts.owners_awaited + counts.owners_giving != 0) return false;
  }
  return true;
}

bool EachHitOnce(lab::Fleet& fleet) {
  const auto owners = fleet.host(0).exchange().owners();
  for (const std::uint32_t i : {1u, 2u}) {
    if (fleet.host(i).exchange().owners()->epoch() != owners->epoch()) return false;
  }
  for (const lab::Account& account : fleet.ledger().accounts()) {
    lab::SimHost& owner = fleet.host(lab::HostNumber(owners->name(owners->Of({account.tag, false}))));
    if (std::abs(owner.Level(account.tag, fleet.now()) - account.Level(fleet.now())) > 0.5) return false;
  }
  return true;
}

}    // namespace

void Play(Input& input) {
  const std::uint8_t shape = input.Byte();
  const std::uint32_t liar = shape % 2 == 0 ? kOther : kOwner;
  lab::Fleet fleet(FleetOfFour(), 1 + shape / 2);
  Liar lies(fleet, liar);
  std::uint32_t tags = 0;
  lab::WorldTime now = After(3s);
  fleet.Run(now);
  while (!input.over()) {
    const std::uint8_t what = input.Byte();
    if (what % 8 == 0) {
      fleet.SetOwners(what / 8 % 3, what % 16 == 0 ? Names{"host-0", "host-2"} : OwnerNames(2));
    } else if (what % 8 == 1) {
      fleet.Ask(what / 8 % 3, "tag-" + std::to_string(tags++ % 16), 1 + what / 8);
    } else if (what % 8 == 2) {
      fleet.Run(now += what * 2ms);
    } else {
      lies.Lie(input);
    }
  }
  // In the end all settings name the owners in force, so that everybody has their addresses.
  fleet.Run(now += 20s);
  const Names in_force = fleet.host(0).exchange().owners()->names();
  for (std::uint32_t i = 0; i < kHosts; ++i) fleet.SetOwners(i, in_force);
  fleet.Run(now + 45s);
  if (!Settled(fleet, liar)) std::abort();
  if (liar == kOther && !EachHitOnce(fleet)) std::abort();
}

}    // namespace dthrottle::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dthrottle::testing::Input input(data, std::min<std::size_t>(size, 600));
  dthrottle::testing::Play(input);
  return 0;
}
