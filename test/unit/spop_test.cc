// Frames of HAProxy byte by byte, as HAProxy 2.6 sends them, and what the daemon makes of them.
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "base/prng.h"
#include "tally/tally.h"
#include "test/support/spop.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;
using namespace std::string_literals;

constexpr const char* kRules =
    "[[rule]]\nname=\"user\"\nmatch=\"user:*\"\nburst=10\nrate=1\n"
    "[[rule]]\nname=\"ip\"\nmatch=\"ip:*\"\nburst=3\nrate=0.5\n";

std::string Text(std::string_view text) {
  return std::string(1, static_cast<char>(text.size())) + std::string(text);
}
std::string String(std::string_view text) {
  return "\x08" + Text(text);
}
std::string Frame(char type, std::string_view ids_and_payload) {
  const std::size_t length = 5 + ids_and_payload.size();
  return std::string{0, 0, static_cast<char>(length >> 8), static_cast<char>(length & 255), type, 0, 0, 0, 1} +
         std::string(ids_and_payload);
}

std::string HelloOf(std::string_view frame_bytes_max) {
  return Frame(1, "\0\0"s + Text("supported-versions") + String("2.0") + Text("max-frame-size") + "\x03" +
                      std::string(frame_bytes_max) + Text("capabilities") + String("pipelining,async") +
                      Text("engine-id") + String("0123-4567"));
}
const std::string kHello = HelloOf("\xfc\xf0\x06");
const std::string kAgentHello = Frame(101, "\0\0"s + Text("version") + String("2.0") + Text("max-frame-size") +
                                               "\x03\xfc\xf0\x06"s + Text("capabilities") + String("pipelining"));
const std::string kClient = "\x06\x0a\x00\x00\x07"s;    // 10.0.0.7

std::string Goodbye(char status, std::string_view reason) {
  return Frame(102, "\0\0"s + Text("status-code") + "\x03"s + status + Text("message") + String(reason));
}
std::string Notify(std::string_view messages, std::string_view ids = "\x05\x01") {
  return Frame(3, std::string(ids) + std::string(messages));
}
std::string Message(char arguments, std::string_view pairs) {
  return Text("ask") + arguments + std::string(pairs);
}
std::string Ack(std::string_view actions, std::string_view ids = "\x05\x01") {
  return Frame(103, std::string(ids) + std::string(actions));
}
std::string Set(std::string_view name, std::string_view value) {
  return "\x01\x03\x02"s + Text(name) + std::string(value);
}
std::string Integer(char number) {
  return "\x04"s + number;
}

struct Greeted : SpopHost {
  explicit Greeted(std::string_view toml = kRules, std::size_t tag_bytes_max = kTagBytesMax)
      : SpopHost(toml, tag_bytes_max) {
    REQUIRE(Send(kHello) == kAgentHello);
  }
};

TEST_CASE("spop: frames are as long as HAProxy offers, 64 KiB with their length at most") {
  const auto agreed = [](std::string_view offered, std::string_view bytes) {
    SpopHost host(kRules);
    const std::string size = Text("max-frame-size") + "\x03" + std::string(bytes);
    return host.Send(HelloOf(offered)) ==
           Frame(101, "\0\0"s + Text("version") + String("2.0") + size + Text("capabilities") + String("pipelining"));
  };
  CHECK(agreed("\xfc\xf0\x0e", "\xfc\xf0\x0e"));    // 32,764
  CHECK(agreed("\xfc\xf0\x1e", "\xfc\xf0\x1e"));    // 65,532
  CHECK(agreed("\xfc\xf0\x3e", "\xfc\xf0\x1e"));    // 131,068
}

TEST_CASE("spop: a connection begins with HELLO, and a health check ends with it") {
  Greeted host;
  CHECK(host.Send(Frame(2, "\0\0"s + Text("status-code") + "\x03\0"s + Text("message") + String("bye"))) ==
        Goodbye(0, "normal"));
  CHECK(host.client.leaving);

  SpopHost checked(kRules);
  CHECK(
      checked.Send(Frame(1, "\0\0"s + Text("supported-versions") + String("1.0, 2.0") + Text("max-frame-size") +
                                "\x03\xf0\x01"s + Text("capabilities") + String("") + Text("healthcheck") + "\x11")) ==
      Frame(101, "\0\0"s + Text("version") + String("2.0") + Text("max-frame-size") + "\x03\xf0\x01"s +
                     Text("capabilities") + String("pipelining")));
  CHECK(checked.client.leaving);
  CHECK(checked.turn.counts().protocol_errors == 0);
}

