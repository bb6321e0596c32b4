// Quotas by calendar: counted over all hosts, kept over kills and boots (quota/quotas.h).
#include "limiter/inspect.h"
#include "quota/quotas.h"

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/state.h"
#include "config/calendar.h"
#include "config/load.h"
#include "query/question.h"
#include "share/debit/sharing.h"
#include "share/quota/quota_sharing.h"
#include "share/ways.h"
#include "tally/tally.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::Host;

constexpr Instant kStart = FromNanoseconds(5'000'000'000);
constexpr Duration kNoon = std::chrono::seconds(1'800'000'000 / 86400 * 86400 + 43200);    // since 1970, at kStart
constexpr Instant kMidnight = kStart + 12h;
constexpr const char* kRules =
    "[[rule]]\nname=\"api\"\nmatch=\"api:*\"\nburst=1000\nrate=1000\nquota=10\n"
    "[[rule]]\nname=\"default\"\nburst=5\nrate=1\n";

// A host that counts. Its clock says what the test says.
struct Counter {
  explicit Counter(const char* rules = kRules, std::size_t slots = 1024, std::uint64_t number = 1)
      : host(rules), rules_(rules), number_(number), region_(Quotas::RegionBytes(slots) / sizeof(Line)) {
    Open(std::byte{1});
  }

  void Open(std::byte boot) {
    std::array<std::byte, 16> id{};
    id[0] = boot;
    const auto hash = [this](const Tag& tag) { return host.limiter->table().Hash(tag); };
    const auto calendar = [this](const QuotaCalendar& c) {
      QuotaPeriods periods = PeriodsAt(c, date / 1s);
      periods.ends = now + (std::chrono::seconds(static_cast<std::int64_t>(periods.next)) - date);
      return periods;
    };
    host.limiter->ways().KeepQuotas(std::make_unique<Quotas>(std::as_writable_bytes(std::span(region_)), id,
                                                             number_++ * 1000, hash, calendar, now));
  }
  // As after kill -9, or after a boot.
  void Kill(std::byte boot = std::byte{1}) {
    host.Start(testing::Rules(rules_), now);
    Open(boot);
  }
  // As at a start with room for so many slots. Returns the tags that there was no room for in the file.
  std::size_t Resize(std::size_t slots) {
    const std::size_t bytes = Quotas::RegionBytes(slots);
    const std::size_t left_out = QuotaFile::MoveInto(std::as_writable_bytes(std::span(region_)), bytes);
    region_.resize(bytes / sizeof(Line));
    Kill();
    return left_out;
  }
  // As at a start with another file, which is new. Returns the same.
  std::size_t MoveElsewhere(std::size_t slots) {
    std::vector<Line> there(Quotas::RegionBytes(slots) / sizeof(Line));
    const auto bytes = std::as_writable_bytes(std::span(there));
    CHECK(QuotaFile::IsNew(bytes));
    const std::size_t left_out = QuotaFile::Unpack(QuotaFile::Pack(std::as_bytes(std::span(region_))), bytes);
    CHECK_FALSE(QuotaFile::IsNew(bytes));
    region_ = std::move(there);
    Kill();
    return left_out;
  }
  // Time goes on.
  void At(Instant to) {
    date += to - now;
    now = to;
    host.limiter->ways().FollowCalendar();
  }
  // The clock is set.
  void SetDate(Duration to) {
    date = to;
    host.limiter->ways().FollowCalendar();
  }

  int Serves(std::string_view tag, int times) {
    int served = 0;
    for (int i = 0; i < times; ++i) served += host.Serves(tag, now);
    return served;
  }
  QuotaStanding Standing(std::string_view tag) { return *Inspect(*host.limiter, {{tag, false}}, now).quota; }
  QuotaSlot& slot(std::size_t i) {
    const auto bytes = std::as_writable_bytes(std::span(region_));
    return *reinterpret_cast<QuotaSlot*>(bytes.data() + (1 + i) * QuotaFile::kSlotBytes);
  }
  Quotas& quotas() { return *host.limiter->ways().quotas(); }
  const Limit& limit(std::string_view tag) { return host.limiter->rules().limit(*host.limiter->rules().Find(tag)); }

  bool Hear(std::string_view tag, const QuotaWord& word, std::uint32_t peer = 0) {
    const std::uint64_t hash = host.limiter->table().Hash({tag, false});
    return quotas().Hear({tag, false}, hash, limit(tag), word, peer, now);
  }
  bool HearOwner(std::string_view tag, const QuotaWord& word) {
    return quotas().HearOwner({tag, false}, host.limiter->table().Hash({tag, false}), limit(tag), word, 0, now);
  }
  std::optional<QuotaWord> OfAll(std::string_view tag) {
    return quotas().OfAll(host.limiter->table().Hash({tag, false}), limit(tag), now);
  }
  bool IsNews(std::string_view tag) {
    return quotas().IsNews(host.limiter->table().Hash({tag, false}), limit(tag), now);
  }
  // All that is to be told, with what others have counted.
  std::vector<std::pair<std::string, QuotaWord>> Told() {
    std::vector<std::pair<std::string, QuotaWord>> told;
    quotas().TellAll();
    const auto tell = [&](const Tag& tag, const QuotaWord& word, Table::Shard&) {
      told.emplace_back(tag.bytes, word);
      return true;
    };
    while (quotas().TellSome(host.limiter->ways().core().ShardLock(), now, tell)) continue;
    return told;
  }

  Host host;
  Instant now = kStart;
  Duration date = kNoon;

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::string rules_;
  std::uint64_t number_;
  std::vector<Line> region_;
};

std::uint64_t DayOf(const Counter& c) {
  return static_cast<std::uint64_t>(c.date / 24h * 86400);
}

struct Answer {
  Outcome outcome;
  std::array<Standing, 2> standings;
};
Answer Ask(Counter& c, Verb verb, std::string_view first, Cost first_cost, std::string_view second, Cost second_cost) {
  Questions questions;
  questions.Begin(verb);
  questions.Name({{first, false}, first_cost});
  questions.Name({{second, false}, second_cost});
  Answer answer;
  c.host.limiter->Ask(questions, {&answer.outcome, 1}, answer.standings, 0, c.host.prng, c.now);
  return answer;
}

// ---- One host ----

TEST_CASE("quota: so many are served in a day, whatever the bucket holds, and as many in the next") {
  Counter c;
  CHECK(c.Serves("api:a", 30) == 10);
  CHECK(c.Serves("api:b", 30) == 10);
  CHECK(c.Serves("other", 30) == 5);
  c.At(kMidnight - 1ns);
  CHECK(c.Serves("api:a", 1) == 0);
  c.now = kMidnight;    // nobody has looked at the clock yet
  CHECK(c.Serves("api:a", 30) == 10);
  CHECK(c.host.limiter->tally().Totals(0).over_quota == 20 + 20 + 1 + 20);
}

TEST_CASE("quota: a question is all or nothing, whichever of quota and bucket refuses") {
  Counter c;
  CHECK(Ask(c, Verb::kTake, "other", 1, "api:a", 10).outcome.verdict == Verdict::kServe);
  const Answer refused = Ask(c, Verb::kTake, "other", 1, "api:a", 1);
  CHECK(refused.outcome.verdict == Verdict::kThrottle);
  CHECK(refused.outcome.tag == 1);
  CHECK(refused.outcome.wait == 12h);
  CHECK(c.host.Level("other", c.now) == 4);
  CHECK(c.host.Level("api:a", c.now) == 990);

  CHECK(Ask(c, Verb::kTake, "api:b", 3, "other", 5).outcome.tag == 1);
  CHECK(c.Standing("api:b").used == 0);
  CHECK(Ask(c, Verb::kTake, "api:b", 11, "other", 1).outcome.wait == Outcome::kNever);
}

TEST_CASE("quota: an answer says what is left of it and until when, where that is less than the bucket has") {
  Counter c;
  CHECK(c.Serves("api:a", 7) == 7);
  const Answer peeked = Ask(c, Verb::kPeek, "api:a", 1, "other", 1);
  const Standing& its = peeked.standings[0];
  CHECK(its.bucket.WholeTokens(its.shape, c.now) == 3);
  CHECK(its.shape.burst() == 10);
  CHECK(its.Until(4, c.now) == 12h);
  CHECK(its.Until(3, c.now) == 0h);
  CHECK(its.UntilFull(c.now) == 12h);
  CHECK(std::chrono::abs(ToDuration(its.shape.depth) - 24h) < 1s);
  CHECK(c.Standing("api:a").used == 7);
  CHECK(c.host.lending().RefusedUntil({{"api:a", false}, 4}, c.now) == kMidnight);
}

// The bucket has 5 tokens and gains one in 10 s.
TEST_CASE("quota: of bucket and quota the one that is shown is what refuses longer, or gains a token later") {
  Counter c("[[rule]]\nname=\"api\"\nmatch=\"api:*\"\nburst=5\nrate=0.1\nquota=5\n"
            "[[rule]]\nname=\"default\"\nburst=5\nrate=1\n");
  const auto shown = [&](Verb verb, Cost cost) { return Ask(c, verb, "api:a", cost, "other", 0); };
  for (int left = 4; left >= 0; --left) {
    const Standing its = shown(Verb::kTake, 1).standings[0];
    CHECK(its.bucket.WholeTokens(its.shape, c.now) == left);
    CHECK(its.renewed == 12h);
  }
  c.At(c.now + 20s);    // 2 in the bucket
  for (const Verb verb : {Verb::kPeek, Verb::kTake}) {
    for (const Cost cost : {1u, 2u, 3u}) {
      const Answer refused = shown(verb, cost);
      REQUIRE(refused.outcome.verdict == Verdict::kThrottle);
      CHECK(refused.standings[0].Until(cost, c.now) == refused.outcome.wait);
      CHECK(refused.outcome.wait == 12h - 20s);
    }
  }
  c.host.limiter->GiveBack({{"api:a", false}, 4}, 0, c.now);    // 4 of the quota, and the bucket is full
  const Answer served = shown(Verb::kTake, 3);
  CHECK(served.outcome.verdict == Verdict::kServe);
  CHECK(served.standings[0].Until(2, c.now) == 12h - 20s);
}

TEST_CASE("quota: a bucket that refuses longer than what is left of the period is what a refusal tells of") {
  Counter c("[[rule]]\nname=\"api\"\nmatch=\"api:*\"\nburst=5\nrate=0.1\nquota=5\n"
            "[[rule]]\nname=\"default\"\nburst=5\nrate=1\n");
  c.At(kMidnight - 25s);
  CHECK(c.Serves("api:a", 5) == 5);
  for (const auto& [cost, wait] : {std::pair<Cost, Duration>(2, 25s), std::pair<Cost, Duration>(3, 30s)}) {
    const Answer refused = Ask(c, Verb::kTake, "api:a", cost, "other", 0);
    CHECK(refused.outcome.wait == wait);
    CHECK(refused.standings[0].Until(cost, c.now) == wait);
  }
}

TEST_CASE("quota: what is left is right to the token, for quotas and periods of any size") {
  Prng prng(3);
  for (int i = 0; i < 5000; ++i) {
    const std::uint64_t amount = 1 + prng.Below(std::uint64_t{1} << (1 + prng.Below(39)));
    const std::uint64_t used = prng.Below(amount + 1);
    const Duration length = std::array<Duration, 3>{1h, 24h, 24h * 31}[prng.Below(3)];
    Standing standing;
    const auto amounts = static_cast<Ticks>(amount), left = static_cast<Ticks>(amount - used);
    const Ticks interval = std::max<Ticks>(ToTicks(length) / amounts, kTicksPerNanosecond);
    standing.shape = {interval, interval * amounts};
    standing.bucket.Merge(standing.shape, kStart + ToDuration((amounts - left) * interval), 0, 0, kStart);
    CHECK(standing.bucket.WholeTokens(standing.shape, kStart) == left);
  }
}

TEST_CASE("quota: tokens that come back are not used, and those that cost more are") {
  Counter c;
  CHECK(Ask(c, Verb::kHold, "api:a", 8, "other", 0).outcome.verdict == Verdict::kServe);
  c.host.limiter->Settle({{{"api:a", false}, 8}, c.now}, 3, c.now);
  CHECK(c.Standing("api:a").used == 3);
  c.host.limiter->Settle({{{"api:a", false}, 3}, c.now}, 5, c.now);
  CHECK(c.Standing("api:a").used == 5);
  CHECK(c.Serves("api:a", 30) == 5);
}

TEST_CASE("quota: what was taken in a period that is over gives the next one nothing") {
  Counter c;
  c.At(kMidnight - 10s);
  const Instant taken = c.now;
  CHECK(Ask(c, Verb::kHold, "api:a", 8, "other", 0).outcome.verdict == Verdict::kServe);
  c.At(kMidnight + 10s);
  CHECK(c.Serves("api:a", 9) == 9);
  c.host.limiter->Settle({{{"api:a", false}, 8}, taken}, 0, c.now);
  CHECK(c.Standing("api:a").used == 9);
  c.host.limiter->Settle({{{"api:a", false}, 5}, c.now}, 0, c.now);
  CHECK(c.Standing("api:a").used == 4);
}

TEST_CASE("quota: what was taken while a tag had no quota gives the quota nothing, also beside what others count") {
  constexpr const char* kNone = "[[rule]]\nname=\"api\"\nmatch=\"api:*\"\nburst=1000\nrate=1000\n";
  Counter c(kNone);
  const Instant taken = c.now;
  CHECK(c.Serves("api:a", 8) == 8);
  c.At(c.now + 10s);
  c.host.limiter->Adopt(testing::Rules(kRules));
  c.At(c.now + 10s);
  c.Hear("api:a", {77, DayOf(c), 1, 0});
  CHECK(c.Serves("api:a", 6) == 6);
  c.host.limiter->Settle({{{"api:a", false}, 8}, taken}, 0, c.now);
  CHECK(c.Standing("api:a").used == 7);
  c.host.limiter->Settle({{{"api:a", false}, 2}, c.now}, 0, c.now);
  CHECK(c.Standing("api:a").used == 5);
}

TEST_CASE("quota: what was taken before a kill comes back after it") {
  Counter c;
  const Instant taken = c.now;
  CHECK(c.Serves("api:a", 8) == 8);
  c.At(c.now + 10s);
  c.Kill();
  c.host.limiter->Settle({{{"api:a", false}, 5}, taken}, 0, c.now);
  CHECK(c.Standing("api:a").used == 3);
}

TEST_CASE("quota: in shadow mode it is counted and refuses nothing") {
  Counter c("[[rule]]\nname=\"api\"\nburst=100\nrate=1\nquota=10\nmode=\"shadow\"\n");
  CHECK(c.Serves("a", 30) == 30);
  CHECK(c.Standing("a").used == 10);
  CHECK(c.host.limiter->tally().Totals(0).shadowed == 20);
  CHECK(c.host.limiter->tally().Totals(0).over_quota == 20);
}

TEST_CASE("quota: an override has its own, or its rule's") {
  Counter c("[[rule]]\nname=\"api\"\nburst=100\nrate=100\nquota=10\n"
            "[[override]]\ntag=\"vip\"\nburst=100\nrate=100\nquota=50\n"
            "[[override]]\ntag=\"free\"\nburst=100\nrate=100\nquota=0\n"
            "[[override]]\ntag=\"same\"\nburst=100\nrate=100\n");
  CHECK(c.Serves("vip", 70) == 50);
  CHECK(c.Serves("free", 70) == 70);
  CHECK(c.Serves("same", 70) == 10);
}

TEST_CASE("quota: what people forgive is not used, as far as this host is concerned") {
  Counter c;
  c.Hear("api:a", {77, DayOf(c), 4, 0});
  CHECK(c.Serves("api:a", 30) == 6);
  CHECK(Forgive(*c.host.limiter, {{"api:a", false}}, c.now));
  CHECK(c.Standing("api:a").used == 0);
  c.Hear("api:a", {77, DayOf(c), 6, 0});
  CHECK(c.Standing("api:a").used == 2);
}

TEST_CASE("quota: what is forgiven comes back once") {
  Counter c;
  const Instant taken = c.now;
  CHECK(c.Serves("api:a", 8) == 8);
  c.At(c.now + 10s);
  CHECK(Forgive(*c.host.limiter, {{"api:a", false}}, c.now));
  CHECK(c.Serves("api:a", 9) == 9);
  c.host.limiter->Settle({{{"api:a", false}, 8}, taken}, 0, c.now);
  CHECK(c.Standing("api:a").used == 9);
  c.host.limiter->Settle({{{"api:a", false}, 4}, c.now}, 0, c.now);
  CHECK(c.Standing("api:a").used == 5);
}

// ---- Clocks ----

TEST_CASE("quota: a clock that is set back over midnight begins no period again") {
  Counter c;
  CHECK(c.Serves("api:a", 30) == 10);
  c.At(kMidnight + 5s);
  CHECK(c.Serves("api:a", 4) == 4);
  c.SetDate(c.date - 10s);
  CHECK(c.Serves("api:a", 30) == 6);
  CHECK(c.Standing("api:a").ends == c.now + 24h + 5s);
  c.At(c.now + 20s);
  CHECK(c.Serves("api:a", 30) == 0);
}

TEST_CASE("quota: counts of a clock that was wrong by years are of the day that it is set back to") {
  Counter c;
  c.SetDate(kNoon + 24h * 1000);
  CHECK(c.Serves("api:a", 7) == 7);
  c.SetDate(kNoon);
  CHECK(c.Standing("api:a").used == 7);
  CHECK(c.Serves("api:a", 30) == 3);
  c.At(kMidnight);
  CHECK(c.Serves("api:a", 30) == 10);
}

TEST_CASE("quota: a clock that is set back by periods and is right again begins no period again, also over kills and boots") {
  for (const int days : {1, 2, 3, 400}) {
    for (const int boots : {0, 1, 2}) {    // no kill, a kill, a boot
      CAPTURE(days, boots);
      Counter c;
      const auto kill = [&] {
        if (boots > 0) c.Kill(std::byte(boots));
      };
      CHECK(c.Serves("api:a", 8) == 8);
      c.Hear("api:a", {77, DayOf(c), 1, 0});
      for (int again = 0; again < 3; ++again) {
        kill();
        c.SetDate(kNoon - 24h * days);
        CHECK(c.Serves("api:a", 30) == (again == 0 ? 1 : 0));
        kill();
        c.SetDate(kNoon);
        CHECK(c.Standing("api:a").used == 10);
        CHECK(c.Serves("api:a", 30) == 0);
      }
      c.At(kMidnight);
      CHECK(c.Serves("api:a", 30) == 10);
    }
  }
}

TEST_CASE("quota: a period begins in its time though a clock that was wrong has been in it") {
  Counter c;
  c.SetDate(kNoon + 24h * 3);
  CHECK(c.Serves("api:a", 10) == 10);
  c.SetDate(kNoon);
  CHECK(c.Serves("api:a", 30) == 0);
  for (int day = 0; day < 5; ++day) {
    c.At(kMidnight + day * 24h);
    CHECK(c.Serves("api:a", 30) == 10);
    if (day == 1) c.Kill();
    CHECK(c.Serves("api:a", 30) == 0);
  }
}

// The date is ahead by years while the tag is asked for, and then right.
void ServeAhead(Counter& c) {
  c.SetDate(kNoon + 24h * 400);
  CHECK(c.Serves("api:a", 10) == 10);
  c.SetDate(kNoon);
  CHECK(c.Serves("api:a", 30) == 0);
}

TEST_CASE("quota: a clock that was once ahead by years costs no period after kills, and at most one after boots") {
  for (const bool is_boot : {false, true}) {
    CAPTURE(is_boot);
    Counter c;
    ServeAhead(c);
    for (int day = 0; day < 5; ++day) {
      CAPTURE(day);
      c.At(kMidnight + day * 24h - 1h);
      c.Kill(std::byte(is_boot ? 2 + day : 1));
      c.At(kMidnight + day * 24h + 1h);
      CHECK(c.Serves("api:a", 30) == (is_boot && day == 0 ? 0 : 10));
    }
  }
}

TEST_CASE("quota: a day after a boot, a clock that was once ahead by years is forgotten") {
  Counter c;
  ServeAhead(c);
  c.Kill(std::byte{2});
  c.At(kStart + 24h);
  CHECK(c.Serves("api:a", 30) == 10);
}

TEST_CASE("quota: after a period that began in its time a clock that was ahead is in the way of none") {
  for (const bool is_killed : {false, true}) {
    CAPTURE(is_killed);
    Counter c;
    ServeAhead(c);
    c.At(kMidnight);
    CHECK(c.Serves("api:a", 30) == 10);
    for (const int days : {3, 30, 90}) {
      if (is_killed) c.Kill();
      c.SetDate(c.date + 24h * days);    // a machine that slept: its clock went on, the one of the core did not
      CHECK(c.Serves("api:a", 30) == 10);
      CHECK(c.Serves("api:a", 30) == 0);
    }
  }
}

TEST_CASE("quota: a clock that was ahead, and is set back and right again later, begins no period twice") {
  for (const int boots : {0, 1, 2}) {    // no kill, a kill, a boot
    CAPTURE(boots);
    Counter c;
    ServeAhead(c);
    c.At(kMidnight);
    CHECK(c.Serves("api:a", 30) == 10);
    for (const Duration days : {-48h, 48h, -72h, 72h}) {
      if (boots > 0) c.Kill(std::byte(boots));
      c.SetDate(c.date + days);
      CHECK(c.Serves("api:a", 30) == 0);
    }
  }
}

TEST_CASE("quota: a date that boots set right in two steps begins no period again") {
  Counter c;
  CHECK(c.Serves("api:a", 10) == 10);
  for (const int days : {5, 3, 0}) {
    c.SetDate(kNoon - 24h * days);
    CHECK(c.Serves("api:a", 30) == 0);
    if (days == 5) c.Kill(std::byte{2});
  }
}

TEST_CASE("quota: tags of a clock that was once ahead make room after a kill when their period is over") {
  Counter c;
  for (const Duration date : {kNoon + 24h * 400, kNoon}) {
    c.SetDate(date);
    for (int i = 0; i < 5000; ++i) c.Serves("api:" + std::to_string(i), 1);
  }
  for (const int boot : {1, 2}) {
    c.Kill(std::byte(boot));
    c.At(boot == 1 ? kMidnight : c.now + 24h);
    for (int i = 0; i < 50; ++i) c.Serves(fmt::format("api:{}:{}", boot, i), 1);
    CHECK(CountsOf(*c.host.limiter).quotas.forgotten == 0);
  }
}

TEST_CASE("quota: midnight by a clock that is days behind makes no second one of the day that it is set to") {
  Counter c;
  CHECK(c.Serves("api:a", 10) == 10);
  c.SetDate(kNoon - 24h * 2 + 12h - 1s);
  CHECK(c.Serves("api:a", 30) == 0);
  c.At(c.now + 2s);
  CHECK(c.Serves("api:a", 30) == 10);
  c.SetDate(kNoon);
  CHECK(c.Serves("api:a", 30) == 0);
}

TEST_CASE("quota: peers hear of counts in the period that a clock was set back from when it is right again") {
  Counter c, peer(kRules, 1024, 2);
  const auto tell = [&] {
    c.quotas().TellChanged();
    const auto hear = [&](const Tag& tag, const QuotaWord& word, Table::Shard&) { return peer.Hear(tag.bytes, word), true; };
    while (c.quotas().TellSome(c.host.limiter->ways().core().ShardLock(), c.now, hear)) continue;
  };
  CHECK(c.Serves("api:a", 3) == 3);
  tell();
  CHECK(peer.Standing("api:a").used == 3);
  c.SetDate(kNoon - 24h * 2);
  CHECK(c.Serves("api:a", 4) == 4);
  tell();
  CHECK(peer.Standing("api:a").used == 3);
  c.SetDate(kNoon);
  CHECK(c.Standing("api:a").used == 7);
  tell();
  CHECK(peer.Standing("api:a").used == 7);
}

TEST_CASE("quota: a tag that nobody has asked for since the clock is right again makes no room for others") {
  Counter c;
  CHECK(c.Serves("api:a", 10) == 10);
  c.SetDate(kNoon - 24h * 2);
  CHECK(c.Serves("api:a", 1) == 0);
  c.SetDate(kNoon);
  for (int i = 0; i < 5000; ++i) c.Serves("api:" + std::to_string(i), 1);
  CHECK(CountsOf(*c.host.limiter).quotas.forgotten > 4000);
  CHECK(c.Serves("api:a", 30) == 0);
}

// ---- Kills and boots ----

TEST_CASE("quota: what is counted outlives kills and boots, here and elsewhere") {
  Counter c;
  CHECK(c.Serves("api:a", 3) == 3);
  c.Hear("api:a", {77, DayOf(c), 2, 0});
  for (const std::byte boot : {std::byte{1}, std::byte{1}, std::byte{2}, std::byte{2}, std::byte{3}}) {
    c.Kill(boot);
    CHECK(c.Standing("api:a").used == 5);
  }
  CHECK(c.Serves("api:a", 30) == 5);
}

TEST_CASE("quota: a boot loses nothing that peers know, and what they repeat counts once") {
  Counter a, b(kRules, 1024, 100);
  CHECK(a.Serves("api:a", 3) == 3);
  const auto told = a.Told();
  REQUIRE(told.size() == 1);
  b.Hear("api:a", told[0].second);
  a.Kill(std::byte{2});
  CHECK(a.Serves("api:a", 2) == 2);
  for (const auto& [tag, word] : a.Told()) b.Hear(tag, word);
  for (const auto& [tag, word] : b.Told()) a.Hear(tag, word);
  CHECK(a.Standing("api:a").used == 5);
  CHECK(b.Standing("api:a").used == 5);

  Counter joins(kRules, 1024, 200);
  for (const auto& [tag, word] : b.Told()) joins.Hear(tag, word);
  CHECK(joins.Standing("api:a").used == 5);
}

TEST_CASE("quota: a file that is made longer or shorter keeps the tags that it has room for, with what others counted") {
  Counter c(kRules, 4096);
  const auto tag = [](int i) { return "api:" + std::to_string(i); };
  for (int i = 0; i < 100; ++i) REQUIRE(c.Serves(tag(i), 1) == 1);
  for (int i = 60; i < 100; ++i) REQUIRE(c.Hear(tag(i), {77, DayOf(c), 3, 0}));
  for (const std::size_t slots : {16384, 1024, 4096}) {
    CHECK(c.Resize(slots) == 0);
    CHECK(c.quotas().counts().tags == 100);
    CHECK(c.quotas().counts().forgotten == 0);
    for (int i = 0; i < 100; ++i) CHECK(c.Standing(tag(i)).used == (i < 60 ? 1 : 4));
  }
  for (int i = 100; i < 1800; ++i) REQUIRE(c.Serves(tag(i), 1) == 1);
  const std::size_t tags = c.quotas().counts().tags, left_out = c.Resize(1024);
  const QuotaCounts counts = c.quotas().counts();
  CHECK(left_out == tags - 1024);    // tags take the place of what others counted
  CHECK(counts.tags + counts.forgotten == 1024);
  CHECK(counts.tags > 400);
}

TEST_CASE("quota: a file that is new takes over the tags that it has room for, with what others counted") {
  Counter c(kRules, 4096);
  const auto tag = [](int i) { return "api:" + std::to_string(i); };
  for (int i = 0; i < 100; ++i) REQUIRE(c.Serves(tag(i), 1) == 1);
  for (int i = 60; i < 100; ++i) REQUIRE(c.Hear(tag(i), {77, DayOf(c), 3, 0}));
  for (const std::size_t slots : {1024, 4096}) {
    CHECK(c.MoveElsewhere(slots) == 0);
    for (int i = 0; i < 100; ++i) CHECK(c.Standing(tag(i)).used == (i < 60 ? 1 : 4));
  }
  for (int i = 100; i < 1800; ++i) REQUIRE(c.Serves(tag(i), 1) == 1);
  const std::size_t tags = c.quotas().counts().tags;
  CHECK(c.MoveElsewhere(1024) == tags - 1024);
  CHECK(c.Serves(tag(0), 10) < 10);
}

TEST_CASE("quota: what lies behind the end of a shorter file moves into it, to its tag") {
  constexpr std::size_t kSlots = 64, kFit = 16, kTags = 10, kOthers = 6;
  struct alignas(64) Region {
    std::array<std::byte, (1 + kSlots) * QuotaFile::kSlotBytes> bytes{};
  };
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    auto region = std::make_unique<Region>();
    QuotaFile file(region->bytes, {}, 1);
    std::vector<std::uint32_t> places(kSlots);
    for (std::uint32_t i = 0; i < kSlots; ++i) std::swap(places[i] = i, places[prng.Below(i + 1)]);
    for (std::uint32_t i = 0; i < kTags + kOthers; ++i) {
      QuotaSlot& slot = file.slot(places[i]);
      if (i < kTags) {
        slot.own = {i + 1, 0, 0, 1, 0, {static_cast<char>('a' + i)}, 0, 0, 0, 0};
      } else {
        slot.others.tag = places[i - kTags], slot.others.size = 1, slot.others.counts[0] = {7, i - kTags + 100, 0};
      }
      QuotaFile::SetKind(slot, i < kTags ? QuotaSlot::kTag : QuotaSlot::kCounted);
    }
    CHECK(QuotaFile::MoveInto(region->bytes, (1 + kFit) * QuotaFile::kSlotBytes) == 0);
    const QuotaFile after(std::span(region->bytes).first((1 + kFit) * QuotaFile::kSlotBytes), {}, 1);
    std::map<std::string, std::uint64_t> own, others;
    for (std::size_t i = 0; i < kFit; ++i) {
      const QuotaSlot& slot = after.slot(i);
      if (slot.kind == QuotaSlot::kTag) own[std::string(slot.tag().bytes)] += slot.own.taken;
      if (slot.kind != QuotaSlot::kCounted) continue;
      others[std::string(after.slot(slot.others.tag).tag().bytes)] += slot.others.counts[0].taken;
    }
    REQUIRE(own.size() == kTags);
    REQUIRE(others.size() == kOthers);
    for (std::uint32_t i = 0; i < kTags; ++i) CHECK(own[std::string(1, static_cast<char>('a' + i))] == i + 1);
    for (std::uint32_t i = 0; i < kOthers; ++i) CHECK(others[std::string(1, static_cast<char>('a' + i))] == i + 100);
  }
}

TEST_CASE("quota: slots that were never taken are read after a boot only, so a large region with few tags begins at once") {
  Counter c(kRules, 4096);
  CHECK(c.Serves("api:a", 3) == 3);
  CHECK(c.Hear("api:a", {kHostCounters + 7, DayOf(c), 2, 0}));
  QuotaSlot& stray = c.slot(4000);
  stray.period = DayOf(c);
  stray.own = {};
  stray.own.taken = 4;
  stray.own.size = 5;
  std::copy_n("api:z", 5, stray.own.bytes.begin());
  stray.kind = QuotaSlot::kTag;
  c.Kill();
  CHECK(c.Standing("api:a").used == 5);
  CHECK(c.quotas().counts().tags == 1);
  CHECK(c.Serves("api:b", 4) == 4);
  c.Kill();
  CHECK(c.Standing("api:a").used == 5);
  CHECK(c.Standing("api:b").used == 4);
  c.Kill(std::byte{2});
  CHECK(c.quotas().counts().tags == 3);
  CHECK(c.Standing("api:z").used == 4);
}

TEST_CASE("quota: a region of junk is taken over as one that holds nothing") {
  Prng prng(9);
  std::vector<std::uint64_t> region(Quotas::RegionBytes(1024) / 8 + 8);
  for (int round = 0; round < 50; ++round) {
    const std::size_t from = round % 2 == 0 ? 3 : 0;    // behind the header, or all of it
    for (std::size_t i = from; i < region.size(); ++i) region[i] = prng.Below(3) == 0 ? prng.Next() : prng.Below(3);
    void* at = region.data();
    std::size_t bytes = region.size() * 8;
    std::align(64, Quotas::RegionBytes(1024), at, bytes);
    const std::span<std::byte> aligned(static_cast<std::byte*>(at), Quotas::RegionBytes(1024));
    const auto periods = [](const QuotaCalendar&) { return QuotaPeriods{1, 2, 3, kStart}; };
    Quotas quotas(aligned, {}, prng.Next(), [&](const Tag&) { return prng.Next() | 1; }, periods, kStart);
    CHECK(quotas.counts().tags <= 1024);
  }
}

TEST_CASE("quota: a slot whose period begins or ends when no message can say is free after a kill") {
  constexpr std::uint64_t kFar = kQuotaPeriodMax + 1;
  constexpr auto kBegins = &QuotaSlot::period, kEnds = &QuotaSlot::until;
  for (const auto date : {kBegins, kEnds}) {
    for (const std::size_t broken : {0, 1}) {    // of the tag, and of what others have counted of it
      Counter c;
      CHECK(c.Serves("api:a", 3) == 3);
      c.Hear("api:a", {77, DayOf(c), 2, 0});
      c.slot(broken).*date = kFar;
      c.Kill();
      CHECK(c.slot(broken).kind == QuotaSlot::kFree);
      CHECK(c.Standing("api:a").used == (broken == 0 ? 0 : 3));
      for (const auto& [tag, word] : c.Told()) CHECK(word.period <= kQuotaPeriodMax);
    }
  }
}

// ---- Peers ----

TEST_CASE("quota: hosts that hear of each other, late, twice and in any order, and are killed, count every token once") {
  constexpr int kHosts = 5;
  Prng prng(17);
  std::vector<std::unique_ptr<Counter>> hosts;
  for (std::uint64_t i = 0; i < kHosts; ++i) {
    hosts.push_back(std::make_unique<Counter>("[[rule]]\nname=\"api\"\nburst=1000000\nrate=1000000\nquota=1000000\n", 1024, 1 + 100 * i));
  }
  std::map<std::string, std::uint64_t> truth;
  std::vector<std::pair<std::string, QuotaWord>> air;    // of which some comes later, again or never
  std::vector<std::uint32_t> from;
  for (int step = 0; step < 4000; ++step) {
    const auto who = static_cast<std::uint32_t>(prng.Below(kHosts));
    Counter& host = *hosts[who];
    const std::string tag = "t" + std::to_string(prng.Below(8));
    const int n = 1 + static_cast<int>(prng.Below(5));
    if (prng.Below(2) == 0) truth[tag] += static_cast<std::uint64_t>(host.Serves(tag, n));
    if (prng.Below(20) == 0) {
      for (auto& said : host.Told()) air.push_back(said), from.push_back(who);
    }
    if (!air.empty() && prng.Below(2) == 0) {
      const auto i = static_cast<std::size_t>(prng.Below(air.size()));
      host.Hear(air[i].first, air[i].second, from[i]);
    }
    if (prng.Below(200) == 0) host.Kill(std::byte{static_cast<unsigned char>(1 + prng.Below(3))});
  }
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < kHosts; ++i) {
      for (const auto& [tag, word] : hosts[i]->Told()) {
        for (auto& other : hosts) other->Hear(tag, word, i);
      }
    }
  }
  for (const auto& [tag, tokens] : truth) {
    for (auto& host : hosts) CHECK(host->Standing(tag).used == tokens);
  }
}

