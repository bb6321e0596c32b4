// Shares of a capacity: frames as protocol/capacity.md has them, ledgers, witnesses, graphs.
#include <xxhash.h>

#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "capacity/capacity_message.h"
#include "capacity/client_log.h"
#include "capacity/ledgers.h"
#include "capacity/topology.h"
#include "capacity/witness.h"
#include "test/support/examples.h"
#include "test/support/lying_parts.h"
#include "test/support/pack.h"
#include "test/support/sanitized.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

using testing::B;
using testing::I;
using testing::List;
using testing::Map;
using testing::T;
using testing::U;

std::string WithSum(std::string bytes) {
  const std::uint64_t sum = XXH3_64bits(bytes.data(), bytes.size());
  return bytes.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
}

std::string Encoded(const CapacityMessage& m) {
  std::string frame;
  EncodeCapacity(m, frame);
  return frame;
}

TEST_CASE("frames about shares are the bytes of protocol/capacity.md") {
  std::map<std::string, CapacityMessage> messages;
  CapacityMessage& beat = messages["A beat"];
  beat.kind = CapacityKind::kBeat;
  beat.host = "web-1";
  beat.generation = 3, beat.epoch = 0x20000, beat.sent = 1'500'000, beat.binding = beat.bound = 1, beat.digest = 300;
  beat.members.Add(2);

  CapacityMessage& gifts = messages["Gifts"];
  gifts.kind = CapacityKind::kGifts;
  gifts.host = "web-1";
  gifts.generation = 3, gifts.epoch = 0x20000, gifts.to_epoch = 0x10000, gifts.sequence = 7;
  gifts.items.push_back({.key = {0x0102030405060708, 0x1112131415161718}, .given = 1 << 20, .indicator = -0.25});

  const auto examples = testing::Examples("capacity.md");
  REQUIRE(examples.size() == messages.size());
  for (const auto& [heading, message] : messages) {
    CAPTURE(heading);
    REQUIRE(examples.contains(heading));
    CHECK(testing::Hex(examples.at(heading)) == testing::Hex(Encoded(message)));
    CapacityMessage back;
    REQUIRE(DecodeCapacity(examples.at(heading), back) == CapacityFault::kNone);
    CHECK(Encoded(back) == Encoded(message));
  }
}

// What frames of these kinds have at least.
const Map kBeat = {{"kind", T("beat")}, {"host", T("a")}, {"generation", U(3)}, {"epoch", U(1)},
                   {"sent", I(-1)},     {"bond", U(0)},   {"bound", U(0)},      {"digest", U(0)}};
const Map kGifts = {{"kind", T("gifts")}, {"host", T("a")}, {"generation", U(3)}, {"epoch", U(1)},
                    {"to_epoch", U(1)},   {"seq", U(1)},    {"items", B("")}};
const Map kLog = {{"kind", T("log")}, {"host", T("a")}, {"generation", U(3)}, {"epoch", U(1)},     {"to_epoch", U(1)},
                  {"seq", U(1)},      {"bond", U(0)},   {"degree", U(0)},     {"lives", List({})}, {"items", B("")}};
const Map kAsk = {{"kind", T("ask")}, {"host", T("a")}, {"generation", U(3)},
                  {"epoch", U(1)},    {"seq", U(1)},    {"items", B("")}};

CapacityFault FaultOf(std::string_view map, std::string_view prefix = "DTC\2") {
  CapacityMessage m;
  return DecodeCapacity(WithSum(std::string(prefix) + std::string(map)), m);
}
CapacityFault FaultOf(const Map& map) {
  return FaultOf(testing::BytesOf(map));
}

TEST_CASE("hosts ask each other what they may use of a tag") {
  for (const CapacityKind kind : {CapacityKind::kAsk, CapacityKind::kShare}) {
    CapacityMessage m, again;
    m.kind = kind;
    m.host = "a";
    m.generation = 3, m.epoch = 4;
    for (std::uint64_t i = 0; i < kAskedMax; ++i) {
      m.items.push_back({.key = {i, 7}, .given = kind == CapacityKind::kShare ? i << 20 : 0});
    }
    const std::string frame = Encoded(m);
    REQUIRE(DecodeCapacity(frame, again) == CapacityFault::kNone);
    CHECK(Encoded(again) == frame);
    CHECK(again.items.back().given == m.items.back().given);
    m.items.push_back(m.items.back());
    const Map more = testing::With(kAsk, {{"kind", T(kind == CapacityKind::kAsk ? "ask" : "share")},
                                          {"items", B(std::string(17 * m.items.size(), 1))}});
    CHECK(FaultOf(more) == CapacityFault::kJunk);
  }
}

