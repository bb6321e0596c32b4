// Replays the transcripts of protocol/ask against the front end without sockets, cut at every byte boundary. The live
// daemon is given the same files by test/system.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "base/state.h"
#include "share/debit/debits.h"
#include "share/ways.h"
#include "test/support/ask.h"
#include "test/wire/transcript.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;

constexpr Instant kStart = FromNanoseconds(5'000'000'000);

// The answers to the pieces of `sent` that end at `cut` and at its end.
std::string Replay(const Transcript& t, std::size_t cut) {
  AskHost host(t.settings, t.tag_bytes_max);
  std::string answers = host.Send(std::string_view(t.sent).substr(0, cut));
  return answers + host.Send(std::string_view(t.sent).substr(cut));
}

TEST_CASE("ask: there are transcripts") {
  CHECK(TranscriptFiles("ask").size() >= 12);
}

TEST_CASE("ask: every transcript is answered as written, however it is cut") {
  constexpr std::size_t kLong = 2000;    // cut at a part of its bytes
  for (const auto& file : TranscriptFiles("ask")) {
    CAPTURE(file.filename().string());
    const Transcript t = LoadTranscript(file);
    for (std::size_t cut = 0; cut < t.sent.size(); cut += t.sent.size() > kLong ? 61 : 1) {
      CAPTURE(cut);
      REQUIRE(Replay(t, cut) == t.expected);
    }
  }
}

TEST_CASE("ask: every transcript is answered the same byte by byte") {
  for (const auto& file : TranscriptFiles("ask")) {
    CAPTURE(file.filename().string());
    const Transcript t = LoadTranscript(file);
    AskHost host(t.settings, t.tag_bytes_max);
    std::string answers;
    for (const char byte : t.sent) answers += host.Send({&byte, 1});
    CHECK(answers == t.expected);
  }
}

constexpr const char* kPaced = "[[rule]]\nburst=2\nrate=10\ndelay=\"500ms\"\n";

TEST_CASE("ask: a connection that ends gives up what it waits for, but nothing whose wait is over") {
  AskHost host(kPaced);
  host.Send("take wait=500 2 a\ntake wait=500 1 a\ntake wait=500 2 a\n", kStart);
  CHECK(host.turn.returns().HasAny(host.holder, kStart + 299ms));
  CHECK_FALSE(host.turn.returns().HasAny(host.holder, kStart + 300ms));
  host.turn.returns().Leave(host.holder, kStart + 100ms);
  CHECK(host.host.Level("a", kStart + 100ms) == Approx(0));
  CHECK(host.turn.counts().waits == 2);
  CHECK(host.turn.counts().given_up == 1);
}

TEST_CASE("ask: a wait goes over to another process and can be given up there") {
  AskHost host(kPaced);
  host.Send("take wait=500 2 a\ntake wait=500 1 a\n", kStart);
  Holder read;
  REQUIRE(ReadState(WriteState(Holder::kVersion, host.holder), Holder::kVersion, read));
  AskReturns there(*host.host.limiter, nullptr, 1, kTagBytesMax, nullptr);
  there.TakeUp(read);
  there.Leave(read, kStart);
  CHECK(host.host.Level("a", kStart) == 0);
  CHECK(there.given_up() == 1);
}

TEST_CASE("ask: a wait is given up by its name on any connection, and only once") {
  AskHost host(kPaced);
  host.Send("take wait=500 2 a\n", kStart);
  const auto id = [](const std::string& answer) { return answer.substr(9, answer.rfind(' ') - 9); };
  const std::string first = id(host.Send("take wait=500 1 a\n", kStart));
  const std::string second = id(host.Send("take wait=500 1 a\n", kStart));
  Holder other;
  const auto release = [&](const std::string& name, Instant now) {
    host.turn.OnLine("release " + name, other);
    host.turn.Answer(now);
    const std::string answer(host.turn.answers().Of(0, 1));
    host.turn.Clear();
    return answer;
  };
  CHECK(release(second, kStart) == "OK released\n");
  CHECK(release(second, kStart) == "NO unknown\n");
  CHECK(host.host.Level("a", kStart) == -1);
  CHECK(release(first, kStart + 100ms) == "NO unknown\n");
  CHECK(host.host.Level("a", kStart + 100ms) == 0);
  CHECK(host.turn.counts().given_up == 1);
}

// What another connection than that of the host is told.
std::string Told(AskHost& host, std::string_view line, Instant now) {
  Holder other;
  host.turn.OnLine(line, other);
  host.turn.Answer(now);
  const std::string answer(host.turn.answers().Of(0, 1));
  host.turn.Clear();
  return answer;
}

// The ID in an answer to a question of one tag that waits.
std::string WaitName(const std::string& answer) {
  const std::size_t begin = answer.find(' ', sizeof "WAIT") + 1;
  return answer.substr(begin, answer.rfind(' ') - begin);
}

TEST_CASE("ask: a wait that is kept outlasts its connection, and another one can give it up until it is over") {
  AskHost host(kPaced);
  host.Send("take wait=500 keep 2 a\n", kStart);
  const std::string first = WaitName(host.Send("take wait=500 keep 1 a\n", kStart));
  const std::string second = WaitName(host.Send("take wait=500 keep 1 a\n", kStart));
  const std::string ends = WaitName(host.Send("take wait=500 1 a\n", kStart));
  host.turn.returns().Leave(host.holder, kStart);
  CHECK(host.host.Level("a", kStart) == -2);
  CHECK_FALSE(host.turn.returns().HasAny(host.holder, kStart));
  host.turn.returns().Leave(host.holder, kStart);    // as the server may
  CHECK(Told(host, "release " + ends, kStart) == "NO unknown\n");
  CHECK(Told(host, "release " + second, kStart) == "OK released\n");
  CHECK(Told(host, "release " + second, kStart) == "NO unknown\n");
  CHECK(host.host.Level("a", kStart) == -1);
  CHECK(Told(host, "release " + first, kStart + 100ms) == "NO unknown\n");
  CHECK(host.turn.counts().given_up == 2);
}

TEST_CASE("ask: a wait that is kept goes over to another process with its connection, and outlasts it there") {
  AskHost host(kPaced);
  host.Send("take wait=500 keep 2 a\ntake wait=500 keep 1 a\n", kStart);
  Holder read;
  REQUIRE(ReadState(WriteState(Holder::kVersion, host.holder), Holder::kVersion, read));
  AskReturns there(*host.host.limiter, nullptr, 1, kTagBytesMax, nullptr);
  there.TakeUp(read);
  there.Leave(read, kStart);
  CHECK(host.host.Level("a", kStart) == -1);
  CHECK(there.given_up() == 0);
}

TEST_CASE("ask: connections that end leave a bounded number of waits, and those that are over make room") {
  constexpr std::size_t kEnded = Waits::kLeftTagsMax / Waits::kTagsMax + 1;
  AskHost host("[[rule]]\nburst=1\nrate=1\ndelay=\"1m\"\n");
  std::vector<std::string> last;    // of each connection
  const auto leave = [&](std::size_t waits, const std::string& tag, Instant now) {
    Holder holder;
    std::string answer;
    for (std::size_t i = 0; i < 2 * waits; ++i) {    // every other one waits, for a second
      const std::string line = "take wait=60000 keep 1 " + tag + ":" + std::to_string(i / 2);
      host.turn.OnLine(line, holder);
      host.turn.Answer(now);
      answer = host.turn.answers().Of(0, 1);
      host.turn.Clear();
    }
    last.push_back(WaitName(answer));
    host.turn.returns().Leave(holder, now);
  };
  for (std::size_t i = 0; i < kEnded; ++i) leave(Waits::kTagsMax, std::to_string(i), kStart);
  CHECK(Told(host, "release " + last[kEnded - 2], kStart) == "OK released\n");
  CHECK(Told(host, "release " + last[kEnded - 1], kStart) == "NO unknown\n");
  leave(1, "later", kStart + 2s);
  CHECK(Told(host, "release " + last.back(), kStart + 2s) == "OK released\n");
}

TEST_CASE("ask: a wait that is no whole number of milliseconds has a fraction") {
  AskHost host("[[rule]]\nburst=1\nrate=3\ndelay=\"5s\"\n");
  CHECK(host.Send("take wait=500 1 a\npeek wait=500 1 a\n", kStart) == "OK 0\nWAIT 333.334 - 0\n");
}

TEST_CASE("ask: peers do not hear of what was given up") {
  AskHost host(kPaced);
  host.host.limiter->ways().Get<Debits>().ShareWith(2, 1s);
  host.Send("take wait=500 2 a\ntake wait=500 3 a\n", kStart);
  host.turn.returns().Leave(host.holder, kStart);
  struct Unreported final : SlotVisitor {
    bool Visit(const Tag&, const Slot& slot, const Waste&) override {
      hits += slot.unreported.hits();
      return true;
    }
    std::uint64_t hits = 0;
  } unreported;
  while (host.host.limiter->table().TakeUnreported(64, unreported, {})) continue;
  CHECK(unreported.hits == 2);
}

TEST_CASE("ask: a connection keeps a bounded number of waits") {
  AskHost host("[[rule]]\nburst=1\nrate=1\ndelay=\"1m\"\n");
  constexpr std::size_t kTags = Waits::kTagsMax + 5;
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < kTags; ++i) host.Send("take wait=60000 1 " + std::to_string(i) + "\n", kStart);
  }
  host.turn.returns().Leave(host.holder, kStart);
  CHECK(host.turn.counts().given_up == Waits::kTagsMax);
  CHECK(host.host.Level("0", kStart) == 0);
  CHECK(host.host.Level(std::to_string(kTags - 1), kStart) == -1);
}

