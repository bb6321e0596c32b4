// What an owner tells of its tags, and to whom (protocol/owners.md).
#include "share/owners/owning.h"

#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "share/debit/debits.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

Instant At(double seconds) {
  return FromNanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

// An owner of "t" that hears of hosts by their numbers.
class Owner {
 public:
  explicit Owner(const std::string& rule) : host_("[[rule]]\nname=\"r\"\nshare=\"forecast\"\n" + rule) {
    ways().Get<Debits>().ShareWith(3, 1s);
    ways().WatchTags(4096, [] {});
    ways().SetHeard(true);
  }

  // The host says so.
  void Names(std::uint32_t peer, std::uint64_t hits, double demand, Instant now) {
    Entries said;
    Besides besides;
    if (demand > 0) besides.demand = static_cast<std::uint64_t>(1000 * demand);
    said.Add({"t", false}, hits, 0, besides);
    ways().Get<Debits>().Debit(said, 0, 1, now - 10ms, now, now, peer);
    owning_.Named(said, 0, 1, peer, now, now);
  }
  // Returns how many entries the answer to what it has said has.
  std::size_t Answers(std::uint32_t peer, Instant now) {
    owning_.Counted(peer, ++reports_, now);
    return Told(peer, now);
  }
  std::size_t Hears(std::uint32_t peer, std::uint64_t hits, double demand, Instant now) {
    Names(peer, hits, demand, now);
    return Answers(peer, now);
  }

  Owning& owning() { return owning_; }

 private:
  Ways& ways() { return host_.limiter->ways(); }

  std::size_t Told(std::uint32_t peer, Instant now) {
    while (owning_.next() < now + 500ms) owning_.Tell(now = std::max(now, owning_.next()));
    std::optional<std::size_t> told;
    for (ToPeers item; ring_.TryPop(item);) {
      if (item.kind == ToPeers::Kind::kLevels && item.peer == peer && item.counted == reports_) {
        told = told.value_or(0) + item.entries.size();
      }
    }
    REQUIRE(told);    // each report is answered
    return *told;
  }

  testing::Host host_;
  ToPeersRing ring_{64};
  Owning owning_{ways(), ring_};
  std::uint64_t reports_ = 0;
};

TEST_CASE("a tag whose bucket is nearly full is left out of answers, until it is not and once after that") {
  Owner owner("burst=1000\nrate=1000\n");
  owner.Hears(0, 1, 0, At(1));                    // not looked at yet
  CHECK(owner.Hears(1, 10, 0, At(2)) == 0);
  CHECK(owner.Hears(0, 40, 0, At(3)) == 0);       // a twentieth is missing now, and refilled at once
  CHECK(owner.Hears(1, 300, 0, At(4)) == 0);      // it was so when the report came
  CHECK(owner.Hears(0, 1, 0, At(4.01)) == 1);
  CHECK(owner.Hears(1, 1, 0, At(10)) == 1);
  CHECK(owner.Hears(0, 1, 0, At(11)) == 1);       // it is full again, which the host may not believe
  CHECK(owner.Hears(1, 1, 0, At(12)) == 0);
  CHECK(owner.Hears(0, 1, 0, At(13)) == 0);
  CHECK(owner.Hears(1, 1, 0, At(14)) == 0);
}

TEST_CASE("an owner tells nothing more of a tag that another host owns by now, until it is named again") {
  Owner owner("burst=1000\nrate=1000\n");
  const std::vector<std::string> names = {"a", "b"};
  const auto keep = [&](std::uint64_t number, bool ours) {
    const auto owners = std::make_shared<Owners>(names, number, std::vector<std::string>{"a"});
    const std::size_t of = owners->Of({"t", false});
    owner.owning().KeepOwned(owners, owners->name(ours ? of : 1 - of));
  };
  owner.Hears(0, 300, 0, At(1));
  owner.Names(1, 300, 0, At(2));
  keep(2, true);
  CHECK(owner.Answers(1, At(2)) == 1);
  owner.Names(1, 300, 0, At(3));
  keep(3, false);
  CHECK(owner.owning().counts().tags == 1);
  CHECK(owner.Answers(1, At(3)) == 0);
  CHECK(owner.owning().counts().tags == 0);
  CHECK(owner.Hears(1, 300, 0, At(3.1)) == 1);
  CHECK(owner.owning().counts().tags == 1);
}

TEST_CASE("a bucket that fills slowly is nearly full with no more missing than flows in during a period") {
  Owner owner("burst=1000\nrate=2\n");
  owner.Hears(0, 1, 0, At(1));
  owner.Hears(1, 1, 0, At(100));
  CHECK(owner.Hears(0, 3, 0, At(200)) == 0);
  CHECK(owner.Hears(1, 1, 0, At(200.1)) == 1);
}

TEST_CASE("a host that was told a level is told again three periods later, because that may be lost") {
  Owner owner("burst=1000\nrate=1\n");
  owner.Hears(0, 300, 0, At(1));
  CHECK(owner.Hears(0, 10, 0, At(5)) == 0);       // it was told nothing
  owner.Hears(1, 10, 0, At(6));
  CHECK(owner.Hears(0, 10, 0, At(7)) == 1);
  CHECK(owner.Hears(0, 10, 0, At(8)) == 0);
  CHECK(owner.Hears(0, 10, 0, At(9.9)) == 0);
  CHECK(owner.Hears(0, 10, 0, At(10.1)) == 1);
  CHECK(owner.Hears(0, 10, 0, At(11)) == 0);
}

TEST_CASE("a tag that is watched is told of, however full its bucket is") {
  Owner owner("burst=1000\nrate=1000\n");
  owner.Hears(0, 1, 0, At(1));
  CHECK(owner.Hears(1, 1, 0, At(2)) == 0);
  owner.Hears(0, 50, 50, At(3));
  owner.Hears(0, 10, 50, At(3.4));
  CHECK(owner.Hears(1, 1, 0, At(3.8)) == 1);
}

}    // namespace
}    // namespace dthrottle