TEST_CASE("spop: a HELLO that does not fit, and what comes before it, end the connection with the reason") {
  const std::string version = Text("supported-versions") + String("2.0"),
                    old = Text("supported-versions") + String("1.0"), size = Text("max-frame-size") + "\x03\xf0\x01"s,
                    small = Text("max-frame-size") + "\x03\xef"s, capabilities = Text("capabilities") + String("");
  for (const auto& [frame, goodbye] : std::vector<std::pair<std::string, std::string>>{
           {Frame(1, "\0\0"s + size + capabilities), Goodbye(5, "version value not found")},
           {Frame(1, "\0\0"s + old + size + capabilities), Goodbye(8, "unsupported version")},
           {Frame(1, "\0\0"s + version + capabilities), Goodbye(6, "max-frame-size value not found")},
           {Frame(1, "\0\0"s + version + small + capabilities), Goodbye(9, "max-frame-size too big or too small")},
           {Frame(1, "\0\0"s + version + size), Goodbye(7, "capabilities value not found")},
           {Frame(1, "\0\0"s + version + "\x20"), Goodbye(4, "invalid frame received")},
           {Notify(Message(1, Text("tag") + String("a"))), Goodbye(4, "invalid frame received")},
           {"\0\0\0\7\x03\0\0\0\0\5\1"s, Goodbye(10, "fragmentation not supported")},
           {"\0\0\xff\xfd\x03"s, Goodbye(3, "frame is too big")},
           {"GET / HTTP/1.1\r\n"s, Goodbye(3, "frame is too big")},
       }) {
    SpopHost host(kRules);
    CHECK(host.Send(frame) == goodbye);
    CHECK(host.client.leaving);
    CHECK(host.turn.counts().protocol_errors == 1);
  }
}

TEST_CASE("spop: the arguments of a message are tags of one question, and variables say what became of it") {
  Greeted host;
  const std::string message =
      Message(3, Text("ip") + kClient + Text("user") + String("bob") + Text("cost") + "\x02\x04"s);
  CHECK(host.Send(Notify(message)) == Ack(Set("deny", "\x01") + Set("left", Integer(2))));
  CHECK(host.Send(Notify(message)) == Ack(Set("deny", "\x01") + Set("left", Integer(1))));
  CHECK(host.Send(Notify(message)) ==
        Ack(Set("deny", "\x11") + Set("why", String("limit")) + Set("wait", "\x04\xf0\x6e"s) +
            Set("retry", Integer(2)) + Set("left", Integer(2)) + Set("rule", String("user")) +
            Set("tag", String("user:bob"))));
  CHECK(host.Send(Notify(Message(2, Text("tag") + String("ip:10.0.0.7") + Text("peek") + "\x11"s))) ==
        Ack(Set("deny", "\x01") + Set("left", Integer(1))));    // which has not paid
  CHECK(host.turn.counts().questions == 4);
  CHECK(host.turn.counts().refused == 1);
}

TEST_CASE("spop: what can never pass has no wait, and what nothing limits has nothing left") {
  Greeted host;
  CHECK(host.Send(Notify(Message(2, Text("ip") + kClient + Text("cost") + String("4")))) ==
        Ack(Set("deny", "\x11") + Set("why", String("never")) + Set("left", Integer(3)) +
            Set("rule", String("ip")) + Set("tag", String("ip:10.0.0.7"))));
  CHECK(host.Send(Notify(Message(1, Text("tag") + String("free")))) == Ack(Set("deny", "\x01")));
}

