#include "bus/exchange.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include "bus/clock_offset.h"
#include "bus/heard.h"
#include "bus/links.h"
#include "test/support/exchange_fleet.h"
#include "test/support/lying_fleet.h"
#include "test/support/sanitized.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using Host = testing::ExchangeHost;
using testing::Channel;
using testing::ExchangeFleet;
using testing::Packet;

using Table = std::map<std::string, std::uint64_t>;

// "a" and "b", which know each other.
struct Two : ExchangeFleet {
  explicit Two(std::uint64_t seed = 1) : ExchangeFleet(seed) {
    Add("a");
    Add("b");
  }
  Host& a() { return *hosts[0]; }
  Host& b() { return *hosts[1]; }
  PeerStatus a_at_b() { return b().Peer("a", now + b().skew); }
  PeerStatus b_at_a() { return a().Peer("b", now + a().skew); }

  Message Report(std::uint64_t sequence, const char* sender = "a", std::uint64_t incarnation = 1) {
    Message m;
    m.kind = MessageKind::kReport;
    m.sender = sender;
    m.incarnation = incarnation;
    m.sequence = sequence;
    m.ring_low = 1;
    m.from = m.to = now;
    m.period = 1s;
    m.entries.Add({"forged", false}, 1, 0);
    return m;
  }
};

bool Carries(const Packet& packet, const std::string& tag) {
  const Entries& entries = packet.message.entries;
  return std::any_of(entries.list().begin(), entries.list().end(),
                     [&](const Entry& e) { return entries.tag(e).bytes == tag; });
}

// Loses what `a` publishes from now on while `lose` says so; counts what is asked again.
auto LosePublished(std::uint32_t from, const bool& lose) {
  return [from, &lose](const Packet& p) { return !(lose && p.from == from && p.channel == Channel::kPublished); };
}

TEST_CASE("sequences that were skipped are missing until they come or are given up") {
  Heard heard(1);
  const Instant now{};
  CHECK(heard.Add(1, now).fresh);
  CHECK_FALSE(heard.Add(1, now).fresh);
  CHECK(heard.Add(10, now).missed == 8);
  CHECK(heard.Add(5, now).repaired == 1);
  CHECK(heard.missing().size() == 2);
  CHECK(heard.Add(2, now).repaired == 1);
  CHECK(heard.Add(9, now).repaired == 1);
  CHECK_FALSE(heard.Add(5, now).fresh);
  CHECK(heard.GiveUpBelow(7) == 3);
  CHECK(heard.GiveUp() == 2);
}

TEST_CASE("whatever a sender skips, what is kept about it is bounded and adds up") {
  Prng prng(7);
  Heard heard(1);
  std::uint64_t missed = 0, repaired = 0, lost = 0, taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t spread = prng.Below(4) == 0 ? 1 << 20 : 2000;
    const auto change = heard.Add(1 + prng.Below(spread), {});
    missed += change.missed, repaired += change.repaired, lost += change.lost, taken += change.fresh;
    REQUIRE(heard.missing().size() <= Heard::kMissingMax);
  }
  std::uint64_t missing = 0;
  for (const auto& range : heard.missing()) missing += range.last - range.first + 1;
  CHECK(lost > 0);
  CHECK(missed == repaired + lost + missing);
  CHECK(heard.next() - 1 == taken + lost + missing);
}

TEST_CASE("a peer's clock is read by the frames that came quickest, and forgotten after a while") {
  ClockOffset clock;
  const Instant ours = FromNanoseconds(0) + 1000s, theirs = FromNanoseconds(0) + 10s;
  CHECK(clock.ToOurs(theirs, ours) == ours);
  clock.Add(theirs, ours + 3ms);
  clock.Add(theirs, ours + 1ms);
  clock.Add(theirs, ours + 5ms);
  CHECK(clock.ToOurs(theirs - 1s, ours + 1s) == ours - 1s + 1ms);
  CHECK(clock.ToOurs(theirs + 60s, ours) == ours);
  // Their clock is slow: what was the quickest once would now make everything old.
  for (Duration t{}; t < 11min; t += 1s) clock.Add(theirs + t - 1ms, ours + t + 4ms);
  CHECK(clock.ToOurs(theirs, ours + 1s) == ours + 5ms);
  clock.Add(Instant::max(), ours);
  clock.Add(Instant::min(), ours);
  CHECK(clock.ToOurs(Instant::max(), ours) <= ours);
  CHECK(clock.ToOurs(Instant::min(), ours) == ours - 24h);
}

TEST_CASE("a peer's clock that stood still is read anew once all from it is late by the same for three seconds") {
  ClockOffset clock;
  const Instant ours = FromNanoseconds(0) + 1000s, theirs = FromNanoseconds(0) + 10s;
  clock.Add(theirs, ours);
  Duration t = 1s;
  for (; t < 4s; t += 500ms) {
    CHECK(clock.Add(theirs + t, ours + 20s + t));
    CHECK(clock.ToOurs(theirs + t, ours + 20s + t) == ours + t);
  }
  clock.Add(theirs + t, ours + 20s + t);
  CHECK(clock.ToOurs(theirs + t, ours + 20s + t) == ours + 20s + t);
  clock.Add(Instant::max(), ours + 30s);
  for (int i = 0; i < 9; ++i) clock.Add(Instant::min(), ours + 40s + i * 1s);
  CHECK(clock.ToOurs(Instant::min(), ours + 50s) <= ours + 50s);
}

TEST_CASE("a way that is slow for a while makes a peer's hits no newer") {
  const Instant ours = FromNanoseconds(0) + 1000s, theirs = FromNanoseconds(0) + 10s;
  const auto late = GENERATE(as<Duration (*)(Duration)>(), [](Duration) -> Duration { return 2s; },    // a queue
                             [](Duration t) { return std::max<Duration>(30s - t * 3 / 4, 0s); },       // what waited
                             [](Duration t) { return t; },                                             // ever longer
                             [](Duration t) -> Duration { return (t / 500ms) % 5 == 0 ? 0s : 10s; });
  ClockOffset clock;
  clock.Add(theirs, ours);
  for (Duration t = 500ms; t < 1min; t += 500ms) {
    CHECK(clock.Add(theirs + t, ours + t + late(t)));
    CHECK(clock.ToOurs(theirs + t, ours + t + late(t)) == ours + t);
  }
}

TEST_CASE("links are found by their ids, in whatever order they come and go, and stay where they are") {
  Prng prng(1);
  Links links;
  std::set<LinkId> ids;
  std::map<LinkId, const Link*> places;
  for (int i = 0; i < 3000; ++i) {
    const auto id = static_cast<LinkId>(prng.Below(i < 1000 ? 200 : 1 << 20));
    const Link* const found = links.Find(id);
    REQUIRE((found != nullptr) == ids.contains(id));
    if (found == nullptr) {
      places[id] = &links.Add(id);
      ids.insert(id);
    } else {
      REQUIRE(found == places[id]);
      links.Remove(id);
      ids.erase(id);
    }
  }
  REQUIRE(links.size() == ids.size());
  CHECK(std::ranges::equal(links, ids, {}, [](const auto& its) { return its.link->status.link; }));
}

TEST_CASE("hosts greet each other and are up as long as reports arrive") {
  Two net;
  net.Add("c").sharing = false;
  net.a().Start(net.now);
  net.b().Start(net.now);
  net.b().Link("a", net.now);
  CHECK(net.a_at_b().state == PeerState::kConnecting);
  CHECK(net.a_at_b().last_heard < 0s);
  net.Run(100ms);
  CHECK(net.a_at_b().state == PeerState::kUp);
  CHECK(net.a_at_b().name == "a");
  CHECK(net.a_at_b().version == "1.0");
  net.Run(10s);
  CHECK(net.a_at_b().state == PeerState::kUp);
  CHECK(net.a_at_b().sequence == 10);
  CHECK(net.a_at_b().last_heard <= 1s);
  net.a().sharing = false;
  net.Run(4s);
  CHECK(net.a_at_b().state == PeerState::kSilent);
  net.a().sharing = true;
  net.Run(2s);
  CHECK(net.a_at_b().state == PeerState::kUp);
}

TEST_CASE("a hello is repeated every second until answered, and then seldom") {
  Two net;
  int hellos = 0;
  bool answer = false;
  net.filter = [&](const Packet& p) {
    hellos += p.message.kind == MessageKind::kHello;
    return answer || p.message.kind != MessageKind::kHello;
  };
  net.a().Start(net.now);
  net.b().Start(net.now);
  net.b().Link("a", net.now);
  CHECK(hellos == 1);
  net.Run(10s);
  CHECK(hellos >= 8);
  CHECK(hellos <= 11);
  answer = true;
  net.Run(2s);
  hellos = 0;
  net.Run(28s);
  CHECK(hellos == 0);
  net.Run(62s);
  CHECK(hellos >= 2);
  CHECK(hellos <= 3);
  net.a().running = false;
  net.Run(3s);
  hellos = 0;
  net.Run(10s);
  CHECK(hellos >= 8);
}

TEST_CASE("hosts meet that are farther apart than the time between two hellos") {
  const Duration delay = GENERATE(150ms, 300ms, 900ms);
  Two net;
  net.lanes.delay = delay;
  net.lanes.jitter = delay / 2;
  for (int i : {0, 1}) net[i].Start(net.now);
  net.a().Link("b", net.now);
  net.b().Link("a", net.now);
  net.Run(4 * delay + 1s);
  CHECK(net.a_at_b().state == PeerState::kUp);
  CHECK(net.b_at_a().state == PeerState::kUp);
}

