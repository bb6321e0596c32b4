// What an owner of tags tells other sites, and makes of what they say (protocol/sites.md). Fleets of several sites are
// in test/sim/sites_test.cc.
#include "share/sites/site_sharing.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/member_word.h"
#include "base/prng.h"
#include "base/quota_word.h"
#include "limiter/inspect.h"
#include "quota/quotas.h"
#include "share/debit/sharing.h"
#include "share/sites/site_bound.h"
#include "share/sites/site_presence.h"
#include "share/ways.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Instant kBegin = FromNanoseconds(1'000'000'000), kKnowsAll = kBegin + 10s;

// ---- Sums ----

TEST_CASE("sums of a site are what was served and has not come back, and no more tags than there is room for") {
  std::array<std::uint64_t, Account::kWords> words{};
  std::uint64_t untold = 0;
  SiteSums sums(untold, Account::ToSites(words));
  sums.Add(1, {"a", false}, 5, 100);
  sums.Add(1, {"a", false}, 2, 50);
  sums.Add(2, {"b", false}, 0, 70);
  CHECK(sums.Find(1)->hits == 7);
  CHECK(sums.Find(1)->began == 50);
  CHECK(sums.Find(2)->hits == 0);
  CHECK(sums.TakeChanged() == std::vector<std::uint64_t>{1, 2});
  CHECK_FALSE(sums.any_changed());
  sums.TakeBack(1, 3);
  CHECK(sums.Find(1)->hits == 4);
  CHECK(untold == 4);
  sums.TakeBack(1, 9);    // more than is left to be told
  CHECK(sums.Find(1)->hits == 0);
  sums.TakeBack(3, 1);
  CHECK(sums.Find(3) == nullptr);
  for (std::uint64_t hash = 3; sums.size() < SiteSums::kTagsMax; ++hash) sums.Add(hash, {"c", false}, 1, 0);
  sums.Add(~std::uint64_t{0}, {"d", false}, 6, 0);
  CHECK(sums.crowded() == 6);
  CHECK(sums.size() == SiteSums::kTagsMax);
}

// ---- An owner ----

// It owns all tags of its site, has one host beside it, number 7, and two other sites.
class Owner {
 public:
  explicit Owner(const std::string& more = "", double part = 1)
      : host_("[[rule]]\nname = \"r\"\nburst = 100\nrate = 1\n" + more),
        sharing_(host_.limiter->ways(), to_peers_, from_peers_, 1, 1s, prng_, kBegin),
        sites_(host_.limiter->ways(), to_sites_, from_sites_, {"us", 1s, 2, part}, prng_, kBegin) {
    OwnedBy({"me"});
  }

