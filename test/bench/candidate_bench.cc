// What it costs a decision that the rules of a candidate are tried beside those in force, as a ratio: the same queries
// with and without a comparison, by turns, with a tenth of all tags compared.
//
//   candidate_bench [TAGS]     default a million tags
#include <sys/mman.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "feature/candidate/comparison.h"
#include "io/clock.h"
#include "rule/rulebook.h"
#include "test/bench/measure.h"

using namespace dthrottle;

namespace {

constexpr double kShare = 0.1;
constexpr std::size_t kQueries = 2'000'000;
constexpr int kTurns = 9;

std::shared_ptr<const Rulebook> OneRule(double burst, double rate) {
  std::vector<Rule> rules(1);
  rules[0].name = "default";
  rules[0].burst = burst, rules[0].rate = rate;
  return std::make_shared<Rulebook>(std::move(rules), std::vector<Override>());
}

struct Workload {
  const char* name;
  double burst, rate;    // of the candidate; in force are 10 and 1
  double skew;           // tags are uniform ^ skew
};

void Measure(const Workload& workload, std::size_t tags, std::size_t batch) {
  const std::size_t bytes = std::max(tags * 64, Table::kRegionBytesMin);
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  DT_CHECK(at != MAP_FAILED);
  Limiter limiter({static_cast<std::byte*>(at), bytes}, {}, {{1, 2}, {}}, OneRule(10, 1), 1, Instant());
  std::vector<std::string> names;
  for (std::size_t i = 0; i < tags; ++i) names.push_back("tag-" + std::to_string(10'000'000'000 + i));
  Prng prng(1);
  std::vector<Query> queries(kQueries);
  for (Query& query : queries) {
    const double u = static_cast<double>(prng.Below(1u << 30)) / (1u << 30);
    query.tag = {names[static_cast<std::size_t>(std::pow(u, workload.skew) * static_cast<double>(tags))]};
  }
  Instant now = Instant(std::chrono::hours(1));
  const auto run = [&] {
    std::vector<Verdict> verdicts(batch);
    const double begun = CpuSeconds();
    for (std::size_t i = 0; i + batch <= queries.size(); i += batch) {
      now += std::chrono::microseconds(batch);
      limiter.Answer(std::span(queries).subspan(i, batch), verdicts, 0, prng, now);
    }
    return (CpuSeconds() - begun) * 1e9 / kQueries;
  };
  run();
  auto memory = MappedRegion::Open("", Comparison::BytesFor(bytes, kShare), Table::IsTable);
  DT_CHECK(memory);
  const auto comparison = std::make_shared<Comparison>(std::move(*memory), limiter,
                                                       OneRule(workload.burst, workload.rate), kShare, Now, now);
  while (comparison->CopySome(now)) {}
  std::vector<double> without, with, ratios;
  for (int turn = 0; turn < kTurns; ++turn) {
    limiter.Observe(nullptr, {});
    without.push_back(run());
    limiter.Observe(comparison, comparison->sample());
    with.push_back(run());
    ratios.push_back(with.back() / without.back());
  }
  Differences all;
  for (const Differences& its : comparison->ByRule()) all += its;
  std::printf("%-34s batches of %2zu  %6.1f ns a decision, %6.1f with a candidate, ratio %.3f (medians of %d); "
              "%.0f %% of what is compared differs, %.0f ns each\n",
              workload.name, batch, Median(without), Median(with), Median(ratios), kTurns,
              100.0 * static_cast<double>(all.newly_refused + all.newly_served) / static_cast<double>(all.queries),
              comparison->NanosecondsEach());
  limiter.Observe(nullptr, {});
  munmap(at, bytes);
}

}    // namespace

int main(int argc, char** argv) {
  const std::size_t tags = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1'000'000;
  for (const std::size_t batch : {1, 64}) {
    for (const Workload& workload : {Workload{"the same rules", 10, 1, 1}, Workload{"stricter, uniform tags", 2, 0.1, 1},
                                     Workload{"stricter, few tags take most", 2, 0.1, 8}}) {
      Measure(workload, tags, batch);
    }
  }
}