TEST_CASE("ask: waits that are over make room for others on a connection that has had as many as are kept") {
  AskHost host("[[rule]]\nmatch=\"soon:*\"\nburst=1\nrate=1\ndelay=\"1m\"\n"
               "[[rule]]\nburst=1\nrate=0.02\ndelay=\"1m\"\n");
  const auto wait = [&](const std::string& tag, Instant now) {
    host.Send("take 1 " + tag + "\n", now);
    return host.Send("take wait=60000 1 " + tag + "\n", now);
  };
  for (int i = 0; i < 3; ++i) wait("soon:" + std::to_string(i), kStart);
  for (std::size_t i = 0; i < Waits::kTagsMax; ++i) wait(std::to_string(i), kStart + 2s);
  CHECK(wait("beyond", kStart + 2s) == "WAIT 50000 - 0\n");
  CHECK(wait("later", kStart + 1min) != "WAIT 50000 - 0\n");
}

TEST_CASE("ask: give gives back the places that were entered, whatever is charged with the tag by now") {
  const std::string rules = "[[rule]]\nname=\"net\"\nmatch=\"*/24\"\nburst=100\nrate=1\nin_flight=1\n"
                            "[[rule]]\nname=\"user\"\nmatch=\"ip:*\"\nburst=100\nrate=1\nin_flight=5\n";
  const std::string with = rules + "also=[\"ipv4/24\"]\n";
  AskHost host(with);
  const auto reload = [&](const std::string& toml) {
    host.host.limiter->Adopt(Rules(toml));
    while (host.host.limiter->Tick(kStart)) continue;
  };
  CHECK(host.Send("enter 1 ip:10.0.0.1\n", kStart) == "OK 0\n");
  reload(rules);
  CHECK(host.Send("enter 1 ip:10.0.0.1\ngive ip:10.0.0.1 ip:10.0.0.1 ip:10.0.0.1\n", kStart) == "OK 3\nOK 2\n");
  CHECK_FALSE(host.turn.returns().HasAny(host.holder, kStart));

  CHECK(host.Send("enter 1 ip:10.0.0.1\n", kStart) == "OK 4\n");
  reload(with);
  CHECK(host.Send("enter 1 ip:10.0.0.2\ngive ip:10.0.0.1\nenter 1 ip:10.0.0.3\n", kStart) ==
        "OK 0\nOK 1\nNO busy - 0 net ip:10.0.0.3\n");
  Holder read;
  REQUIRE(ReadState(WriteState(Holder::kVersion, host.holder), Holder::kVersion, read));
  CHECK(read.places == host.holder.places);
  CHECK(read.entered == host.holder.entered);
}

TEST_CASE("ask: what is under way of a line goes over to another process") {
  AskHost before("[[rule]]\nburst=3\nrate=1\n");
  CHECK(before.Send("take 1 a\ntake 1 ") == "OK 2\n");
  AskHost after("[[rule]]\nburst=3\nrate=1\n");
  after.reader.Restore(before.reader.rest(), before.reader.state());
  CHECK(after.Send("b\n") == "OK 2\n");

  CHECK(before.Send(std::string(9000, 'x')) == "ERR a line has at most 8192 bytes\n");
  after.reader.Restore(before.reader.rest(), before.reader.state());
  CHECK(after.Send("take 1 c\ntake 1 d\n") == "OK 2\n");
}

}    // namespace
}    // namespace dthrottle::testing