  void RunAt(Instant now) {
    while (sharing_.Work(now) || sites_.Work(now)) continue;
    for (ToPeers item; to_peers_.TryPop(item);) continue;
  }
  void Hear(const std::string& tag, std::uint64_t hits, Instant now) {
    Push(from_peers_, {FromPeers::Kind::kDebits, now - 1s, now, 0, {}, 7}, tag, hits);
    RunAt(now);
  }
  // It has heard its host for four periods, so it need not assume that there are places it does not know of.
  void KnowAll() {
    for (int second = 1; second <= 10; ++second) RunAt(kBegin + second * 1s);
  }
  // Its rule has a quota.
  void KeepQuotas() {
    host_.limiter->ways().KeepQuotas(std::make_unique<Quotas>(
        std::as_writable_bytes(std::span(counted_)), std::array<std::byte, 16>{}, kHostCounters + 1,
        [this](const Tag& tag) { return host_.limiter->table().Hash(tag); },
        [](const QuotaCalendar&) { return QuotaPeriods{0, 86'400, 2 * 86'400, kBegin + 24h}; }, kBegin));
  }
  // Its host says something of the tag beside hits; a site does.
  void HearSay(const std::string& tag, const Besides& said, Instant now) { HearHostSay(7, tag, said, now); }
  void HearHostSay(std::uint32_t host, const std::string& tag, const Besides& said, Instant now) {
    PushSay(from_peers_, host, tag, said, now);
    RunAt(now);
  }
  void HearSiteSay(std::uint32_t site, const std::string& tag, const Besides& said, Instant now) {
    PushSay(from_sites_, site, tag, said, now);
    RunAt(now);
  }
  std::uint64_t Used(const std::string& tag, Instant now) {
    const Limiter& limiter = *host_.limiter;
    const std::uint64_t hash = limiter.table().Hash({tag, false});
    return host_.limiter->ways().quotas()->Look(hash, limiter.rules().limit(0), now).used;
  }
  // What sites were told beside hits in all frames since. A penalty is in milliseconds.
  std::vector<QuotaWord> QuotasTold() {
    return AllTold<QuotaWord>([](const Entries& entries, const Entry& e) { return entries.quota(e); });
  }
  std::vector<std::uint64_t> PenaltiesTold() {
    return AllTold<std::uint64_t>([](const Entries& entries, const Entry& e) { return entries.penalty(e); });
  }
  std::vector<std::uint64_t> RefusalsTold() {
    return AllTold<std::uint64_t>([](const Entries& entries, const Entry& e) {
      return entries.refusals(e) != 0 ? std::optional(entries.refusals(e)) : std::nullopt;
    });
  }
  std::vector<std::uint64_t> PlacesTold() {
    return AllTold<std::uint64_t>([](const Entries& entries, const Entry& e) { return entries.places(e); });
  }
  std::vector<MemberWord> MembersTold() {
    return AllTold<MemberWord>([](const Entries& entries, const Entry& e) { return entries.member(e); });
  }
  // Places that may be taken on this host of the tag, whose rule has 20.
  std::uint32_t PlacesHere(const std::string& tag, Instant now) {
    const std::uint64_t hash = host_.limiter->table().Hash({tag, false});
    const Table::Shard shard(*core().table, hash);
    return host_.limiter->ways().Get<Debits>().PlacesHere({tag, false}, hash, core().limit(0), now);
  }
  void HearSite(std::uint32_t site, const std::string& tag, std::uint64_t hits, std::uint64_t hosts, Instant now,
                Duration late = {}) {
    FromPeers item{FromPeers::Kind::kDebits, now - late - 1s, now - late, 0, {}, site};
    item.hosts = hosts;
    Push(from_sites_, std::move(item), tag, hits);
    RunAt(now);
  }
  // Hits of so many tags.
  void HearSiteName(std::uint32_t site, std::size_t tags, std::uint64_t hosts, Instant now) {
    FromPeers item{FromPeers::Kind::kDebits, now - 1s, now, 0, {}, site};
    item.hosts = hosts;
    for (std::size_t i = 0; i < tags; ++i) REQUIRE(item.entries.Add({std::to_string(i), false}, 1, 0));
    REQUIRE(from_sites_.TryPush(std::move(item)));
    RunAt(now);
  }
  void HearIdleSite(std::uint32_t site, std::uint64_t hosts, Instant now) {
    FromPeers item{FromPeers::Kind::kDebits, now, now, 0, {}, site};
    item.hosts = hosts;
    REQUIRE(from_sites_.TryPush(std::move(item)));
    RunAt(now);
  }
  void SetHosts(std::size_t hosts) { sharing_.SetPeers(hosts - 1); }
  // By tag, in all frames since; and hosts and owners of this site by the last of them.
  std::map<std::string, std::uint64_t> Told() {
    std::map<std::string, std::uint64_t> told;
    for (ToPeers item; to_sites_.TryPop(item);) {
      for (const Entry& e : item.entries.list()) told[std::string(item.entries.tag(e).bytes)] += e.value;
      if (item.kind != ToPeers::Kind::kUrgent) hosts_told_ = item.hosts, parts_told_ = item.parts;
    }
    return told;
  }

  std::uint64_t hosts_told() const { return hosts_told_; }
  std::uint64_t parts_told() const { return parts_told_; }
  void OwnedBy(std::vector<std::string> owners) {
    sharing_.OwnedBy(std::make_shared<const Owners>(std::move(owners)), "me");
  }
  testing::Host& host() { return host_; }
  SiteSharing& sites() { return sites_; }
  LimiterCore& core() { return host_.limiter->ways().core(); }

