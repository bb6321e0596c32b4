#include "io/peer_thread.h"

#include <zmq.h>

#include "capacity/capacity_message.h"
#include "capacity/topology.h"
#include "io/zeromq_carrier.h"
#include "test/io/net.h"

namespace dthrottle {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Dial;
using testing::For;
using testing::FreePort;
using testing::Node;
using testing::Until;
using testing::Url;

double Ms(std::optional<Duration> d) {
  return d ? 1000 * Seconds(*d) : -1;
}

// Two hosts that know each other, "a" and "b".
struct Pair {
  Pair() : Pair(FreePort(), FreePort()) {}
  Pair(std::uint16_t p, std::uint16_t q) : a("a", p, {Url(q)}), b("b", q, {Url(p)}) {}

  void WithKeys() {
    a.options.connect = {Url(b.port, "#b")};
    b.options.connect = {Url(a.port, "#a")};
    a.WithKeys(key_a, Both());
    b.WithKeys(key_b, Both());
  }
  AuthorizedKeys Both() const { return Authorize({{"a", key_a.public_key}, {"b", key_b.public_key}}); }
  static AuthorizedKeys Authorize(const std::map<std::string, std::string>& keys) {
    AuthorizedKeys result;
    result.by_name = keys;
    for (const auto& [name, key] : keys) result.names[key] = name;
    return result;
  }
  void Start() {
    REQUIRE(a.Start());
    REQUIRE(b.Start());
  }
  bool AreUp() const { return a.Up() && b.Up(); }
  bool HaveJoined() const { return a.thread->Counts().snapshots_taken > 0 && b.thread->Counts().snapshots_taken > 0; }
  std::vector<Node*> nodes() { return {&a, &b}; }
  // A host that comes up is told a snapshot first, and these nodes have nothing to put into one: hits that a snapshot
  // is said to contain would be heard by nobody.
  bool Join() {
    return Until(nodes(), [&] { return AreUp() && HaveJoined(); }).has_value();
  }
  bool Exchange(const std::string& tag) {
    if (!Join()) return false;
    a.Hit(tag + "-a");
    b.Hit(tag + "-b");
    return Until(nodes(), [&] { return a.heard.count(tag + "-b") == 1 && b.heard.count(tag + "-a") == 1; }).has_value();
  }