TEST_CASE("an answer that was meant for an earlier connection does not count") {
  Two net;
  net.lanes.delay = 300ms;
  net.a().Start(net.now);
  net.b().Start(net.now);
  net.b().Link("a", net.now);
  net.Run(400ms);    // the welcome is under way
  net.b().exchange->OnConnected(net.b().links.begin()->first);
  net.Run(300ms);
  CHECK(net.a_at_b().state == PeerState::kConnecting);
  net.Run(600ms);
  CHECK(net.a_at_b().state == PeerState::kUp);
}

TEST_CASE("hits cross, by the clock of who hears of them") {
  Two net;
  net.b().skew = 5000s;
  net.lanes.delay = 10ms;
  net.step = 1ms;
  net.Mesh();
  net.a().Hit("t", 3);
  net.b().Hit("u", 4);
  net.Run(5s);
  CHECK(net.a().table == Table{{"t", 3}, {"u", 4}});
  CHECK(net.b().table == Table{{"t", 3}, {"u", 4}});
  const FromPeers& debits = *std::find_if(net.b().received.begin(), net.b().received.end(),
                                          [](const FromPeers& f) { return f.kind == FromPeers::Kind::kDebits; });
  const Instant served = net.a().reported + net.b().skew - 4s;    // the first of five reports
  CHECK(debits.to >= served);
  CHECK(debits.to <= served + 12ms);
  CHECK(debits.to - debits.from == 1s);
  CHECK(debits.period == 1s);
  CHECK(net.a_at_b().age <= 2ms);
}

TEST_CASE("two hosts with one name hear of it with the next report, where the name alone is the way to them") {
  ExchangeFleet net;
  const auto owners = std::make_shared<const Owners>(std::vector<std::string>{"o"});
  for (const char* const name : {"o", "w"}) {
    net.Add(name).options.owners = owners;
    net.hosts.back()->Start(net.now);
  }
  Host &o = net[0], &w = net[1];
  w.Link("o", net.now);
  net.Run(1s);
  const auto run = [&](Duration time) {    // what the owner says of levels keeps the link alive
    for (const Instant end = net.now + time; net.now < end; net.Run(250ms)) {
      o.Item(ToPeers::Kind::kLevels, net.now).peer = o.Peer("calls", net.now).number.value();
    }
  };
  run(3s);
  CHECK(w.Peer("o", net.now).state == PeerState::kUp);
  Message hello;
  hello.kind = MessageKind::kHello;
  hello.sender = "w";
  hello.incarnation = 2;
  hello.to = net.now;
  hello.period = 1s;
  hello.snapshot = 7;
  hello.owners = owners->epoch();
  o.exchange->OnRequest("1 0", "w", net.Encode(hello), net.now);
  run(1500ms);
  CHECK(w.Peer("o", net.now).state == PeerState::kRefused);
  CHECK(w.Peer("o", net.now).reason == "another host has your name");
  CHECK(o.Peer("calls", net.now).reason == "two hosts have its name");
}

TEST_CASE("every period ends with one frame that says so, empty if there were no hits") {
  Two net;
  std::vector<std::pair<std::size_t, bool>> seen;
  net.filter = [&](const Packet& p) {
    if (p.from == 0 && p.channel == Channel::kPublished) seen.push_back({p.message.entries.size(), p.message.last});
    return true;
  };
  net.a().entries_per_frame = 2;
  net.Mesh();
  for (const char* tag : {"1", "2", "3", "4", "5"}) net.a().Hit(tag);
  net.Run(2s);
  CHECK(seen == std::vector<std::pair<std::size_t, bool>>{{2, false}, {2, false}, {1, true}, {0, true}});
  CHECK(net.a().Counts().published == 4);
  CHECK(net.a().Counts().published_entries == 5);
  CHECK(net.a().Counts().ring_frames == 4);
}

// An orderly restart: another exchange goes on with the life of this one. The limiter's table stays.
void StopInOrder(ExchangeFleet& net, Host& host) {
  host.Report(net.now + host.skew);
  do {
    host.Work(net.now + host.skew);
  } while (!host.exchange->Drain(net.now + host.skew) || !host.from_peers->empty() || !host.outgoing.empty());
  host.options.life = host.exchange->Life(net.now + host.skew);
  host.running = false;
}

void StartAgain(ExchangeFleet& net, Host& host) {
  host.options.incarnation += 100;    // for a new life, if there is to be one
  host.Start(net.now);
  for (auto& other : net.hosts) {
    if (other.get() != &host) host.Link(other->name, net.now);
  }
}

TEST_CASE(
    "a host that goes on with its life loses nothing and repeats nothing, however often and however lossy the net") {
  for (const std::uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    ExchangeFleet net(seed);
    for (const char* name : {"a", "b", "c"}) net.Add(name);
    net.Mesh();
    net.lanes.loss = net.lanes.duplication = 0.1;
    Table all;
    for (int i = 0; i < 30; ++i) {
      Host& host = net[i % 3];
      for (auto& other : net.hosts) {
        other->Hit("C");
        other->Hit(other->name);
        ++all["C"], ++all[other->name];
      }
      StopInOrder(net, host);
      host.Hit("C");    // while nobody of the wire is there
      ++all["C"];
      net.Run(i % 4 * 200ms);
      StartAgain(net, host);
      CHECK(host.exchange->resumed());
      CHECK_FALSE(host.exchange->joining());
      net.Run(300ms);
    }
    net.lanes.loss = net.lanes.duplication = 0;
    net.Run(10s);
    for (auto& host : net.hosts) {
      CHECK(host->table == all);
      CHECK(host->Counts().lost == 0);
      CHECK(host->Counts().snapshots_taken == 0);
    }
    CHECK(net[0].Peer("b", net.now).incarnation == 1);
  }
}

TEST_CASE("a host that is stopped while it joins goes on joining, with what it held back") {
  Two net;
  net.a().Start(net.now);
  net.a().Link("b", net.now);
  net.b().Start(net.now);
  net.b().gives_snapshots = false;
  net.b().Link("a", net.now);
  net.Run(600ms);
  REQUIRE(net.a().exchange->joining());
  net.b().Hit("early", 3);
  net.b().Report(net.now);
  net.Run(100ms);
  StopInOrder(net, net.a());
  StartAgain(net, net.a());
  CHECK(net.a().exchange->resumed());
  CHECK(net.a().exchange->joining());
  net.Run(30s);
  CHECK_FALSE(net.a().exchange->joining());
  CHECK(net.a().table == Table{{"early", 3}});
}

TEST_CASE("a life that is cut off, of another host or of another version is not gone on with") {
  Two net;
  net.Mesh();
  net.a().Hit("x");
  net.Run(2s);
  StopInOrder(net, net.a());
  const std::string life = net.a().options.life;
  const auto resumes = [&](std::string bytes, std::string name) {
    net.a().options.life = std::move(bytes);
    net.a().options.name = std::move(name);
    StartAgain(net, net.a());
    return net.a().exchange->resumed();
  };
  CHECK(resumes(life, "a"));
  for (std::size_t size = 0; size < life.size(); ++size) REQUIRE_FALSE(resumes(life.substr(0, size), "a"));
  CHECK_FALSE(resumes(life + "x", "a"));
  CHECK_FALSE(resumes(life, "c"));
  CHECK_FALSE(resumes("\177" + life.substr(1), "a"));
  CHECK_FALSE(resumes("", "a"));
}

TEST_CASE("a lost frame is asked for and comes exactly once") {
  Two net;
  int asked = 0;
  bool lose = true;
  net.filter = [&](const Packet& p) {
    asked += p.message.kind == MessageKind::kRepeat;
    return !(lose && p.channel == Channel::kPublished && Carries(p, "lost"));
  };
  net.Mesh();
  net.a().Hit("lost", 7);
  net.Run(1s);
  CHECK(net.b().table == Table{});
  net.a().Hit("next");
  net.Run(400ms);
  CHECK(net.b().table == Table{{"next", 1}});
  CHECK(asked == 0);    // it might still be on its way
  net.Run(400ms);
  CHECK(asked == 1);
  CHECK(net.b().table == Table{{"lost", 7}, {"next", 1}});
  net.Run(5s);
  CHECK(asked == 1);
  CHECK(net.a_at_b().missed == 1);
  CHECK(net.a_at_b().repaired == 1);
  CHECK(net.a_at_b().lost == 0);
  CHECK(net.a().Counts().repeated == 1);
  CHECK(net.b().table == net.a().table);
}

TEST_CASE("the limiter is told where a frame stands among those of its sender, and what is missing before it") {
  Two net;
  net.Mesh();
  const std::uint64_t published = net.a().Counts().published;
  net.a().running = false;
  net.b().received.clear();
  for (const std::uint64_t i : {1, 4, 3, 5, 2, 6}) {
    net.b().exchange->OnAnswer(0, net.Encode(net.Report(published + i)), net.now);
  }
  net.b().exchange->Tick(net.now);
  net.b().Work(net.now);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  for (const FromPeers& item : net.b().received) {
    const ReportPlace& in = item.place;
    CHECK(in.stream == net.b().received[0].place.stream);
    places.push_back({in.sequence - published, in.missing != 0 ? in.missing - published : 0});
  }
  CHECK(places == std::vector<std::pair<std::uint64_t, std::uint64_t>>{{1, 0}, {4, 2}, {3, 2}, {5, 2}, {2, 0}, {6, 0}});
}

TEST_CASE("a request to repeat is made again until it is answered") {
  Two net;
  int asked = 0;
  bool answering = false;
  net.filter = [&](const Packet& p) {
    asked += p.message.kind == MessageKind::kRepeat;
    return !(p.channel == Channel::kPublished && Carries(p, "lost")) &&
           (answering || p.message.kind != MessageKind::kRepeat);
  };
  net.Mesh();
  net.a().Hit("lost");
  net.Run(12s);
  CHECK(asked >= 19);    // every half second
  CHECK(asked <= 21);
  answering = true;
  net.Run(1s);
  CHECK(net.b().table == net.a().table);
}