TEST_CASE("quota: the host whose clock is first begins the period for all, and a peer that lies begins none") {
  Counter c;
  CHECK(c.Serves("api:a", 10) == 10);
  const std::uint64_t next = DayOf(c) + 86400;
  CHECK_FALSE(c.Hear("api:a", {77, next, 1, 0}));
  CHECK_FALSE(c.Hear("api:a", {77, next + 86400, 1, 0}));
  CHECK_FALSE(c.Hear("api:a", {77, DayOf(c) - 86400, 1, 0}));
  CHECK(c.Serves("api:a", 1) == 0);
  c.At(kMidnight - 1s);
  CHECK(c.Hear("api:a", {77, next, 1, 0}));
  CHECK(c.Serves("api:a", 30) == 9);
  CHECK_FALSE(c.Hear("api:a", {78, next - 86400, 5, 0}));
  c.At(kMidnight + 1s);
  CHECK(c.Serves("api:a", 30) == 0);
  CHECK(CountsOf(*c.host.limiter).quotas.other_period == 4);
}

TEST_CASE("quota: no peer takes back what another has counted, nor counts more than there is") {
  Counter c;
  CHECK(c.Hear("api:a", {77, DayOf(c), 6, 0}, 0));
  c.Hear("api:a", {77, DayOf(c), 6, 6}, 1);
  CHECK(c.Standing("api:a").used == 6);
  CHECK(CountsOf(*c.host.limiter).quotas.disbelieved == 1);
  c.Hear("api:b", {78, DayOf(c), 6, {}}, 1);
  c.Hear("api:b", {78, DayOf(c), 8, 1}, 0);
  CHECK(c.Standing("api:b").used == 7);
  c.Hear("api:c", {79, DayOf(c), 1u << 30, 0}, 0);
  CHECK(c.Standing("api:c").used == 10);
}