  Node a, b;
  KeyPair key_a = GenerateKeyPair(), key_b = GenerateKeyPair();
};

// A ZeroMQ application that is not ours.
class Stranger {
 public:
  Stranger(int type, unsigned port, const KeyPair* keys = nullptr, const std::string& server_key = "") {
    socket_ = zmq_socket(context_, type);
    const int linger = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof linger);
    if (keys != nullptr) {
      zmq_setsockopt(socket_, ZMQ_CURVE_SERVERKEY, server_key.data(), kKeyChars);
      zmq_setsockopt(socket_, ZMQ_CURVE_PUBLICKEY, keys->public_key.data(), kKeyChars);
      zmq_setsockopt(socket_, ZMQ_CURVE_SECRETKEY, keys->secret_key.data(), kKeyChars);
    }
    REQUIRE(zmq_connect(socket_, Url(port).c_str()) == 0);
  }
  ~Stranger() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  bool Send(const std::string& text, bool more = false) {
    return zmq_send(socket_, text.data(), text.size(), ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
  }
  bool Hears() {
    char bytes[16];
    return zmq_recv(socket_, bytes, sizeof bytes, ZMQ_DONTWAIT) >= 0;
  }

 private:
  void* const context_ = zmq_ctx_new();
  void* socket_;
};

TEST_CASE("hits travel both ways, and quickly") {
  Pair pair;
  pair.Start();
  const auto up = Until(pair.nodes(), [&] { return pair.AreUp(); });
  CHECK(up);
  CHECK(pair.a.Peer().name == "b");
  CHECK(pair.Exchange("x"));
  CHECK(pair.a.thread->Counts().published > 0);
  WARN("up after " << Ms(up) << " ms");
}

// A thread that is held up between its look at the clock and the frames that it reads.
class HeldUp final : public ZeroMqCarrier {
 public:
  using ZeroMqCarrier::ZeroMqCarrier;
  void Read(Instant now) override {
    std::this_thread::sleep_for(3 * Node::kPeriod);
    ZeroMqCarrier::Read(now);
  }
};

TEST_CASE("no hit is older than it is, for a host that is held up while it reads") {
  Pair pair;
  pair.a.options.carrier = [&](const Carrier::Host& host) {
    return std::make_unique<HeldUp>(pair.a.options, host);
  };
  pair.Start();
  REQUIRE(pair.Join());
  for (int i = 0; i < 5; ++i) {
    const std::string tag = "tag-" + std::to_string(i);
    const Instant at = Now();
    pair.b.Hit(tag);
    REQUIRE(Until(pair.nodes(), [&] { return pair.a.heard.count(tag) == 1; }));
    CHECK(pair.a.heard.at(tag) >= at);
  }
}

TEST_CASE("a peer that restarts is heard again within seconds") {
  Pair pair;
  pair.Start();
  REQUIRE(pair.Join());
  pair.b.thread.reset();
  CHECK(Until({&pair.a}, [&] { return !pair.a.Up(); }));
  REQUIRE(pair.b.Start());
  const auto resumed = Until(pair.nodes(), [&] { return pair.AreUp(); });
  CHECK(resumed);
  CHECK(pair.Exchange("y"));
  WARN("both up " << Ms(resumed) << " ms after the restart");
}

TEST_CASE("an address in use is told at start, by name") {
  const std::uint16_t port = FreePort();
  const int fd = testing::Listen(port);
  Node node("a", port, {});
  const auto started = node.Start();
  REQUIRE_FALSE(started);
  CHECK(started.error().message == "peers.bind: " + Url(port) + ": cannot listen: Address already in use");
  ::close(fd);
}

TEST_CASE("what the limiter handed over before the end still goes out") {
  Pair pair;
  pair.Start();
  REQUIRE(pair.Join());
  pair.a.Hit("last");
  pair.a.PushPeriod();
  pair.a.thread->Stop();
  CHECK(Until({&pair.b}, [&] { return pair.b.heard.count("last") == 1; }));
}

TEST_CASE("stopping waits for nobody, whatever the peers do") {
  const std::uint16_t mute = FreePort(), dead = FreePort();
  const int listening = testing::Listen(mute);
  // A port that takes connections and says nothing, one that refuses, an address that leads nowhere, and a subscriber
  // that reads nothing.
  Node node("a", FreePort(), {Url(mute), Url(dead), "tcp://192.0.2.1:7314", "tcp://nowhere.invalid:1"});
  node.options.resolver.servers = fmt::format("127.0.0.1:{}", mute);
  REQUIRE(node.Start());
  const int subscriber = Dial(node.port);
  For({&node}, milliseconds(500));
  node.Hit("x");
  node.PushPeriod();
  const Instant from = Now();
  node.thread->Stop();
  CHECK(Now() - from < seconds(20));    // who waited for one of them would wait for ever
  WARN("stopped in " << Ms(Now() - from) << " ms");
  ::close(subscriber);
  ::close(listening);
}

TEST_CASE("an address that is this host itself gets no reports") {
  const std::uint16_t port = FreePort();
  Node node("a", port, {Url(port)});
  REQUIRE(node.Start());
  REQUIRE(Until({&node}, [&] { return node.Peer().state == PeerState::kSelf; }));
  For({&node}, milliseconds(300));
  const auto received = node.thread->Counts().received;
  node.Hit("own");
  For({&node}, milliseconds(500));
  CHECK(node.thread->Counts().received == received);
  CHECK(node.heard.empty());
}

TEST_CASE("links come and go with the list, and names are looked up") {
  Pair pair;
  pair.a.options.connect = {fmt::format("tcp://localhost:{}", pair.b.port), "tcp://nowhere.invalid:7314"};
  pair.a.options.resolver.servers = "127.0.0.1:1";    // answers nothing; localhost needs no server
  pair.Start();
  REQUIRE(Until(pair.nodes(), [&] { return pair.b.Up(); }));
  pair.a.thread->SetConnect({});
  CHECK(Until(pair.nodes(), [&] { return pair.a.thread->Peers().empty(); }));
  pair.a.heard.clear();
  pair.b.Hit("unheard");
  For(pair.nodes(), milliseconds(500));
  CHECK(pair.a.heard.count("unheard") == 0);
  pair.a.thread->SetConnect({Url(pair.b.port)});
  CHECK(Until(pair.nodes(), [&] { return pair.AreUp(); }));
}

TEST_CASE("with keys, hits travel and requests come with the name that the key proves") {
  Pair pair;
  pair.WithKeys();
  pair.Start();
  const auto up = Until(pair.nodes(), [&] { return pair.AreUp(); });
  CHECK(up);
  CHECK(pair.Exchange("x"));
  CHECK(pair.a.thread->OwnCounts().allowed >= 1);
  CHECK(pair.a.thread->OwnCounts().denied == 0);
  WARN("up after " << Ms(up) << " ms");
}

TEST_CASE("a name that the key does not prove is refused") {
  Pair pair;
  pair.WithKeys();
  pair.b.options.exchange.name = "c";
  pair.Start();
  CHECK(Until(pair.nodes(), [&] { return pair.b.Peer().state == PeerState::kRefused; }));
  CHECK_FALSE(pair.b.Up());
}

TEST_CASE("with keys, whoever has none or another gets nothing and is counted") {
  Pair pair;
  pair.WithKeys();
  pair.Start();
  REQUIRE(Until(pair.nodes(), [&] { return pair.AreUp(); }));
  const KeyPair other = GenerateKeyPair();
  std::vector<std::unique_ptr<Stranger>> strangers;
  const auto add = [&](auto... keys) {
    strangers.push_back(std::make_unique<Stranger>(ZMQ_DEALER, pair.a.port, keys...));
  };
  add();
  add(&other, pair.key_a.public_key);    // stranger's key
  add(&pair.key_b, other.public_key);    // wrong server
  for (auto& stranger : strangers) stranger->Send("DTR\1Hb\n");
  const auto junk = pair.a.thread->Counts().junk + pair.a.thread->Counts().strangers;
  CHECK(pair.Exchange("x"));
  For(pair.nodes(), seconds(1));
  for (auto& stranger : strangers) CHECK_FALSE(stranger->Hears());
  CHECK(Until(pair.nodes(), [&] { return pair.a.thread->OwnCounts().denied >= 1; }));
  CHECK(pair.a.thread->Counts().junk + pair.a.thread->Counts().strangers == junk);
  CHECK(Until(pair.nodes(), [&] { return pair.a.Log().find("turned away") != std::string::npos; }));
  CHECK(Until(pair.nodes(), [&] { return pair.AreUp(); }));
}

TEST_CASE("hosts divide limits, and only who has a name's key speaks under it") {
  Pair pair;
  pair.WithKeys();
  CapacityOptions capacity;
  capacity.settings.members = {"a", "b"};
  capacity.settings.graph = CompleteTopology(2);
  capacity.settings.digest = 1;
  capacity.settings.interval = milliseconds(50);
  capacity.settings.lease = seconds(20);
  pair.a.options.capacity = pair.b.options.capacity = capacity;
  pair.Start();
  CapacityStanding standing;
  const auto begun = [&] {
    for (FromCapacity item; pair.a.thread->from_capacity().TryPop(item);) standing = item.standing.value_or(standing);
    return standing.other == kWhole / 2 && standing.valid_until > BootNow();
  };
  REQUIRE(Until(pair.nodes(), begun));
  CHECK(pair.a.thread->LookAtCapacity(
      [](const CapacityExchange& e) { CHECK(e.Members(BootNow()).front().name == "b"); }));

  CHECK(pair.a.thread->CapacityCountsNow().junk == 0);
  CHECK(pair.a.thread->CapacityCountsNow().strangers == 0);
  Stranger as_b(ZMQ_DEALER, pair.a.port, &pair.key_b, pair.key_a.public_key);
  const auto send_as = [&](const std::string& host) {
    CapacityMessage ask;
    ask.kind = CapacityKind::kAsk;
    ask.host = host;
    std::string frame;
    EncodeCapacity(ask, frame);
    REQUIRE(as_b.Send(frame));
  };
  send_as("a");
  send_as("c");
  CHECK(Until(pair.nodes(), [&] { return pair.a.thread->CapacityCountsNow().strangers == 2; }));
  send_as("b");
  REQUIRE(as_b.Send(std::string(kCapacityFramePrefix) + "junk"));
  CHECK(Until(pair.nodes(), [&] { return pair.a.thread->CapacityCountsNow().junk == 1; }));
  CHECK(pair.a.thread->CapacityCountsNow().strangers == 2);

  pair.a.thread->SetCapacity(std::nullopt);
  CHECK(Until(pair.nodes(), [&] { return !pair.a.thread->LookAtCapacity([](const CapacityExchange&) {}); }));
}

TEST_CASE("an address without a known key is shown with what to do") {
  Pair pair;
  pair.WithKeys();
  pair.a.options.connect = {Url(pair.b.port), Url(FreePort(), "#zoe")};
  pair.Start();
  REQUIRE(Until(pair.nodes(), [&] { return pair.a.thread->Peers().size() == 2; }));
  CHECK(pair.a.Peer(0).state == PeerState::kRefused);
  CHECK(pair.a.Peer(0).reason ==
        fmt::format("no key is known for {}: add #NAME or an address line to its .pub file", Url(pair.b.port)));
  CHECK(pair.a.Peer(1).reason.ends_with("there is no zoe.pub"));
  AuthorizedKeys keys = pair.Both();
  keys.by_address[fmt::format("127.0.0.1:{}", pair.b.port)] = "b";
  pair.a.thread->ReloadKeys(keys);
  CHECK(Until(pair.nodes(), [&] { return pair.AreUp(); }));
}

TEST_CASE("a removed key is cut off at once, the others are back in about a second") {
  Pair pair;
  pair.WithKeys();
  const KeyPair key_c = GenerateKeyPair();
  Node c("c", FreePort(), {Url(pair.a.port, "#a")});
  const auto all =
      Pair::Authorize({{"a", pair.key_a.public_key}, {"b", pair.key_b.public_key}, {"c", key_c.public_key}});
  c.WithKeys(key_c, all);
  pair.a.options.authorized = pair.b.options.authorized = all;
  pair.a.options.connect.push_back(Url(c.port, "#c"));
  pair.Start();
  REQUIRE(c.Start());
  const std::vector<Node*> nodes{&pair.a, &pair.b, &c};
  REQUIRE(Until(nodes, [&] { return pair.AreUp() && pair.a.Up(1) && c.Up(); }));

  pair.a.thread->ReloadKeys(pair.Both());
  REQUIRE(Until(nodes, [&] { return pair.a.thread->OwnCounts().rebinds == 1; }));
  const auto back = Until(nodes, [&] {
    pair.a.Hit("after");
    return pair.b.heard.count("after") == 1;
  });
  CHECK(back);
  CHECK(Until(nodes, [&] { return pair.AreUp(); }));
  For(nodes, seconds(1));
  CHECK(c.heard.count("after") == 0);
  CHECK_FALSE(c.Up());
  CHECK(pair.a.barred.size() == 1);
  CHECK(pair.a.Peer(1).reason.ends_with("there is no c.pub"));
  CHECK(Until(nodes, [&] { return pair.a.thread->OwnCounts().denied >= 1; }));
  WARN("heard again " << Ms(back) << " ms after a key was removed");

  // And given back, it comes back.
  pair.a.thread->ReloadKeys(all);
  const auto returned = Until(
      nodes, [&] { return c.Up() && pair.a.Up(1); }, seconds(120));
  CHECK(returned);
  CHECK(pair.a.thread->OwnCounts().rebinds == 1);
  WARN("the removed host is up " << Ms(returned) << " ms after it got its key back");
}

TEST_CASE("an owner whose key is removed is cut off at once, though the list of owners still names it") {
  Pair pair;
  pair.WithKeys();
  const auto owners = std::make_shared<const Owners>(std::vector<std::string>{"a", "b"});
  for (Node* const node : pair.nodes()) node->options.exchange.owners = owners;
  pair.Start();
  REQUIRE(Until(pair.nodes(), [&] { return pair.AreUp(); }));

  pair.a.thread->ReloadKeys(Pair::Authorize({{"a", pair.key_a.public_key}}));
  const auto gone = Until(pair.nodes(), [&] { return pair.a.Peer(0).state == PeerState::kRefused; });
  REQUIRE(gone);
  CHECK(pair.a.Peer(0).reason.ends_with("there is no b.pub"));
  For(pair.nodes(), seconds(1));
  CHECK_FALSE(pair.a.Up());
  CHECK_FALSE(pair.b.Up());

  pair.a.thread->ReloadKeys(pair.Both());
  CHECK(Until(pair.nodes(), [&] { return pair.AreUp(); }, seconds(120)));
}

TEST_CASE("a peer that had no keys for a moment is dialed again") {
  Pair pair;
  pair.WithKeys();
  const auto keys = std::exchange(pair.b.options.keys, std::nullopt);
  pair.b.options.authorized = {};
  pair.Start();
  For(pair.nodes(), seconds(1));
  CHECK_FALSE(pair.a.Up());
  pair.b.thread.reset();
  pair.b.options.keys = keys;
  pair.b.options.authorized = pair.Both();
  REQUIRE(pair.b.Start());
  const auto up = Until(
      pair.nodes(), [&] { return pair.AreUp(); }, seconds(120));
  CHECK(up);
  WARN("up after " << Ms(up) << " ms and " << pair.a.thread->OwnCounts().redials << " redials");
}

TEST_CASE("junk on the port hurts nobody") {
  const bool with_keys = GENERATE(false, true);
  Pair pair;
  if (with_keys) pair.WithKeys();
  pair.Start();
  REQUIRE(Until(pair.nodes(), [&] { return pair.AreUp(); }));
  Prng prng(pair.a.port);
  CAPTURE(pair.a.port);
  const std::string greeting = std::string("\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL", 16) + std::string(48, '\0');
  const std::string ready(
      "\4\x1c\5READY\x0bSocket-Type\0\0\0\6"
      "DEALER",
      30);
  std::vector<int> open;
  for (int i = 0; i < 60; ++i) {
    {
      const int fd = Dial(pair.a.port);
      std::string bytes;
      switch (i % 5) {
        case 0:
          for (std::uint64_t n = prng.Below(3000); n > 0; --n) bytes += static_cast<char>(prng.Next());
          break;
        case 1:
          bytes = greeting.substr(0, prng.Below(64));
          break;
        case 2:
          bytes = greeting + ready + std::string("\2\0\0\1\0\0\0\0\0", 9);
          break;    // a frame of 2^40 bytes
        case 3:
          bytes = greeting + ready;
          for (std::uint64_t n = prng.Below(3000); n > 0; --n) bytes += static_cast<char>(prng.Next());
          break;
        case 4:
          break;    // says nothing
      }
      [[maybe_unused]] const auto sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      open.push_back(fd);
    }
  }
  if (!with_keys) {
    For(pair.nodes(), milliseconds(300));
    const auto malformed = pair.a.thread->OwnCounts().malformed;
    Stranger dealing(ZMQ_DEALER, pair.a.port);
    const auto send = [&](const std::string& text, bool more = false) {    // once there is room for it
      REQUIRE(Until(pair.nodes(), [&] { return dealing.Send(text, more); }));
    };
    for (int i = 0; i < 2000; ++i) send("part", i % 1000 != 999);
    send("DTR\1");
    send("");
    send("no frame");
    send(std::string(kFrameBytesMax, 'x'));
    CHECK(Until(pair.nodes(), [&] { return pair.a.thread->OwnCounts().malformed >= malformed + 2; }));
    CHECK(Until(pair.nodes(), [&] { return pair.a.thread->Counts().junk >= 3; }));
  }
  CHECK(pair.Exchange("x"));
  CHECK(Until(pair.nodes(), [&] { return pair.AreUp(); }));
  for (const int fd : open) ::close(fd);
  CHECK(pair.Exchange("y"));
}

TEST_CASE("a link is heard again as soon as its connection is back, long before its period is over") {
  Pair pair;
  pair.a.options.exchange.period = pair.b.options.exchange.period = seconds(300);
  pair.Start();
  REQUIRE(pair.Join());
  REQUIRE(pair.b.thread->Counts().subscribers == 1);
  pair.a.thread.reset();
  pair.a.options.exchange.fresh_table = false;
  REQUIRE(pair.a.Start());
  const auto back = Until(
      pair.nodes(), [&] { return pair.a.thread->Counts().subscribers == 1; }, seconds(60));
  CHECK(back);
  WARN("subscribed again " << Ms(back) << " ms after the restart, at a period of 300 s");
}

TEST_CASE("who speaks for another is not heard, and the other is") {
  Pair pair;
  pair.WithKeys();
  const KeyPair key_c = GenerateKeyPair();
  const auto all =
      Pair::Authorize({{"a", pair.key_a.public_key}, {"b", pair.key_b.public_key}, {"c", key_c.public_key}});
  pair.a.options.authorized = pair.b.options.authorized = all;
  // c is authorized, and says that it is b, with b's frames: on its own port, which a reads, and as a request.
  Node c("b", FreePort(), {Url(pair.a.port, "#a")});
  c.WithKeys(key_c, all);
  pair.a.options.connect.push_back(Url(c.port, "#c"));
  REQUIRE(c.Start());
  c.Hit("forged");
  pair.Start();
  const std::vector<Node*> nodes{&pair.a, &pair.b, &c};
  // Links are in the order of their addresses, which chance decides.
  const auto at = [&](unsigned port) {
    for (const PeerStatus& peer : pair.a.thread->Peers()) {
      if (peer.address == Url(port)) return peer;
    }
    return PeerStatus{};
  };
  REQUIRE(
      Until(nodes, [&] { return at(pair.b.port).state == PeerState::kUp && at(c.port).state == PeerState::kRefused; }));
  CHECK(at(c.port).reason == "its key belongs to another name: c");
  CHECK(pair.a.thread->Counts().forged > 0);
  CHECK(Until(nodes, [&] { return c.Peer().reason == "your key belongs to another name"; }));
  for (int i = 0; i < 5; ++i) {
    c.Hit("forged");
    For(nodes, milliseconds(100));
  }
  REQUIRE(Until(nodes, [&] { return pair.HaveJoined(); }));
  pair.b.Hit("honest");
  CHECK(Until(nodes, [&] { return pair.a.heard.count("honest") == 1; }));
  CHECK(pair.a.heard.count("forged") == 0);
}

}    // namespace
}    // namespace dthrottle