TEST_CASE("frames that come twice or in another order are debited once") {
  Two net;
  net.lanes.duplication = 1;
  net.lanes.jitter = 3s;
  net.Add("c");
  net.Mesh();
  for (int i = 0; i < 30; ++i) {
    net.a().Hit("t" + std::to_string(i), i + 1);
    net.Run(1s);
  }
  net.Run(20s);
  CHECK(net.b().table == net.a().table);
  CHECK(net[2].table == net.a().table);
  CHECK(net.a_at_b().duplicates > 30);
  CHECK(net.a_at_b().repaired > 0);
  CHECK(net.a_at_b().lost == 0);
}

TEST_CASE("what the ring no longer has is lost, counted exactly, and made up for by a snapshot") {
  Two net;
  bool lose = false;
  net.filter = LosePublished(0, lose);
  net.a().Hit("x");
  Message like = net.Report(1);
  net.a().options.ring_bytes = 4 * net.Encode(like).size() + net.Encode(like).size() / 2;
  net.Mesh();
  net.Run(2s);
  lose = true;
  for (int i = 0; i < 10; ++i) {
    net.a().Hit("forge" + std::to_string(i));    // as long as the tag that the ring was measured with
    net.Run(1s);
  }
  const std::uint64_t before = net.a_at_b().reports;
  lose = false;
  const std::uint64_t published = net.a().Counts().published;
  net.Run(4s);
  const PeerStatus status = net.a_at_b();
  CHECK(status.missed == 10);
  CHECK(status.lost + status.repaired == 10);
  CHECK(status.lost >= 6);
  CHECK(net.a().Counts().gone == status.lost);
  CHECK(status.reports - before == status.repaired + net.a().Counts().published - published);
  CHECK(net.b().Counts().snapshots_taken == 2);    // one to join
  CHECK(net.b().table == net.a().table);
}

TEST_CASE("a snapshot that makes up for losses waits for what can still be heard") {
  ExchangeFleet net;
  for (const char* name : {"a", "b", "c"}) net.Add(name);
  Message like;
  like.kind = MessageKind::kReport;
  like.sender = "a";
  like.incarnation = like.sequence = like.ring_low = 1;
  like.from = like.to = net.now;
  like.period = 1s;
  like.entries.Add({"forged", false}, 1, 0);
  net[0].options.ring_bytes = 4 * net.Encode(like).size() + net.Encode(like).size() / 2;    // b keeps all
  net.Mesh();
  net.Run(3s);
  net.cut = {{0, 2}, {1, 2}};
  for (int i = 0; i < 10; ++i) {
    for (int from : {0, 1}) net[from].Hit("told-" + std::to_string(i));
    net.Run(1s);
  }
  SECTION("all are heard again at once") { net.cut.clear(); }
  SECTION("the one that has lost some is heard first") {
    net.cut = {{1, 2}};
    net.Run(4s);
    net.cut.clear();
  }
  net.Run(10s);
  CHECK(net[2].Peer("a", net.now).lost >= 6);
  CHECK(net[2].Peer("b", net.now).repaired >= 10);
  CHECK(net[2].Counts().snapshots_taken == 2);    // one to join
  CHECK(net[2].table == net[0].table);
}

TEST_CASE("a peer that is gone delays a snapshot that makes up for losses by 20 seconds") {
  ExchangeFleet net;
  for (const char* name : {"a", "b", "c"}) net.Add(name);
  net[0].options.ring_bytes = 1;
  net.Mesh();
  net.Run(3s);
  net[1].running = false;
  net.Run(5s);
  net.cut = {{0, 2}};
  net[0].Hit("told");
  net.Run(3s);
  net.cut.clear();
  net.Run(18s);
  CHECK(net[2].table == Table{});
  net.Run(8s);
  CHECK(net[2].table == net[0].table);
}

TEST_CASE("frames that were taken apart for several hosts are heard like others") {
  for (const bool apart : {false, true}) {
    CAPTURE(apart);
    Two net;
    net.Mesh();
    net.Run(1s);
    Codec codec;
    std::string frame = net.Encode(net.Report(net.a_at_b().sequence + 1));
    const ExchangeCounts before = net.b().Counts();
    for (const bool whole : {true, false}) {
      if (!whole) frame.pop_back();
      Decoded decoded;
      decoded.fault = codec.Decode(frame, decoded.message);
      if (apart) net.b().exchange->OnAnswer(0, frame, decoded, net.now);
      if (!apart) net.b().exchange->OnAnswer(0, frame, net.now);
    }
    CHECK(net.b().Counts().received_entries == before.received_entries + 1);
    CHECK(net.b().Counts().junk == before.junk + 1);
    net.Run(10ms);
    CHECK(net.b().debits == Table{{"forged", 1}});
  }
}

TEST_CASE("lost frames are made up for by one snapshot a minute") {
  Two net;
  bool lose = false;
  int wanted = 0;
  net.filter = [&](const Packet& p) {
    wanted += p.message.kind == MessageKind::kSnapshotWanted && p.from == 1;
    return !(lose && p.from == 0 && p.channel == Channel::kPublished);
  };
  net.a().options.ring_bytes = 1;
  net.Mesh();
  wanted = 0;
  for (int i = 0; i < 60; ++i) {
    lose = i % 3 == 1;
    net.Run(1s);
  }
  CHECK(net.a_at_b().lost >= 19);
  CHECK(wanted == 1);
  net.Run(10s);
  CHECK(wanted == 2);
}

TEST_CASE("after a restart of the sender what it published unheard is repaired") {
  Two net;
  bool lose = false;
  net.filter = LosePublished(0, lose);
  net.Mesh();
  net.a().Hit("first life", 2);
  net.Run(3s);
  lose = true;
  net.a().options.incarnation = 2;
  net.a().Start(net.now);
  net.a().Link("b", net.now);
  for (int i = 0; i < 4; ++i) {
    net.Run(1s);
    net.a().Hit("second life");
  }
  lose = false;
  net.Run(4s);
  CHECK(net.b().debits == Table{{"first life", 2}, {"second life", 4}});
  CHECK(net.a_at_b().incarnation == 2);
  CHECK(net.a_at_b().missed >= 4);
  CHECK(net.a_at_b().missed == net.a_at_b().repaired);
}

TEST_CASE("what was missing of an earlier life is lost with it") {
  Two net;
  net.Mesh();
  net.Run(1s);
  net.b().exchange->OnAnswer(0, net.Encode(net.Report(11)), net.now);
  CHECK(net.a_at_b().missed == 9);
  net.a().running = false;
  net.a().options.incarnation = 2;
  net.a().Start(net.now);
  net.Run(1500ms);
  CHECK(net.a_at_b().incarnation == 2);
  CHECK(net.a_at_b().lost == 9);
  net.b().exchange->OnAnswer(0, net.Encode(net.Report(12)), net.now);    // of the former life
  CHECK(net.a_at_b().duplicates == 1);
}

TEST_CASE("a host whose clock went back is heard again as soon as its welcome says so") {
  Two net;
  net.a().options.incarnation = 1000;
  net.Mesh();
  net.a().Hit("before");
  net.Run(3s);
  net.a().options.incarnation = 5;
  net.a().Start(net.now);
  net.a().Link("b", net.now);
  net.Run(500ms);
  net.a().Hit("after");
  net.Run(1500ms);
  CHECK(net.a_at_b().incarnation == 5);
  CHECK(net.b().debits == Table{{"before", 1}, {"after", 1}});
  // A frame of the former life that was under way all the time changes nothing.
  net.b().exchange->OnAnswer(0, net.Encode(net.Report(500, "a", 1000)), net.now);
  net.Run(2s);
  CHECK(net.a_at_b().incarnation == 5);
  CHECK(net.b().debits.count("forged") == 0);
}

TEST_CASE("a life that no welcome has stated does not count, and the peer is asked about it at once") {
  Two net;
  net.a().options.incarnation = 1000;
  net.Mesh();
  net.Run(3s);
  int hellos = 0;
  net.filter = [&](const Packet& p) { return hellos += p.from == 1 && p.message.kind == MessageKind::kHello, true; };
  net.b().exchange->OnAnswer(0, net.Encode(net.Report(1, "a", std::uint64_t{1} << 63)), net.now);
  CHECK(net.a_at_b().incarnation == 1000);
  CHECK(net.b().Counts().implausible == 1);
  net.Run(100ms);
  CHECK(hellos == 1);
  net.b().exchange->OnAnswer(0, net.Encode(net.Report(500, "a", 999)), net.now);
  CHECK(net.a_at_b().duplicates == 1);
  net.a().Hit("t");
  net.Run(2s);
  CHECK(net.b().debits == Table{{"t", 1}});
  CHECK(net.a_at_b().lost == 0);
}

