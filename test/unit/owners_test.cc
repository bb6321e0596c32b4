// The owner of a tag, and what owners say (protocol/owners.md). Fleets with owners are in test/sim/owners_test.cc.
#include "bus/owners/owners.h"

#include <catch2/catch.hpp>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bus/codec.h"
#include "bus/exchange.h"
#include "bus/owners/counted_streams.h"
#include "bus/owners/two_way.h"
#include "test/support/examples.h"
#include "test/support/exchange_fleet.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

std::vector<std::string> Names(std::size_t n) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < n; ++i) names.push_back("owner-" + std::to_string(i));
  return names;
}

std::string OwnerOf(const Owners& owners, const std::string& tag) {
  return owners.name(owners.Of({tag, false}));
}

TEST_CASE("owners have equal parts of the tags") {
  const Owners owners(Names(8));
  std::map<std::string, int> parts;
  for (int i = 0; i < 80'000; ++i) ++parts[OwnerOf(owners, "login:" + std::to_string(i))];
  REQUIRE(parts.size() == 8);
  for (const auto& [name, tags] : parts) {
    CAPTURE(name);
    CHECK(tags > 9'500);
    CHECK(tags < 10'500);
  }
}

TEST_CASE("an owner that is added takes over an equal part, and no tag moves between the others") {
  const Owners before(Names(4)), after(Names(5));
  int moved = 0;
  for (int i = 0; i < 10'000; ++i) {
    const std::string tag = std::to_string(i);
    if (OwnerOf(before, tag) == OwnerOf(after, tag)) continue;
    CHECK(OwnerOf(after, tag) == "owner-4");
    ++moved;
  }
  CHECK(moved > 1'800);
  CHECK(moved < 2'200);
}

TEST_CASE("the order of the list means nothing, and its epoch changes with any name") {
  const Owners owners({"a", "b", "c"}), turned({"c", "a", "b"});
  CHECK(owners.epoch() == turned.epoch());
  for (int i = 0; i < 100; ++i) CHECK(OwnerOf(owners, std::to_string(i)) == OwnerOf(turned, std::to_string(i)));
  CHECK(owners.epoch() != Owners({"a", "b"}).epoch());
  CHECK(owners.epoch() != Owners({"a", "b", "d"}).epoch());
  CHECK(Owners({"ab", "c"}).epoch() != Owners({"a", "bc"}).epoch());
  CHECK(owners.epoch() != 0);
  CHECK(owners.Find("b") == 1);
  CHECK_FALSE(owners.Find("d").has_value());
}

TEST_CASE("the rule's name behind the digest of an over-long tag does not choose the owner") {
  const Owners owners(Names(16));
  const std::string digest = "0123456789abcdef";
  CHECK(owners.Of({digest + "logins", true}) == owners.Of({digest + "posts", true}));
}

Message Levels() {
  Message m;
  m.kind = MessageKind::kLevels;
  m.sender = "owner-1";
  m.incarnation = 3;
  m.sequence = 300;
  m.to = FromNanoseconds(3'000'000);
  m.period = std::chrono::milliseconds(2);
  m.hosts = 40;
  REQUIRE(m.entries.Add({"192.0.2.1"}, 1'500'000, 0, {.demand = 12'500, .back = 2'000}));
  REQUIRE(m.entries.Add({"alice"}, 0, 0));
  return m;
}

TEST_CASE("levels come back as they were said, and without what only reports say") {
  Codec codec;
  std::string frame;
  codec.Encode(Levels(), frame);
  Message back;
  REQUIRE(codec.Decode(frame, back) == DecodeFault::kNone);
  CHECK(back.sequence == 300);
  CHECK(back.hosts == 40);
  REQUIRE(back.entries.size() == 2);
  const Entry& first = back.entries.list()[0];
  CHECK(first.value == 1'500'000);
  CHECK(back.entries.demand(first) == 12'500u);
  CHECK(back.entries.back(first) == 2'000);
  CHECK(back.entries.list()[1].value == 0);

  Message report = Levels();
  report.kind = MessageKind::kReport;
  report.ring_low = 1;
  report.entries.Clear();
  REQUIRE(report.entries.Add({"alice"}, 1, 0, {.penalty = 5}));
  codec.Encode(report, frame);
  const std::string kind = "\xa6report", levels = "\xa6levels";
  frame.replace(frame.find(kind), kind.size(), levels);
  CHECK(codec.Decode(frame, back) == DecodeFault::kChecksum);    // and content, if the checksum were right
}

TEST_CASE("a list of owners comes back as it was said, whatever its length and epoch") {
  Codec codec;
  std::string frame;
  for (const std::uint64_t number : {std::uint64_t{1}, std::uint64_t{128}, std::uint64_t{300}, Owners::kNumberMost}) {
    for (const std::size_t n : {1, 2, 7, 8, 20, 64}) {
      CAPTURE(number, n);
      std::vector<std::string> before = Names(n - 1);
      const Owners owners(Names(n), number, before);
      Message m;
      m.kind = MessageKind::kOwners;
      m.sender = "owner-1";
      m.incarnation = 1;
      m.owners = owners.epoch();
      m.names.list = owners.names();
      m.before.list = owners.before();
      m.last = number == 300;
      codec.Encode(m, frame);
      Message back;
      REQUIRE(codec.Decode(frame, back) == DecodeFault::kNone);
      CHECK(back.names.list == owners.names());
      CHECK(back.before.list == owners.before());
      CHECK(back.owners == owners.epoch());
      CHECK(Owners::NumberOf(back.owners) == number);
    }
  }
}

TEST_CASE("the example of protocol/owners.md is what is sent") {
  const auto examples = testing::Examples("owners.md");
  REQUIRE(examples.size() == 1);
  Codec codec;
  std::string frame;
  codec.Encode(Levels(), frame);
  CHECK(testing::Hex(examples.at("Levels")) == testing::Hex(frame));
}

// ---- What an owner has counted ----

struct CountedBytes {
  std::vector<std::uint64_t> words = std::vector<std::uint64_t>(CountedStreams::kWords);
  CountedStreams Life(std::uint64_t key = 1) {
    return CountedStreams(CountedStreams::Words(words.data(), CountedStreams::kWords), {key, 2});
  }
};

TEST_CASE("the next life knows how far each stream of reports was counted, and of other streams nothing") {
  CountedBytes bytes;
  CountedStreams first = bytes.Life();
  CHECK_FALSE(first.any_before());
  const std::uint64_t one = first.NameOf("a", 1, 7), other = first.NameOf("b", 1, 7);
  first.Note(one, 4);
  first.Note(other, 9);
  first.Note(one, 5);
  CHECK_FALSE(first.Before(one));
  const CountedStreams next = bytes.Life();
  CHECK(next.Before(one) == 5);
  CHECK(next.Before(other) == 9);
  CHECK_FALSE(next.Before(next.NameOf("a", 2, 7)));
  CHECK_FALSE(next.Before(next.NameOf("a", 1, 8)));
  const CountedStreams of_another_table = bytes.Life(3);
  CHECK_FALSE(of_another_table.Before(of_another_table.NameOf("a", 1, 7)));
}

TEST_CASE("streams that were counted lately take the places of those that were not") {
  CountedBytes bytes;
  constexpr std::uint64_t kMany = 4 * CountedStreams::kSlots, kMost = CountedStreams::kSlots / 2;
  CountedStreams first = bytes.Life();
  for (std::uint64_t life = 1; life <= kMany; ++life) first.Note(first.NameOf("old", life, 1), life);
  CountedStreams second = bytes.Life();
  for (std::uint64_t life = 1; life <= kMost; ++life) second.Note(second.NameOf("new", life, 1), life);
  const CountedStreams third = bytes.Life();
  for (std::uint64_t life = 1; life <= kMost; ++life) REQUIRE(third.Before(third.NameOf("new", life, 1)) == life);
}

TEST_CASE("a route that a peer has chosen leads to that peer alone") {
  struct Wire final : Transport {
    void Ask(LinkId link, const Frame&) override { asked.push_back(link); }
    void Answer(const Route& route, const Frame&) override { answered.push_back(route); }
    bool Publish(const Route& route, const Frame&) override { return published.push_back(route), true; }
    std::vector<LinkId> asked;
    std::vector<Route> answered, published;
  } wire;
  TwoWay two_way(wire);
  const Frame frame = std::make_shared<const std::string>("frame");
  const std::vector<Route> chosen = {"link x", "link 5", "link 99999999999", "5", TwoWay::RouteOf(5).substr(0, 255)};
  for (const Route& route : chosen) {
    two_way.Answer(route, frame);
    CHECK(two_way.Publish(route, frame));
  }
  CHECK((wire.answered == chosen && wire.published == chosen && wire.asked.empty()));
  two_way.Answer(TwoWay::RouteOf(5), frame);
  CHECK(two_way.Publish(TwoWay::RouteOf(7), frame));
  CHECK(wire.asked == std::vector<LinkId>{5, 7});
}

// The exchange of one host, and owners that say to it what a test has them say.
struct Hearer final : Transport {
  using Kind = MessageKind;

  explicit Hearer(std::string name, std::uint64_t number = Owners::kFirst)
      : owners(std::make_shared<const Owners>(Names(3), number)) {
    Exchange::Options options;
    options.name = std::move(name);
    options.version = "1.0";
    options.period = 1s;
    options.owners = owners;
    exchange = std::make_unique<Exchange>(options, to_peers, from_peers, *this, Prng(1), now);
    for (std::size_t i = 0; i < owners->size(); ++i) {
      if (owners->name(i) != options.name) exchange->AddLink(LinkOf(i), "owner " + std::to_string(i), now);
    }
    Run(10s);
  }

  static LinkId LinkOf(std::size_t owner) { return static_cast<LinkId>(owner + 1); }

  Message Of(std::size_t owner, Kind kind) const {
    Message m;
    m.kind = kind;
    m.sender = owners->name(owner);
    m.incarnation = life;
    m.period = 1s;
    m.from = m.to = now;
    m.owners = owners->epoch();
    m.text = "1.0";
    return m;
  }
  void Say(std::size_t owner, const Message& message) {
    std::string frame;
    codec.Encode(message, frame);
    exchange->OnAnswer(LinkOf(owner), frame, now);
  }
  // Returns what the limiter hears of it.
  std::uint64_t SayHosts(std::size_t owner, std::uint64_t hosts) {
    Message m = Of(owner, Kind::kLevels);
    m.hosts = hosts;
    Say(owner, m);
    FromPeers item;
    while (from_peers.TryPop(item) && item.kind != FromPeers::Kind::kLevels) {
    }
    return item.hosts;
  }
  void SayList(std::size_t owner, std::uint64_t number) {
    const Owners list(Names(2), number, Names(3));
    Message m = Of(owner, Kind::kOwners);
    m.owners = list.epoch();
    m.names.list = list.names();
    m.before.list = list.before();
    m.last = true;
    Say(owner, m);
    Run(1s);
  }

  // All owners are in another life.
  void Restart() {
    ++life;
    for (std::size_t i = 0; i < owners->size(); ++i) exchange->OnConnected(LinkOf(i));
    Run(200ms);
  }

  // Owners answer each hello with a welcome.
  void Run(Duration time) {
    for (const Instant end = now + time; now < end; now += 50ms) {
      exchange->Tick(now);
      for (const auto& [link, hello] : std::exchange(hellos, {})) {
        Message m = Of(link - 1, Kind::kWelcome);
        m.snapshot = hello;
        Say(link - 1, m);
      }
    }
  }

  void Ask(LinkId link, const Frame& frame) override {
    Message m;
    REQUIRE(codec.Decode(*frame, m) == DecodeFault::kNone);
    if (m.kind == Kind::kHello) hellos[link] = m.snapshot;
  }
  void Answer(const Route&, const Frame&) override {}
  bool Publish(const Route&, const Frame&) override { return true; }

  Instant now = FromNanoseconds(100'000'000'000);
  std::uint64_t life = 1;    // of all owners
  Codec codec;
  std::shared_ptr<const Owners> owners;
  std::map<LinkId, std::uint64_t> hellos;
  ToPeersRing to_peers{64};
  FromPeersRing from_peers{64};
  std::unique_ptr<Exchange> exchange;
};

TEST_CASE("how many hosts there are is the median of what owners say, and no number is beyond belief") {
  Hearer host("web");
  CHECK(host.SayHosts(0, 40) == 40);
  CHECK(host.SayHosts(1, std::uint64_t{1} << 32) == 40);    // the lesser of two
  CHECK(host.exchange->Counts().implausible == 1);
  CHECK(host.SayHosts(2, 42) == 42);
  CHECK(host.SayHosts(1, 1) == 40);
  CHECK(host.SayHosts(0, 0) == 1);    // has not counted
  CHECK(host.SayHosts(0, 41) == 41);
  host.Restart();
  CHECK(host.SayHosts(2, 2) == 41);    // does not know all hosts yet: it said 42
  host.Run(4s);
  CHECK(host.SayHosts(2, 43) == 43);    // the others are silent
  CHECK(host.SayHosts(0, 44) == 41);    // what it said in the life before

  Hearer alone("web");
  CHECK(alone.SayHosts(1, std::uint64_t{1} << 40) == 65'536);
}

TEST_CASE("a list of owners far ahead of the one in force is not believed") {
  constexpr std::uint64_t kAhead = std::uint64_t{1} << 20;
  Hearer host("web");
  for (const std::uint64_t number : {Owners::kNumberMost, 2 + kAhead}) host.SayList(1, number);
  CHECK(host.exchange->owners()->number() == 1);
  CHECK(host.exchange->Counts().implausible == 2);
  host.SayList(1, 1 + kAhead);
  CHECK(host.exchange->owners()->number() == 1 + kAhead);
}

TEST_CASE("behind the last number of a list of owners none is proposed") {
  Hearer owner("owner-0", Owners::kNumberMost);
  owner.exchange->SetOwners(Names(2));
  owner.Run(30s);
  CHECK(owner.exchange->owners()->names() == Names(3));
}

TEST_CASE("a file that no owner has written is not taken for one") {
  CountedBytes bytes;
  static_cast<void>(bytes.Life());
  CHECK(CountedStreams::IsOurs({reinterpret_cast<const char*>(bytes.words.data()), 4096}));
  CHECK(CountedStreams::IsOurs(std::string(4096, '\0')));
  CHECK_FALSE(CountedStreams::IsOurs("[table]\nmemory = \"1GiB\"\n"));
}

// ---- Proposing a list ----

TEST_CASE("an owner proposes its list though a host that owns nothing asks again and again whether it may itself") {
  testing::ExchangeFleet fleet;
  const auto owners = std::make_shared<const Owners>(std::vector<std::string>{"b", "c"});
  for (const char* const name : {"a", "b", "c"}) fleet.Add(name).options.owners = owners;
  fleet.Mesh();
  Message asks;
  asks.kind = MessageKind::kOwners;
  asks.sender = "a";
  asks.incarnation = 1;
  asks.owners = asks.stream = owners->epoch();
  asks.names.list = owners->names();
  Exchange& b = *fleet[1].exchange;
  for (int i = 0; i < 40; ++i) {
    std::string frame;
    asks.to = fleet.now;
    fleet.codec.Encode(asks, frame);
    b.OnAnswer(0, frame, fleet.now);
    if (i == 10) b.SetOwners({"b"});
    fleet.Run(50ms);
  }
  CHECK(b.owners()->names() == std::vector<std::string>{"b"});
  CHECK(b.owners()->number() == owners->number() + 1);
  CHECK(b.Counts().implausible > 10);
}

// An owner that is alive and never done with anything: it answers all the time, and hands over one empty part after the
// other.
struct Procrastinator {
  static constexpr std::size_t kIts = 2;    // of the owners

  void Run(Duration time) {
    for (const Instant end = owner.now + time; owner.now < end;) {
      Message m = owner.Of(kIts, MessageKind::kClosed);
      m.owners = owner.exchange->owners()->epoch();
      m.stream = m.owners;
      owner.Say(kIts, m);
      if (++said % 10 == 0) {
        m.kind = MessageKind::kHandover;
        m.sequence = ++part;
        m.parts = std::uint64_t{1} << 40;
        owner.Say(kIts, m);
      }
      owner.Run(1s);
    }
  }

  Hearer owner{"owner-0"};
  int said = 0;
  std::uint64_t part = 0;
};

TEST_CASE("an owner that is never done with the change before keeps nobody from another one without end") {
  Procrastinator its;
  its.Run(2s);
  its.owner.exchange->SetOwners(Names(2));
  its.Run(50s);
  CHECK(its.owner.exchange->owners()->names() == Names(3));
  its.Run(15s);
  CHECK(its.owner.exchange->owners()->names() == Names(2));
}

TEST_CASE("an owner that hands over one empty part after the other keeps nobody waiting for its tags without end") {
  Procrastinator its;
  its.Run(2s);
  its.owner.SayList(1, 2);
  REQUIRE(its.owner.exchange->owners()->names() == Names(2));
  CHECK(its.owner.exchange->Counts().owners_awaited == 1);
  its.Run(50s);
  CHECK(its.part >= 5);
  CHECK(its.owner.exchange->Counts().owners_awaited == 1);
  its.Run(15s);
  CHECK(its.owner.exchange->Counts().owners_awaited == 0);
  CHECK(its.owner.exchange->Counts().owners_missed == 1);
}

TEST_CASE("an owner that asks again and again whether it may propose a list keeps nobody from it without end") {
  Hearer owner("owner-1");
  const std::vector<std::string> others = {"owner-1", "owner-2"};
  const auto ask_for = [&](Duration time) {
    for (const Instant end = owner.now + time; owner.now < end; owner.Run(500ms)) {
      Message m = owner.Of(0, MessageKind::kOwners);
      m.stream = m.owners;
      m.names.list = owner.owners->names();
      owner.Say(0, m);
    }
  };
  ask_for(1s);
  owner.exchange->SetOwners(others);
  ask_for(50s);
  CHECK(owner.exchange->owners()->names() == Names(3));
  ask_for(15s);
  CHECK(owner.exchange->owners()->names() == others);
}

TEST_CASE("a host whose settings name none of the owners that it knew begins with those of its settings") {
  Hearer host("web");
  host.SayList(1, 7);
  const std::string life = host.exchange->Life(host.now);
  const auto after = [&](const std::vector<std::string>& names) {
    Exchange::Options options;
    options.name = "web";
    options.owners = std::make_shared<const Owners>(names);
    options.life = life;
    ToPeersRing to_peers{64};
    FromPeersRing from_peers{64};
    return Exchange(options, to_peers, from_peers, host, Prng(1), host.now).owners()->number();
  };
  CHECK(after({"db-1"}) == Owners::kFirst);
  CHECK(after({"db-1", "owner-1"}) == 7);
  CHECK(after({"db-1", "web"}) == 7);    // proposes its list, behind that one
}

}    // namespace
}    // namespace dthrottle