TEST_CASE("a frame about shares that breaks a rule is refused whole") {
  using testing::With;
  for (const Map& map : {kBeat, kGifts, kLog, kAsk}) {
    REQUIRE(FaultOf(map) == CapacityFault::kNone);
    for (const auto& [name, value] : map) {
      CAPTURE(name);
      CHECK(FaultOf(testing::Without(map, name)) == CapacityFault::kJunk);
      CHECK(FaultOf(With(map, {{name, testing::Yes()}})) == CapacityFault::kJunk);
    }
    CHECK(FaultOf(With(map, {{"later", List({U(1)})}})) == CapacityFault::kNone);
  }
  const std::string beat = testing::BytesOf(kBeat);
  CHECK(FaultOf(beat, "DTC\1") == CapacityFault::kVersion);
  CHECK(FaultOf(beat, "DTR\2") == CapacityFault::kJunk);
  CHECK(FaultOf(beat + U(1)) == CapacityFault::kJunk);
  CHECK(FaultOf(With(kBeat, {{"kind", T("nonsense")}})) == CapacityFault::kJunk);
  CHECK(FaultOf(With(kBeat, {{"host", T("//")}})) == CapacityFault::kJunk);
  CHECK(FaultOf(With(kBeat, {{"member", T("//")}})) == CapacityFault::kJunk);
  CHECK(FaultOf(With(kBeat, {{"members", B(std::string("\1\0", 2))}})) == CapacityFault::kJunk);    // an empty end
  CHECK(FaultOf(With(kBeat, {{"members", B(std::string(kMemberBitsBytesMax + 1, 1))}})) == CapacityFault::kJunk);
  CHECK(FaultOf(With(kBeat, {{"witnesses", List(std::vector(kWitnessesMax, T("b")))}})) == CapacityFault::kNone);
  CHECK(FaultOf(With(kBeat, {{"witnesses", List(std::vector(kWitnessesMax + 1, T("b")))}})) == CapacityFault::kJunk);
  CHECK(FaultOf(With(kBeat, {{"witnesses", List({T("")})}})) == CapacityFault::kJunk);
  CHECK(FaultOf(With(kBeat, {{"items", B(std::string(32, 1))}})) == CapacityFault::kJunk);
  CHECK(FaultOf(With(kBeat, {{"degree", U(1)}})) == CapacityFault::kJunk);
  CHECK(FaultOf(With(kGifts, {{"items", B(std::string(16 + 1 + 8, 1))}})) == CapacityFault::kNone);
  CHECK(FaultOf(With(kGifts, {{"items", B(std::string(16 + 1 + 7, 1))}})) == CapacityFault::kJunk);    // cut off
  CHECK(FaultOf(With(kGifts, {{"items", B(std::string(25 * ItemsMax(CapacityKind::kGifts, 0) + 25, 1))}})) ==
        CapacityFault::kJunk);
  CHECK(FaultOf(With(kLog, {{"degree", U(2)}})) == CapacityFault::kJunk);    // two edges and no lives
  CHECK(FaultOf(With(kLog, {{"degree", U(2)}, {"lives", List({U(1), U(2)})}})) == CapacityFault::kNone);
  CHECK(FaultOf(With(kLog, {{"degree", U(kDegreeMax + 1)}, {"lives", List(std::vector(kDegreeMax + 1, U(1)))}})) ==
        CapacityFault::kJunk);
  CapacityMessage m;
  CHECK(DecodeCapacity("DTC\2" + beat + std::string(8, 0), m) == CapacityFault::kJunk);    // another checksum
}

TEST_CASE("tags of one rule and of two have digests of their own, the same on every host") {
  CHECK(CapacityKeyOf(1, "a", false) == CapacityKeyOf(1, "a", false));
  CHECK(CapacityKeyOf(1, "a", false) != CapacityKeyOf(2, "a", false));
  CHECK(CapacityKeyOf(1, "a", false) != CapacityKeyOf(1, "b", false));
  CHECK(CapacityKeyOf(1, "0123456789abcdef", false) != CapacityKeyOf(1, "0123456789abcdef", true));
}