TEST_CASE("who is not a peer is not heard, nor answered but to a hello") {
  Two net;
  net.Mesh();
  Exchange& b = *net.b().exchange;
  b.OnAnswer(0, net.Encode(net.Report(1, "mallory")), net.now);    // by the link to a
  b.OnAnswer(0, net.Encode(net.Report(1, "b", 77)), net.now);      // our name, but not us
  b.OnAnswer(0, net.Encode(net.Report(1, "b", 1)), net.now);       // ourselves
  CHECK(net.b().Counts().forged == 3);
  std::vector<MessageKind> answers;
  net.filter = [&](const Packet& p) {
    answers.push_back(p.message.kind);
    return false;
  };
  for (const auto kind : {MessageKind::kHello, MessageKind::kRepeat, MessageKind::kSnapshotWanted}) {
    Message m = net.Report(0, "mallory");
    m.kind = kind;
    m.snapshot = 9;
    m.ranges = {{1, 2}};
    b.OnRequest("0 0", "", net.Encode(m), net.now);
  }
  CHECK(answers == std::vector{MessageKind::kWelcome, MessageKind::kRefusal});
  CHECK(net.b().Counts().strangers == 2);
  net.filter = nullptr;
  net.Run(2s);
  CHECK(net.b().table.empty());
}

TEST_CASE("who asks a host that has just come up to repeat what the one before said is not turned away by it") {
  Two net;
  net.Mesh();
  bool lose = true;
  net.filter = LosePublished(1, lose);
  net.Run(1s);
  std::optional<Packet> hello, repeat;
  net.filter = [&](const Packet& p) {
    if (p.message.kind == MessageKind::kHello) hello = p;
    if (p.message.kind == MessageKind::kRepeat) repeat = p;
    return p.channel != Channel::kRequest;
  };
  net.Run(1s);
  net.b().running = false;
  net.Run(10s);
  REQUIRE(hello);
  REQUIRE(repeat);
  net.b().options.incarnation = 1000;
  net.b().options.fresh_table = false;
  net.b().Start(net.now);
  net.Deliver(*hello);
  net.Run(1500ms);         // a is welcome, and has said hello once more, because it has heard no report yet
  net.Deliver(*repeat);    // before b has found its own peers
  net.Run(10ms);
  CHECK(net.a().Peer("b", net.now).state != PeerState::kRefused);
  net.filter = nullptr;
  net.b().Link("a", net.now);
  net.Run(3s);
  CHECK(net.a().Peer("b", net.now).state == PeerState::kUp);
  CHECK(net.b().Counts().snapshots_taken == 1);
}

TEST_CASE("a peer whose hello has not been answered is no stranger, and a stranger is one even then") {
  Two net;
  net.Mesh();
  net.Add("late");
  Exchange& b = *net.b().exchange;
  net.b().Link("late", net.now);    // does not answer
  const auto request = [&](const char* name) {
    Message m = net.Report(0, name);
    m.kind = MessageKind::kRepeat;
    m.ranges = {{1, 2}};
    b.OnRequest("0 0", "", net.Encode(m), net.now);
  };
  for (const char* name : {"late", "mallory"}) request(name);
  net.Run(7s);
  CHECK(net.b().Counts().strangers == 0);
  net[2].Start(net.now);    // and now it does
  net.Run(4s);
  CHECK(net.b().Peer("late", net.now).state == PeerState::kUp);
  CHECK(net.b().Counts().strangers == 1);
  request("mallory");
  CHECK(net.b().Counts().strangers == 2);
}

TEST_CASE("names of the unknown are bounded, and counted when nobody introduces them") {
  Two net;
  net.Mesh();
  net.Add("late");
  net.b().Link("late", net.now);
  for (int i = 0; i < 100; ++i) {
    Message m = net.Report(0, ("mallory-" + std::to_string(i)).c_str());
    m.kind = MessageKind::kRepeat;
    m.ranges = {{1, 2}};
    net.b().exchange->OnRequest("0 0", "", net.Encode(m), net.now);
  }
  CHECK(net.b().Counts().strangers == 36);
  net.Run(11s);
  CHECK(net.b().Counts().strangers == 100);
}

TEST_CASE("a link speaks for one name") {
  Two net;
  net.Add("c");
  net.Mesh();
  net[2].running = false;
  Exchange& b = *net.b().exchange;
  Message m = net.Report(1, "c");
  b.OnAnswer(0, net.Encode(m), net.now);    // over the link to a
  m.kind = MessageKind::kGone;
  m.ring_low = 1000;
  b.OnAnswer(0, net.Encode(m), net.now);
  b.OnAnswer(12345, net.Encode(m), net.now);    // a link that is gone
  CHECK(net.b().Counts().forged == 2);
  net.Run(2s);
  CHECK(net.b().table.empty());
}

TEST_CASE("where identities are proven, a name that is not one's own is refused") {
  Two net;
  net.b().options.identities_proven = true;
  net.Mesh();
  CHECK(net.a().Peer("b", net.now).state == PeerState::kUp);
  net.identity = "somebody else";
  net.a().options.incarnation = 2;
  net.a().Start(net.now);
  net.a().Link("b", net.now);
  net.Run(1s);
  CHECK(net.a().Peer("b", net.now).state == PeerState::kRefused);
  CHECK(net.a().Peer("b", net.now).reason == "your key belongs to another name");
  CHECK(net.b().Counts().strangers == 1);
}

TEST_CASE("an address that is one's own is noticed and left alone") {
  Two net;
  net.a().Start(net.now);
  net.a().Link("a", net.now);
  CHECK(net.a().exchange->joining());
  int hellos = 0;
  net.filter = [&](const Packet& p) { return hellos += p.message.kind == MessageKind::kHello, true; };
  net.Run(100ms);
  CHECK(net.a().Peer("a", net.now).state == PeerState::kSelf);
  CHECK_FALSE(net.a().exchange->joining());    // from whom?
  net.a().Hit("t");
  net.Run(100s);
  CHECK(hellos == 0);
  CHECK(net.a().debits.empty());
  CHECK(net.a().Counts().strangers == 0);
  net.b().Start(net.now);
  net.b().Link("a", net.now);
  net.Run(1s);
  net.a().Link("b", net.now);
  CHECK(net.a().exchange->joining());
  net.Run(1s);
  CHECK_FALSE(net.a().exchange->joining());
}

TEST_CASE("two hosts of one name refuse each other") {
  Two net;
  net.b().options.name = "a";
  net.b().options.incarnation = 2;
  net.Mesh();
  CHECK(net.a_at_b().state == PeerState::kRefused);
  CHECK(net.a_at_b().reason == "your name is also mine");
}

TEST_CASE("another host with the name of a peer is refused while the peer is heard") {
  ExchangeFleet net;
  for (const char* const name : {"a", "b", "copy"}) net.Add(name);
  Host &a = net[0], &b = net[1], &copy = net[2];
  copy.options.name = "a";
  copy.options.incarnation = 2;
  for (const auto& host : net.hosts) host->Start(net.now);
  a.Link("b", net.now);
  b.Link("a", net.now);
  net.Run(5s);
  copy.Link("b", net.now);
  net.Run(2s);
  CHECK(copy.Peer("b", net.now).state == PeerState::kUp);    // it might be the peer, started anew
  net.Run(40s);
  CHECK(copy.Peer("b", net.now).state == PeerState::kRefused);
  CHECK(copy.Peer("b", net.now).reason == "another host has your name");
  CHECK(b.Peer("a", net.now).state == PeerState::kUp);
  CHECK(b.Peer("a", net.now).reason == "two hosts have its name");
  a.Hit("t", 2);
  net.Run(3s);
  CHECK(b.debits == Table{{"t", 2}});
  SECTION("the copy goes") {
    net.filter = [&](const Packet& p) { return p.from != 2; };
    net.Run(200s);
    CHECK(b.Peer("a", net.now).reason.empty());
  }
  SECTION("the peer goes") {
    net.filter = [&](const Packet& p) { return p.from != 0; };
    net.Run(60s);
    CHECK(copy.Peer("b", net.now).state == PeerState::kUp);
  }
}

TEST_CASE("a peer that is started anew twice, before it has answered in its first new life, is no other host") {
  Two net;
  net.Mesh();
  net.Run(3s);
  for (std::uint64_t life : {2, 3}) {
    net.a().options.incarnation = life;
    net.filter = [life](const Packet& p) {
      return life == 3 || p.from != 0 || p.message.kind != MessageKind::kWelcome;
    };
    net.a().Start(net.now);
    net.a().Link("b", net.now);
    net.Run(400ms);
  }
  for (int i = 0; i < 100; ++i) {
    net.Run(1s);
    REQUIRE(net.a_at_b().reason.empty());
  }
  CHECK(net.a_at_b().state == PeerState::kUp);
  CHECK(net.b_at_a().state == PeerState::kUp);
}

TEST_CASE("of two addresses of one host the second is refused, and takes over when the first goes") {
  Two net;
  net.a().Start(net.now);
  net.b().Start(net.now);
  net.b().Link("a", net.now);
  net.Run(50ms);
  net.b().Link("a#2", net.now);
  net.a().Link("b", net.now);
  net.Run(1s);
  CHECK(net.b().Peer("a#2", net.now).state == PeerState::kRefused);
  CHECK(net.b().Peer("a#2", net.now).reason == "the same host as a");
  net.a().Hit("t", 2);
  net.Run(3s);
  CHECK(net.b().debits == Table{{"t", 2}});
  net.b().exchange->RemoveLink(0);
  net.b().links.erase(0);
  net.Run(1s);
  CHECK(net.b().Peer("a#2", net.now).state == PeerState::kUp);
  net.a().Hit("t", 2);
  net.Run(3s);
  CHECK(net.b().debits == Table{{"t", 4}});    // and nothing from before once more
  CHECK(net.b().exchange->Peers(net.now).size() == 1);
}

TEST_CASE("an address that becomes another host's is that host's") {
  Two net;
  net.Add("c");
  for (auto& host : net.hosts) host->Start(net.now);
  net.b().Link("a", net.now);
  net[2].Link("b", net.now);
  net.Run(2s);
  net.b().links[0] = 2;
  net.a().running = false;
  net[2].Hit("of c");
  net.Run(40s);
  CHECK(net.a_at_b().name == "c");
  CHECK(net.a_at_b().state == PeerState::kUp);
  CHECK(net.b().table.at("of c") == 1);
}