TEST_CASE("quota: no peer takes back what was known before it spoke, by a file or by others, and its own host may go on") {
  Counter c;
  CHECK(c.Hear("api:a", {77, DayOf(c), 6, 0}, 0));
  c.Kill();
  c.Hear("api:a", {77, DayOf(c), 6, 6}, 1);
  CHECK(c.Standing("api:a").used == 6);
  c.Hear("api:b", {78, DayOf(c), 7, {}}, 0);    // of a host that is gone
  c.Hear("api:b", {78, DayOf(c), 9, 9}, 1);
  CHECK(c.Standing("api:b").used == 7);
  c.Hear("api:c", {79, DayOf(c), 9, 9}, 1);
  c.Hear("api:c", {79, DayOf(c), 7, {}}, 0);
  c.Hear("api:c", {79, DayOf(c), 20, 20}, 1);
  CHECK(c.Standing("api:c").used == 7);

  CHECK(c.Hear("api:d", {80, DayOf(c), 6, 1}, 0));
  c.Kill();
  c.Hear("api:d", {80, DayOf(c), 8, 3}, 0);    // two more, of which two came back
  CHECK(c.Standing("api:d").used == 5);
}

TEST_CASE("quota: what comes back is believed of a peer, whatever other hosts pass on of what it said itself") {
  Counter c;
  for (const bool late : {false, true}) {    // they say so again after it came back
    const std::string tag = late ? "api:late" : "api:a";
    CHECK(c.Hear(tag, {77, DayOf(c), 8, 0}, 0));
    c.Hear(tag, {77, DayOf(c), 8, {}}, 1);
    c.Hear(tag, {77, DayOf(c), 8, 8}, 0);
    if (late) c.Hear(tag, {77, DayOf(c), 8, {}}, 2);
    CHECK(c.Standing(tag).used == 0);
    c.Hear(tag, {77, DayOf(c), 9, 8}, 0);
    CHECK(c.Standing(tag).used == 1);
  }
}

