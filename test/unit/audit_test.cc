// Peers know to the hit what is lost of a host's hits by a kill, or because its ring is too small.
#include "bus/audit.h"

#include <catch2/catch.hpp>

#include <array>
#include <string>

#include "base/state.h"
#include "test/support/exchange_fleet.h"
#include "test/support/sanitized.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

TEST_CASE("what was told and not heard is lost, and each hit once") {
  Audit audit;
  audit.Begin({7, 100, 1000}, 1, 50);    // from behind 50 hits of its present life
  audit.Heard(1, 20);
  CHECK(audit.Check(70) == 0);
  CHECK(audit.Check(75) == 5);
  CHECK(audit.Check(75) == 0);
  audit.Heard(2, 1);
  const Audit::Lost lost = audit.End({7, 110, 1080}, 9);    // ten frames, of which eight were heard or missed
  CHECK(lost.frames == 2);
  CHECK(lost.hits == 4);
}

TEST_CASE("where the peer counts anew, or an account is not known, nothing is said to be lost") {
  Audit audit;
  audit.Begin({7, 100, 1000}, 1, 0);
  CHECK(audit.End({8, 500, 5000}, 1).frames == 0);
  audit.Begin({0, 0, 0}, 1, 0);
  CHECK(audit.End({0, 500, 5000}, 1).hits == 0);
  audit.Begin({7, 100, 1000}, 1, std::nullopt);
  audit.Heard(1, 10);
  CHECK(!audit.known());
  CHECK(audit.End({7, 101, 1310}, 2).hits == 0);
}

TEST_CASE("what a welcome says before all of it has come is not counted again when it comes") {
  Audit audit;
  audit.Begin({7, 100, 1000}, 5, std::nullopt);
  audit.Learn(3, 30);
  CHECK(!audit.known());    // the snapshot has more
  audit.Heard(7, 10);
  audit.Learn(6, 60);
  audit.Heard(5, 10);
  audit.Heard(6, 10);
  CHECK(audit.Check(70) == 0);
  CHECK(audit.End({7, 108, 1075}, 8).hits == 5);
}

TEST_CASE("a life knows what lives before it had taken and no owner had counted, and counts it once") {
  std::array<std::uint64_t, Account::kWords> words{};
  const Account account{Account::Words(words)};
  account.Open(7);
  account.TookHits(1000);    // which peers were told
  CHECK(account.OpenToOwners() == 0);
  account.TookHits(50);
  account.OwnerCounted(30);
  CHECK(account.OpenToOwners() == 20);
  CHECK(account.OpenToOwners() == 0);
  account.TookHits(5);
  account.Open(7);    // peers know by themselves what they miss
  CHECK(account.OpenToOwners() == 0);
  CHECK(account.told() == Told{7, 0, 1055});
}

TEST_CASE("what other sites are told has an account of its own, of hits alone") {
  std::array<std::uint64_t, Account::kWords> words{};
  const Account within{Account::Words(words)}, to_sites = Account::ToSites(words);
  within.TookHits(5);
  CHECK(within.OpenToOwners() == 0);
  within.TookHits(4);
  to_sites.Open(9);
  to_sites.TookHits(3);
  to_sites.PublishedFrame();
  CHECK(to_sites.told() == Told{9, 0, 3});
  CHECK(within.told() == Told{9, 0, 9});
  CHECK(within.OpenToOwners() == 4);    // it is still one of owners
}

TEST_CASE("over an upgrade it is known which frames came before a welcome says how much there was") {
  Audit audit;
  audit.Begin({7, 100, 1000}, 5, std::nullopt);
  audit.Heard(5, 10);
  audit.Heard(7, 10);
  StateWriter out;
  out(audit);
  const std::string kept = out.Take();
  StateReader in(kept);
  Audit later;
  in(later);
  REQUIRE(in.ok());
  later.Learn(3, 30);
  CHECK(!later.known());
  later.Learn(6, 60);
  CHECK(later.Check(70) == 0);
}