 private:
  template <class Word, class Get>
  std::vector<Word> AllTold(Get get) {
    std::vector<Word> told;
    for (ToPeers item; to_sites_.TryPop(item);) {
      for (const Entry& e : item.entries.list()) {
        if (const auto word = get(item.entries, e)) told.push_back(*word);
      }
    }
    return told;
  }
  static void PushSay(FromPeersRing& ring, std::uint32_t from, const std::string& tag, const Besides& said,
                      Instant now) {
    FromPeers item{FromPeers::Kind::kDebits, now - 1s, now, 0, {}, from};
    REQUIRE(item.entries.Add({tag, false}, 0, 0, said));
    REQUIRE(ring.TryPush(std::move(item)));
  }
  static void Push(FromPeersRing& ring, FromPeers item, const std::string& tag, std::uint64_t hits) {
    REQUIRE(item.entries.Add({tag, false}, hits, 0));
    REQUIRE(ring.TryPush(std::move(item)));
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };

  Prng prng_{1};
  std::vector<Line> counted_ = std::vector<Line>(Quotas::RegionBytes(Quotas::kSlotsMin) / sizeof(Line));
  ToPeersRing to_peers_{64}, to_sites_{64};
  FromPeersRing from_peers_{64}, from_sites_{64};
  testing::Host host_;
  Sharing sharing_;
  SiteSharing sites_;
  std::uint64_t hosts_told_ = 0, parts_told_ = 0;
};

using Told = std::map<std::string, std::uint64_t>;

TEST_CASE("an owner tells other sites what its hosts and itself have served, once") {
  Owner owner;
  owner.RunAt(kBegin + 1s);
  owner.Hear("a", 5, kBegin + 1100ms);
  owner.Hear("a", 2, kBegin + 1200ms);
  for (int i = 0; i < 3; ++i) CHECK(owner.host().Serves("b", kBegin + 1300ms));
  owner.RunAt(kBegin + 2300ms);
  owner.RunAt(kBegin + 3400ms);
  CHECK(owner.Told() == Told{{"a", 7}, {"b", 3}});
  CHECK(owner.hosts_told() == 2);
  owner.RunAt(kBegin + 5s);
  CHECK(owner.Told().empty());
  CHECK(owner.sites().counts().tags == 0);
}

TEST_CASE("sites that are idle know how many hosts each other has") {
  Owner owner;
  owner.SetHosts(4);
  owner.RunAt(kBegin + 1s);
  owner.RunAt(kBegin + 2300ms);
  CHECK(owner.Told().empty());
  CHECK(owner.hosts_told() == 4);
  for (const std::uint64_t hosts : {7, 3}) {
    owner.HearIdleSite(0, hosts, kBegin + 3s);
    CHECK(owner.sites().hosts_of(0) == hosts);
    CHECK(owner.core().abroad == hosts + 1);    // the other site is not heard
  }
}

TEST_CASE("an owner tells other sites how many owners its site has, and one that has left the list that it is none") {
  Owner owner;
  const auto told_at = [&](Duration after) {
    owner.RunAt(kBegin + after);
    owner.Told();
    return owner.parts_told();
  };
  CHECK(told_at(1s) == 1);
  owner.OwnedBy({"me", "other"});
  CHECK(told_at(3s) == 2);
  owner.OwnedBy({"other"});
  CHECK(told_at(5s) == 0);
}

// ---- How other sites are heard ----

PeerStatus Foreign(PeerState state, std::uint64_t parts, std::uint64_t reports = 9) {
  PeerStatus peer;
  peer.state = state;
  peer.number = 0;
  peer.parts = parts;
  peer.reports = reports;
  return peer;
}