TEST_CASE("a host of another major version is refused and counted") {
  Two net;
  net.Mesh();
  std::string frame = net.Encode(net.Report(1));
  frame[kFramePrefix.size() - 1] = 1;
  net.b().exchange->OnAnswer(0, frame, net.now);
  CHECK(net.a_at_b().state == PeerState::kRefused);
  CHECK(net.a_at_b().reason == "it speaks another version of the protocol");
  CHECK(net.b().Counts().other_version == 1);
  MessageKind answer{};
  net.filter = [&](const Packet& p) { return answer = p.message.kind, true; };
  net.b().exchange->OnRequest("0 0", "", frame, net.now);
  CHECK(answer == MessageKind::kRefusal);
  net.Run(80s);    // it has been upgraded, it seems
  CHECK(net.a_at_b().state == PeerState::kUp);
}

TEST_CASE("noise is counted and changes nothing") {
  Two net;
  net.Mesh();
  Prng prng(3);
  std::string good = net.Encode(net.Report(1));
  for (int i = 0; i < 3000; ++i) {
    std::string frame = good.substr(0, prng.Below(good.size()));
    if (i % 2 == 0 && !frame.empty()) frame[prng.Below(frame.size())] ^= static_cast<char>(1 + prng.Below(255));
    net.b().exchange->OnAnswer(0, frame, net.now);
    net.b().exchange->OnAnswer(0, frame, net.now);
    net.b().exchange->OnRequest("0 0", "a", frame, net.now);
  }
  CHECK(net.b().Counts().junk + net.b().Counts().other_version == 9000);
  CHECK(net.b().Counts().received == 0);
}

TEST_CASE("whatever messages say, they neither crash nor stop the exchange") {
  for (std::uint64_t seed = 0; seed < testing::Fewer(200); ++seed) {
    Two net(seed);
    net.Mesh();
    Prng& prng = net.prng();
    const std::uint64_t numbers[] = {
        0, 1, 2, 3, 255, 256, 1u << 20, std::uint64_t{1} << 63, ~std::uint64_t{0} - 1, ~std::uint64_t{0}};
    const auto number = [&] { return numbers[prng.Below(std::size(numbers))]; };
    const auto instant = [&] { return FromNanoseconds(static_cast<Duration::rep>(number() ^ (number() << 1))); };
    for (int i = 0; i < 200; ++i) {
      Message m = net.Report(number(), prng.Below(4) == 0 ? "b" : "a", number());
      m.kind = static_cast<MessageKind>(prng.Below(11));
      m.ring_low = number();
      m.from = instant(), m.to = instant();
      m.period = instant().time_since_epoch();
      m.snapshot = number();
      for (std::uint64_t n = prng.Below(5); n > 0; --n) m.ranges.push_back({number(), number()});
      for (std::uint64_t n = prng.Below(3); n > 0; --n) m.positions.push_back({std::to_string(n), number(), number()});
      const std::string frame = net.Encode(m);
      if (i % 3 == 0) net.b().exchange->OnAnswer(0, frame, net.now);
      if (i % 3 == 1) net.b().exchange->OnAnswer(0, frame, net.now);
      if (i % 3 == 2) net.b().exchange->OnRequest("0 1", "a", frame, net.now);
      net.Run(prng.Below(10) == 0 ? 500ms : 5ms);
    }
    for (const FromPeers& item : net.b().received) REQUIRE((item.from <= item.to && item.to <= net.now));
  }
}

TEST_CASE("a jump of sequences is one gap, however far") {
  Two net;
  std::size_t asked = 0;
  net.filter = [&](const Packet& p) {
    for (const auto& range : p.message.ranges) asked = std::max<std::size_t>(asked, range.last - range.first + 1);
    return true;
  };
  net.Mesh();
  net.b().exchange->OnAnswer(0, net.Encode(net.Report(std::uint64_t{1} << 63)), net.now);
  CHECK(net.a_at_b().missed == (std::uint64_t{1} << 63) - 1);
  net.a().Hit("t");
  net.Run(5s);
  CHECK(asked == 256);
  CHECK(net.b().debits == Table{{"forged", 1}, {"t", 1}});    // a's own frames fill the gap
  net.b().exchange->OnAnswer(0, net.Encode(net.Report(~std::uint64_t{0})), net.now);
  net.b().exchange->OnAnswer(0, net.Encode(net.Report(0)), net.now);
  CHECK(net.b().Counts().junk == 2);
}

TEST_CASE("a flood of requests to repeat is limited, for each requester") {
  Two net;
  net.Add("c");
  net.Mesh();
  net.Run(3s);
  Message m = net.Report(0, "b", 1);
  m.kind = MessageKind::kRepeat;
  m.ranges = {{1, 1}, {2, 2}};
  for (int i = 0; i < 100; ++i) net.a().exchange->OnRequest("1 0", "b", net.Encode(m), net.now);
  CHECK(net.a().Counts().repeated == 32);
  CHECK(net.a().Counts().excess == 84);
  m.sender = "c";
  net.a().exchange->OnRequest("2 0", "c", net.Encode(m), net.now);
  CHECK(net.a().Counts().repeated == 34);
  m.sender = "b";
  for (int i = 0; i < 100; ++i) net.a().exchange->OnRequest("1 0", "b", net.Encode(m), net.now + 1s);
  CHECK(net.a().Counts().repeated == 42);    // four a second
}

TEST_CASE("one request is answered by a bounded number of frames") {
  Two net;
  net.a().options.period = 10ms;
  net.Mesh();
  net.Run(3s);
  Message m = net.Report(0, "b", 1);
  m.kind = MessageKind::kRepeat;
  for (int i = 0; i < static_cast<int>(kRangesMax); ++i) m.ranges.push_back({0, ~std::uint64_t{0}});
  net.a().exchange->OnRequest("1 0", "b", net.Encode(m), net.now);
  CHECK(net.a().Counts().repeated == 64);
  MessageKind answer{};
  net.filter = [&](const Packet& p) { return answer = p.message.kind, true; };
  m.incarnation = 99;    // not this life
  net.a().exchange->OnRequest("1 0", "b", net.Encode(m), net.now);
  CHECK(net.a().Counts().repeated == 64);
  CHECK(answer == MessageKind::kGone);
}

// "a" has hits that "c" reported, and its own, when "b" joins.
struct Joining : Two {
  Joining() {
    Add("c");
    a().Start(now);
    hosts[2]->Start(now);
    a().Link("c", now);
    a().Link("b", now);
    hosts[2]->Link("a", now);
    hosts[2]->Link("b", now);
    for (int i = 0; i < 5; ++i) {
      a().Hit("a" + std::to_string(i), 10);
      hosts[2]->Hit("c" + std::to_string(i), 20);
    }
    Run(12300ms);
  }
  Host& c() { return *hosts[2]; }
  void Join() {
    b().Start(now);
    b().Link("a", now);
    b().Link("c", now);
  }
};

TEST_CASE("a host that joins has what its peers know, and each hit once") {
  const int slow = GENERATE(0, 1, 2);    // snapshots come quickly, or reports go out while they are under way
  Joining net;
  net.filter = [&](const Packet& p) {
    return !(p.from == 0 && p.channel == Channel::kPublished && Carries(p, "lost"));
  };
  net.Join();
  CHECK(net.b().exchange->joining());
  net.Run(5ms * slow);
  // Served after the snapshot began, or before: it must not matter.
  net.a().Hit("lost", 2);
  net.a().Report(net.now);
  net.Run(5ms);
  net.c().Hit("new", 3);
  net.c().Report(net.now);
  net.Run(5s);
  CHECK_FALSE(net.b().exchange->joining());
  CHECK(net.b().Counts().snapshots_taken == 1);
  CHECK(net.a().Counts().snapshots_given + net.c().Counts().snapshots_given >= 1);
  CHECK(net.b().table == net.a().table);
  CHECK(net.b().table == net.c().table);
}

TEST_CASE("frames that a snapshot contains are dropped, later ones taken, and gaps between repaired") {
  Joining net;
  Message end;
  net.filter = [&](const Packet& p) {
    if (p.to == 1 && p.message.kind == MessageKind::kSnapshotEnd) {
      end = p.message;
      return false;    // instead, the end below
    }
    return p.channel != Channel::kPublished;
  };
  net.Join();
  net.b().exchange->RemoveLink(2);
  net.Run(500ms);
  REQUIRE(end.snapshot != 0);
  const Position own =
      *std::find_if(end.positions.begin(), end.positions.end(), [](const Position& p) { return p.sender == "a"; });
  CHECK(own.next == net.a().Counts().published + 1);
  // As if `a` had published three more meanwhile: one that the snapshot contains, one that is lost, one that comes.
  for (const std::uint64_t sequence : {own.next - 1, own.next + 1}) {
    net.b().exchange->OnAnswer(0, net.Encode(net.Report(sequence)), net.now);
  }
  CHECK(net.b().debits.empty());
  net.b().exchange->OnAnswer(0, net.Encode(end), net.now);
  CHECK(net.b().exchange->backlogged());
  net.Run(10ms);
  CHECK_FALSE(net.b().exchange->backlogged());
  CHECK(net.b().debits == Table{{"forged", 1}});
  CHECK(net.a_at_b().duplicates == 1);
  CHECK(net.a_at_b().missed == 1);
  net.a().Hit("gap", 5);
  net.a().Report(net.now);
  net.Run(2s);
  CHECK(net.b().debits == Table{{"forged", 1}, {"gap", 5}});
}

