// Floods at full size, through a table of 64 MiB: ten million distinct tags while a hundred are in debt and were
// refused; and floods of a rule at the speed of an attack, in virtual time, with a kill in their midst.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "bucket/table_lookup.h"
#include "limiter/retention.h"
#include "rule/rulebook.h"
#include "tally/tally.h"
#include "test/support/debit.h"
#include "test/support/host.h"
#include "test/support/resident.h"
#include "test/support/sanitized.h"

namespace dthrottle {
namespace {

using testing::kSanitized;
using testing::ResidentBytes;

constexpr std::size_t kFlood = kSanitized ? 2'000'000 : 10'000'000;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kDebtors = 100;
constexpr Instant kNow = FromNanoseconds(1'000'000'000);

TEST_CASE("ten million fresh tags forgive no tag that was refused, and take no memory") {
  testing::Host host("[[rule]]\nname=\"default\"\nburst=10\nrate=1\n", 1, 64 * kMiB);
  Limiter& limiter = *host.limiter;
  const Shape& shape = limiter.rules().limit(0).shape;
  const auto debtor = [](std::size_t i) { return fmt::format("debtor-{}", i); };
  for (std::size_t i = 0; i < kDebtors; ++i) {
    const std::string name = debtor(i);
    const Tag tag{name, false};
    REQUIRE(host.Serves(name, kNow));
    Table::Shard shard(limiter.table(), limiter.table().Hash(tag));
    testing::Debit(shard.Find(tag, kNow)->bucket, shape, 14, kNow, 1000, kNow);
    shard.Refused(shard.Find(tag, kNow));
  }

  constexpr std::size_t kBatch = 64, kTagBytes = 15;
  std::string text(kBatch * kTagBytes, ' ');
  std::vector<Query> queries(kBatch);
  std::vector<Verdict> verdicts(kBatch);
  std::size_t served = 0, resident = 0;
  for (std::size_t done = 0; done < kFlood; done += kBatch) {
    for (std::size_t k = 0; k < kBatch; ++k) {
      char* const at = text.data() + k * kTagBytes;
      fmt::format_to_n(at, kTagBytes, "flood-{:09}", done + k);
      queries[k].tag = {{at, kTagBytes}, false};
    }
    limiter.Answer(queries, verdicts, 0, host.prng, kNow);
    for (const Verdict v : verdicts) served += v == Verdict::kServe;
    if (done == kFlood / 10 / kBatch * kBatch) resident = ResidentBytes();
  }
  CHECK(served == kFlood);
  if (!kSanitized) CHECK(ResidentBytes() <= resident + kMiB);
  const TableCounts counts = limiter.table().counts();
  CHECK(counts.evicted > kFlood / 50);
  CHECK(counts.evicted_refusing == 0);
  for (std::size_t i = 0; i < kDebtors; ++i) {
    CAPTURE(i);
    CHECK(host.Level(debtor(i), kNow) == -5);
  }
}

// A full table of one host, under a rule that is flooded by tags that ask once, and two others.
class FloodedHost {
 public:
  explicit FloodedHost(std::size_t bytes) : rules_(testing::Rules(kRules)), host_(std::string(kRules), 1, bytes) {}

  bool Serves(std::string_view tag, double at) { return host_.Serves(tag, At(at)); }
  void Flood(std::size_t tags, double at) {
    for (; tags > 0; --tags, ++said_) {
      if (batch_ == kBatch) Answer(at);
      char* const tag = text_.data() + batch_ * kTagBytes;
      fmt::format_to_n(tag, kTagBytes, "slow:{:010}", said_);
      queries_[batch_++].tag = {{tag, kTagBytes}, false};
    }
    Answer(at);
  }
  // By kill -9 and another process.
  void Restart(double at) { host_.Start(rules_, At(at)); }

  std::size_t cells() const { return host_.limiter->table().cells(); }
  Limiter& limiter() { return *host_.limiter; }

 private:
  static constexpr std::string_view kRules =
      "[[rule]]\nname=\"slow\"\nmatch=\"slow:*\"\nburst=1\nrate=\"1/h\"\n"
      "[[rule]]\nname=\"medium\"\nmatch=\"medium:*\"\nburst=20\nrate=\"10/m\"\n"
      "[[rule]]\nname=\"fast\"\nmatch=\"fast:*\"\nburst=100\nrate=100\n";
  static constexpr std::size_t kBatch = 64, kTagBytes = 15;

  static Instant At(double seconds) { return FromNanoseconds(static_cast<Duration::rep>(seconds * 1e9)); }
  void Answer(double at) {
    host_.limiter->Answer({queries_.data(), batch_}, {verdicts_.data(), batch_}, 0, host_.prng, At(at));
    batch_ = 0;
  }

  std::shared_ptr<const Rulebook> rules_;
  testing::Host host_;
  std::size_t said_ = 0, batch_ = 0;
  std::string text_ = std::string(kBatch * kTagBytes, ' ');
  std::vector<Query> queries_ = std::vector<Query>(kBatch);
  std::vector<Verdict> verdicts_ = std::vector<Verdict>(kBatch);
};

TEST_CASE(
    "a flood of a rule at any speed gives no tag of it a second burst and other rules their limit, also over a kill") {
  constexpr std::size_t kSmaller = kSanitized ? 16 : 1;    // table and floods
  FloodedHost host(64 * kMiB / kSmaller);
  host.Flood(host.cells() * 5 / 4, 0);    // now every newcomer costs somebody a place
  constexpr std::size_t kTags = 100;
  const auto tag = [](std::string_view name, std::size_t i) { return fmt::format("{}-{}", name, i); };
  for (std::size_t i = 0; i < kTags; ++i) {
    for (int k = 0; k < 21; ++k) REQUIRE(host.Serves(tag("slow:rests", i), 1) == (k == 0));
    for (int k = 0; k < 6; ++k) REQUIRE(host.Serves(tag("slow:asks", i), 1) == (k == 0));
    for (int k = 0; k < 20; ++k) REQUIRE(host.Serves(tag("medium:drained", i), 1));
  }

  struct Attack {
    std::size_t tags_per_s;
    int seconds;
  };
  std::size_t second_bursts = 0, newcomers = 0, medium = 0, fast = 0;
  int second = 0;
  for (const Attack& attack : {Attack{650, 20}, {10'000, 20}, {500'000, 12}, {0, 20}}) {
    for (const int end = second + attack.seconds; second < end; ++second) {
      constexpr std::size_t kTicks = 100;
      for (std::size_t tick = 0; tick < kTicks; ++tick) {
        const double at = 2 + second + static_cast<double>(tick) / kTicks;
        host.Flood((attack.tags_per_s * (tick + 1) / kTicks - attack.tags_per_s * tick / kTicks) / kSmaller, at);
        second_bursts += host.Serves(tag("slow:asks", tick), at);    // each of them once a second
        if (tick == 9) newcomers += host.Serves(tag("slow:new", static_cast<std::size_t>(second)), at);
        if (tick % 20 == 11) medium += host.Serves("medium:fresh", at);
        for (int k = 0; k < 2; ++k) fast += host.Serves("fast:fresh", at);
      }
      if (second % 10 == 5) {    // counts begin anew
        const Tally& tally = host.limiter().tally();
        const Retention& retention = host.limiter().retention();
        CHECK(retention.totals(tally.counter(1)).evicted + retention.totals(tally.counter(2)).evicted == 0);
        CHECK(host.limiter().table().counts().evicted_refusing == 0);
        host.Restart(3 + second);
      }
    }
  }
  CHECK(second_bursts == 0);
  CHECK(newcomers == static_cast<std::size_t>(second));
  CHECK(static_cast<double>(medium) == Approx(20 + second / 6.0).margin(1));
  CHECK(static_cast<double>(fast) == Approx(100 + 100 * second).epsilon(0.02));
  std::size_t kept = 0;
  for (std::size_t i = 0; i < kTags; ++i) {
    kept += !host.Serves(tag("slow:rests", i), 2 + second);
    // What has flowed in since, and no more.
    std::size_t left = 0;
    while (left < 20 && host.Serves(tag("medium:drained", i), 2 + second)) ++left;
    kept += left == static_cast<std::size_t>((1 + second) / 6);
  }
  CHECK(kept == 2 * kTags);
}

}    // namespace
}    // namespace dthrottle
