// Shares of a capacity: frames as protocol/capacity.md has them, ledgers, witnesses, graphs.
#include <xxhash.h>

#include <catch2/catch.hpp>

#include <cmath>
#include <cstdlib>
#include <string>

#include "capacity/capacity_message.h"
#include "capacity/ledgers.h"
#include "capacity/topology.h"
#include "capacity/witness.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

std::string FromHex(const char* hex) {
  std::string bytes;
  for (const char* p = hex; *p != 0;) {
    if (*p == ' ') {
      ++p;
      continue;
    }
    const char digits[3] = {p[0], p[1], 0};
    bytes += static_cast<char>(std::strtoul(digits, nullptr, 16));
    p += 2;
  }
  return bytes;
}

std::string WithSum(std::string bytes) {
  const std::uint64_t sum = XXH3_64bits(bytes.data(), bytes.size());
  return bytes.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
}

TEST_CASE("frames about shares are the bytes of protocol/capacity.md") {
  std::string frame;
  CapacityMessage beat;
  beat.kind = CapacityKind::kBeat;
  beat.generation = 3, beat.epoch = 0x20000, beat.sent = 1'500'000, beat.binding = beat.bound = 1, beat.digest = 300;
  beat.members.Add(2);
  EncodeCapacity(beat, frame);
  CHECK(frame == WithSum(FromHex("44 54 43 01 01  01 01 03  02 03 80 80 08  06 04 c0 8d b7 01  07 01 01  08 01 01"
                                 "09 02 ac 02  11 01 04  00")));

  CapacityMessage gifts;
  gifts.kind = CapacityKind::kGifts;
  gifts.generation = 3, gifts.epoch = 0x20000, gifts.to_epoch = 0x10000, gifts.sequence = 7;
  gifts.items.push_back({.key = {0x0102030405060708, 0x1112131415161718}, .given = 1 << 20, .indicator = -0.25});
  EncodeCapacity(gifts, frame);
  CHECK(frame ==
        WithSum(FromHex("44 54 43 01 05  01 01 03  02 03 80 80 08  03 03 80 80 04  04 01 07  15 01 01  00"
                        "08 07 06 05 04 03 02 01 18 17 16 15 14 13 12 11  80 80 40  00 00 00 00 00 00 d0 bf")));
}

TEST_CASE("hosts ask each other what they may use of a tag") {
  for (const CapacityKind kind : {CapacityKind::kAsk, CapacityKind::kShare}) {
    CapacityMessage m, again;
    m.kind = kind;
    m.generation = 3, m.epoch = 4;
    for (std::uint64_t i = 0; i < kAskedMax; ++i) {
      m.items.push_back({.key = {i, 7}, .given = kind == CapacityKind::kShare ? i << 20 : 0});
    }
    std::string frame;
    EncodeCapacity(m, frame);
    REQUIRE(DecodeCapacity(frame, again) == CapacityFault::kNone);
    CHECK(again == m);
    CHECK(again.items.back().given == m.items.back().given);
    const std::string more = WithSum(FromHex(kind == CapacityKind::kAsk ? "44 54 43 01 0d" : "44 54 43 01 0e") +
                                     FromHex("15 01 21 00") + std::string(33 * 17, 1));
    CHECK(DecodeCapacity(more, again) == CapacityFault::kJunk);
  }
}

TEST_CASE("a frame about shares that breaks a rule is refused whole") {
  CapacityMessage m;
  const auto fault = [&](const char* hex) { return DecodeCapacity(WithSum(FromHex(hex)), m); };
  CHECK(fault("44 54 43 01 01 01 01 03 00") == CapacityFault::kNone);
  CHECK(fault("44 54 43 02 01 01 01 03 00") == CapacityFault::kVersion);
  CHECK(fault("44 54 52 01 01 01 01 03 00") == CapacityFault::kJunk);                // a report's prefix
  CHECK(fault("44 54 43 01 0f 01 01 03 00") == CapacityFault::kJunk);                // no such kind
  CHECK(fault("44 54 43 01 01 01 01 03 01 01 03 00") == CapacityFault::kJunk);       // a key twice
  CHECK(fault("44 54 43 01 01 01 02 83 00 00") == CapacityFault::kJunk);             // a number with a byte too many
  CHECK(fault("44 54 43 01 01 01 01 00 00") == CapacityFault::kJunk);                // a zero that is written
  CHECK(fault("44 54 43 01 01 01 05 03 00") == CapacityFault::kJunk);                // a length beyond the frame
  CHECK(fault("44 54 43 01 01 01 01 03 00 00") == CapacityFault::kJunk);             // more than it says
  CHECK(fault("44 54 43 01 01 0a 02 2f 2f 00") == CapacityFault::kJunk);             // no host's name
  CHECK(fault("44 54 43 01 01 11 02 01 00 00") == CapacityFault::kJunk);             // a set with an empty end
  CHECK(fault("44 54 43 01 01 15 01 01 00") == CapacityFault::kJunk);                // items in a beat
  CHECK(fault("44 54 43 01 05 15 05 ff ff ff ff 0f 00") == CapacityFault::kJunk);    // billions of items, no bytes
  CHECK(fault("44 54 43 01 04 14 01 02 00") == CapacityFault::kJunk);                // two edges and no lives
  CHECK(fault("44 54 43 01 01 70 02 01 02 00") == CapacityFault::kNone);             // a key of a later version
  CHECK(DecodeCapacity(FromHex("44 54 43 01 01 01 01 03 00 00 00 00 00 00 00 00 00"), m) == CapacityFault::kJunk);
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

TEST_CASE("a witness calls a life over when its lease has ended, and for good") {
  Witness witness({}, Instant(0s));
  witness.SetPatience(10s);
  witness.Promise(1);
  witness.SetWhole(true);
  bool changed = false;
  CHECK(witness.OnBeat("a", 1, 5, 2, Instant(20s)) == Witness::Answer::kGrant);
  CHECK_FALSE(witness.OnFence("a", 1, 5, changed, Instant(30s)));
  CHECK(witness.OnFence("a", 1, 5, changed, Instant(30s + 1ns)) == 2);
  CHECK(changed);
  CHECK(witness.OnBeat("a", 1, 5, 2, Instant(31s)) == Witness::Answer::kDead);
  CHECK(witness.OnBeat("a", 1, 6, 1, Instant(31s)) == Witness::Answer::kGrant);
  CHECK(witness.OnFence("a", 1, 5, changed, Instant(31s)) == 2);    // a later life: at once
  CHECK_FALSE(changed);

  SECTION("over a restart too, when it does not know bindings any more, nor whom it granted what") {
    const auto saved = Witness::Decode(Witness::Encode(witness.saved()));
    REQUIRE(saved);
    Witness again(*saved, Instant(40s));
    again.SetPatience(10s);
    CHECK(again.OnBeat("a", 1, 5, 2, Instant(41s)) == Witness::Answer::kDead);
    CHECK_FALSE(again.Lapsed("b", Instant(50s)));
    CHECK(again.Lapsed("b", Instant(50s + 1ns)));
    CHECK(again.OnFence("b", 1, 3, changed, Instant(51s)) == 0);
  }
  SECTION("and grants for the generation that it promised last, and no other") {
    witness.Promise(3);
    CHECK(witness.OnBeat("a", 1, 6, 1, Instant(32s)) == Witness::Answer::kNothing);
    CHECK(witness.OnBeat("a", 3, 6, 1, Instant(32s)) == Witness::Answer::kGrant);
    CHECK_FALSE(witness.OnFence("a", 1, 6, changed, Instant(99s)));
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