TEST_CASE("quota: what comes back is believed of a peer over an upgrade, as before it, and of no other") {
  Counter c;
  const auto lock = [&](std::uint64_t hash) { return c.host.limiter->ways().core().ShardLock()(hash); };
  const auto upgrade = [&] {
    const std::string kept = WriteState(1, c.quotas().Keep(lock));
    c.Kill();
    std::vector<Quotas::KeptTag> all;
    REQUIRE(ReadState(kept, 1, all));
    c.quotas().Resume(all, lock);
  };
  for (const char* const tag : {"api:a", "api:b", "api:c"}) CHECK(c.Hear(tag, {77, DayOf(c), 8, 1}, 0));
  c.Hear("api:d", {78, DayOf(c), 4, {}}, 1);
  c.Hear("api:d", {78, DayOf(c), 9, 2}, 0);
  upgrade();
  c.Hear("api:a", {77, DayOf(c), 7, {}}, 1);
  c.Hear("api:a", {77, DayOf(c), 8, 8}, 0);
  CHECK(c.Standing("api:a").used == 0);
  upgrade();
  c.Hear("api:a", {77, DayOf(c), 9, 8}, 0);
  CHECK(c.Standing("api:a").used == 1);
  c.Hear("api:b", {77, DayOf(c), 8, 8}, 1);
  CHECK(c.Standing("api:b").used == 8);
  c.Hear("api:d", {78, DayOf(c), 9, 9}, 0);
  CHECK(c.Standing("api:d").used == 4);    // as another host had told
  CHECK(CountsOf(*c.host.limiter).quotas.disbelieved == 1);

  c.Hear("api:e", {79, DayOf(c), 8, 0}, 0);
  CHECK(c.IsNews("api:e"));
  upgrade();
  c.Hear("api:e", {79, DayOf(c), 8, 8}, 0);
  CHECK(c.IsNews("api:e"));    // to everybody, who knows of eight

  const auto before = c.quotas().Keep(lock);
  c.At(kMidnight + 1s);
  c.Hear("api:c", {77, DayOf(c), 5, 0}, 1);    // peers have other numbers
  c.quotas().Resume(before, lock);
  c.Hear("api:c", {77, DayOf(c), 5, 5}, 1);
  CHECK(c.Standing("api:c").used == 0);
}

