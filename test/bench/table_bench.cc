// What a decision costs in process, without sockets: hash, look-up, bucket; how many bytes a tag takes; and what a
// fresh tag costs while the table is full of tags in debt.
//
//   table_bench [TAGS]     default 10 million tags of 15 bytes
//
// The reference, timed in the same run, is a std::unordered_map from tag to bucket: the table anybody would write.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>
#include <vector>

#include "base/prng.h"
#include "limiter/limiter.h"
#include "rule/rulebook.h"
#include "share/ways.h"
#include "test/bench/measure.h"

using namespace dthrottle;

namespace {

constexpr std::size_t kTagBytes = 15;
constexpr std::size_t kBatch = 64;

std::span<std::byte> Map(std::size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  DT_CHECK(p != MAP_FAILED);
  return {static_cast<std::byte*>(p), bytes};
}

// Distinct tags, one behind the other as they lie in a read buffer. Where their buckets lie is up to the hash.
class Tags {
 public:
  explicit Tags(std::size_t n) : text_(n * kTagBytes, '\0') {
    for (std::size_t i = 0; i < n; ++i) {
      std::uint64_t x = i;
      for (std::size_t k = 0; k < kTagBytes; ++k) {
        text_[i * kTagBytes + k] = static_cast<char>('a' + x % 26);
        x = k < 6 ? x / 26 : x * 0x9e3779b97f4a7c15 + i;
      }
    }
  }
  std::string_view operator[](std::size_t i) const { return {text_.data() + i * kTagBytes, kTagBytes}; }

 private:
  std::string text_;
};

std::shared_ptr<const Rulebook> OneRule() {
  std::vector<Rule> rules(1);
  rules[0].name = "default";
  return std::make_shared<Rulebook>(std::move(rules), std::vector<Override>());
}

// The load at which the first bucket that is not full has to go.
void ReportBytesPerTag() {
  constexpr std::size_t kBytes = 64 << 20;
  const auto region = Map(kBytes);
  Prng prng(1);
  Limiter limiter(region, {}, {{1, 2}, {}}, OneRule(), 1, Instant());
  std::size_t n = 0;
  std::string tag(kTagBytes, 'x');
  Verdict verdict;
  while (limiter.table().counts().evicted == 0) {
    for (std::size_t k = 0; k < 100; ++k, ++n) {
      std::snprintf(tag.data(), tag.size() + 1, "tag-%011zu", n);
      const Query query{{tag}};
      limiter.Answer({&query, 1}, {&verdict, 1}, 0, prng, Instant());
    }
  }
  std::printf("bytes per 15-byte tag where eviction begins  %.1f (goal: at most 64), %zu tags in %zu MiB\n",
              static_cast<double>(kBytes) / static_cast<double>(n), n, kBytes >> 20);
  munmap(region.data(), region.size());
}

// A flood under a slow rule, on this host and a peer at once, fills the table with tags at -1; then fresh tags come.
void ReportInsertWhenFullOfDebt() {
  constexpr std::size_t kBytes = 64 << 20, kRounds = 5;
  const auto region = Map(kBytes);
  Prng prng(1);
  std::vector<Rule> rules(1);
  rules[0].name = "slow";
  rules[0].burst = 1;
  rules[0].rate = 1.0 / 3600;
  Limiter limiter(region, {}, {{1, 2}, {}}, std::make_shared<Rulebook>(std::move(rules), std::vector<Override>()), 1,
                  Instant());
  limiter.ways().Get<Debits>().ShareWith(1, std::chrono::seconds(1));
  const std::size_t cells = limiter.table().cells();
  const Tags tags(cells * (2 + kRounds));
  std::vector<Query> queries(kBatch);
  std::vector<Verdict> verdicts(kBatch);
  const Instant now = FromNanoseconds(2'000'000'000);
  std::size_t next = 0;
  const auto ask = [&](std::size_t n) {
    for (const std::size_t end = next + n; next + kBatch <= end; next += kBatch) {
      for (std::size_t k = 0; k < kBatch; ++k) queries[k].tag = {tags[next + k]};
      limiter.Answer(queries, verdicts, 0, prng, now);
    }
  };
  ask(2 * cells);
  Entries debits;
  for (std::size_t i = 0; i < next; ++i) {
    if (debits.Add({tags[i], false}, 1, 0)) continue;
    limiter.ways().Get<Debits>().Debit(debits, 0, debits.size(), now - std::chrono::seconds(1), now, now);
    debits.Clear();
  }
  std::vector<double> us;
  for (std::size_t round = 0; round < kRounds; ++round) {
    const std::uint64_t before = limiter.table().counts().evicted;
    const double start = CpuSeconds();
    ask(cells / 2);
    us.push_back((CpuSeconds() - start) * 1e6 / static_cast<double>(limiter.table().counts().evicted - before));
  }
  std::sort(us.begin(), us.end());
  std::printf("fresh tag while the table is full of debt  %.2f us, at most %.2f (goal: at most 3), medians of %zu\n",
              us[kRounds / 2], us.back(), kRounds);
  munmap(region.data(), region.size());
}

}    // namespace

int main(int argc, char** argv) {
  const std::size_t n = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 10'000'000;
  const Tags tags(n);
  Prng prng(1);
  ReportBytesPerTag();
  ReportInsertWhenFullOfDebt();

  // The daemon puts its region into huge pages where the kernel can (MappedRegion::UseHugePages); here both are shown.
  for (const bool huge : {false, true}) {
    const auto region = Map(n * 64);
    madvise(region.data(), region.size(), huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    Limiter limiter(region, {}, {{1, 2}, {}}, OneRule(), 1, Instant());
    while (limiter.Tick(Instant())) {}    // what a daemon does in its idle time
    std::vector<Query> queries(kBatch);
    std::vector<Verdict> verdicts(kBatch);
    for (int round = 0; round < 4; ++round) {
      const double start = CpuSeconds();
      std::size_t served = 0;
      for (std::size_t i = 0; i + kBatch <= n; i += kBatch) {
        for (std::size_t k = 0; k < kBatch; ++k) queries[k].tag = {tags[i + k]};
        limiter.Answer(queries, verdicts, 0, prng, FromNanoseconds(1 + static_cast<std::int64_t>(i)));
        for (const Verdict v : verdicts) served += v == Verdict::kServe;
      }
      const double ns = (CpuSeconds() - start) * 1e9 / static_cast<double>(n);
      std::printf("table, %zu tags, random, batches of %zu, %s pages, round %d%s  %.1f ns a decision (%zu served)\n", n,
                  kBatch, huge ? "huge" : "4 KiB", round, round == 0 ? " (new tags)" : "", ns, served);
    }
    munmap(region.data(), region.size());
  }

  std::unordered_map<std::string, Bucket> map;
  const Shape shape = Shape::From(10, 1);
  for (int round = 0; round < 2; ++round) {
    const double start = CpuSeconds();
    std::size_t served = 0;
    for (std::size_t i = 0; i < n; ++i) {
      served += map[std::string(tags[i])].Take(shape, 1, FromNanoseconds(1 + static_cast<std::int64_t>(i)));
    }
    const double ns = (CpuSeconds() - start) * 1e9 / static_cast<double>(n);
    std::printf("std::unordered_map, the same, one by one, round %d%s  %.1f ns a decision (%zu served)\n", round,
                round == 0 ? " (new tags)" : "", ns, served);
  }
}
