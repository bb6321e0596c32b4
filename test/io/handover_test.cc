#include "io/handover.h"

#include <catch2/catch.hpp>

namespace dthrottle {
namespace {

Handover Example() {
  Handover h;
  h.held_at = FromNanoseconds(1'234'567'890'123);
  h.listeners = {{5, "query.unix", "/run/dthrottle/query.sock"}, {7, "query.tcp", ""}};
  h.sections = {{"table", 8, std::string("notes\0", 6)}, {"of a later program", 11, "x"}, {"empty", -1, ""}};
  h.connections = {{9, "query", "half a li", "", "OK\nN", false, std::chrono::seconds(2)},
                   {10, "query", "", "over-long", "", true, Duration()},
                   {3, "resp", "*1\r\n", "7", "", false, Duration()}};
  return h;
}

void CheckSame(const Handover& a, const Handover& b) {
  CHECK(EncodeHandover(a) == EncodeHandover(b));
}

// `bytes` under another version, or with a part replaced, and the checksum as it should be: through the encoder's own
// format, so this fails to decode only for the reason that a case is about.
std::string WithVersion(std::string bytes, char version) {
  bytes[8] = version;
  return bytes;
}

TEST_CASE("a handover reads back as it was written") {
  const auto read = DecodeHandover(EncodeHandover(Example()));
  REQUIRE(read);
  CHECK(read->whole);
  CHECK(read->held_at == Example().held_at);
  CHECK(read->listeners.at(0).key == "query.unix");
  CHECK(read->listeners.at(0).address == "/run/dthrottle/query.sock");
  CHECK(read->listeners.at(1).fd == 7);
  CHECK(read->connections.at(0).unread == "half a li");
  CHECK(read->connections.at(0).unsent == "OK\nN");
  CHECK(read->connections.at(0).silent == std::chrono::seconds(2));
  CHECK(read->connections.at(1).state == "over-long");
  CHECK(read->connections.at(1).ending);
  CHECK(!read->connections.at(2).ending);
  CHECK(read->connections.at(2).fd == 3);
  CHECK(read->connections.at(2).front == "resp");
  CheckSame(*read, Example());
  CHECK(DecodeHandover(EncodeHandover({})));
}

TEST_CASE("a section is taken once, by its key, and one that is not there is empty") {
  auto read = DecodeHandover(EncodeHandover(Example()));
  REQUIRE(read);
  const HandedSection table = read->Take("table");
  CHECK(table.fd == 8);
  CHECK(table.bytes == std::string("notes\0", 6));
  CHECK(read->sections.size() == 2);
  for (const char* key : {"table", "other"}) {
    CHECK(read->Take(key).fd == -1);
    CHECK(read->Take(key).bytes.empty());
  }
}

TEST_CASE("a handover that is cut off or changed anywhere is refused") {
  const std::string whole = EncodeHandover(Example());
  for (std::size_t size = 0; size < whole.size(); ++size) CHECK(!DecodeHandover(whole.substr(0, size)));
  CHECK(!DecodeHandover(whole + "x"));
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (i >= 8 && i < 12) continue;    // the version
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    CHECK(!DecodeHandover(changed));
  }
}

TEST_CASE("a handover of another version has its listeners and nothing else") {
  const auto read = DecodeHandover(WithVersion(EncodeHandover(Example()), 1));
  REQUIRE(read);
  CHECK(!read->whole);
  CHECK(read->listeners.size() == 2);
  CHECK(read->connections.empty());
  CHECK(read->sections.empty());
}

TEST_CASE("what cannot have been meant is refused under any checksum") {
  const auto refused = [](auto change) {
    Handover h = Example();
    change(h);
    return !DecodeHandover(EncodeHandover(h)).has_value();
  };
  CHECK(!refused([](Handover&) {}));
  CHECK(refused([](Handover& h) { h.connections[0].fd = 5; }));    // a listener's
  CHECK(refused([](Handover& h) { h.connections[0].fd = 2; }));    // standard error
  CHECK(refused([](Handover& h) { h.connections[0].fd = -1; }));
  CHECK(refused([](Handover& h) { h.listeners[0].fd = -1; }));
  CHECK(refused([](Handover& h) { h.sections[0].fd = 9; }));    // a connection's
  CHECK(refused([](Handover& h) { h.sections[0].key = std::string(300, 'x'); }));
  CHECK(refused([](Handover& h) { h.connections[0].front = std::string(300, 'x'); }));
  CHECK(refused([](Handover& h) { h.connections[0].unread = std::string(65 * 1024, 'x'); }));
  CHECK(refused([](Handover& h) { h.connections[0].state = std::string(17 << 20, 'x'); }));
  CHECK(refused([](Handover& h) { h.listeners[0].address = std::string(300, 'x'); }));
}

TEST_CASE("a connection that holds too much is left behind, and costs no other its place") {
  Handover h = Example();
  const HandedConnection fine = h.connections[0];
  h.connections.clear();
  for (int i = 0; i < 70; ++i) {
    h.connections.push_back(fine);
    h.connections.back().fd = 100 + i;
  }
  h.connections[3].state = std::string(std::size_t{17} << 20, 'x');
  h.connections[4].unread = std::string(65 * 1024, 'x');
  h.connections[5].state = std::string(std::size_t{4} << 20, 'x');    // all holds, all places and all waits
  CHECK(DropOversized(h) == 2);
  REQUIRE(DecodeHandover(EncodeHandover(h)));
  CHECK(DecodeHandover(EncodeHandover(h))->connections.size() == 68);
  for (HandedConnection& c : h.connections) c.state = std::string(std::size_t{16} << 20, 'x');
  CHECK(DropOversized(h) > 30);    // all together are too much
  CHECK(h.connections.size() > 30);
}

TEST_CASE("a name with a slash is found from where the process started, links not followed") {
  CHECK(OwnProgram("/usr/sbin/dthrottled") == "/usr/sbin/dthrottled");
  const std::string relative = OwnProgram("build/../dthrottled");
  CHECK(relative.starts_with('/'));
  CHECK(relative.ends_with("/build/../dthrottled"));
  CHECK(OwnProgram("dthrottled").starts_with('/'));    // by PATH: this program, whatever it was called
}

}    // namespace
}    // namespace dthrottle