TEST_CASE("quota: a host that starts costs no other one what comes back from a third") {
  Counter a(kRules, 1024, 1), b(kRules, 1024, 100), d(kRules, 1024, 200);
  const auto tell = [](Counter& from, std::uint32_t peer, Counter& to) {
    for (const auto& [tag, word] : from.Told()) to.Hear(tag, word, peer);
  };
  const Instant taken = a.now;
  CHECK(a.Serves("api:a", 8) == 8);
  for (Counter* const host : {&b, &d}) tell(a, 0, *host);
  d.Kill();
  tell(d, 2, b);
  a.host.limiter->Settle({{{"api:a", false}, 8}, taken}, 0, a.now);
  tell(a, 0, d);
  tell(a, 0, b);
  tell(d, 2, b);
  CHECK(b.Standing("api:a").used == 0);
  CHECK(b.Serves("api:a", 10) == 10);
}

TEST_CASE("quota: what peers have said counts for what it was when the quota is raised, and no more than the quota") {
  Counter c;
  const auto set_quota = [&](int quota) {
    c.host.limiter->Adopt(testing::Rules("[[rule]]\nname=\"api\"\nmatch=\"api:*\"\nburst=1000\nrate=1000\nquota=" +
                                         std::to_string(quota) + "\n"));
  };
  c.Hear("api:a", {77, DayOf(c), 25, 3}, 0);            // of a host that has the larger quota already
  c.Hear("api:a", {78, DayOf(c), 14, {}}, 0);           // passed on
  c.HearOwner("api:b", {kAllHosts, DayOf(c), 28, 0});
  c.Hear("api:lie", {79, DayOf(c), UINT64_MAX / 2, 0}, 0);
  CHECK(c.Standing("api:a").used == 20);
  CHECK(c.Standing("api:b").used == 10);
  set_quota(30);
  CHECK(c.Standing("api:a").used == 22 + 14);
  CHECK(c.Standing("api:b").used == 28);
  CHECK(c.Standing("api:lie").used == 30);
  CHECK(c.OfAll("api:a")->taken == 25 + 14);
  c.Kill();
  set_quota(18);
  CHECK(c.Standing("api:a").used == 18 + 14);
  CHECK(c.Standing("api:b").used == 18);
  set_quota(40);
  CHECK(c.Standing("api:a").used == 22 + 14);
  CHECK(c.Serves("api:a", 30) == 4);
}

