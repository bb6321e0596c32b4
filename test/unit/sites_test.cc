// What an owner of tags tells other sites, and makes of what they say (protocol/sites.md). Fleets of several sites are
// in test/sim/sites_test.cc.
#include "share/sites/site_sharing.h"

#include <catch2/catch.hpp>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "base/quota_word.h"
#include "limiter/inspect.h"
#include "quota/quotas.h"
#include "share/debit/sharing.h"
#include "share/sites/site_bound.h"
#include "share/ways.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Instant kBegin = FromNanoseconds(1'000'000'000);

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
    sharing_.OwnedBy(std::make_shared<const Owners>(std::vector<std::string>{"me"}), "me");
  }

  void RunAt(Instant now) {
    while (sharing_.Work(now) || sites_.Work(now)) continue;
    for (ToPeers item; to_peers_.TryPop(item);) continue;
  }
  void Hear(const std::string& tag, std::uint64_t hits, Instant now) {
    Push(from_peers_, {FromPeers::Kind::kDebits, now - 1s, now, 0, {}, 7}, tag, hits);
    RunAt(now);
  }
  // Its rule has a quota.
  void KeepQuotas() {
    host_.limiter->ways().KeepQuotas(
        std::as_writable_bytes(std::span(counted_)), {}, kHostCounters + 1,
        [](const QuotaCalendar&) { return QuotaPeriods{0, 86'400, 2 * 86'400, kBegin + 24h}; });
  }
  void HearQuota(const std::string& tag, const QuotaWord& word, Instant now) {
    FromPeers item{FromPeers::Kind::kDebits, now - 1s, now, 0, {}, 7};
    REQUIRE(item.entries.Add({tag, false}, 0, 0, {.quota = word}));
    REQUIRE(from_peers_.TryPush(std::move(item)));
    RunAt(now);
  }
  void HearSiteQuota(std::uint32_t site, const std::string& tag, const QuotaWord& word, Instant now) {
    HearSiteSay(site, tag, {.quota = word}, now);
  }
  void HearSiteSay(std::uint32_t site, const std::string& tag, const Besides& said, Instant now) {
    FromPeers item{FromPeers::Kind::kDebits, now - 1s, now, 0, {}, site};
    REQUIRE(item.entries.Add({tag, false}, 0, 0, said));
    REQUIRE(from_sites_.TryPush(std::move(item)));
    RunAt(now);
  }
  std::uint64_t Used(const std::string& tag, Instant now) {
    const Limiter& limiter = *host_.limiter;
    const std::uint64_t hash = limiter.table().Hash({tag, false});
    return host_.limiter->ways().quotas()->Look(hash, limiter.rules().limit(0), now).used;
  }
  // Words of quotas in all frames since.
  std::vector<QuotaWord> QuotasTold() {
    std::vector<QuotaWord> told;
    for (ToPeers item; to_sites_.TryPop(item);) {
      for (const Entry& e : item.entries.list()) {
        if (const auto word = item.entries.quota(e)) told.push_back(*word);
      }
    }
    return told;
  }
  // Penalties in all frames since, in milliseconds.
  std::vector<std::uint64_t> PenaltiesTold() {
    std::vector<std::uint64_t> told;
    for (ToPeers item; to_sites_.TryPop(item);) {
      for (const Entry& e : item.entries.list()) {
        if (const auto left = item.entries.penalty(e)) told.push_back(*left);
      }
    }
    return told;
  }
  void HearSite(std::uint32_t site, const std::string& tag, std::uint64_t hits, std::uint64_t hosts, Instant now,
                Duration late = {}) {
    FromPeers item{FromPeers::Kind::kDebits, now - late - 1s, now - late, 0, {}, site};
    item.hosts = hosts;
    Push(from_sites_, std::move(item), tag, hits);
    RunAt(now);
  }
  // By tag, in all frames since; and hosts of this site by the last of them.
  std::map<std::string, std::uint64_t> Told() {
    std::map<std::string, std::uint64_t> told;
    for (ToPeers item; to_sites_.TryPop(item);) {
      for (const Entry& e : item.entries.list()) told[std::string(item.entries.tag(e).bytes)] += e.value;
      if (!item.entries.empty()) hosts_told_ = item.hosts;
    }
    return told;
  }

  std::uint64_t hosts_told() const { return hosts_told_; }
  testing::Host& host() { return host_; }
  SiteSharing& sites() { return sites_; }
  LimiterCore& core() { return host_.limiter->ways().core(); }

 private:
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
  std::uint64_t hosts_told_ = 0;
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

TEST_CASE("of a quota other sites are told what all hosts of this one have counted, again and again") {
  Owner owner("quota = 1000\nper = \"day\"\n");
  owner.KeepQuotas();
  owner.RunAt(kBegin + 1s);
  for (int i = 0; i < 5; ++i) owner.host().Serves("a", kBegin + 1s);
  owner.HearQuota("a", {kHostCounters + 7, 0, 20, 2}, kBegin + 1s);
  owner.RunAt(kBegin + 3s);
  std::vector<QuotaWord> told = owner.QuotasTold();
  REQUIRE_FALSE(told.empty());
  const QuotaWord word = told.back();
  CHECK(word.counter != kAllHosts);
  CHECK(word.counter < kHostCounters);
  CHECK(word == QuotaWord{word.counter, 0, 25, 2});

  // What another site has counted counts here, and is not told as this one's.
  owner.HearSiteQuota(1, "a", {word.counter + 1, 0, 400, 30}, kBegin + 3s);
  owner.HearSiteQuota(1, "a", {word.counter + 1, 0, 350, 30}, kBegin + 3s);    // late
  CHECK(owner.Used("a", kBegin + 3s) == 23 + 370);
  owner.HearSiteQuota(0, "a", {kHostCounters + 7, 0, 900, 0}, kBegin + 3s);    // no site counts under a host's number
  CHECK(owner.Used("a", kBegin + 3s) == 23 + 370);
  owner.RunAt(kBegin + 4s);
  owner.QuotasTold();
  for (int second = 5; second < 20; ++second) owner.RunAt(kBegin + second * 1s);
  told = owner.QuotasTold();
  CHECK(told.size() >= 1);
  CHECK(told.size() <= 3);
  for (const QuotaWord& again : told) CHECK(again == word);
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

TEST_CASE("of a quota other sites are told early where much of what is left is gone") {
  Owner owner("quota = 1000\nper = \"day\"\n");
  owner.KeepQuotas();
  owner.RunAt(kBegin + 1s);
  const auto told_within = [&](std::uint64_t taken, Instant now) {
    owner.HearQuota("a", {kHostCounters + 7, 0, taken, 0}, now);
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
