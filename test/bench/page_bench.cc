// What a refusal by a page costs (protocol/page.md), and how many refusals a page decides.
//
// Prints the best of a few rounds, since other work on the machine only adds to it; client_bench says what asking costs,
// with a page and without one. Then eight workers ask for a million tags of one limit, Zipf 1.1, in virtual time.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "frontend/page/memory.h"
#include "frontend/page/refusals.h"
#include "limiter/limiter.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

constexpr int kRounds = 9;

std::int64_t NowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

template <class Body>
void Measure(const char* what, int times, Body body) {
  double best = 1e18;
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t begin = NowNs();
    for (int i = 0; i < times; ++i) body(i);
    best = std::min(best, static_cast<double>(NowNs() - begin) / times);
  }
  std::printf("%-44s %8.1f ns\n", what, best);
}

class Promise final : public Refuser {
 public:
  explicit Promise(Limiter* limiter = nullptr) : limiter_(limiter) {}
  Instant RefusedUntil(std::string_view tag, Instant now) override {
    return limiter_ != nullptr ? limiter_->RefusedUntil({{tag, false}}, now) : now + std::chrono::hours(1);
  }
  void CountRefused(std::string_view tag, std::uint32_t times, Instant now) override {
    if (limiter_ != nullptr) limiter_->CountRefused({{tag, false}}, times, {0, "page"}, now);
  }

 private:
  Limiter* limiter_;
};

// A worker of the daemon, as libdthrottle looks into its page.
struct Worker {
  static constexpr std::uint32_t kEntries = 2048;

  explicit Worker(Refuser& refuser)
      : memory(*PageMemory::Make(kEntries, {1, 2})), counts(kEntries),
        refusals(memory.page(), counts.data(), kEntries, refuser) {}

  bool Refuses(std::string_view tag, std::int64_t now_ns) {
    std::uint32_t entry = 0;
    const auto name = dthrottle_page_name(memory.page().head.key, tag.data(), tag.size());
    const auto until_ns = dthrottle_page_refused_until(&memory.page(), kEntries, name, &entry);
    if (until_ns == 0 || !dthrottle_page_refuses(until_ns, now_ns)) return false;
    __atomic_fetch_add(&counts[entry], 1, __ATOMIC_RELAXED);
    return true;
  }

  PageMemory memory;
  std::vector<std::uint32_t> counts;
  WorkerRefusals refusals;
};

void MeasureLooking() {
  Promise promise;
  Worker worker(promise);
  std::vector<std::string> tags(4096);
  for (std::size_t i = 0; i < tags.size(); ++i) tags[i] = "203.0.113." + std::to_string(10'000 + i);
  for (std::size_t i = 0; i < 1024; ++i) {
    worker.refusals.Note(tags[i], FromNanoseconds(NowNs()) + std::chrono::hours(1));    // for as long as this measures
  }
  std::size_t refused = 0;
  Measure("refused by the page, CLOCK_MONOTONIC", 500'000,
          [&](int i) { refused += worker.Refuses(tags[i * 37 % 1024], NowNs()); });
  const std::int64_t now = NowNs();
  Measure("refused by the page, the time given", 500'000,
          [&](int i) { refused += worker.Refuses(tags[i * 37 % 1024], now); });
  Measure("not in the page", 500'000, [&](int i) { refused += worker.Refuses(tags[2048 + i * 37 % 2048], now); });
  if (refused < kRounds * 900'000) std::printf("only %zu were refused\n", refused);
}

// The rate of each tag with which all together are offered `load` times what is admitted.
double RateFor(const std::vector<double>& offered, double load) {
  double low = 0, high = offered[0], sum = 0;
  for (const double rate : offered) sum += rate;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    double admitted = 0;
    for (const double rate : offered) admitted += std::min(rate, middle);
    (admitted * load > sum ? high : low) = middle;
  }
  return high;
}

void MeasureShare(double load) {
  constexpr std::size_t kTags = 1'000'000, kWorkers = 8;
  constexpr double kDecisions = 100'000;    // a second
  const Duration warm = std::chrono::seconds(10), end = std::chrono::seconds(20);
  std::vector<double> offered(kTags), sums(kTags);
  double sum = 0;
  for (std::size_t i = 0; i < kTags; ++i) sum += std::pow(static_cast<double>(i + 1), -1.1), sums[i] = sum;
  for (std::size_t i = 0; i < kTags; ++i) offered[i] = kDecisions * std::pow(static_cast<double>(i + 1), -1.1) / sum;
  testing::Host host("[[rule]]\nburst=10\nrate=" + std::to_string(RateFor(offered, load)), 1, std::size_t{64} << 20);
  Promise promise(host.limiter.get());
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::size_t i = 0; i < kWorkers; ++i) workers.push_back(std::make_unique<Worker>(promise));
  std::vector<Instant> refused_at(kTags * kWorkers, Instant::min());
  Prng prng(9);
  std::uint64_t all = 0, local = 0, refused = 0, again = 0, again_local = 0, notes = 0;
  Duration look{};
  for (Duration t{}; t < end; t += Duration(10'000)) {
    const Instant now = FromNanoseconds(0) + t;
    if (t >= look) {
      for (auto& worker : workers) worker->refusals.Look(now);
      look += std::chrono::milliseconds(100);
    }
    const double chance = static_cast<double>(prng.Next() >> 11) * 0x1p-53 * sum;
    const auto tag = static_cast<std::size_t>(std::lower_bound(sums.begin(), sums.end(), chance) - sums.begin());
    const std::size_t w = prng.Below(kWorkers);
    Worker& worker = *workers[w];
    const std::string name = "203.0.113." + std::to_string(tag);
    const bool by_page = worker.Refuses(name, now.time_since_epoch().count());
    const bool no = by_page || !host.Serves(name, now);
    if (no && !by_page && prng.Below(std::max(worker.memory.page().head.note_one_in, 1u)) == 0) {
      worker.refusals.Note(name, now), notes += t >= warm;
    }
    Instant& last = refused_at[tag * kWorkers + w];
    const bool repeated = no && last != Instant::min() && now - last < std::chrono::seconds(1);
    if (no) last = now;
    if (t < warm) continue;
    all += 1, local += by_page, refused += no, again += repeated, again_local += repeated && by_page;
  }
  const auto percent = [](std::uint64_t part, std::uint64_t whole) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  };
  std::printf(
      "offered %gx: by the page %.1f %% of all, %.1f %% of refusals, %.1f %% of those repeated within 1 s; notes %.1f %%\n",
      load, percent(local, all), percent(local, refused), percent(again_local, again), percent(notes, all));
}

}    // namespace
}    // namespace dthrottle

int main() {
  dthrottle::MeasureLooking();
  for (const double load : {2.0, 5.0}) dthrottle::MeasureShare(load);
}