TEST_CASE("a site is heard in whole by as many owners as it says that it has") {
  const auto heard = [](const std::vector<PeerStatus>& peers) {
    const SitePresence site = PresenceOf(peers, 2).front();
    CHECK((site.some || !site.whole));
    return std::pair(site.some, site.whole);
  };
  constexpr PeerState kUp = PeerState::kUp, kSilent = PeerState::kSilent;
  constexpr std::pair kWhole(true, true), kPartly(true, false), kNot(false, false);
  CHECK(heard({}) == kNot);
  CHECK(heard({Foreign(kUp, 2), Foreign(kUp, 2)}) == kWhole);
  CHECK(heard({Foreign(kUp, 2), Foreign(kSilent, 2)}) == kPartly);
  CHECK(heard({Foreign(kUp, 2)}) == kPartly);    // no address here leads to the other
  CHECK(heard({Foreign(kUp, 1), Foreign(kSilent, 2)}) == kWhole);    // it has left the list
  CHECK(heard({Foreign(kUp, 2), Foreign(kUp, 0)}) == kPartly);       // it is up, and none of the two
  CHECK(heard({Foreign(kUp, 2), Foreign(kUp, 0, 0)}) == kWhole);     // it has yet to report
  CHECK(heard({Foreign(kUp, 0)}) == kWhole);                         // nobody says how many there are
  CHECK(heard({Foreign(kUp, 0), Foreign(kSilent, 0)}) == kPartly);
  CHECK(heard({Foreign(kSilent, 1)}) == kNot);
}

TEST_CASE("what other sites say is charged, and not told again") {
  Owner owner;
  owner.HearSite(0, "a", 10, 1, kBegin + 1s);
  owner.HearSite(1, "a", 20, 1, kBegin + 1s);
  CHECK(owner.host().Level("a", kBegin + 1s) == Approx(70).margin(1.1));
  owner.RunAt(kBegin + 3s);
  CHECK(owner.Told().empty());
  CHECK(owner.sites().counts().heard == 2);
}

TEST_CASE("a site cannot have served more than all of its hosts can") {
  const auto level = [](std::uint64_t hosts) {
    Owner owner;
    owner.HearSite(0, "a", kHitsMax, hosts, kBegin + 1s);
    CHECK(owner.host().limiter->ways().Get<Debits>().peers().counts().hits_disbelieved > 0);
    return owner.host().Level("a", kBegin + 1s);
  };
  const double one = level(1), ten = level(10);
  CHECK(one > -110);    // a burst and the refill of the interval, and what is owed at most
  CHECK(ten < one);
}

TEST_CASE("a site may name as many new tags as its hosts may") {
  const auto cut = [](std::uint64_t hosts) {
    Owner owner;
    PeerEntries& peers = owner.host().limiter->ways().Get<Debits>().peers();
    peers.SetNewTagsMax(100);    // a thousand at once
    owner.HearSiteName(0, 2500, hosts, kBegin + 1s);
    return peers.counts().new_tags_cut;
  };
  CHECK(cut(1) == 1500);
  CHECK(cut(2) == 500);
  CHECK(cut(3) == 0);
  CHECK(cut(1 << 16) == 0);
}

TEST_CASE("a site that says to have very many hosts is believed slowly, and no further than this site's size goes") {
  Owner owner;
  owner.SetHosts(20);
  Instant now = kBegin;
  const auto believed = [&](Duration later) {
    owner.HearIdleSite(0, 1 << 16, now += later);
    CHECK(owner.core().abroad == owner.sites().hosts_of(0) + 1);
    return owner.sites().hosts_of(0);
  };
  for (int i = 0; i < 20; ++i) CHECK(believed(2s) == 64);
  CHECK(believed(22s) == 128);
  CHECK(believed(2s) == 128);
  for (int i = 0; i < 10; ++i) believed(1min);
  CHECK(believed(1min) == 160);
  CHECK(owner.sites().counts().oversized == 33);
  owner.HearIdleSite(0, 70, now);
  CHECK(owner.sites().hosts_of(0) == 70);
  owner.sites().Miss(0);
  CHECK(owner.sites().hosts_of(0) == 1);
  CHECK(owner.core().abroad == 2);
  CHECK(believed(1s) == 64);
}