TEST_CASE("positions are of the moment when the snapshot is asked for, though debits wait before it") {
  Joining net;
  net.a().paused = true;
  for (std::uint64_t i = 0; i < 60; ++i) {
    Message m = net.Report(net.c().Counts().published + 1 + i, "c");
    net.a().exchange->OnAnswer(2, net.Encode(m), net.now);
  }
  const std::uint64_t next = net.c().Counts().published + 61;
  std::vector<Position> positions;
  net.filter = [&](const Packet& p) {
    if (p.from == 0 && p.message.kind == MessageKind::kSnapshotEnd) positions = p.message.positions;
    return true;
  };
  Message m = net.Report(0, "b");
  m.kind = MessageKind::kSnapshotWanted;
  m.snapshot = 5;
  net.Join();
  net.Run(300ms);    // a knows b by now
  net.a().exchange->OnRequest("1 0", "b", net.Encode(m), net.now);
  net.a().exchange->OnAnswer(2, net.Encode(net.Report(next, "c")), net.now);    // after the marker
  net.a().paused = false;
  net.Run(100ms);
  const auto of_c = std::find_if(positions.begin(), positions.end(), [](const Position& p) { return p.sender == "c"; });
  REQUIRE(of_c != positions.end());
  CHECK(of_c->next == next);
  CHECK(net.a().debits.at("forged") == 61);
}

TEST_CASE("a donor that is busy refuses, and is asked again later") {
  Joining net;
  net.Add("d");
  for (Host* donor : {&net.a(), &net.c()}) donor->Link("d", net.now);
  net.c().running = false;
  net.a().paused = true;    // begins no snapshot
  int refusals = 0;
  net.filter = [&](const Packet& p) {
    refusals += p.message.kind == MessageKind::kRefusal;
    return true;
  };
  net.Join();
  net[3].Start(net.now);
  net[3].Link("a", net.now);
  net.Run(1500ms);
  CHECK(refusals >= 2);
  net.a().paused = false;
  net.Run(5s);
  CHECK(net.a().Counts().snapshots_given == 3);    // c had one
  for (const int joiner : {1, 3}) {
    CHECK(net[joiner].Counts().snapshots_taken == 1);
    CHECK(net[joiner].table == net.a().table);
  }
}

TEST_CASE("when the donor dies within a snapshot another is asked") {
  Joining net;
  std::optional<std::uint32_t> donor;
  net.filter = [&](const Packet& p) {
    if (p.message.kind == MessageKind::kSnapshotEnd && !donor) {
      donor = p.from;
      net[p.from].running = false;
    }
    return p.from != donor;
  };
  net.Join();
  net.Run(1s);
  CHECK(donor);
  CHECK(net.b().exchange->joining());
  net.Run(3s);
  CHECK_FALSE(net.b().exchange->joining());
  CHECK(net.b().Counts().snapshots_taken == 1);
  CHECK(net.b().table == net[donor == 0 ? 2 : 0].table);
}

TEST_CASE("a snapshot with parts missing is asked for again, until it is time to do without") {
  Joining net;
  const int good_after = GENERATE(1, 2, 100);
  int wanted = 0;
  net.filter = [&](const Packet& p) {
    wanted += p.message.kind == MessageKind::kSnapshotWanted;
    wanted -= p.message.kind == MessageKind::kRefusal;    // by who has not heard of b yet
    return !(p.message.kind == MessageKind::kSnapshot && p.message.sequence == 2 && wanted <= good_after);
  };
  net.Join();
  net.Run(12s);    // each time the parts are waited for
  CHECK_FALSE(net.b().exchange->joining());
  CHECK(wanted == (good_after < 3 ? good_after + 1 : 5));
  CHECK(net.b().Counts().snapshots_taken == (good_after < 3 ? 1 : 0));
  CHECK(net.b().table == net.a().table);    // without a snapshot: from all reports since the first
}

// "b" has joined, and "a" has lost what "b" asked to hear again, so "b" wants a snapshot. The test answers it.
struct Donor : Joining {
  explicit Donor(std::size_t table_bytes = 64 << 10) {
    b().options.table_bytes = table_bytes;
    Join();
    Run(5s);
    a().sharing = false;
    filter = [this](const Packet& p) {
      const bool wants = p.from == 1 && p.message.kind == MessageKind::kSnapshotWanted;
      if (wants) wanted.push_back(p.message.snapshot);
      return !wants;
    };
    Message m = Report(a().Counts().published + 1000);
    b().exchange->OnAnswer(0, Encode(m), now);
    m.kind = MessageKind::kGone;
    m.ring_low = m.sequence;
    b().exchange->OnAnswer(0, Encode(m), now);
    Run(200ms);
    b().debits.clear();
    b().table.clear();
  }
  void Say(MessageKind kind, std::uint64_t sequence, std::size_t entries = 0) {
    Message m = Report(sequence);
    m.kind = kind;
    m.snapshot = wanted.back();
    m.entries.Clear();
    for (std::size_t i = 0; i < entries; ++i) m.entries.Add({"bucket", false}, 5, 0);
    b().exchange->OnAnswer(0, Encode(m), now);
  }
  std::vector<std::uint64_t> wanted;
};

TEST_CASE("a snapshot says no more than four tables like the one here hold, or nothing of it counts") {
  Donor net;
  REQUIRE(net.wanted.size() == 1);
  const bool many_parts = GENERATE(false, true);
  const std::size_t entries = many_parts ? 1 : 4096;
  const std::uint64_t parts = many_parts ? 16 : 1;    // so many still pass
  const std::uint64_t implausible = net.b().Counts().implausible;
  for (std::uint64_t part = 1; part <= parts; ++part) net.Say(MessageKind::kSnapshot, part, entries);
  CHECK(net.b().Counts().implausible == implausible);
  net.Say(MessageKind::kSnapshot, parts + 1, entries);
  CHECK(net.b().Counts().implausible == implausible + 1);
  const std::uint64_t cut = net.a_at_b().cut.frames;
  for (std::uint64_t part = 2; part <= 100; ++part) net.Say(MessageKind::kSnapshot, parts + part, entries);
  net.Say(MessageKind::kSnapshotEnd, parts + 100);
  CHECK(net.a_at_b().cut.frames == cut + 100);    // what is left of it is not read
  net.Run(1s);
  CHECK(net.b().table.count("bucket") == 0);
  CHECK(net.b().Counts().snapshots_taken == 1);    // the one to join
  net.Run(58s);
  CHECK(net.wanted.size() == 1);
  net.Run(3s);
  CHECK(net.wanted.size() == 2);
}

TEST_CASE("frames that come beside a snapshot are bounded as others are once they are more than its parts can be") {
  Donor net;
  const std::uint64_t published = net.a().Counts().published + 1000;
  net.b().exchange->SetCeilings({.frames = 1});
  const std::uint64_t received = net.b().Counts().received;
  for (std::uint64_t i = 1; i <= 100; ++i) {
    net.b().exchange->OnAnswer(0, net.Encode(net.Report(published + i)), net.now);
  }
  CHECK(net.b().Counts().received == received + 17 + 10);    // beside the snapshot, and ten seconds of the ceiling
  CHECK(net.a_at_b().cut.frames == 100 - 17 - 10);
}

TEST_CASE("peers are heard while a snapshot that makes up for losses is merged") {
  Donor net(64 << 20);
  net.b().paused = true;
  for (std::uint64_t part = 1; part <= 200; ++part) net.Say(MessageKind::kSnapshot, part, 1);
  net.Say(MessageKind::kSnapshotEnd, 200);
  CHECK_FALSE(net.b().exchange->backlogged());
  net.b().received.clear();
  net.c().Hit("news");
  net.c().Report(net.now);
  net.Run(50ms);
  net.b().paused = false;
  net.Run(500ms);
  CHECK(net.b().debits["news"] == 1);
  CHECK(net.b().table["bucket"] == 5);
  CHECK(net.b().Counts().snapshots_taken == 2);
  const auto& got = net.b().received;
  const auto news = std::find_if(got.begin(), got.end(), [](const FromPeers& item) {
    return item.kind == FromPeers::Kind::kDebits && !item.entries.empty();
  });
  const auto before = std::count_if(got.begin(), news, [](const FromPeers& item) {
    return item.kind == FromPeers::Kind::kBuckets;
  });
  CHECK(before <= 65);    // what the ring held already, and one more
}

TEST_CASE("parts of a snapshot that nobody asked for are not taken") {
  Joining net;
  net.Join();
  net.Run(1s);
  net.b().received.clear();
  Message m = net.Report(1);
  m.kind = MessageKind::kSnapshot;
  for (const std::uint64_t id : {0, 1, 2}) {
    m.snapshot = id;
    net.b().exchange->OnAnswer(0, net.Encode(m), net.now);
  }
  net.Run(100ms);
  CHECK(net.b().table.count("forged") == 0);
}

TEST_CASE("the limiter is told once that the snapshot has come, after its last bucket, or that none will") {
  const auto joined = [](const Host& host) {
    return std::count_if(host.received.begin(), host.received.end(),
                         [](const FromPeers& f) { return f.kind == FromPeers::Kind::kJoined; });
  };
  Two net;
  net.a().Start(net.now);
  net.a().Hit("t", 3);
  net.Run(9s);
  CHECK(joined(net.a()) == 0);    // somebody may still be given to it
  net.Run(2s);
  CHECK(joined(net.a()) == 1);
  net.a().Link("b", net.now);
  net.b().Start(net.now);
  net.b().Link("a", net.now);
  net.Run(5s);
  CHECK(joined(net.a()) == 1);
  REQUIRE(joined(net.b()) == 1);
  const auto is = [](FromPeers::Kind kind) { return [kind](const FromPeers& f) { return f.kind == kind; }; };
  const auto& got = net.b().received;
  CHECK(std::find_if(got.begin(), got.end(), is(FromPeers::Kind::kBuckets)) <
        std::find_if(got.begin(), got.end(), is(FromPeers::Kind::kJoined)));
}

