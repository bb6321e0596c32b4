// The election by etcd over virtual wires: candidates whose messages are late or lost, whose processes are stopped and
// killed, and whose clocks drift. The real etcd is in test/system/test_election.py.
#include <catch2/catch.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/prng.h"
#include "io/elector.h"
#include "io/etcd_election.h"
#include "test/support/fake_etcd.h"
#include "test/support/sanitized.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;

constexpr Duration kStep = 5ms;
constexpr Duration kTtl = 5s;

// A host that takes part. Its clock has an offset and a rate of its own.
struct Host {
  Host(std::string address, double rate, Duration offset)
      : election({"dthrottle/lease/master", std::move(address), kTtl}), clock_rate(rate), clock_offset(offset) {}

  BootInstant Clock(BootInstant now) const {
    const auto ns = static_cast<double>(now.time_since_epoch().count()) * clock_rate;
    return BootInstant(Duration(static_cast<Duration::rep>(ns))) + clock_offset;
  }

  bool IsMaster(BootInstant now) const { return alive && election.state().IsMaster(Clock(now)); }

  struct Flight {
    EtcdRequest request;
    BootInstant sent;                // by the host's clock
    BootInstant arrives, returns;    // by the true one; max: never
    std::optional<FakeEtcd::Answer> answer;
  };

  EtcdElection election;
  double clock_rate;
  Duration clock_offset;
  bool alive = true, stopped = false, cut_off = false;
  std::optional<Flight> flight;
  std::vector<Flight> abandoned;    // given up by the host, but still on their way to etcd
};

class World {
 public:
  World(std::uint64_t seed, int hosts) : prng_(seed) {
    for (int i = 0; i < hosts; ++i) {
      const double rate = 1 + (static_cast<double>(prng_.Below(401)) - 200) * 1e-5;    // 0.2 % either way
      hosts_.push_back(std::make_unique<Host>("tcp:10.0.0." + std::to_string(i + 1) + ":7315", rate,
                                              std::chrono::seconds(prng_.Below(100000))));
    }
  }

  // Moves time, and holds what must hold all of it: one master at most, under tokens that grow.
  void Run(Duration duration) {
    for (const BootInstant end = now + duration; now < end; now += kStep) {
      etcd.Advance(now);
      for (auto& host : hosts_) Turn(*host);
      int masters = 0;
      for (auto& host : hosts_) {
        if (!host->IsMaster(now)) continue;
        ++masters;
        const std::uint64_t token = host->election.state().token;
        REQUIRE(token >= token_);
        if (token > token_) ++terms;
        token_ = token;
        CHECK(host->election.state().address == "tcp:10.0.0." + std::to_string(Index(*host) + 1) + ":7315");
      }
      REQUIRE(masters <= 1);
      if (masters == 1) with_master += kStep;
    }
  }