TEST_CASE("with a part of a half, a site that is not heard is taken to serve as much as this one") {
  Owner owner("cut_off = \"part\"\n", 0.5), full("", 0.5);
  for (Owner* const one : {&owner, &full}) {
    one->sites().SetHeard({}, false);
    one->RunAt(kBegin + 1s);
    one->Hear("a", 20, kBegin + 1100ms);
    one->RunAt(kBegin + 2200ms);
    one->RunAt(kBegin + 3300ms);
  }
  CHECK(owner.host().Level("a", kBegin + 3300ms) == Approx(60).margin(4));    // with refill
  CHECK(full.host().Level("a", kBegin + 3300ms) == Approx(80).margin(4));
  CHECK(owner.sites().counts().assumed == 20);
  CHECK(full.sites().counts().assumed == 0);
  // What the site says afterwards of that time is not charged as well.
  for (Owner* const one : {&owner, &full}) one->HearSite(0, "a", 15, 1, kBegin + 3300ms, 1300ms);
  CHECK(owner.host().Level("a", kBegin + 3300ms) == Approx(60).margin(4));
  CHECK(full.host().Level("a", kBegin + 3300ms) == Approx(65).margin(4));
}

TEST_CASE("what the owners that are heard say while another one is not is not charged beside what is assumed") {
  Owner owner("cut_off = \"part\"\n", 0.5);
  owner.sites().SetHeard({}, false);
  owner.RunAt(kBegin + 1s);
  owner.Hear("a", 20, kBegin + 1100ms);
  owner.RunAt(kBegin + 2200ms);
  owner.HearSite(0, "a", 20, 1, kBegin + 2500ms);    // until now, which is after the latest that was assumed
  CHECK(owner.host().Level("a", kBegin + 2500ms) == Approx(60).margin(4));
  owner.HearSite(0, "a", 20, 1, kBegin + 9s);    // nothing is assumed any more: nobody here uses a tag
  CHECK(owner.host().Level("a", kBegin + 9s) < 50);
}

TEST_CASE("of a quota other sites are told what all hosts of this one have counted, again and again") {
  Owner owner("quota = 1000\nper = \"day\"\n");
  owner.KeepQuotas();
  owner.RunAt(kBegin + 1s);
  for (int i = 0; i < 5; ++i) owner.host().Serves("a", kBegin + 1s);
  owner.HearSay("a", {.quota = QuotaWord{kHostCounters + 7, 0, 20, 2}}, kBegin + 1s);
  owner.RunAt(kBegin + 3s);
  std::vector<QuotaWord> told = owner.QuotasTold();
  REQUIRE_FALSE(told.empty());
  const QuotaWord word = told.back();
  CHECK(word.counter != kAllHosts);
  CHECK(word.counter < kHostCounters);
  CHECK(word == QuotaWord{word.counter, 0, 25, 2});

  // What another site has counted counts here, and is not told as this one's.
  owner.HearSiteSay(1, "a", {.quota = QuotaWord{word.counter + 1, 0, 400, 30}}, kBegin + 3s);
  owner.HearSiteSay(1, "a", {.quota = QuotaWord{word.counter + 1, 0, 350, 30}}, kBegin + 3s);    // late
  CHECK(owner.Used("a", kBegin + 3s) == 23 + 370);
  // No site counts under a host's number.
  owner.HearSiteSay(0, "a", {.quota = QuotaWord{kHostCounters + 7, 0, 900, 0}}, kBegin + 3s);
  CHECK(owner.Used("a", kBegin + 3s) == 23 + 370);
  owner.RunAt(kBegin + 4s);
  owner.QuotasTold();
  for (int second = 5; second < 20; ++second) owner.RunAt(kBegin + second * 1s);
  told = owner.QuotasTold();
  CHECK(told.size() >= 1);
  CHECK(told.size() <= 3);
  for (const QuotaWord& again : told) CHECK(again == word);
}