TEST_CASE("without anybody to ask a host begins by itself after ten seconds") {
  Two net;
  net.b().Start(net.now);
  net.b().Link("a", net.now);
  net.Run(9900ms);
  CHECK(net.b().exchange->joining());
  net.Run(200ms);
  CHECK_FALSE(net.b().exchange->joining());
}

TEST_CASE("when more is held back than may be, it is released and nothing is lost") {
  Two net;
  net.a().options.period = 20ms;
  net.a().gives_snapshots = false;
  net.a().Start(net.now);
  net.a().Link("b", net.now);
  net.b().options.held_bytes = 2000;
  net.b().Start(net.now);
  net.b().Link("a", net.now);
  for (int i = 0; i < 100 && net.b().exchange->joining(); ++i) {
    net.a().Hit("t");
    net.Run(20ms);
  }
  CHECK_FALSE(net.b().exchange->joining());
  CHECK(net.now < FromNanoseconds(0) + 101s);
  net.Run(2s);
  CHECK(net.b().debits == net.a().table);
}

TEST_CASE("a table that was kept over a restart is not told again what it holds") {
  Two net;
  const bool fresh = GENERATE(false, true);
  net.a().gives_snapshots = false;
  net.a().Start(net.now);
  net.a().Link("b", net.now);
  net.a().Hit("before");
  net.Run(3s);
  net.b().options.fresh_table = fresh;
  bool lose = true;
  net.filter = LosePublished(0, lose);
  net.b().Start(net.now);
  net.b().Link("a", net.now);
  net.Run(500ms);
  net.a().Hit("after");    // the first after the welcome, and lost
  net.Run(1500ms);
  lose = false;
  net.Run(15s);
  CHECK(net.b().debits == (fresh ? Table{{"before", 1}, {"after", 1}} : Table{{"after", 1}}));
}

TEST_CASE("a host that began without a snapshot takes one as soon as somebody can give it") {
  Two net;
  net.a().Start(net.now);
  net.a().Link("b", net.now);
  net.a().Hit("t", 5);
  net.Run(3s);
  net.cut.insert({0, 1});
  net.b().options.fresh_table = false;
  net.b().Start(net.now);
  net.b().Link("a", net.now);
  net.Run(12s);
  REQUIRE_FALSE(net.b().exchange->joining());
  net.a().Hit("t", 2);
  net.Run(2s);
  net.cut.clear();
  net.Run(5s);
  CHECK(net.b().table == Table{{"t", 7}});
  CHECK(net.b().debits.empty());
  net.Run(3min);
  CHECK(net.b().Counts().snapshots_taken == 1);
}

TEST_CASE("a snapshot that was refused is asked for again soon, also when the host has begun without it") {
  Two net;
  net.a().Start(net.now);
  net.a().Hit("t", 5);
  net.Run(3s);
  net.b().options.fresh_table = false;
  net.b().Start(net.now);
  net.b().Link("a", net.now);
  net.Run(20s);    // refused, because it is no peer of a
  REQUIRE_FALSE(net.b().exchange->joining());
  REQUIRE(net.b().table.empty());
  net.a().Link("b", net.now);
  net.Run(7s);
  CHECK(net.b().table == Table{{"t", 5}});
}

TEST_CASE("a limiter that is behind loses nothing") {
  Two net;
  net.b().to_limiter_items = 1;
  net.a().entries_per_frame = 1;
  net.patient = GENERATE(true, false);
  net.Mesh();
  net.b().paused = true;
  for (int i = 0; i < 600; ++i) net.a().Hit("t" + std::to_string(i));
  net.Run(3s);
  CHECK(net.b().Counts().overflow > 0);
  net.b().paused = false;
  net.Run(60s);
  CHECK(net.b().debits == net.a().table);
  CHECK(net.a_at_b().lost == 0);
}

TEST_CASE("what one peer has too much of does not delay the news of another") {
  Joining net;
  net.b().to_limiter_items = 1;
  net.Join();
  net.Run(5s);
  net.b().paused = true;
  net.b().received.clear();
  const std::uint64_t of_a = net.a().Counts().published, of_c = net.c().Counts().published;
  net.a().running = net.c().running = false;
  for (std::uint64_t i = 1; i <= 200; ++i) {
    net.b().exchange->OnAnswer(0, net.Encode(net.Report(of_a + i, "a")), net.now);
  }
  net.b().exchange->OnAnswer(2, net.Encode(net.Report(of_c + 1, "c")), net.now);
  CHECK_FALSE(net.b().exchange->backlogged());    // others are heard
  CHECK(net.b().Counts().overflow > 100);         // of a, to be asked for again
  net.b().paused = false;
  net.Run(100ms);
  std::size_t place = 0, of_others = 0;
  for (const FromPeers& item : net.b().received) {
    of_others += item.peer != net.b().received.front().peer;
    place += of_others == 0;
  }
  CHECK(of_others == 1);
  CHECK(place < 20);    // what the ring held already, and one more
}

// "b" has joined and "a" publishes frames of one entry and one hit each, as many as it likes.
struct Ceiling : Joining {
  explicit Ceiling(const PeerCeilings& ceilings) {
    b().options.ceilings = ceilings;
    a().entries_per_frame = 1;
    Join();
    Run(20s);
  }
  void Flood(int frames) {
    for (int i = 0; i < frames; ++i) a().Hit("flood" + std::to_string(i));
    c().Hit("honest");
  }
  std::size_t heard_of_flood() {
    return static_cast<std::size_t>(std::count_if(b().debits.begin(), b().debits.end(),
                                                  [](const auto& tag) { return tag.first.starts_with("flood"); }));
  }
};

TEST_CASE("what a peer says above a ceiling is heard later, as the ceiling allows, and others are heard in time") {
  PeerCeilings ceilings;
  const bool of_hits = GENERATE(false, true);
  (of_hits ? ceilings.hits : ceilings.entries) = 20;
  Ceiling net(ceilings);
  net.Flood(400);
  net.Run(2s);
  CHECK(net.b().debits["honest"] == 1);
  CHECK(net.heard_of_flood() >= 200);    // ten seconds of it at once
  CHECK(net.heard_of_flood() <= 245);
  const CutCounts cut = net.a_at_b().cut;
  CHECK((of_hits ? cut.hits : cut.entries) >= 155);
  CHECK((of_hits ? cut.entries : cut.hits) == 0);
  CHECK(net.b().Peer("c", net.now).cut.entries == 0);
  CHECK(net.b().Counts().cut > 0);
  net.Run(20s);
  CHECK(net.heard_of_flood() == 400);
  CHECK(net.a_at_b().lost == 0);
  CHECK(net.a_at_b().cut.entries + net.a_at_b().cut.hits < 400);    // it is not asked for what could not be taken
}

TEST_CASE("frames above the ceiling are not read, and asked for again") {
  PeerCeilings ceilings;
  ceilings.frames = 20;
  Ceiling net(ceilings);
  net.Flood(400);
  net.Run(2s);
  CHECK(net.b().debits["honest"] == 1);
  CHECK(net.heard_of_flood() <= 245);
  CHECK(net.a_at_b().cut.frames >= 155);
  net.Run(25s);
  CHECK(net.heard_of_flood() == 400);
  CHECK(net.a_at_b().lost == 0);
}

TEST_CASE("frames of other protocols count for the ceiling of their sender, on whichever connection they come") {
  PeerCeilings ceilings;
  ceilings.frames = 20;
  Ceiling net(ceilings);
  Exchange& b = *net.b().exchange;
  const auto liar = [&] { return net.b().Peer("c", net.now); };
  const LinkId link = liar().link;
  REQUIRE(link != 0);
  int admitted = 0;
  for (int i = 0; i < 300; ++i) admitted += b.Admits(link, "", net.now) + b.Admits(0, "c", net.now);
  CHECK(admitted <= 200);    // ten seconds of it at once
  CHECK(admitted >= 150);
  CHECK(liar().cut.frames == 600u - static_cast<unsigned>(admitted));
  CHECK(b.Admits(0, "a", net.now));
  int unlinked = 0;
  for (int i = 0; i < 300; ++i) unlinked += b.Admits(0, "nobody", net.now);
  CHECK(unlinked == 200);
  b.TurnedDown(link, "");
  b.TurnedDown(0, "c");
  CHECK(liar().cut.limits == 2);
}

TEST_CASE("a frame that is larger than all a ceiling gives at once still passes, and is owed") {
  PeerCeilings ceilings;
  ceilings.hits = 10;
  Ceiling net(ceilings);
  net.a().Hit("huge", 1'000'000);
  net.a().Hit("next");
  net.Run(2s);
  CHECK(net.b().debits["huge"] == 1'000'000);
  CHECK(net.b().debits["next"] == 0);
  net.Run(15s);
  CHECK(net.b().debits["next"] == 1);
}

TEST_CASE("a higher ceiling takes effect at once") {
  PeerCeilings ceilings;
  ceilings.entries = 2;
  Ceiling net(ceilings);
  net.Flood(300);
  net.Run(3s);
  CHECK(net.heard_of_flood() < 50);
  net.b().exchange->SetCeilings({});
  net.Run(3s);
  CHECK(net.heard_of_flood() == 300);
}