// Hosts that are killed keep their table and their words.
struct Killed : testing::ExchangeFleet {
  explicit Killed(std::uint64_t seed) : ExchangeFleet(seed) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      Add(std::string(1, static_cast<char>('a' + i))).options.account = Account(words[i]);
    }
  }
  // Each is the only owner of its site.
  void BeSites() {
    const std::vector<std::string> sites{"fra", "ams", "lon"};
    for (std::size_t i = 0; i < words.size(); ++i) {
      Exchange::Options& options = hosts[i]->options;
      options.account = Account::ToSites(words[i]);
      options.site = sites[i];
      options.other_sites = sites;
      std::erase(options.other_sites, sites[i]);
    }
  }
  testing::ExchangeHost& a() { return *hosts[0]; }

  void Kill() {
    a().running = false;
    Run(Duration(1ms) * prng().Below(300));
    ++a().options.incarnation;
    a().options.fresh_table = false;
    a().Start(now);
    a().Link("b", now);
    a().Link("c", now);
  }

  void Serve(std::uint64_t hits) {
    a().Hit("a", hits);
    served += hits;
  }
  std::uint64_t heard_by(std::size_t host) const {
    std::uint64_t hits = 0;
    for (const auto& [tag, n] : hosts[host]->debits) hits += n;
    return hits;
  }

  std::array<std::array<std::uint64_t, Account::kWords>, 3> words{};
  std::uint64_t served = 0;    // by "a"; nobody else serves anything
};

TEST_CASE("in a storm of kills every hit is heard or counted as lost, at each other host") {
  std::uint64_t lost = 0, frames_lost = 0;
  for (std::uint64_t seed = 1; seed <= testing::Fewer(60); ++seed) {
    INFO("seed " << seed);
    Killed net(seed);
    if (seed % 2 == 0) net.BeSites();
    net.a().options.ring_bytes = seed % 3 == 0 ? 600 : 64 << 20;
    net.Mesh();
    net.Run(2s);
    net.lanes.jitter = 20ms;
    for (int round = 0; round < 60; ++round) {
      net.lanes.loss = round % 20 < 10 ? 0 : 0.3;
      for (std::uint64_t n = net.prng().Below(4); n > 0; --n) net.Serve(n);
      net.Run(Duration(1ms) * net.prng().Below(700));
      if (lab::Happens(0.3, net.prng())) net.Kill();
    }
    net.lanes.loss = 0;
    net.Run(70s);    // until a welcome has come with nothing missing
    for (const std::size_t host : {1, 2}) {
      const PeerStatus status = net[host].Peer("a", net.now);
      REQUIRE(net.heard_by(host) + status.lost_hits == net.served);
      lost += status.lost_hits;
      frames_lost += status.lost;
    }
  }
  CHECK(lost > 100);
  CHECK(frames_lost > testing::Fewer(100));
}

TEST_CASE("what is lost soon after a host has joined is counted there too") {
  std::uint64_t lost = 0;
  for (std::uint64_t seed = 1; seed <= testing::Fewer(40); ++seed) {
    INFO("seed " << seed);
    Killed net(seed);
    net[0].Start(net.now);
    net[2].Start(net.now);
    net.a().Link("c", net.now);
    net[2].Link("a", net.now);
    net.Run(2s);
    const auto serve = [&](int times) {
      for (; times > 0; --times) {
        net.Serve(3);
        net.a().Report(net.now);
        net.Run(Duration(1ms) * net.prng().Below(20));
      }
    };
    serve(5);
    net.lanes.jitter = 50ms;
    net[1].Start(net.now);
    net[1].Link("a", net.now);
    net[1].Link("c", net.now);
    net.a().Link("b", net.now);
    net[2].Link("b", net.now);
    serve(40);    // while "b" takes a snapshot
    serve(60);    // a welcome says soon how much there was before, while reports are still under way
    net.Serve(5);
    net.a().Report(net.now);    // and what has been taken from the buckets is killed with the host
    net.Kill();
    net.Run(70s);
    const PeerStatus status = net[1].Peer("a", net.now);
    REQUIRE(net[1].table["a"] + status.lost_hits == net.served);
    lost += status.lost_hits;
  }
  CHECK(lost > 0);
}

TEST_CASE("what a peer's ring no longer has is counted in hits at the next welcome") {
  Killed net(1);
  net.a().options.ring_bytes = 600;
  net.Mesh();
  net.Run(2s);
  net.filter = [](const testing::Packet& p) {
    return p.from != 0 || p.to != 1 || p.channel != testing::Channel::kPublished;
  };
  for (int i = 0; i < 30; ++i) {
    net.Serve(3);
    net.Run(1s);
  }
  net.filter = nullptr;
  net.Run(40s);
  const PeerStatus status = net[1].Peer("a", net.now);
  CHECK(status.lost > 0);
  CHECK(status.lost_hits > 0);
  CHECK(net.heard_by(1) + status.lost_hits == net.served);
}

}    // namespace
}    // namespace dthrottle