TEST_CASE("quota: a flood of tags makes no heavy one forget, and what peers say no tag of this host") {
  Counter c(kRules, 1024);
  CHECK(c.Serves("api:heavy", 10) == 10);
  for (int i = 0; i < 5000; ++i) c.Serves("api:" + std::to_string(i), 1);
  CHECK(c.Serves("api:heavy", 1) == 0);
  CHECK(CountsOf(*c.host.limiter).quotas.forgotten > 4000);
  for (std::uint64_t i = 0; i < 5000; ++i) c.Hear("api:lie" + std::to_string(i), {i, DayOf(c), 10, 0});
  CHECK(c.Serves("api:heavy", 1) == 0);
  CHECK(CountsOf(*c.host.limiter).quotas.crowded > 1000);
}

// 1,024 slots are 64 sets of 7 tags.
TEST_CASE("quota: a peer that names ever more tags leaves this host and others room for theirs, also after it has gone") {
  Counter c(kRules, 1024);
  const auto lie = [&](const std::string& tag, int tags) {
    for (int i = 0; i < tags; ++i) c.Hear(tag + std::to_string(i), {kHostCounters + 7, DayOf(c), 1000, 0}, 0);
  };
  lie("api:lie", 5000);
  if (GENERATE(false, true)) c.Kill();
  for (int i = 0; i < 5000; ++i) c.Hear("api:lie" + std::to_string(i), {kHostCounters + 7, DayOf(c), 10, {}}, 1);    // passed on
  for (int i = 0; i < 50; ++i) c.Hear("api:theirs" + std::to_string(i), {kHostCounters + 8, DayOf(c), 6, 0}, 1);
  std::map<std::string, int> served;
  for (int round = 0; round < 13; ++round) {
    for (int i = 0; i < 100; ++i) {
      const std::string tag = "api:mine" + std::to_string(i);
      served[tag] += c.Serves(tag, 1);
    }
    lie("api:more" + std::to_string(round), 500);
  }
  int exact = 0, theirs = 0;
  for (const auto& [tag, times] : served) exact += times == 10;
  for (int i = 0; i < 50; ++i) theirs += c.Standing("api:theirs" + std::to_string(i)).used >= 6;
  CHECK(exact >= 90);
  CHECK(theirs >= 35);
}

