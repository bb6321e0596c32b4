// An owner that asks every host for the levels of its tags (bus/owners/recovering.h), and hosts that are asked by
// several owners at once (bus/giving.h).
#include "bus/owners/recovering.h"

#include <catch2/catch.hpp>

#include <set>
#include <string>
#include <vector>

#include "bus/codec.h"
#include "bus/exchange.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kAtOnce = Recovering::kAtOnce;

// One exchange that owns tags, and hosts that call it and do only what a test has them do. Time passes in Run() alone.
struct Net final : Transport {
  explicit Net(std::size_t count, std::vector<std::string> names = {"owner"}) : hosts(count) {
    Exchange::Options options;
    options.name = "owner";
    options.version = "1.0";
    options.period = 1s;
    options.owners = owners = std::make_shared<const Owners>(std::move(names));
    exchange = std::make_unique<Exchange>(options, to_peers, from_peers, *this, Prng(1), now);
  }

  // Every host calls and is welcome, and the owner has joined by what the first one asked has: nothing.
  void Meet() {
    joining = true;
    for (std::size_t i = 0; i < hosts.size(); ++i) Say(i, Of(i, MessageKind::kHello));
    for (int i = 0; i < 40 && (joining || exchange->joining()); ++i) Run(50ms);
    REQUIRE_FALSE(exchange->joining());
  }

  static std::string Name(std::size_t host) { return "host-" + std::to_string(host); }

  Message Of(std::size_t host, MessageKind kind) const {
    Message m;
    m.kind = kind;
    m.sender = Name(host);
    m.incarnation = 1;
    m.sequence = 9;
    m.ring_low = 5;
    m.to = m.from = now;
    m.period = 1s;
    m.text = "1.0";
    m.snapshot = 7;
    m.owners = owners->epoch();
    return m;
  }
  Message Part(std::size_t host, std::uint64_t part, std::size_t entries) const {
    Message m = Of(host, MessageKind::kSnapshot);
    m.sequence = part;
    m.snapshot = hosts[host].wanted.back();
    for (std::size_t i = 0; i < entries; ++i) m.entries.Add({"t" + std::to_string(i), false}, 1'000'000, 0);
    return m;
  }
  Message End(std::size_t host, std::uint64_t parts) const {
    Message m = Of(host, MessageKind::kSnapshotEnd);
    m.sequence = parts;
    m.snapshot = hosts[host].wanted.back();
    return m;
  }

  void Say(std::size_t host, const Message& message) {
    std::string frame;
    codec.Encode(message, frame);
    exchange->OnRequest(std::to_string(host), "", frame, now);
  }

  void Run(Duration time) {
    for (const Instant end = now + time; now < end;) {
      now += 5ms;
      Turn();
    }
  }
  void Turn() {
    exchange->Tick(now);
    FromPeers item;
    while (from_peers.TryPop(item)) {
      if (item.kind == FromPeers::Kind::kBuckets) buckets += item.entries.size();
      if (item.kind == FromPeers::Kind::kSnapshotWanted) walks.push_back(item.snapshot);
    }
    // What waited for answers of hosts, which come now.
    for (const std::size_t host : std::exchange(hellos, {})) {
      Message welcome = Of(host, MessageKind::kWelcome);
      welcome.snapshot = hosts[host].hello;
      Say(host, welcome);
    }
    if (!joining) return;
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      if (hosts[host].wanted.empty()) continue;
      Say(host, End(host, 0));
      hosts[host].wanted.clear();
      joining = false;
      return;
    }
  }

  std::size_t asked() const {
    std::size_t n = 0;
    for (const Caller& host : hosts) n += !host.wanted.empty();
    return n;
  }

  void Ask(LinkId, const Frame&) override {}
  bool Publish(const Route&, const Frame&) override { return true; }
  void Answer(const Route& route, const Frame& frame) override {
    Message m;
    REQUIRE(codec.Decode(*frame, m) == DecodeFault::kNone);
    const std::size_t host = std::stoul(route);
    if (m.kind == MessageKind::kHello) hosts[host].hello = m.snapshot, hellos.push_back(host);
    if (m.kind == MessageKind::kSnapshotWanted) hosts[host].wanted.push_back(m.snapshot);
    if (m.kind == MessageKind::kSnapshot || m.kind == MessageKind::kSnapshotEnd || m.kind == MessageKind::kRefusal) {
      hosts[host].got.push_back(m);
    }
  }

  struct Caller {
    std::uint64_t hello = 0;
    std::vector<std::uint64_t> wanted{};    // snapshots that it was asked for
    std::vector<Message> got{};             // of what it asked for
  };
  std::vector<Caller> hosts;
  std::vector<std::size_t> hellos;
  bool joining = false;
  std::size_t buckets = 0;    // entries that the limiter got
  std::vector<std::uint64_t> walks;
  Instant now = FromNanoseconds(100'000'000'000);
  Codec codec;
  ToPeersRing to_peers{64};
  FromPeersRing from_peers{64};
  std::shared_ptr<const Owners> owners;
  std::unique_ptr<Exchange> exchange;
};