TEST_CASE("spop: values are written as people write them, and one that is not there names no tag") {
  Greeted host("[[rule]]\nname=\"r\"\nburst=1\nrate=1\n");
  const std::string six = "\x07\x20\x01\x0d\xb8"s + std::string(11, '\0') + "\x01";
  for (const auto& [value, tag] :
       std::vector<std::pair<std::string, std::string>>{{kClient, "n:10.0.0.7"},
                                                        {six, "n:2001:db8::1"},
                                                        {"\x11", "n:true"},
                                                        {"\x01", "n:false"},
                                                        {"\x02\x07", "n:7"},
                                                        {"\x04\xff\xf0\xfe\xfe\xfe\xfe\xfe\xfe\xfe\x0e", "n:-1"},
                                                        {"\x09\x02\0\xff"s, "n:\0\xff"s}}) {
    CAPTURE(tag);
    host.Send(Notify(Message(1, Text("n") + value)));
    CHECK(host.host.Level(tag, FromNanoseconds(1'000'000'000)) == 0);
  }
  CHECK(host.Send(Notify(Message(1, Text("n") + "\0"s))) == Ack(""));
  CHECK(host.Send(Notify(Message(0, ""))) == Ack(""));
  CHECK(host.Send(Notify("")) == Ack(""));
}

TEST_CASE("spop: several messages are several questions, and the first that is refused is told") {
  Greeted host;
  const std::string free = Message(1, Text("tag") + String("free")),
                    too_much = Message(2, Text("ip") + kClient + Text("cost") + Integer(9)),
                    user = Message(1, Text("user") + String("bob"));
  CHECK(host.Send(Notify(free + user)) == Ack(Set("deny", "\x01")));
  CHECK(host.Send(Notify(user + too_much + free)).find("ip:10.0.0.7") != std::string::npos);
  CHECK(host.host.Level("user:bob", FromNanoseconds(1'000'000'000)) == 8);
}

TEST_CASE("spop: a question that cannot be serves, and is counted") {
  Greeted host("[[rule]]\nname=\"r\"\nburst=1\nrate=1\n");
  std::string many;
  for (int i = 0; i < 17; ++i) many += Text("n" + std::to_string(i)) + "\x02\x01";
  for (const std::string& message :
       {Message(17, many), Message(2, Text("a") + "\x02\x01" + Text("cost") + String("two")),
        Message(2, Text("a") + "\x02\x01" + Text("cost") + "\x04\xff\xf0\xfe\xfe\xfe\xfe\xfe\xfe\xfe\x0e"),
        Message(2, Text("a") + "\x02\x01" + Text("cost") + kClient)}) {
    CHECK(host.Send(Notify(message)) == Ack(""));
  }
  CHECK(host.turn.counts().errors == 4);
  CHECK(host.host.limiter->tally().GrandTotals().served == 0);
}

TEST_CASE("spop: a malformed NOTIFY spends nothing and ends the connection") {
  const std::string good = Message(1, Text("user") + String("bob"));
  std::string many;
  for (int i = 0; i < 17; ++i) many += good;
  for (const std::string& bad : {good + "\x20", good + Message(2, Text("user") + String("x")),
                                 good + Message(1, Text("user") + "\x0a"), good + Message(1, Text("ip") + "\x06\x01"),
                                 good + Message(1, Text("n") + "\x04\xff" + std::string(12, '\xff')), many}) {
    Greeted host;
    CHECK(host.Send(Notify(bad)) == Goodbye(4, "invalid frame received"));
    CHECK(host.Send(Notify(good)).empty());
    CHECK(host.host.limiter->tally().GrandTotals().served == 0);
  }
}

TEST_CASE("spop: frames are pipelined, and cut anywhere they are answered the same") {
  const std::string frames = kHello + Notify(Message(1, Text("user") + String("a")), "\x01\x01") +
                             Frame(77, "\0\0what nobody knows"s) +
                             Notify(Message(1, Text("user") + String("b")), "\xf1\x02\x01");
  const std::string replies = kAgentHello + Ack(Set("deny", "\x01") + Set("left", Integer(9)), "\x01\x01") +
                              Ack(Set("deny", "\x01") + Set("left", Integer(9)), "\xf1\x02\x01");
  for (std::size_t cut = 0; cut <= frames.size(); ++cut) {
    SpopHost host(kRules);
    const std::string first = host.Send(frames.substr(0, cut));
    REQUIRE(first + host.Send(frames.substr(cut)) == replies);
  }
}

TEST_CASE("spop: a refusal is no longer than the frames that were agreed, whatever tag and rule are called") {
  for (const std::size_t rule : {1, 64}) {
    SpopHost host("[[rule]]\nname=\"" + std::string(rule, 'r') + "\"\nburst=1000000\nrate=1\n");
    host.Send(HelloOf("\xf0\x01"));    // 256 bytes
    for (std::size_t tag = 1; tag < 230; ++tag) {
      const std::string message =
          Message(2, Text("tag") + String(std::string(tag, 'x')) + Text("cost") + String("1000000"));
      host.Send(Notify(message, "\xff\xff\xff\xff\xff\x7f\x01"));
      const std::string refusal = host.Send(Notify(message, "\xff\xff\xff\xff\xff\x7f\x01"));
      CAPTURE(rule, tag, refusal);
      REQUIRE(refusal.size() <= SpopReader::kLengthBytes + 256);
      REQUIRE(refusal.find(Set("deny", "\x11")) != std::string::npos);
      REQUIRE(refusal.find(Text("retry")) != std::string::npos);
      REQUIRE(refusal.find(std::string(rule, 'r')) != std::string::npos);
      REQUIRE(refusal.find(std::string(std::min<std::size_t>(tag, 49), 'x')) != std::string::npos);
    }
  }
}

TEST_CASE("spop: a long tag has a bucket of its own and is shown in part") {
  Greeted host("[[rule]]\nname=\"r\"\nburst=1\nrate=0.5\n", 20);
  const std::string tag(200, 'x');
  const std::string message = Message(1, Text("tag") + "\x08" + Text(tag));
  host.Send(Notify(message));
  CHECK(host.Send(Notify(message)).find(tag) != std::string::npos);
  CHECK(host.Send(Notify(Message(1, Text("tag") + "\x08" + Text(tag.substr(1))))) ==
        Ack(Set("deny", "\x01") + Set("left", Integer(0))));
  CHECK(host.turn.over_long() == 3);
}

}    // namespace
}    // namespace dthrottle::testing