TEST_CASE("no host of this site takes back what another site has counted of a quota") {
  constexpr std::uint64_t kSite = 5;
  Owner owner("quota = 1000\nper = \"day\"\n");
  owner.KeepQuotas();
  owner.RunAt(kBegin + 1s);
  const auto used = [&] { return owner.Used("a", kBegin + 1s); };
  owner.HearSiteSay(0, "a", {.quota = QuotaWord{kSite, 0, 400, 30}}, kBegin + 1s);
  for (std::uint32_t host = 0; host < 3; ++host) {
    owner.HearHostSay(host, "a", {.quota = QuotaWord{kSite, 0, 400, 400}}, kBegin + 1s);
    CHECK(used() == 370);
  }
  CHECK(owner.host().limiter->ways().quotas()->counts().disbelieved == 3);
  owner.HearSiteSay(0, "a", {.quota = QuotaWord{kSite, 0, 450, 80}}, kBegin + 1s);
  CHECK(used() == 370);
  owner.HearHostSay(0, "a", {.quota = QuotaWord{kSite, 0, 420, {}}}, kBegin + 1s);    // passes on what it has heard
  CHECK(used() == 420);
}

TEST_CASE("of places other sites are told how many all hosts of this one have, at once where few are left") {
  Owner owner("in_flight = 20\n");
  owner.KnowAll();
  owner.RunAt(kKnowsAll + 1200ms);
  owner.HearSay("a", {.places = 1}, kKnowsAll + 1300ms);
  owner.RunAt(kKnowsAll + 1330ms);
  CHECK(owner.PlacesTold().empty());    // one of 20 can wait for the period
  owner.HearSay("a", {.places = 12}, kKnowsAll + 1400ms);
  owner.RunAt(kKnowsAll + 1430ms);
  CHECK(owner.PlacesTold() == std::vector<std::uint64_t>{12});
  for (int ms = 1440; ms < 3300; ms += 20) owner.RunAt(kKnowsAll + ms * 1ms);
  for (const std::uint64_t places : owner.PlacesTold()) CHECK(places == 12);    // again in each period

  // What other sites have is gone from here, and is not told as this one's.
  owner.HearSiteSay(0, "a", {.places = 3}, kKnowsAll + 3300ms);
  owner.HearSiteSay(1, "a", {.places = 2}, kKnowsAll + 3300ms);
  CHECK(owner.PlacesHere("a", kKnowsAll + 3300ms) == 3);
  owner.HearSay("a", {.places = 14}, kKnowsAll + 3400ms);
  owner.RunAt(kKnowsAll + 3430ms);
  CHECK(owner.PlacesTold() == std::vector<std::uint64_t>{14});
  owner.HearSay("a", {.places = 0}, kKnowsAll + 3500ms);
  owner.RunAt(kKnowsAll + 3530ms);
  CHECK(owner.PlacesTold() == std::vector<std::uint64_t>{0});
  CHECK(owner.PlacesHere("a", kKnowsAll + 3600ms) == 15);
  owner.RunAt(kKnowsAll + 6500ms);    // neither has said so again for three periods
  CHECK(owner.PlacesHere("a", kKnowsAll + 6500ms) == 20);
}

TEST_CASE("while a site is not heard, this one keeps to its part of the places, as its rule says") {
  for (const bool part : {false, true}) {
    CAPTURE(part);
    Owner owner(part ? "in_flight = 20\ncut_off = \"part\"\n" : "in_flight = 20\n", 0.4);
    owner.KnowAll();
    owner.HearSay("a", {.places = 3}, kKnowsAll + 1s);
    owner.HearSiteSay(0, "a", {.places = 4}, kKnowsAll + 1s);
    owner.sites().SetHeard({}, false);
    owner.HearSay("a", {.places = 4}, kKnowsAll + 1100ms);
    owner.RunAt(kKnowsAll + 1130ms);
    CHECK(owner.PlacesHere("a", kKnowsAll + 1130ms) == (part ? 4 : 12));    // 8 of 20
    for (int second = 2; second < 8; ++second) {
      owner.HearSay("a", {.places = 4}, kKnowsAll + second * 1s);
      owner.RunAt(kKnowsAll + second * 1s + 30ms);
    }
    CHECK(owner.PlacesHere("a", kKnowsAll + 7500ms) == (part ? 4 : 16));
    owner.sites().SetHeard({}, true);
    owner.HearSay("a", {.places = 4}, kKnowsAll + 8s);
    owner.RunAt(kKnowsAll + 9s);
    CHECK(owner.PlacesHere("a", kKnowsAll + 9s) == 16);
  }
}