TEST_CASE("an owner asks as many hosts as there are places, and who is silent has one for a quarter of a second") {
  Net net(300);
  net.Meet();
  net.Run(60ms);
  CHECK(net.asked() > 0);
  CHECK(net.asked() <= kAtOnce);
  net.Run(Recovering::kPlaceMax + 60ms);
  CHECK(net.asked() <= 2 * kAtOnce);
  net.Run(16 * Recovering::kPlaceMax);
  CHECK(net.asked() == 300);
}

TEST_CASE("a host that has answered gives its place to the next at once") {
  Net net(1000);
  net.Meet();
  net.Run(60ms);
  std::set<std::size_t> answered;
  for (int turn = 0; turn < 100 && answered.size() < 1000; ++turn) {
    for (std::size_t i = 0; i < 1000; ++i) {
      if (net.hosts[i].wanted.empty() || !answered.insert(i).second) continue;
      net.Say(i, net.Part(i, 1, 3));
      net.Say(i, net.End(i, 1));
    }
    net.Turn();
  }
  net.Turn();    // what waits for the limiter
  net.Turn();
  CHECK(answered.size() == 1000);    // and no time has passed
  CHECK(net.buckets == 3000);
  CHECK(net.exchange->Counts().snapshots_taken == 1001);    // with the one to join
}

TEST_CASE("what all hosts say is bounded by entries a second") {
  constexpr std::size_t kHosts = 60, kParts = 15;
  Net net(kHosts);
  net.Meet();
  std::set<std::size_t> answered;
  const Instant began = net.now;
  while (answered.size() < kHosts && net.now < began + 20s) {
    net.Run(10ms);
    for (std::size_t i = 0; i < kHosts; ++i) {
      if (net.hosts[i].wanted.empty() || !answered.insert(i).second) continue;
      Message part = net.Part(i, 1, 4000);
      for (std::size_t p = 1; p <= kParts; ++p) {
        part.sequence = p;
        net.Say(i, part);
        net.Turn();
      }
      net.Say(i, net.End(i, kParts));
    }
    // What came is within a second's room, and that of the first hosts, of which nobody knew how much they have.
    const double most = (1 + Seconds(net.now - began)) * Recovering::kEntriesASecond + 32 * kParts * 4000;
    CHECK(static_cast<double>(net.buckets) <= most);
  }
  CHECK(answered.size() == kHosts);
  CHECK(net.now - began > 1500ms);
  CHECK(net.buckets == kHosts * kParts * 4000);
}

TEST_CASE("a host that never stops saying what it has is no longer listened to, and the others are asked") {
  Net net(300);
  net.Meet();
  net.Run(60ms);
  std::size_t liar = 0;
  while (net.hosts[liar].wanted.empty()) ++liar;
  Message part = net.Part(liar, 1, 4096);
  for (std::uint64_t p = 1; p <= 400; ++p) {
    part.sequence = p;
    net.Say(liar, part);
    net.Turn();
    if (p % 40 == 0) net.Run(5ms);
  }
  CHECK(net.buckets <= Recovering::kEntriesOfHost);
  CHECK(net.exchange->Counts().implausible == 1);
  net.Run(60 * Recovering::kPlaceMax);
  CHECK(net.asked() == 300);
}

TEST_CASE("a snapshot of which something is lost is asked for again, later each time") {
  Net net(2);
  net.Meet();
  net.Run(60ms);
  REQUIRE(net.asked() == 2);
  net.Say(0, net.Part(0, 1, 1));
  net.Say(0, net.End(0, 2));    // of two parts
  net.Say(1, net.Part(1, 1, 1));    // and the end is lost
  net.Run(1s);
  CHECK(net.hosts[0].wanted.size() == 1);
  net.Run(400ms);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(net.hosts[i].wanted.size() == 2);
    net.Say(i, net.End(i, 0));
  }
  CHECK(net.exchange->Counts().snapshots_taken == 3);
  net.Run(10s);
  CHECK(net.hosts[0].wanted.size() == 2);
}