TEST_CASE("quota: several peers that name ever more tags leave this host room for its own") {
  Counter c(kRules, 1024);
  const auto lie = [&](int round) {
    for (int i = 0; i < 4000; ++i) {
      const auto peer = static_cast<std::uint32_t>(i % 4);
      c.Hear("api:lie" + std::to_string(4000 * round + i), {kHostCounters + peer, DayOf(c), 1000, 0}, peer);
    }
  };
  std::map<std::string, int> served;
  for (int round = 0; round < 13; ++round) {
    lie(round);
    for (int i = 0; i < 100; ++i) {
      const std::string tag = "api:mine" + std::to_string(i);
      served[tag] += c.Serves(tag, 1);
    }
  }
  const auto exact = std::ranges::count_if(served, [](const auto& its) { return its.second == 10; });
  CHECK(exact >= 90);
}

TEST_CASE("quota: a peer that counts under ever more numbers leaves room for the tags of this host") {
  Counter c(kRules, 1024);
  for (std::uint64_t i = 0; i < 24'000; ++i) c.Hear(i % 2 == 0 ? "api:a" : "api:b", {kHostCounters + i, DayOf(c), 1, 0});
  CHECK(CountsOf(*c.host.limiter).quotas.crowded > 1000);
  for (int i = 0; i < 100; ++i) CHECK(c.Serves("api:" + std::to_string(i), 11) == 10);
}

struct Peer : Counter {
  explicit Peer(std::uint64_t number, const char* rules = kRules)
      : Counter(rules, 1024, number), sharing(host.limiter->ways(), out, in, 1, 5s, host.prng, kStart) {
    host.limiter->ways().WatchTags(64, [this] { ++woken; });
  }
  std::vector<ToPeers> Says() {
    while (sharing.Work(now)) continue;
    std::vector<ToPeers> said;
    for (ToPeers item; out.TryPop(item);) {
      if (item.kind == ToPeers::Kind::kUrgent || item.kind == ToPeers::Kind::kHits) said.push_back(std::move(item));
    }
    return said;
  }
  void Hears(const std::vector<ToPeers>& items) {
    for (const ToPeers& item : items) {
      REQUIRE(in.TryPush({FromPeers::Kind::kDebits, item.from, item.to, 0, item.entries, 0}));
    }
    while (sharing.Work(now)) continue;
  }

  ToPeersRing out{64};
  FromPeersRing in{64};
  Sharing sharing;
  int woken = 0;
};

TEST_CASE("quota: a host tells of a tag at once when it has served much of what is left, and else once a period") {
  Peer a(1, "[[rule]]\nname=\"api\"\nburst=1000\nrate=1000\nquota=80\n"), b(100, "[[rule]]\nname=\"api\"\nburst=1000\nrate=1000\nquota=80\n");
  CHECK(a.Serves("x", 8) == 8);
  CHECK(a.woken == 0);
  CHECK(a.Serves("x", 1) == 1);    // 9 of 71 that are left: 4 x 2 hosts
  CHECK(a.woken == 1);
  b.Hears(a.Says());
  CHECK(b.Standing("x").used == 9);
  CHECK(a.Serves("x", 1) == 1);
  for (; b.Standing("x").used < 10; a.At(a.now + 100ms), b.now = a.now) {
    REQUIRE(a.now < kStart + 6s);
    b.Hears(a.Says());
  }
  CHECK(b.Serves("x", 100) == 70);
}

TEST_CASE("quota: a limit of each host alone is told to nobody") {
  Peer a(1, "[[rule]]\nname=\"api\"\nburst=1000\nrate=1000\nquota=10\nshare=\"local\"\n");
  CHECK(a.Serves("x", 20) == 10);
  CHECK(a.Says().empty());
}

// ---- Owners ----

// The first host owns the tags: it hears the others, and they hear only it.
TEST_CASE("quota: hosts that hear the owner's sum, late, twice and in any order, never count a token twice, and each once") {
  constexpr int kHosts = 5;
  constexpr const char* kMillion = "[[rule]]\nname=\"api\"\nburst=1000000\nrate=1000000\nquota=1000000\n";
  Prng prng(23);
  std::vector<std::unique_ptr<Counter>> hosts;
  for (std::uint64_t i = 0; i < kHosts; ++i) hosts.push_back(std::make_unique<Counter>(kMillion, 1024, 1 + 100 * i));
  Counter& owner = *hosts[0];
  std::uint64_t served = 0, back = 0;
  std::vector<std::pair<std::uint32_t, QuotaWord>> up;
  std::vector<QuotaWord> down;
  for (int step = 0; step < 4000; ++step) {
    const auto who = static_cast<std::uint32_t>(prng.Below(kHosts));
    Counter& host = *hosts[who];
    if (prng.Below(2) == 0) served += static_cast<std::uint64_t>(host.Serves("t", 1 + static_cast<int>(prng.Below(5))));
    if (prng.Below(10) == 0 && host.Serves("t", 1) == 1) {
      ++served, ++back;
      host.host.limiter->Settle({{{"t", false}, 1}, host.now}, 0, host.now);
    }
    if (prng.Below(10) == 0) {
      for (const auto& [tag, word] : host.Told()) up.emplace_back(who, word);
    }
    if (!up.empty() && prng.Below(2) == 0) {
      const auto& [from, word] = up[prng.Below(up.size())];
      owner.Hear("t", word, from);
    }
    if (const auto word = owner.OfAll("t"); word && prng.Below(3) == 0) down.push_back(*word);
    if (who != 0 && !down.empty() && prng.Below(2) == 0) host.HearOwner("t", down[prng.Below(down.size())]);
    CHECK(host.Standing("t").used <= served);
    if (prng.Below(200) == 0) host.Kill(std::byte{static_cast<unsigned char>(1 + prng.Below(3))});
  }
  REQUIRE(back > 100);
  for (std::uint32_t i = 1; i < kHosts; ++i) {
    for (const auto& [tag, word] : hosts[i]->Told()) owner.Hear(tag, word, i);
  }
  CHECK(owner.Standing("t").used == served - back);
  for (std::uint32_t i = 1; i < kHosts; ++i) {
    REQUIRE(hosts[i]->HearOwner("t", *owner.OfAll("t")));
    CHECK(hosts[i]->Standing("t").used == served - back);
  }
}

TEST_CASE("quota: a host that comes to own a tag knows at least what its owner said, and counts that once") {
  Counter c;
  CHECK(c.Serves("api:a", 2) == 2);
  c.HearOwner("api:a", {kAllHosts, DayOf(c), 7, 0});
  CHECK(c.Standing("api:a").used == 7);
  c.Hear("api:a", {77, DayOf(c), 3, 0}, 0);
  CHECK(c.Standing("api:a").used == 7);
  CHECK(c.OfAll("api:a")->taken == 5);    // what it can show
  c.Hear("api:a", {78, DayOf(c), 3, 0}, 1);
  CHECK(c.Standing("api:a").used == 8);
  c.Kill();
  CHECK(c.Standing("api:a").used == 8);
  CHECK(c.OfAll("api:a")->taken == 8);
  for (const auto& [tag, word] : c.Told()) CHECK(word.counter != kAllHosts);
}

TEST_CASE("quota: nobody but the owner of a tag speaks of all hosts, and the owner of nothing else") {
  Counter c;
  CHECK_FALSE(c.Hear("api:a", {kAllHosts, DayOf(c), 9, 0}, 0));
  CHECK_FALSE(c.HearOwner("api:a", {77, DayOf(c), 9, 0}));
  CHECK(c.Serves("api:a", 30) == 10);
  CHECK(CountsOf(*c.host.limiter).quotas.disbelieved == 2);
  CHECK_FALSE(c.HearOwner("api:b", {kAllHosts, DayOf(c) + 86400, 9, 0}));
  c.HearOwner("api:b", {kAllHosts, DayOf(c), 1u << 30, 0});
  CHECK(c.Standing("api:b").used == 10);
}

TEST_CASE("quota: everybody hears that half is used, and of each quarter of what was left") {
  Counter c("[[rule]]\nname=\"api\"\nburst=1000\nrate=1000\nquota=100\n");
  std::vector<std::uint64_t> left;
  for (int i = 0; i < 100; ++i) {
    CHECK(c.Serves("x", 1) == 1);
    if (c.IsNews("x")) left.push_back(c.Standing("x").left());
  }
  CHECK(left == std::vector<std::uint64_t>{50, 37, 27, 20, 14, 10, 7, 5, 3, 2, 1, 0});
  c.At(kMidnight);
  CHECK_FALSE(c.IsNews("x"));
  CHECK_FALSE(c.OfAll("x"));
}

TEST_CASE("quota: everybody hears that much came back of what was used, once when more than half is left again") {
  Counter c("[[rule]]\nname=\"api\"\nburst=1000\nrate=1000\nquota=100\n");
  CHECK(c.Serves("x", 80) == 80);
  CHECK(c.IsNews("x"));
  std::vector<std::uint64_t> left;
  for (int i = 0; i < 80; ++i) {
    c.host.limiter->GiveBack({{"x", false}, 1}, 0, c.now);
    if (c.IsNews("x")) left.push_back(c.Standing("x").left());
  }
  CHECK(left == std::vector<std::uint64_t>{26, 33, 42, 53});
  CHECK(c.Serves("x", 49) == 49);
  CHECK_FALSE(c.IsNews("x"));
  CHECK(c.Serves("x", 51) == 51);
  CHECK(c.IsNews("x"));
  c.host.limiter->GiveBack({{"x", false}, 1}, 0, c.now);
  CHECK(c.IsNews("x"));
}

// ---- Settings ----

TEST_CASE("quota: settings are checked, and a file that is none or is lost at a boot is warned of") {
  const auto problems = [](const std::string& text) {
    std::string all;
    for (const Problem& p : ParseSettings(text, "f").problems) all += Format(p) + "\n";
    return all;
  };
  const std::string rule = "[[rule]]\nname=\"r\"\nburst=5\nrate=1\nshare=\"local\"\n";
  CHECK(problems(rule + "quota = 10\n[quota]\nfile=\"/var/lib/dthrottle/quotas\"\n").empty());
  CHECK(problems(rule + "quota = 10\n").find("lost at a kill or a reboot") != std::string::npos);
  CHECK(problems(rule + "quota = 10\n[quota]\nfile=\"/run/q\"\n").find("lost at a reboot") != std::string::npos);
  CHECK(problems(rule + "quota = 4\n").find("quota = 4 is less than burst = 5") != std::string::npos);
  CHECK(problems(rule + "quota = -1\n").find("must be a whole number from 0 to 1000000000000") != std::string::npos);
  CHECK(problems(rule + "per = \"year\"\n").find("one of \"hour\", \"day\", \"week\", \"month\"") != std::string::npos);
  CHECK(problems(rule + "time_zone = \"Mars\"\n").find("a time zone that the system knows") != std::string::npos);

  const std::string some = "[[rule]]\nmatch=\"u:*\"\nburst=5\nrate=1\nshare=\"local\"\n";
  const auto vip = [](const std::string& tag, const std::string& more) {
    return "[[override]]\ntag=\"" + tag + "\"\nburst=5\nrate=1\n" + more;
  };
  CHECK(problems(some + vip("vip", "quota=9\n")).find(
            "f:6:1: error: override.tag = \"vip\": quota = 9 needs a rule that fits the tag, which says per and time_zone") !=
        std::string::npos);
  CHECK(problems(some + vip("vip", "quota=0\n") + vip("u:a", "")).empty());
  CHECK(problems(some + vip("u:a", "quota=9\nmode=\"off\"\n")).empty());
  CHECK(problems(some + vip("u:a", "quota=9\n")).find("lost at a kill or a reboot") != std::string::npos);
  CHECK(problems(rule + vip("vip", "quota=9\n")).find("lost at a kill or a reboot") != std::string::npos);
}

}    // namespace
}    // namespace dthrottle