TEST_CASE("of a tag that is divided other sites are told what all hosts of this one had for each member, once") {
  Owner owner("among = \"level\"\n[[rule]]\nname = \"m\"\nmatch = \"*/*\"\nburst = 1000\nrate = 1000\n"
              "share = \"debit\"\nalso = [\"before /\"]\n");
  owner.RunAt(kBegin + 1s);
  CHECK(owner.host().Serves("a/1", kBegin + 1050ms));
  owner.HearSay("a", {.member = MemberWord{77, 30, 20, 1000}}, kBegin + 1100ms);
  owner.HearSay("a", {.member = MemberWord{77, 10, 10, 1000}}, kBegin + 1200ms);
  owner.HearSiteSay(1, "a", {.member = MemberWord{77, 500, 100, 1000}}, kBegin + 1400ms);
  owner.RunAt(kBegin + 2300ms);
  owner.RunAt(kBegin + 2400ms);
  std::vector<MemberWord> told = owner.MembersTold();
  std::ranges::sort(told, {}, &MemberWord::asked);
  REQUIRE(told.size() == 2);
  CHECK((told[0].asked == 1 && told[0].served == 1));
  CHECK((told[1].member == 77 && told[1].asked == 40 && told[1].served == 30 && told[1].fair == 1000));
  for (int second = 3; second < 6; ++second) owner.RunAt(kBegin + second * 1s);
  CHECK(owner.MembersTold().empty());
}