  std::optional<std::size_t> Master() const {
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      if (hosts_[i]->IsMaster(now)) return i;
    }
    return std::nullopt;
  }

  // The time until another host is master, at most `most`.
  Duration Takeover(std::size_t former, Duration most) {
    const BootInstant from = now;
    while (now < from + most && (!Master() || *Master() == former)) Run(kStep);
    return now - from;
  }

  Host& host(std::size_t i) { return *hosts_[i]; }
  Prng& prng() { return prng_; }

  BootInstant now = BootInstant(1000s);
  FakeEtcd etcd;
  Duration latency_max = 40ms;
  double loss = 0;
  int terms = 0;
  Duration with_master{};

 private:
  std::size_t Index(const Host& host) const {
    return static_cast<std::size_t>(
        std::find_if(hosts_.begin(), hosts_.end(), [&](const auto& h) { return h.get() == &host; }) - hosts_.begin());
  }

  bool Lost(const Host& host) { return host.cut_off || static_cast<double>(prng_.Below(1000)) < loss * 1000; }
  Duration Latency() {
    return Duration(static_cast<Duration::rep>(prng_.Below(static_cast<std::uint64_t>(latency_max.count()) + 1)));
  }

  void Deliver(Host& host, Host::Flight& flight) {
    if (flight.answer || now < flight.arrives) return;
    flight.answer = etcd.Post(flight.request.path, flight.request.body, now);
    flight.arrives = BootInstant::max();
    flight.returns = Lost(host) ? BootInstant::max() : now + Latency();
  }

  void Turn(Host& host) {
    if (host.flight) Deliver(host, *host.flight);
    for (auto& flight : host.abandoned) Deliver(host, flight);
    if (!host.alive || host.stopped) return;
    const BootInstant clock = host.Clock(now);
    if (host.flight && host.flight->answer && now >= host.flight->returns) {
      const Host::Flight done = *std::exchange(host.flight, std::nullopt);
      host.election.OnAnswer(done.answer->status, done.answer->body, done.sent, clock);
    } else if (host.flight && clock >= host.flight->sent + host.election.patience()) {
      host.abandoned.push_back(*std::exchange(host.flight, std::nullopt));
      host.election.OnFailure("timed out", clock);
    }
    if (host.flight) return;
    if (auto request = host.election.Next(clock)) {
      host.flight = Host::Flight{*request, clock, Lost(host) ? BootInstant::max() : now + Latency(), {}, {}};
    }
  }

  Prng prng_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::uint64_t token_ = 0;
};

TEST_CASE("election: one of three becomes master at once, and stays it") {
  World world(1, 3);
  world.Run(1s);
  REQUIRE(world.Master());
  const std::size_t master = *world.Master();
  world.Run(120s);
  CHECK(world.Master() == master);
  CHECK(world.terms == 1);
  for (std::size_t i = 0; i < 3; ++i) {    // everybody knows who it is
    CHECK(world.host(i).election.state().address == world.host(master).election.state().address);
  }
}