TEST_CASE("a peer that always misses something does not keep a host from giving snapshots") {
  Joining net;
  net.filter = [&](const Packet& p) {
    return p.channel != Channel::kAnswer || p.from != 2 || p.to != 0;
  };    // no repairs
  for (std::uint64_t sequence = 1000; sequence < 1400; sequence += 2) {
    net.a().exchange->OnAnswer(2, net.Encode(net.Report(sequence, "c")), net.now);
  }
  net.c().gives_snapshots = false;
  const std::uint64_t given = net.a().Counts().snapshots_given;
  net.Join();
  net.Run(9s);
  CHECK(net.a().Counts().snapshots_given == given + 1);
  CHECK(net.b().Counts().snapshots_taken == 1);
}

TEST_CASE("hits that wait behind the ring go to the limiter before an orderly restart") {
  Two net;
  net.b().to_limiter_items = 1;
  net.Mesh();
  net.b().paused = true;
  const std::uint64_t published = net.a().Counts().published;
  net.a().running = false;
  for (std::uint64_t i = 1; i <= 50; ++i) {
    net.b().exchange->OnAnswer(0, net.Encode(net.Report(published + i)), net.now);
  }
  CHECK_FALSE(net.b().exchange->Drain(net.now));
  FromPeers item;
  REQUIRE(net.b().from_peers->TryPop(item));
  CHECK_FALSE(net.b().exchange->Drain(net.now));    // the ring has room, and 48 wait
  net.b().paused = false;
  StopInOrder(net, net.b());
  CHECK(net.b().debits["forged"] == 49);
}

TEST_CASE("a true position of a snapshot still counts after an orderly restart") {
  Joining net;
  net.Join();
  net.Run(400ms);
  REQUIRE_FALSE(net.b().exchange->joining());
  StopInOrder(net, net.b());
  StartAgain(net, net.b());
  REQUIRE(net.b().exchange->resumed());
  net.Run(50ms);
  Message old = net.Report(1, "c");
  old.from = old.to = net.now - 5s;
  net.b().exchange->OnAnswer(2, net.Encode(old), net.now);
  net.Run(10s);
  CHECK(net.b().Counts().implausible == 0);
  CHECK(net.b().debits.empty());
  CHECK(net.b().table == net.c().table);
}

TEST_CASE("a snapshot that lies about how far others were heard makes deaf for three periods at most") {
  const std::uint64_t next = GENERATE(as<std::uint64_t>(), ~std::uint64_t{0} - 2, 1u << 20, 20u);
  const bool restarted = GENERATE(false, true);
  Joining net;
  std::string lied_about;
  net.filter = [&](const Packet& p) {
    if (p.message.kind != MessageKind::kSnapshotEnd || !lied_about.empty()) return true;
    Message end = p.message;
    lied_about = p.from == 0 ? "c" : "a";
    for (Position& position : end.positions) {
      if (position.sender == lied_about) position.next = next;
    }
    Packet lie = p;
    lie.frame = std::make_shared<const std::string>(net.Encode(end));
    net.Postpone(lie, net.World::now() + net.lanes.delay);
    return false;
  };
  net.Join();
  net.Run(500ms);
  if (restarted) {
    StopInOrder(net, net.b());
    StartAgain(net, net.b());
    REQUIRE(net.b().exchange->resumed());
  }
  CAPTURE(next, restarted, lied_about, net.a().Counts().published, net.c().Counts().published);
  REQUIRE_FALSE(lied_about.empty());
  Host& other = lied_about == "a" ? net.a() : net.c();
  for (int i = 0; i < 4; ++i) {
    other.Hit("after", 1);
    net.Run(1s);
  }
  net.Run(1s);
  CHECK(net.b().Counts().implausible == 1);
  CHECK(net.b().debits["after"] == 4);    // the first of them were asked for again
  CHECK(net.b().Peer(lied_about, net.now).lost == 0);
  net.Run(20s);
  CHECK(net.b().Counts().implausible == 1);
  CHECK(net.b().debits["after"] == 4);
}

TEST_CASE("a peer whose clock seems far ahead is read by the clock that it had, unless it goes on so") {
  Two net;
  net.Mesh();
  net.Run(3s);
  const std::uint64_t published = net.a().Counts().published;
  net.a().running = false;
  const auto say = [&](std::uint64_t i, Duration ahead) {
    Message m = net.Report(published + i);
    m.from = m.to = net.now + ahead;
    net.b().exchange->OnAnswer(0, net.Encode(m), net.now);
    net.Run(100ms);
    return net.b().received.back();
  };
  CHECK(net.now - say(1, 1h).to < 200ms);
  CHECK(net.b().Counts().implausible == 1);
  CHECK(net.now - say(2, 0s).to < 200ms);    // and not an hour ago
  say(3, 1h);
  say(4, 1h);
  CHECK(net.b().Counts().implausible == 3);
  say(5, 1h);
  CHECK(net.now - say(6, 1h).to < 200ms);    // believed
  CHECK(net.b().Counts().implausible == 3);
}

// Hosts under random trouble: hits, loss, doubling, reordering and partitions, all of which end.
void Trouble(ExchangeFleet& net, std::uint32_t hosts, std::size_t ring_bytes) {
  net.step = 20ms;
  for (std::uint32_t i = 0; i < hosts; ++i) {
    Host& host = net.Add(std::string(1, static_cast<char>('a' + i)));
    host.options.ring_bytes = ring_bytes;
    host.options.period = Duration(200ms) * (1 + net.prng().Below(6));
    host.skew = Duration(1s) * net.prng().Below(1000);
    host.entries_per_frame = 1 + net.prng().Below(3);
  }
  for (auto& host : net.hosts) host->sharing = false;
  net.Mesh();
  net.Run(3s);
  for (auto& host : net.hosts) {
    REQUIRE_FALSE(host->exchange->joining());
    host->sharing = true;
  }
  net.lanes.loss = net.lanes.duplication = 0.2;
  net.lanes.jitter = Duration(1ms) * (1 + net.prng().Below(2000));
  for (int round = 0; round < 60; ++round) {
    for (auto& host : net.hosts) {
      for (std::uint64_t n = net.prng().Below(4); n > 0; --n) {
        host->Hit(host->name + std::to_string(round) + "." + std::to_string(n), n);
      }
    }
    if (round % 10 == 0) {
      net.cut.clear();
      for (std::uint32_t i = 0; i < hosts; ++i) {
        for (std::uint32_t j = i + 1; j < hosts; ++j) {
          if (lab::Happens(0.3, net.prng())) net.cut.insert({i, j});
        }
      }
    }
    net.Run(Duration(1ms) * net.prng().Below(1000));
  }
  net.cut.clear();
  net.lanes.loss = net.lanes.duplication = 0;
  net.lanes.jitter = 1ms;
  net.Run(40s);
  for (auto& host : net.hosts) host->sharing = false;
  net.Run(1s);
}

TEST_CASE("whatever the network does, every hit is debited exactly once at every other host") {
  for (std::uint64_t seed = 1; seed <= testing::Fewer(200); ++seed) {
    INFO("seed " << seed);
    ExchangeFleet net(seed);
    Trouble(net, 2 + static_cast<int>(seed % 3), 64 << 20);
    std::uint64_t missed = 0;
    for (auto& host : net.hosts) {
      REQUIRE(host->table == net[0].table);
      REQUIRE(host->Counts().lost == 0);
      missed += host->Counts().missed;
    }
    REQUIRE(missed > 0);
  }
}

TEST_CASE("whatever two of five hosts say, every hit of the others is debited once at each of them") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    Prng prng(seed);
    std::string bytes;
    while (bytes.size() < 1500) bytes += static_cast<char>(prng.Below(256));
    testing::Input input(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    testing::LyingFleet fleet(5, 2, seed);
    fleet.Play(input);
    REQUIRE(fleet.EachHitOnce());
  }
}

TEST_CASE("with rings too small for the trouble, what was heard and what was lost add up") {
  std::uint64_t lost = 0;
  for (std::uint64_t seed = 1; seed <= testing::Fewer(200); ++seed) {
    INFO("seed " << seed);
    ExchangeFleet net(seed);
    Trouble(net, 2 + static_cast<int>(seed % 3), 600);
    for (auto& host : net.hosts) {
      for (auto& other : net.hosts) {
        if (host == other) continue;
        const PeerStatus status = host->Peer(other->name, net.now + host->skew);
        REQUIRE(status.sequence == other->Counts().published);
        REQUIRE(status.reports + status.lost == status.sequence);
        REQUIRE(status.missed == status.repaired + status.lost);
        lost += status.lost;
      }
    }
  }
  CHECK(lost > 0);
}

TEST_CASE("a thousand peers are followed") {
  Two net;
  net.b().Start(net.now);
  Exchange& b = *net.b().exchange;
  std::vector<std::uint64_t> hellos;
  net.filter = [&](const Packet& p) { return hellos.push_back(p.message.snapshot), false; };
  for (LinkId i = 0; i < 1000; ++i) {
    net.b().links[i] = 0;
    b.AddLink(i, "address", net.now);
  }
  for (LinkId i = 0; i < 1000; ++i) {
    Message m = net.Report(0, ("host" + std::to_string(i)).c_str());
    m.kind = MessageKind::kWelcome;
    m.snapshot = hellos[i];
    m.entries.Clear();
    b.OnAnswer(i, net.Encode(m), net.now);
  }
  net.now += 11s;
  b.Tick(net.now);
  for (LinkId i = 0; i < 1000; ++i) {
    b.OnAnswer(i, net.Encode(net.Report(1, ("host" + std::to_string(i)).c_str())), net.now);
    net.b().Work(net.now);
  }
  CHECK(b.Counts().received == 1000);
  CHECK(net.b().debits.at("forged") == 1000);
}

}    // namespace
}    // namespace dthrottle