TEST_CASE("a penalty that begins or is lifted is told other sites at once, and none that they have told") {
  Owner owner("penalty = { after = 2, lasts = \"10m\" }\n");
  owner.RunAt(kBegin + 1s);
  for (int i = 0; i < 105; ++i) owner.host().Serves("a", kBegin + 1s);
  owner.RunAt(kBegin + 1030ms);
  owner.RunAt(kBegin + 1060ms);
  CHECK(owner.PenaltiesTold() == std::vector<std::uint64_t>{599'970});
  REQUIRE(Forgive(*owner.host().limiter, {{"a", false}}, kBegin + 1100ms));
  owner.RunAt(kBegin + 1130ms);
  owner.RunAt(kBegin + 1160ms);
  CHECK(owner.PenaltiesTold() == std::vector<std::uint64_t>{0});

  owner.HearSiteSay(1, "b", {.penalty = 60'000}, kBegin + 2s);
  CHECK_FALSE(owner.host().Serves("b", kBegin + 2s));
  owner.HearSiteSay(1, "b", {.penalty = 0}, kBegin + 3s);
  CHECK(owner.host().Serves("b", kBegin + 3s));
  for (int ms = 3000; ms < 6000; ms += 20) owner.RunAt(kBegin + ms * 1ms);
  CHECK(owner.PenaltiesTold().empty());
}

TEST_CASE("refusals count at all sites, so a penalty begins where all together have refused so often") {
  Owner owner("penalty = { after = 30, lasts = \"10m\" }\n");
  owner.RunAt(kBegin + 1s);
  owner.host().Serves("a", kBegin + 1s);
  const auto told_at = [&](std::uint64_t refusals, Instant now) {
    owner.HearSay("a", {.refusals = refusals}, now);
    owner.RunAt(now + 25ms);
    return owner.RefusalsTold();
  };
  CHECK(told_at(3, kBegin + 1200ms).empty());
  CHECK(told_at(3, kBegin + 1300ms) == std::vector<std::uint64_t>{6});    // half of the part of one of three sites
  CHECK(told_at(2, kBegin + 1400ms).empty());
  owner.RunAt(kBegin + 2400ms);
  owner.RunAt(kBegin + 2500ms);
  CHECK(owner.RefusalsTold() == std::vector<std::uint64_t>{2});    // at the end of the period
  CHECK(told_at(1, kBegin + 2600ms).empty());
  owner.Hear("a", 20, kBegin + 2700ms);    // told early, for another reason
  owner.RunAt(kBegin + 2730ms);
  CHECK(owner.RefusalsTold().empty());
  owner.RunAt(kBegin + 3600ms);
  owner.RunAt(kBegin + 3700ms);
  CHECK(owner.RefusalsTold().empty());    // too few

  owner.HearSiteSay(1, "a", {.refusals = 20}, kBegin + 3800ms);
  CHECK(owner.host().Serves("a", kBegin + 3810ms));
  owner.HearSiteSay(0, "a", {.refusals = 1}, kBegin + 3820ms);
  CHECK_FALSE(owner.host().Serves("a", kBegin + 3830ms));
  owner.RunAt(kBegin + 3860ms);
  owner.RunAt(kBegin + 3890ms);
  CHECK(owner.PenaltiesTold().size() == 1);
}

TEST_CASE("of a quota other sites are told early where much of what is left is gone") {
  Owner owner("quota = 1000\nper = \"day\"\n");
  owner.KeepQuotas();
  owner.RunAt(kBegin + 1s);
  const auto told_within = [&](std::uint64_t taken, Instant now) {
    owner.HearSay("a", {.quota = QuotaWord{kHostCounters + 7, 0, taken, 0}}, now);
    owner.RunAt(now + 25ms);
    return owner.QuotasTold().size() == 1;
  };
  CHECK_FALSE(told_within(10, kBegin + 1100ms));
  CHECK(told_within(100, kBegin + 1200ms));
  CHECK_FALSE(told_within(160, kBegin + 1250ms));
  CHECK(told_within(190, kBegin + 1300ms));
}

TEST_CASE("what was not told yet goes over to the next program") {
  Owner before, after;
  before.RunAt(kBegin + 1s);
  before.Hear("a", 5, kBegin + 1100ms);
  const SiteSharing::Kept kept = before.sites().Keep();
  REQUIRE(kept.sums.size() == 1);
  after.sites().Resume(kept, kBegin + 1200ms);
  after.RunAt(kBegin + 3s);
  CHECK(after.Told() == Told{{"a", 5}});
  SiteSharing::Kept bad = kept;
  bad.sums[0].tag.assign(300, 'x');
  after.sites().Resume(bad, kBegin + 3s);
  after.RunAt(kBegin + 5s);
  CHECK(after.Told().empty());
}

TEST_CASE("when a host was killed, it counts what it had not told, and what it had is in its account") {
  std::array<std::uint64_t, Account::kWords> words{};
  const Account told = Account::ToSites(words);
  told.Open(7);
  std::uint64_t untold = 0;
  {
    SiteSums killed(untold, told);
    killed.Add(1, {"a", false}, 5, 0);
    killed.Add(2, {"b", false}, 4, 0);
    killed.Told(*killed.Find(1), 5);
    killed.Told(*killed.Find(2), 1);
    killed.Drop(*killed.Find(2), 1);
    CHECK(untold == 2);
  }
  CHECK(told.told() == dthrottle::Told{7, 0, 6});
  SiteSums next(untold, told);
  CHECK(next.lost() == 2);
  CHECK(untold == 0);
  next.Recovered(1);
  CHECK(next.lost() == 1);
  next.Recovered(3);
  CHECK(next.lost() == 0);
}

TEST_CASE("the bound of a limit says what other sites may serve") {
  Owner full, part("cut_off = \"part\"\n", 0.5);
  const auto bound = [](Owner& owner) { return ExcessOfSites(owner.core(), owner.core().limit(0)); };
  const auto heard = [&](Duration ago) {
    for (Owner* const one : {&full, &part}) one->sites().SetHeard({{ago, 50ms}, {0s, 50ms}}, false);
  };
  heard(0s);
  CHECK(bound(full) == Approx(2 * (100 + 1.05)));
  CHECK(bound(part) == Approx(2 * (100 + 1.05)));
  heard(60s);
  CHECK(bound(full) == Approx(100 + 60.05 + 100 + 1.05));
  CHECK(bound(part) == Approx(100 + 4.05 + 100 + 1.05));
}

}    // namespace
}    // namespace dthrottle