TEST_CASE("election: a master that is killed is replaced within TTL + 1 s, by one that knows its token") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    World world(seed, 3);
    world.Run(2s + Duration(static_cast<Duration::rep>(world.prng().Below(3'000'000'000))));
    REQUIRE(world.Master());
    const std::size_t master = *world.Master();
    const std::uint64_t token = world.host(master).election.state().token;
    world.host(master).alive = false;
    CAPTURE(seed);
    CHECK(world.Takeover(master, 10s) <= kTtl + 1s);
    REQUIRE(world.Master());
    CHECK(world.host(*world.Master()).election.state().former == token);
  }
}

TEST_CASE("election: a master that is cut off stops by itself before another one begins") {
  World world(3, 3);
  world.Run(3s);
  const std::size_t master = *world.Master();
  world.host(master).cut_off = true;
  CHECK(world.Takeover(master, 10s) <= kTtl + 1s);
  CHECK(!world.host(master).IsMaster(world.now));
  world.host(master).cut_off = false;
  world.Run(3s);
  CHECK(world.terms == 2);
  CHECK(world.host(master).election.state().token == 0);
}

TEST_CASE("election: a process that was stopped beyond its lease is not master when it goes on") {
  World world(4, 3);
  world.Run(3s);
  const std::size_t master = *world.Master();
  world.host(master).stopped = true;
  CHECK(world.Takeover(master, 10s) <= kTtl + 1s);
  world.Run(10s);
  world.host(master).stopped = false;
  CHECK(!world.host(master).IsMaster(world.now));    // even before its first turn
  world.Run(5s);
  CHECK(world.terms == 2);
}

TEST_CASE("election: while etcd has no leader there is no other master, and the one it had goes on") {
  World world(5, 3);
  world.Run(3s);
  const std::size_t master = *world.Master();
  const std::uint64_t token = world.host(master).election.state().token;
  world.etcd.leader = false;
  world.Run(20s);
  CHECK(!world.Master());
  CHECK(!world.host(master).election.trouble().empty());
  world.etcd.Elect(world.now);
  world.Run(2s);
  CHECK(world.Master() == master);
  CHECK(world.host(master).election.state().token == token);
}

TEST_CASE("election: whoever resigns is replaced at once") {
  World world(6, 3);
  world.Run(3s);
  const std::size_t master = *world.Master();
  const auto request = world.host(master).election.Resign();
  REQUIRE(request);
  CHECK(!world.host(master).IsMaster(world.now));
  world.etcd.Post(request->path, request->body, world.now);
  world.host(master).alive = false;
  CHECK(world.Takeover(master, 10s) <= 1s);
}

TEST_CASE("election: a key that somebody deletes makes the master stop at its next keepalive") {
  World world(7, 1);
  world.Run(3s);
  world.etcd.Delete();
  world.Run(3s);
  CHECK(world.Master() == 0);
  CHECK(world.terms == 2);
}

TEST_CASE("election: a key that somebody puts by hand ends mastership, and nobody has it until it is deleted") {
  for (const bool same : {true, false}) {
    World world(9, 2);
    world.Run(3s);
    REQUIRE(world.Master());
    world.etcd.Put(same ? world.etcd.held->value : "Z2FyYmFnZQ==");
    world.Run(8s);
    CHECK(!world.Master());
    for (const std::size_t host : {0U, 1U}) {
      CHECK(world.host(host).election.trouble().find("has no lease") != std::string::npos);
    }
    world.etcd.Delete();
    world.Run(3s);
    CHECK(world.Master());
    CHECK(world.host(*world.Master()).election.trouble().empty());
  }
}

TEST_CASE("election: chance breaks everything at once, and there is never a second master") {
  Duration with_master{}, whole{};
  int terms = 0;
  const std::uint64_t seeds = Fewer(20);
  for (std::uint64_t seed = 100; seed < 100 + seeds; ++seed) {
    CAPTURE(seed);
    World world(seed, 5);
    world.latency_max = 400ms;
    world.loss = 0.1;
    for (int i = 0; i < 40; ++i) {
      Host& host = world.host(world.prng().Below(5));
      switch (world.prng().Below(5)) {
        case 0:
          host.stopped = !host.stopped;
          break;
        case 1:
          host.cut_off = !host.cut_off;
          break;
        case 2:
          world.etcd.leader = false;
          break;
        default:
          if (!world.etcd.leader) world.etcd.Elect(world.now);
          host.stopped = host.cut_off = false;
      }
      world.Run(Duration(static_cast<Duration::rep>(world.prng().Below(8'000'000'000))));
    }
    with_master += world.with_master;
    whole += world.now - BootInstant(1000s);
    terms += world.terms;
  }
  CHECK(terms > 2 * static_cast<int>(seeds));
  CHECK(with_master > whole / 3);    // it was tried, not just prevented
}

constexpr BootInstant kStart = BootInstant(100s);
const std::string kGranted = R"({"ID":"9","TTL":"5"})";

// An election that has been granted a lease: asked for at kStart, answered 900 ms later.
EtcdElection Granted() {
  EtcdElection election({"k", "tcp:10.0.0.1:7315", kTtl});
  election.OnAnswer(200, "{}", kStart, kStart);
  REQUIRE(election.Next(kStart)->path == "/v3/lease/grant");
  election.OnAnswer(200, kGranted, kStart, kStart + 900ms);
  REQUIRE(election.Next(kStart + 900ms)->path == "/v3/kv/txn");
  return election;
}

TEST_CASE("election: mastership counts from when the lease was asked for, less a second, however late the answer") {
  EtcdElection election = Granted();
  election.OnAnswer(200, R"({"succeeded":true,"header":{"revision":"12"}})", kStart + 900ms, kStart + 1800ms);
  CHECK(election.state().token == 12);
  CHECK(election.state().valid_until == kStart + 4s);
  CHECK(election.state().IsMaster(kStart + 4s - 1ns));
  CHECK(!election.state().IsMaster(kStart + 4s));
  const BootInstant sent = election.next_at();
  CHECK(sent <= kStart + 2s);
  REQUIRE(election.Next(sent)->path == "/v3/lease/keepalive");
  election.OnAnswer(200, R"({"result":{"ID":"9","TTL":"5"}})", sent, sent + 950ms);
  CHECK(election.state().valid_until == sent + 4s);
}

TEST_CASE("election: the lease that etcd granted counts, and not the one that was asked for") {
  EtcdElection election({"k", "a", kTtl});
  election.OnAnswer(200, "{}", kStart, kStart);
  election.OnAnswer(200, R"({"ID":"9","TTL":"8"})", kStart, kStart);
  election.OnAnswer(200, R"({"succeeded":true,"header":{"revision":"12"}})", kStart, kStart);
  CHECK(election.state().valid_until == kStart + 7s);
}

TEST_CASE("election: a claim whose answer is lost is found to have been won") {
  EtcdElection election = Granted();
  election.OnFailure("timed out", kStart + 1900ms);
  const BootInstant now = election.next_at();
  REQUIRE(election.Next(now)->path == "/v3/kv/range");
  election.OnAnswer(200, R"({"kvs":[{"create_revision":"12","lease":"9","value":"YQ=="}]})", now, now);
  CHECK(election.state().token == 12);
  CHECK(election.state().valid_until == kStart + 4s);
}

TEST_CASE("election: a claim under a lease that has run out begins anew") {
  EtcdElection election = Granted();
  election.OnAnswer(404, R"({"error":"etcdserver: requested lease not found","code":5})", kStart + 1s, kStart + 1s);
  REQUIRE(election.Next(kStart + 1s)->path == "/v3/kv/range");
  election.OnAnswer(200, "{}", kStart + 1s, kStart + 1s);
  CHECK(election.Next(kStart + 1s)->path == "/v3/lease/grant");
}

TEST_CASE("election: answers that are no etcd's change nothing, and are said") {
  for (const std::string body :
       {"", "{", "[]", "null", "{\"error\":{}}", R"({"error":"x","code":"y"})", "<html>", R"({"ID":{},"TTL":[]})",
        R"({"kvs":{}})", R"({"kvs":[[]]})", R"({"kvs":[{"create_revision":"9","value":"!","lease":1e99}]})",
        R"({"result":[]})", R"({"succeeded":"true","header":{"revision":"7"}})",
        R"({"succeeded":true,"header":{"revision":"-7"}})"}) {
    EtcdElection election({"k", "a", kTtl});
    BootInstant now(1s);
    for (int i = 0; i < 20; ++i) {
      CAPTURE(body, i);
      const auto request = election.Next(now);
      if (request) election.OnAnswer(i % 2 == 0 ? 200 : 500, body, now, now);
      CHECK(!election.state().IsMaster(now));
      now += 1s;
    }
  }
}

TEST_CASE("election: only the configured master is it, and not after it has resigned") {
  StaticElector here("tcp:10.0.0.1:7315", "tcp:10.0.0.1:7315", 17), elsewhere("tcp:10.0.0.1:7315", "x", 18);
  CHECK(!here.state().IsMaster(BootInstant(1s)));
  here.Campaign();
  elsewhere.Campaign();
  CHECK(here.state().IsMaster(BootInstant(1s)));
  CHECK(here.state().token == 17);
  CHECK(!elsewhere.state().IsMaster(BootInstant(1s)));
  CHECK(elsewhere.state().address == "tcp:10.0.0.1:7315");
  bool done = false;
  here.Resign([&] { done = true; });
  CHECK(done);
  CHECK(!here.state().IsMaster(BootInstant(1s)));
}

}    // namespace
}    // namespace dthrottle::testing