TEST_CASE("a host that refuses is asked again, less and less often") {
  Net net(1);
  net.Meet();
  net.Run(60ms);
  std::size_t refused = 0;
  for (int i = 0; i < 600; ++i) {
    net.Run(50ms);
    if (net.hosts[0].wanted.size() == refused) continue;
    Message refusal = net.Of(0, MessageKind::kRefusal);
    refusal.text = "too often";
    refusal.snapshot = net.hosts[0].wanted.back();
    net.Say(0, refusal);
    refused = net.hosts[0].wanted.size();
  }
  CHECK(refused > 5);
  CHECK(refused < 12);    // in 30 s
}

TEST_CASE("of what a host says only tags count that this owner has") {
  Net net(1, {"owner", "other"});
  net.Meet();
  net.Run(60ms);
  REQUIRE(net.asked() == 1);
  net.Say(0, net.Part(0, 1, 100));
  net.Say(0, net.End(0, 1));
  net.Turn();
  std::size_t ours = 0;
  for (std::size_t i = 0; i < 100; ++i) {
    ours += net.owners->name(net.owners->Of({"t" + std::to_string(i), false})) == "owner";
  }
  CHECK(net.buckets == ours);
  CHECK(ours < 70);
}

TEST_CASE("a host that has lost frames is asked for levels once what it still keeps of others has come") {
  Net net(1);
  net.Meet();
  net.Run(60ms);
  net.Say(0, net.End(0, 0));
  net.Run(61s);
  REQUIRE(net.hosts[0].wanted.size() == 1);
  const auto report = [&](std::uint64_t sequence) {
    Message m = net.Of(0, MessageKind::kReport);
    m.sequence = sequence;
    net.Say(0, m);
    net.Run(100ms);
  };
  report(30);
  Message gone = net.Of(0, MessageKind::kGone);
  gone.ring_low = 20;
  net.Say(0, gone);
  for (std::uint64_t sequence = 20; sequence < 30; ++sequence) {
    CHECK(net.hosts[0].wanted.size() == 1);
    report(sequence);
  }
  net.Run(200ms);
  CHECK(net.hosts[0].wanted.size() == 2);
}

// ---- Giving ----

TEST_CASE("owners that ask a host at once share its walks, and each gets what it owns") {
  std::vector<std::string> names{"owner"};
  for (std::size_t i = 0; i < 8; ++i) names.push_back(Net::Name(i));
  Net net(9, names);    // the last owns nothing
  net.Meet();
  net.Run(60ms);
  const auto want = [&](std::size_t host, std::uint64_t number) {
    Message m = net.Of(host, MessageKind::kSnapshotWanted);
    m.snapshot = number;
    net.Say(host, m);
  };
  const auto walk = [&](std::uint64_t number) {
    const auto push = [&](ToPeers::Kind kind, int first, Duration later) {
      ToPeers item;
      item.kind = kind;
      item.to = net.now + later;
      item.snapshot = number;
      for (int i = 0; i < 300 && kind == ToPeers::Kind::kSnapshotPart; ++i) {
        item.entries.Add({std::to_string(first + i), false}, 50'000 - static_cast<std::uint64_t>(later / 1us), 0);
      }
      REQUIRE(net.to_peers.TryPush(std::move(item)));
    };
    push(ToPeers::Kind::kSnapshotBegin, 0, 0ms);
    for (int part = 0; part < 3; ++part) push(ToPeers::Kind::kSnapshotPart, 300 * part, part * 10ms);
    push(ToPeers::Kind::kSnapshotEnd, 0, 30ms);
    net.Turn();
  };
  for (std::size_t i = 0; i < 9; ++i) want(i, 100 + i);
  net.Turn();
  REQUIRE(net.walks.size() == 1);
  REQUIRE(net.hosts[8].got.size() == 1);
  CHECK(net.hosts[8].got[0].kind == MessageKind::kRefusal);
  const Instant walked_at = net.now;
  walk(net.walks[0]);
  net.Turn();
  REQUIRE(net.walks.size() == 2);
  walk(net.walks[1]);
  CHECK(net.walks.size() == 2);
  for (std::size_t i = 0; i < 8; ++i) {
    CAPTURE(i);
    const std::vector<Message>& got = net.hosts[i].got;
    REQUIRE(got.size() == 2);
    CHECK(got[0].snapshot == 100 + i);
    CHECK(got[0].entries.size() > 60);    // of all parts, in one frame
    CHECK(got[0].to == walked_at);
    for (const Entry& e : got[0].entries.list()) {
      CHECK(net.owners->name(net.owners->Of(got[0].entries.tag(e))) == Net::Name(i));
      CHECK(e.value == 50'000);    // as of the first part
    }
    CHECK(got[1].kind == MessageKind::kSnapshotEnd);
    CHECK(got[1].sequence == 1);
    REQUIRE(got[1].positions.size() == 1);
  }
  CHECK(net.exchange->Counts().snapshots_given == 8);
}

}    // namespace
}    // namespace dthrottle