TEST_CASE("a ledger has what it began with, and what came less what went") {
  Ledgers ledgers;
  ledgers.Clear(2);
  const std::uint32_t id = ledgers.Add({1, 2}, 100);
  CHECK(ledgers.Find({1, 2}) == id);
  CHECK(ledgers.Find({1, 3}) == KeyIndex::kNone);
  ledgers.Give(id, 0, 30);
  CHECK(ledgers.Receive(id, 1, 50));
  CHECK_FALSE(ledgers.Receive(id, 1, 50));    // again
  CHECK_FALSE(ledgers.Receive(id, 1, 40));    // late
  CHECK(ledgers[id].available == 120);
  CHECK(ledgers.Base(id) == 100);
  SECTION("what was never told to a neighbour comes back when its life is over") {
    ledgers.edge(id, 0).noted = ledgers.edge(id, 0).logged = 20;
    CHECK(ledgers.Renew(id, 0).given == 20);
    CHECK(ledgers[id].available == 130);
    CHECK(ledgers.Base(id) == 80);
    CHECK(ledgers.edge(id, 0).given == 0);
  }
}

TEST_CASE("a ledger never has more than the whole, and its edges keep their sums in full") {
  Ledgers ledgers;
  ledgers.Clear(2);
  const std::uint32_t id = ledgers.Add({1, 2}, 100);
  for (Parts sum = kWhole; sum <= 4 * kWhole; sum += kWhole) CHECK(ledgers.Receive(id, 0, sum));
  CHECK(ledgers[id].available == static_cast<std::int64_t>(kWhole));
  CHECK(ledgers.Receive(id, 1, 30));
  CHECK(ledgers.edge(id, 0).received == 4 * kWhole);
  CHECK(ledgers.edge(id, 1).received == 30);
  CHECK_FALSE(ledgers.Receive(id, 1, 31 + kWhole));    // more than the whole at once
}

TEST_CASE("a log keeps no more lists of neighbours' lives than it has records of") {
  ClientLog log("a", 1, 1, 2, BootInstant(0s));
  CapacityMessage m;
  m.degree = 2;
  for (std::uint64_t i = 1; i <= 1000; ++i) {
    m.sequence = i;
    m.lives = {i, i};
    m.items = {{.key = {1, i % 3}}};
    m.edges.assign(2, {});
    REQUIRE(log.Take(m, 10));
  }
  CHECK(log.LifeOf(1, 0) == 998);
  CHECK(log.LifeOf(2, 0) == 999);
  CHECK(log.LifeOf(0, 1) == 1000);
  CHECK(log.lists() <= 65);
}

