// Subjects and keys of NATS, and the settings that go with it.
#include <catch2/catch.hpp>

#include <string>

#include "carrier/nats/nkey.h"
#include "carrier/nats/subjects.h"
#include "config/load.h"

namespace dthrottle {
namespace {

TEST_CASE("a subject names the sender, whose dots are tildes, and comes back as it was made") {
  const std::string subject =
      NatsSubjectOf("site.a", NatsSubject::kAsk, NatsToken("web-1.example.org"), NatsToken("owner.1"));
  CHECK(subject == "site.a.ask.web-1~example~org.owner~1");
  const auto read = ParseNatsSubject("site.a", "owner~1", subject);
  REQUIRE(read);
  CHECK(read->verb == NatsSubject::kAsk);
  CHECK(read->from == "web-1.example.org");
}

TEST_CASE("a subject of another form, another fleet or another receiver is none") {
  for (const char* const subject :
       {"dthrottle.ask.a.c", "dthrottle.tell.a.b", "other.ask.a.b", "dthrottle.ask..b", "dthrottle.ask.b", "ask.a.b", "b",
        "", "dthrottle.x.ask.a.b", "dthrottle.ask.a b.b", "dthrottle.ask.a\xff.b", "dthrottleXask.a.b"}) {
    CAPTURE(subject);
    CHECK_FALSE(ParseNatsSubject("dthrottle", "b", subject));
  }
  CHECK(ParseNatsSubject("dthrottle", "b", "dthrottle.answer.a.b"));
  CHECK_FALSE(ParseNatsSubject("dthrottle", "b", "dthrottle.ask." + std::string(65, 'a') + ".b"));
}

// The pair is from the manual of nats-server, "NKeys".
TEST_CASE("the key of a seed is what servers know it by") {
  const auto key = NkeyOf("SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY");
  REQUIRE(key);
  CHECK(*key == "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4");
}

TEST_CASE("what is not the seed of a user is told apart, and not repeated") {
  const auto why = [](const char* text) {
    const auto key = NkeyOf(text);
    REQUIRE_FALSE(key);
    return key.error().message;
  };
  CHECK(why("SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VA") == "its checksum is wrong");
  CHECK(why("UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4").starts_with("is not the seed of an nkey"));
  CHECK(why("").starts_with("is not the seed of an nkey"));
  CHECK(why("suacssl3uahudxkfsnvuzrf5uhpmwz6bfdtj7m6usdxiednppqyyycu3vy").starts_with("is not the seed of an nkey"));
}

// The only problem of these settings of peers, or "" if there is none.
std::string Problem(std::string_view peers) {
  const LoadedSettings loaded =
      ParseSettings("[peers]\n" + std::string(peers) + "\n[[rule]]\nburst=10\nrate=1\nshare=\"debit\"\n", "f");
  std::string all;
  for (const auto& p : loaded.problems) {
    if (p.severity == Problem::Severity::kError) all += p.message + "\n";
  }
  return all;
}

constexpr std::string_view kOwned = "transport=\"nats\"\nspread=\"owners\"\nowners=[\"a\"]\n";

TEST_CASE("settings of NATS that hold together are taken") {
  CHECK(Problem(std::string(kOwned) + "nats=[\"nats://127.0.0.1:4222\", \"nats://[::1]:4223\", \"nats://localhost:1\"]\n") ==
        "");
  CHECK(Problem(std::string(kOwned) + "nats=[\"tls://n.example.org:4222\"]\nnats_ca=\"/ca\"\nnats_credentials=\"/c\"\n") ==
        "");
}

TEST_CASE("settings of NATS that do not fit say what is allowed") {
  const auto says = [](const std::string& peers, std::string_view what) {
    const std::string problem = Problem(peers);
    INFO(problem);
    CHECK(problem.find(what) != std::string::npos);
  };
  const std::string owned(kOwned), local = "nats=[\"nats://127.0.0.1:4222\"]\n";
  says("transport=\"nats\"\nperiod=\"1s\"\n" + local,
       "must be \"owners\", because each report to everybody is a delivery for each pair of hosts: 300 hosts need 90000 a "
       "second, 81 % of a server's core");
  says(local, "peers.nats with peers.transport = \"zeromq\": must be \"nats\"");
  says(owned, "peers.nats is []: must name a server");
  says(owned + local + "connect=[\"tcp://127.0.0.1:7314\"]\n", "peers.connect with peers.transport = \"nats\": must be []");
  says(owned + local + "key_file=\"/k\"\nauthorized_keys=\"/d\"\n", "must be \"\", because the server's permissions");
  says(owned + "nats=[\"nats://10.0.0.1:4222\"]\n", "is not loopback: must begin with tls://");
  says(owned + "nats=[\"tls://10.0.0.1:4222\"]\nnats_ca=\"/ca\"\n", "must have peers.nats_credentials or");
  says(owned + "nats=[\"tls://127.0.0.1:4222\"]\n", "peers.nats_ca is \"\": must be a file");
  says(owned + "nats=[\"tls://127.0.0.1:4222\", \"nats://127.0.0.1:4223\"]\nnats_ca=\"/ca\"\n", "must be all of one kind");
  says(owned + local + "nats_certificate=\"/c\"\n", "must be both or neither");
  says(owned + local + "nats_certificate=\"/c\"\nnats_key=\"/k\"\n", "peers.nats_certificate with nats://: must be tls://");
  for (const char* const server : {"127.0.0.1:4222", "nats://127.0.0.1", "nats://u:p@127.0.0.1:4222", "nats://h:0", "tcp://h:1"}) {
    says(owned + "nats=[\"" + server + "\"]\n", "must be a list of servers such as");
  }
  for (const char* const prefix : {"", ".a", "a.", "a..b", "a.*", "a b", ">"}) {
    says(owned + local + "nats_subject=\"" + prefix + "\"\n", "must be 1 to 64 letters");
  }
}

}    // namespace
}    // namespace dthrottle
