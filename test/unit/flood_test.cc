// A flood at full size: fifty million distinct tags through a table of 64 MiB while a hundred are in debt and were
// refused.
#include <fmt/format.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <fstream>

#include "bucket/table_lookup.h"
#include "test/support/debit.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;    // which takes memory of its own
#else
constexpr bool kSanitized = false;
#endif

constexpr std::size_t kFlood = kSanitized ? 2'000'000 : 50'000'000;

constexpr std::size_t kDebtors = 100;
constexpr Instant kNow = FromNanoseconds(1'000'000'000);

std::size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t size, resident;
  statm >> size >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST_CASE("fifty million fresh tags forgive no tag that was refused, and take no memory") {
  testing::Host host("[[rule]]\nname=\"default\"\nburst=10\nrate=1\n", 1, std::size_t{64} << 20);
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
  if (!kSanitized) CHECK(ResidentBytes() <= resident + (std::size_t{1} << 20));
  const TableCounts counts = limiter.table().counts();
  CHECK(counts.evicted > kFlood / 50);
  CHECK(counts.evicted_refusing == 0);
  for (std::size_t i = 0; i < kDebtors; ++i) {
    CAPTURE(i);
    CHECK(host.Level(debtor(i), kNow) == -5);
  }
}

}    // namespace
}    // namespace dthrottle