TEST_CASE("whatever one of two to five members says, what the others share stays theirs") {
  for (std::uint64_t seed = 1; seed <= testing::Fewer(200); ++seed) {
    Prng prng(seed);
    std::string bytes;
    while (bytes.size() < 600) bytes += static_cast<char>(prng.Below(prng.Below(2) == 0 ? 4 : 256));
    testing::Input input(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    testing::LyingParts fleet(2 + seed % 4, seed);
    fleet.Play(input);
    fleet.Settle();
    INFO("seed " << seed);
    REQUIRE(fleet.Failure() == "");
  }
}

TEST_CASE("however hosts are paused and frames lost, no part is lost for long where nobody lies") {
  for (std::uint64_t seed = 1; seed <= testing::Fewer(100); ++seed) {
    Prng prng(seed);
    std::string bytes;
    while (bytes.size() < 200) {
      const auto what = static_cast<char>(prng.Below(3));    // demand, time, trouble
      bytes += what;
      for (int i = what == 0 ? 2 : what == 1 ? 1 : 3; i > 0; --i) bytes += static_cast<char>(prng.Below(256));
    }
    testing::Input input(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    testing::LyingParts fleet(2 + seed % 4, seed);
    fleet.Play(input, false);
    fleet.Settle();
    INFO("seed " << seed);
    REQUIRE(fleet.Failure() == "");
  }
}

TEST_CASE("a member that is not the first witness begins no generation and tells of none") {
  testing::LyingParts fleet(5, 1);
  const Parts before = fleet.PartsOf(0);
  for (const std::uint64_t ahead : {testing::LyingParts::kNextGeneration, std::uint64_t{1} << 63}) {
    CapacityMessage prepare = fleet.Frame(CapacityKind::kPrepare, 0);
    prepare.generation += ahead;
    fleet.Tell(prepare, 0);
    CapacityMessage commit = fleet.Frame(CapacityKind::kCommit, 0);
    commit.generation += ahead;
    commit.base = kWhole;
    commit.members.Add(0);
    fleet.Tell(commit, 0);
    fleet.Run(4);
    CHECK(fleet.PartsOf(0) == before);
    CHECK(fleet.Counts(0).resets == 1);
  }
}

TEST_CASE("a generation is one whole, all of it, or it does not begin") {
  struct Silent final : CapacityTransport {
    void Send(std::string_view, std::string_view) override {}
    void Save(std::string_view) override {}
  } wire;
  const CapacitySettings settings{.members = {"a", "b"}, .graph = CompleteTopology(2), .reserve = 0.1, .tags_max = 10};
  CapacityExchange host({.name = "b"}, settings, wire, Prng(1), BootInstant(1s));
  CapacityMessage commit;
  commit.kind = CapacityKind::kCommit;
  commit.host = "a";
  commit.generation = 7;
  commit.epoch = 1;
  commit.digest = DigestOf(settings);
  commit.members.Add(0);
  commit.members.Add(1);
  commit.reserve = commit.aside = ReserveParts(settings);
  const Parts base = (kWhole - 2 * commit.reserve) / 2;
  const auto begins = [&](Parts with) {
    std::string frame;
    commit.base = with;
    EncodeCapacity(commit, frame);
    host.OnMessage("a", frame, BootInstant(2s));
    return host.Counts(BootInstant(2s)).generation == commit.generation;
  };
  for (const Parts wrong : {Parts{0}, base - 1, base + 1, kWhole}) CHECK_FALSE(begins(wrong));
  CHECK(begins(base));
}

// What a member does that begins generations, being the first witness, and lies.
struct LeaderLie {
  const char* name;
  testing::LyingParts::Change change;                         // of each frame that it would send
  std::function<void(testing::LyingParts&, int turn)> act;    // more in each turn
};

// A frame about the generation that is so many after the one the host is in.
CapacityMessage OfGeneration(testing::LyingParts& fleet, CapacityKind kind, std::size_t to, std::uint64_t ahead) {
  CapacityMessage m = fleet.Frame(kind, to);
  m.generation += ahead * testing::LyingParts::kNextGeneration;
  return m;
}

void TellAll(testing::LyingParts& fleet, CapacityKind kind, std::uint64_t ahead, bool theirs = false) {
  for (std::size_t to = 0; to < fleet.honest(); ++to) {
    CapacityMessage m = OfGeneration(fleet, kind, to, ahead);
    if (kind == CapacityKind::kCommit) {
      const std::size_t n = fleet.honest() + 1, here = theirs ? n : 1;
      for (std::size_t i = 0; i < here; ++i) m.members.Add(i);    // the liar is member 0
      m.reserve = m.aside = ReserveParts(fleet.settings());
      m.base = (kWhole - n * m.reserve) / here;
    }
    fleet.Tell(m, to);
  }
}

std::vector<LeaderLie> LeaderLies() {
  using enum CapacityKind;
  using testing::LyingParts;
  const auto nothing = [](LyingParts&, int) {};
  const auto truth = [](CapacityMessage&, std::size_t) { return true; };
  const auto begins_nothing = [](CapacityMessage& m, std::size_t) { return m.kind != kPrepare && m.kind != kCommit; };
  const auto never_commits = [](CapacityMessage& m, std::size_t) { return m.kind != kCommit; };
  const auto hold = [](LyingParts& fleet, int turn) { TellAll(fleet, kPrepare, 1 + static_cast<unsigned>(turn)); };
  return {
      {"begins nothing", begins_nothing, nothing},
      {"prepares and never begins", never_commits, [](LyingParts& fleet, int) { TellAll(fleet, kPrepare, 1); }},
      {"prepares another one in every turn", never_commits, hold},
      {"begins again and again", truth,
       [](LyingParts& fleet, int turn) { TellAll(fleet, turn % 8 < 4 ? kPrepare : kCommit, 1, true); }},
      {"begins without the others", never_commits,
       [](LyingParts& fleet, int turn) { TellAll(fleet, turn % 8 == 0 ? kPrepare : kCommit, 1); }},
      {"begins what nobody has promised", never_commits,
       [](LyingParts& fleet, int turn) {
         TellAll(fleet, turn % 12 < 2 ? kPrepare : kCommit, 1 + turn % 12 / 2, true);
       }},
      {"holds one host", [](CapacityMessage& m, std::size_t to) { return m.kind != kCommit || to != 0; },
       [](LyingParts& fleet, int) { fleet.Tell(OfGeneration(fleet, kPrepare, 0, 1), 0); }},
      {"tells one host of nothing",
       [](CapacityMessage& m, std::size_t to) { return to != 0 || (m.kind != kPrepare && m.kind != kCommit); },
       nothing},
      {"disturbs whoever leads instead",
       [](CapacityMessage& m, std::size_t) {
         if (m.kind == kBeat) m.digest = 1;
         return m.kind != kCommit && m.kind != kGrant;
       },
       [hold](LyingParts& fleet, int turn) {
         hold(fleet, turn);
         for (std::size_t to = 0; to < fleet.honest(); ++to) {
           CapacityMessage refusal = OfGeneration(fleet, kPromise, to, 2 + static_cast<unsigned>(turn));
           if (turn % 2 == 0) fleet.Tell(refusal, to);
         }
       }},
      {"promises what keeps others from beginning",
       [](CapacityMessage& m, std::size_t) {
         if (m.kind == kPromise) m.witnesses = {"x", "y", "z"}, m.former = 7, m.aside = kWhole;
         return m.kind != kCommit && m.kind != kPrepare;
       },
       hold},
  };
}

TEST_CASE("a best friend that keeps no log is replaced") {
  testing::LyingParts fleet(4, 1, testing::LyingParts::Liar::kLast,
                            [](const CapacityMessage& m, std::size_t) { return m.kind != CapacityKind::kHave; });
  fleet.Demand(2, 0.9);    // of the host whose friend is the liar
  for (const std::size_t other : {0, 1}) fleet.Demand(other, 0.01);
  fleet.Run(120);
  CHECK(fleet.Failure() == "");
  CHECK(fleet.PartsOf(2) > kWhole / 2);
}

TEST_CASE("whatever the first witness says, the others are above their reserves again in some rounds") {
  constexpr int kTurns = 600;      // half a round each
  constexpr int kPatience = 11;    // a lease and what clocks may differ
  // 7 as a rule; some seeds and moments of beginning take "begins again and again" to 16.
  constexpr int kAll = 18 * kPatience, kOne = 30 * kPatience;
  for (const std::size_t hosts : {4, 8}) {
    if (testing::kSanitized && hosts > 4) continue;
    for (const LeaderLie& lie : LeaderLies()) {
      for (const bool from_the_start : {true, false}) {
        testing::LyingParts fleet(hosts, hosts, testing::LyingParts::Liar::kFirst,
                                  from_the_start ? lie.change : testing::LyingParts::Change());
        fleet.ChangeFrames(lie.change);
        int some = 0, one = 0, longest_some = 0, longest_one = 0, all = 0;
        for (int turn = 0; turn < kTurns; ++turn) {
          lie.act(fleet, turn);
          fleet.Run(1);
          const std::size_t held = fleet.AtReserve();
          some = held > 1 ? some + 1 : 0;
          one = held > 0 ? one + 1 : 0;
          longest_some = std::max(longest_some, some);
          longest_one = std::max(longest_one, one);
          all += held > 1;
        }
        INFO(hosts << " hosts, one " << lie.name << ", from the start: " << from_the_start);
        CHECK(fleet.Failure() == "");
        CHECK(longest_some <= kAll);
        CHECK(longest_one <= kOne);
        CHECK(all <= kTurns / 2);
      }
    }
  }
}

// The last member says that it gave so much to a host.
void Claim(testing::LyingParts& fleet, std::size_t to, Parts given) {
  CapacityMessage gifts = fleet.Frame(CapacityKind::kGifts, to);
  gifts.sequence = 1;
  gifts.items = {{.key = testing::LyingParts::kTag, .given = given}};
  fleet.Tell(gifts, to);
}

TEST_CASE("parts that a member says it gave and never had are used for some rounds, then equal shares") {
  testing::LyingParts fleet(5, 1);
  const Parts equal = fleet.PartsOf(0);
  const std::size_t deceived = GENERATE(1, 2, 4);
  for (std::size_t to = 0; to < deceived; ++to) {
    Claim(fleet, to, kWhole);
    CHECK(fleet.PartsOf(to) == kWhole);
  }
  fleet.Run(30);
  for (std::size_t to = 0; to < 4; ++to) CHECK(fleet.PartsOf(to) <= equal);
  for (std::size_t to = 0; to < deceived; ++to) CHECK(fleet.Counts(to).overdrawn == 1);
  // A new generation ends it; until then it stays so.
  std::uint64_t turns = 0;
  for (; fleet.Counts(0).resets == 1 && turns < 400; ++turns) {
    fleet.Run(1);
    for (std::size_t to = 0; to < 4; ++to) REQUIRE(fleet.PartsOf(to) <= equal);
  }
  CHECK(fleet.Counts(0).resets == 2);
  fleet.Run(60);
  for (std::size_t to = 0; to < 4; ++to) CHECK(fleet.PartsOf(to) == equal);
}

TEST_CASE("however often a member claims what it never gave, the others use more than the whole in few rounds") {
  testing::LyingParts fleet(4, 1);
  int over = 0, turns = 0;
  for (; turns < 1000; ++turns) {
    for (std::size_t to = 0; to < 3; ++to) Claim(fleet, to, kWhole);    // anew in each generation
    fleet.Run(1);
    over += fleet.PartsOf(0) + fleet.PartsOf(1) + fleet.PartsOf(2) > kWhole;
  }
  CHECK(fleet.Counts(0).overdrawn > 1);
  CHECK(over < turns / 5);
}

TEST_CASE("a member that says it has everything brings the others to their equal shares, and no lower") {
  testing::LyingParts fleet(4, 1);
  const Parts equal = fleet.PartsOf(0);
  fleet.Ask(0, 2);
  fleet.Run(40);
  const Parts earned = fleet.PartsOf(0);
  REQUIRE(earned > equal + equal / 2);
  fleet.ClaimToHave(kWhole);
  fleet.Run(40);
  CHECK(fleet.PartsOf(0) == equal);
  fleet.ClaimToHave(std::nullopt);
  fleet.Run(40);
  CHECK(fleet.PartsOf(0) > equal);
}

TEST_CASE("members that say the truth are never suspected, whatever is lost, doubled or late") {
  for (std::uint64_t seed = 1; seed <= testing::Fewer(60); ++seed) {
    Prng prng(seed);
    std::string bytes;
    while (bytes.size() < 300) {
      const auto what = static_cast<char>(prng.Below(3));    // demand, time, trouble: no lie
      bytes += what;
      // So little of it that nobody is taken for dead.
      for (int i = what == 0 ? 2 : what == 1 ? 1 : 3; i > 0; --i) {
        bytes += static_cast<char>(prng.Below(what == 2 ? 15 : 256));
      }
    }
    testing::Input input(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    testing::LyingParts fleet(2 + seed % 4, seed);
    fleet.Play(input);
    fleet.Settle();
    INFO("seed " << seed);
    REQUIRE(fleet.Failure() == "");
    for (std::size_t host = 0; host < 2 + seed % 4; ++host) REQUIRE(fleet.Counts(host).overdrawn == 0);
  }
}

TEST_CASE("a neighbour is settled when a majority of witnesses says that its life is over, not before") {
  testing::LyingParts fleet(5, 1);
  CapacityMessage settle = fleet.Frame(CapacityKind::kSettle, 0);
  settle.member = fleet.name(1);
  settle.life = fleet.Counts(1).epoch;
  settle.last = true;
  settle.degree = 1;
  settle.items = {{.key = testing::LyingParts::kTag, .neighbour = fleet.Counts(0).epoch}};
  settle.edges = {{kWhole, 0}};
  const Parts before = fleet.PartsOf(0);
  for (int i = 0; i < 10; ++i) {
    fleet.Tell(settle, 0);
    fleet.Run(2);
  }
  CHECK(fleet.PartsOf(0) == before);
  CHECK(fleet.Failure() == "");
}

TEST_CASE("a witness calls a life over when its lease has ended, and for good") {
  Witness witness({}, BootInstant(0s));
  witness.SetPatience(10s);
  witness.Promise(1);
  witness.SetWhole(true);
  bool changed = false;
  CHECK(witness.OnBeat("a", 1, 5, 2, BootInstant(20s)) == Witness::Answer::kGrant);
  CHECK_FALSE(witness.OnFence("a", 1, 5, changed, BootInstant(30s)));
  CHECK(witness.OnFence("a", 1, 5, changed, BootInstant(30s + 1ns)) == 2);
  CHECK(changed);
  CHECK(witness.OnBeat("a", 1, 5, 2, BootInstant(31s)) == Witness::Answer::kDead);
  CHECK(witness.OnBeat("a", 1, 6, 1, BootInstant(31s)) == Witness::Answer::kGrant);
  CHECK(witness.OnFence("a", 1, 5, changed, BootInstant(31s)) == 2);    // a later life: at once
  CHECK_FALSE(changed);

  SECTION("over a restart too, when it does not know bindings any more, nor whom it granted what") {
    const auto saved = Witness::Decode(Witness::Encode(witness.saved()));
    REQUIRE(saved);
    Witness again(*saved, BootInstant(40s));
    again.SetPatience(10s);
    CHECK(again.OnBeat("a", 1, 5, 2, BootInstant(41s)) == Witness::Answer::kDead);
    CHECK_FALSE(again.Lapsed("b", BootInstant(50s)));
    CHECK(again.Lapsed("b", BootInstant(50s + 1ns)));
    CHECK(again.OnFence("a", 1, 5, changed, BootInstant(51s)) == 0);
  }
  SECTION("but not a life that it never heard, which the host may have yet to live") {
    changed = false;
    CHECK_FALSE(witness.OnFence("a", 1, std::uint64_t{1} << 63, changed, BootInstant(99s)));
    CHECK_FALSE(witness.OnFence("b", 1, 3, changed, BootInstant(99s)));
    CHECK_FALSE(changed);
    CHECK(witness.OnBeat("a", 1, 7, 1, BootInstant(99s)) == Witness::Answer::kGrant);
  }
  SECTION("and grants for the generation that it promised last, and no other") {
    witness.Promise(3);
    CHECK(witness.OnBeat("a", 1, 6, 1, BootInstant(32s)) == Witness::Answer::kNothing);
    CHECK(witness.OnBeat("a", 3, 6, 1, BootInstant(32s)) == Witness::Answer::kGrant);
    CHECK_FALSE(witness.OnFence("a", 1, 6, changed, BootInstant(99s)));
  }
}

TEST_CASE("what a witness saved is read strictly") {
  CHECK(Witness::Decode(""));
  CHECK_FALSE(Witness::Decode("\x02"));
  CHECK_FALSE(Witness::Decode(std::string_view("\x01\x05", 2)));
  CHECK_FALSE(
      Witness::Decode(std::string_view("\x01\x05\x00\x09"
                                       "a\x01",
                                       6)));
}

TEST_CASE("every host works out the same connected graph of any degree") {
  for (std::uint32_t n = 1; n <= 40; ++n) {
    for (std::uint32_t degree = 1; degree <= 8; ++degree) {
      const Graph graph = RegularTopology(n, degree);
      CAPTURE(n, degree);
      REQUIRE(graph.Connected());
      REQUIRE(graph.DegreeMax() <= std::max(2u, degree + 1));
      const Graph again = RegularTopology(n, degree);
      for (std::size_t i = 0; i < graph.links().size(); ++i) {
        REQUIRE(graph.links()[i].a == again.links()[i].a);
        REQUIRE(graph.links()[i].b == again.links()[i].b);
      }
    }
  }
  CHECK(CompleteTopology(5).links().size() == 10);
  CHECK(RingTopology(5).links().size() == 5);
}

TEST_CASE("settings under which hosts cannot share are refused with a reason") {
  const CapacitySettings good{.members = {"a", "b", "c"}, .graph = CompleteTopology(3)};
  CHECK(CheckCapacitySettings(good, "a"));
  CHECK_FALSE(CheckCapacitySettings(good, "d"));
  CapacitySettings s = good;
  s.members = {"b", "a", "c"};
  CHECK_FALSE(CheckCapacitySettings(s, "a"));
  s = good;
  s.lease = 3s;
  CHECK_FALSE(CheckCapacitySettings(s, "a"));
  s = good;
  s.reserve = 1.5;
  CHECK_FALSE(CheckCapacitySettings(s, "a"));
  s = good;
  s.graph = *Graph::Make(3, {{0, 1, 1}});
  CHECK_FALSE(CheckCapacitySettings(s, "a"));
}

}    // namespace
}    // namespace dthrottle
