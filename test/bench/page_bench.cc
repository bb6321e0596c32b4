// What a verdict by a page costs (protocol/page.md), and how many verdicts a page gives.
//
// Prints the best of a few rounds, since other work on the machine only adds to it; client_bench says what asking costs,
// with a page and without one. Verdicts are also timed one by one beside a thread that rewrites entries. Then eight
// workers ask for tags of one limit, Zipf 1.1, in virtual time, each serve is held against a bucket that is charged when
// it happens, and what was lost against one bucket for each tag is told: over the run, and second by second. Last come
// single tags that are asked for about as often as they may be, by one worker to eight: how much the worst loses.
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "limiter/worker_entries.h"
#include "frontend/page/memory.h"
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

// A worker of the daemon, as libdthrottle looks into its page.
struct Worker {
  static constexpr std::uint32_t kEntries = 2048;

  explicit Worker(Lending lending)
      : memory(*PageMemory::Make(kEntries, {1, 2})), counts(kEntries),
        entries(memory.page(), counts.data(), kEntries, lending) {}
  ~Worker() { entries.Recall(FromNanoseconds(0) + std::chrono::hours(1)); }

  dthrottle_page_verdict Decide(std::string_view tag, std::int64_t now_ns) {
    const auto hash = dthrottle_page_hash(memory.page().head.key, tag.data(), tag.size());
    return dthrottle_page_decide(&memory.page(), counts.data(), kEntries, hash, now_ns);
  }
  // Whether the tag was asked for lately, as libdthrottle remembers it.
  bool AskedAgain(std::string_view tag) {
    const auto hash = dthrottle_page_hash(memory.page().head.key, tag.data(), tag.size());
    const auto part = static_cast<std::uint32_t>(hash >> 32) | 1;
    return std::exchange(asked[hash % asked.size()], part) == part;
  }

  PageMemory memory;
  std::vector<dthrottle_page_count> counts;
  std::array<std::uint32_t, 4096> asked{};
  WorkerEntries entries;
};

// Entries of the bench's own making, for as long as it measures.
struct HotPage {
  explicit HotPage(bool lends) : memory(*PageMemory::Make(Worker::kEntries, {1, 2})), counts(Worker::kEntries) {
    std::vector<std::uint32_t> used(Worker::kEntries / DTHROTTLE_PAGE_WAYS);
    const std::int64_t then = NowNs() + (lends ? 0 : 1'500'000'000);
    for (int i = 0; tags.size() < 1024; ++i) {
      const std::string tag = "203.0.113." + std::to_string(10'000 + i);
      const auto hash = dthrottle_page_hash(memory.page().head.key, tag.data(), tag.size());
      const std::uint32_t set = dthrottle_page_set(hash, Worker::kEntries);
      std::uint32_t& ways = used[set / DTHROTTLE_PAGE_WAYS];
      if (ways == DTHROTTLE_PAGE_WAYS) continue;
      dthrottle_page_put(dthrottle_page_at(&memory.page(), set + ways++), dthrottle_page_name(hash), lends ? 30'000 : 0,
                         dthrottle_page_times(then, then));
      tags.push_back(tag);
    }
  }
  dthrottle_page_verdict Decide(std::string_view tag, std::int64_t now_ns) {
    const auto hash = dthrottle_page_hash(memory.page().head.key, tag.data(), tag.size());
    return dthrottle_page_decide(&memory.page(), counts.data(), Worker::kEntries, hash, now_ns);
  }

  PageMemory memory;
  std::vector<dthrottle_page_count> counts;
  std::vector<std::string> tags;
};

void MeasureLooking() {
  for (const bool lends : {true, false}) {
    const auto wanted = lends ? DTHROTTLE_PAGE_SERVE : DTHROTTLE_PAGE_REFUSE;
    const std::string verdict = lends ? "served by the page, " : "refused by the page, ";
    std::size_t decided = 0;
    for (const bool given : {false, true}) {
      auto page = std::make_unique<HotPage>(lends);
      const std::int64_t now = NowNs();
      const char* const clock = given ? "the time given" : "CLOCK_MONOTONIC";
      Measure((verdict + clock).c_str(), 100'000, [&](int i) {
        decided += page->Decide(page->tags[static_cast<std::size_t>(i * 37) % 1024], given ? now : NowNs()) == wanted;
      });
    }
    if (decided < 2 * kRounds * 98'000) std::printf("only %zu were\n", decided);
  }
  HotPage page(false);
  std::vector<std::string> others(2048);
  for (std::size_t i = 0; i < others.size(); ++i) others[i] = "198.51.100." + std::to_string(10'000 + i);
  std::size_t decided = 0;
  Measure("not in the page", 500'000,
          [&](int i) { decided += page.Decide(others[static_cast<std::size_t>(i * 37) % 2048], 1) != 0; });
  if (decided > 0) std::printf("%zu were decided\n", decided);
}

// Times verdicts one by one while another thread rewrites a page of 1,024 entries each 10 ms, as looks of a daemon do.
void MeasureBeside(bool lends) {
  HotPage page(lends);
  std::atomic<bool> ends{false};
  std::thread daemon([&] {
    while (!ends.load(std::memory_order_relaxed)) {
      const std::int64_t then = NowNs() + (lends ? 0 : 1'500'000'000);
      for (std::uint32_t i = 0; i < Worker::kEntries; ++i) {
        dthrottle_page_entry* const at = dthrottle_page_at(&page.memory.page(), i);
        const std::uint64_t name = at->word & ~DTHROTTLE_PAGE_ALLOWED;
        if (name == 0) continue;
        dthrottle_page_put(at, name, dthrottle_page_taken(&page.counts[i]) + 30'000, dthrottle_page_times(then, then));
      }
      const timespec pause{0, 10'000'000};
      nanosleep(&pause, nullptr);
    }
  });
  std::vector<std::uint32_t> took(2'000'000);
  const auto wanted = lends ? DTHROTTLE_PAGE_SERVE : DTHROTTLE_PAGE_REFUSE;
  std::size_t decided = 0, at = 0;
  std::int64_t before = NowNs();
  for (std::uint32_t& one : took) {
    decided += page.Decide(page.tags[at++ * 37 % 1024], before) == wanted;
    const std::int64_t now = NowNs();
    one = static_cast<std::uint32_t>(now - before);
    before = now;
  }
  ends = true;
  daemon.join();
  std::ranges::sort(took);
  std::printf("%s beside 100,000 updates/s, with its clock: median %u ns, p99 %u ns, p99.9 %u ns\n",
              lends ? "served" : "refused", took[took.size() / 2], took[took.size() / 100 * 99],
              took[took.size() / 1000 * 999]);
  if (decided < took.size() / 100 * 99) std::printf("only %zu were\n", decided);
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

struct Traffic {
  std::size_t tags;
  double load;    // offered to admitted
  Duration end;
  Duration hop;    // a tag is asked for by one worker for so long, then by another one; zero: by all at once
};

// What tags were served less than one bucket each would have.
struct Lost {
  explicit Lost(std::size_t tags) : wished(tags), served(tags), before(tags) {}

  void Second() {
    for (std::size_t i = 0; i < wished.size(); ++i) {
      const std::int64_t lost = std::int64_t{wished[i]} - served[i];
      by_second += static_cast<std::uint64_t>(std::max<std::int64_t>(lost - before[i], 0));
      before[i] = lost;
    }
  }
  // A tag had so many tokens more than its one bucket when it began, and has so many more at the end: they are not
  // lost.
  void Left(std::size_t tag, double had, double more) {
    const double lost = had + static_cast<double>(wished[tag]) - static_cast<double>(served[tag]) - more;
    sum += lost;
    if (wished[tag] >= 1000) worst = std::max(worst, 100 * lost / wished[tag]);
  }

  std::vector<std::uint32_t> wished, served;
  std::vector<std::int64_t> before;
  std::uint64_t by_second = 0;
  double sum = 0, worst = 0;    // %, of tags that would be served a thousand times
};

void MeasureShare(const Traffic& traffic) {
  constexpr std::size_t kWorkers = 8;
  constexpr double kDecisions = 100'000;    // a second
  const Duration warm = traffic.end / 2;
  std::vector<double> offered(traffic.tags), sums(traffic.tags);
  double sum = 0;
  for (std::size_t i = 0; i < traffic.tags; ++i) sum += std::pow(static_cast<double>(i + 1), -1.1), sums[i] = sum;
  for (std::size_t i = 0; i < traffic.tags; ++i) {
    offered[i] = kDecisions * std::pow(static_cast<double>(i + 1), -1.1) / sum;
  }
  const double rate = std::stod(std::to_string(RateFor(offered, traffic.load)));    // as settings have it
  const double burst = std::max(10.0, std::ceil(rate / 4));    // a quarter of a second
  const Shape shape = Shape::From(burst, rate);
  testing::Host host("[[rule]]\nburst=" + std::to_string(burst) + "\nrate=" + std::to_string(rate), 1, std::size_t{64} << 20);
  host.lending().Enable();
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::size_t i = 0; i < kWorkers; ++i) workers.push_back(std::make_unique<Worker>(host.lending()));
  std::vector<Instant> refused_at(traffic.tags * kWorkers, Instant::min()), decided_at = refused_at;
  std::vector<Bucket> strict(traffic.tags), central(traffic.tags);
  Lost lost(traffic.tags);
  const auto more_than_one_bucket = [&](Instant now) {
    std::vector<double> more(traffic.tags);
    for (auto& worker : workers) worker->entries.Recall(now);
    for (std::size_t i = 0; i < traffic.tags; ++i) {
      const double level = host.Level("203.0.113." + std::to_string(i), now);
      more[i] = std::max(std::min(level, burst) - central[i].Level(shape, now), 0.0);
    }
    return more;
  };
  std::vector<double> had;
  Prng prng(9);
  std::uint64_t all = 0, local = 0, refused = 0, again = 0, again_local = 0, pairs = 0, pairs_local = 0, notes = 0,
                over = 0, wished = 0;
  Duration look{}, settle{}, second = warm;
  for (Duration t{}; t < traffic.end; t += Duration(10'000)) {
    const Instant now = FromNanoseconds(0) + t;
    if (t >= look) {
      for (auto& worker : workers) worker->entries.Look(now);
      look += WorkerEntries::kLookEvery;
      settle = t + WorkerEntries::kSettleEvery;
    } else if (t >= settle) {
      for (auto& worker : workers) worker->entries.Settle(now);
      settle += WorkerEntries::kSettleEvery;
    }
    const double chance = static_cast<double>(prng.Next() >> 11) * 0x1p-53 * sum;
    const auto tag = static_cast<std::size_t>(std::lower_bound(sums.begin(), sums.end(), chance) - sums.begin());
    const bool hops = traffic.hop != Duration::zero();
    const std::size_t w =
        hops ? (tag + static_cast<std::size_t>(t / traffic.hop)) * 5 % kWorkers : prng.Below(kWorkers);
    Worker& worker = *workers[w];
    const std::string name = "203.0.113." + std::to_string(tag);
    const auto says = worker.Decide(name, now.time_since_epoch().count());
    const bool by_page = says != DTHROTTLE_PAGE_ASK;
    const bool no = by_page ? says == DTHROTTLE_PAGE_REFUSE : !host.Serves(name, now);
    if (!by_page && (worker.AskedAgain(name) || no) &&
        prng.Below(std::max(worker.memory.page().head.note_one_in, 1u)) == 0) {
      worker.entries.Note(name, now), notes += t >= warm;
    }
    const bool would = central[tag].Take(shape, 1, now);
    if (!no) over += !strict[tag].Take(shape, 1, now);
    Instant& last = refused_at[tag * kWorkers + w];
    const bool repeated = no && last != Instant::min() && now - last < std::chrono::seconds(1);
    if (no) last = now;
    const Instant before = std::exchange(decided_at[tag * kWorkers + w], now);
    const bool pair = before != Instant::min() && now - before < std::chrono::seconds(1);
    if (t < warm) continue;
    if (had.empty()) had = more_than_one_bucket(now);
    pairs += pair, pairs_local += pair && by_page;
    all += 1, local += by_page, refused += no, again += repeated, again_local += repeated && by_page;
    wished += would;
    lost.served[tag] += !no, lost.wished[tag] += would;
    if (t >= second) lost.Second(), second += std::chrono::seconds(1);
  }
  const Instant end = FromNanoseconds(0) + traffic.end;
  const std::vector<double> more = more_than_one_bucket(end);
  for (std::size_t i = 0; i < traffic.tags; ++i) {
    if (lost.wished[i] > 0) lost.Left(i, had[i], more[i]);
  }
  const auto percent = [](auto part, std::uint64_t whole) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(std::max<std::uint64_t>(whole, 1));
  };
  std::printf(
      "%zu tags of rate %.1f/s, offered %gx%s: by the page %.1f %% of all, %.1f %% of what its worker decided within "
      "1 s before, %.1f %% of refusals repeated so; notes %.1f %%; over %llu of %.0f, under %.3f %% in %.0f s, the "
      "worst tag %.2f %%, second by second %.2f %%\n",
      traffic.tags, rate, traffic.load, traffic.hop == Duration::zero() ? "" : ", hopping", percent(local, all),
      percent(pairs_local, pairs), percent(again_local, again), percent(notes, all),
      static_cast<unsigned long long>(over), Seconds(traffic.end) * kDecisions, percent(lost.sum, wished),
      Seconds(traffic.end - warm), lost.worst, percent(lost.by_second, wished));
}

// What a page loses of one tag, in %, and whether it served more than one bucket would.
struct One {
  double lost;
  std::uint64_t over, local, all;
};

// Its queries come by chance, each to any of the workers, or all to one for half a second.
One MeasureOne(double burst, double rate, double load, std::size_t workers, bool hops) {
  constexpr double kWarm = 10, kEnd = 130;    // s
  const std::string tag = "203.0.113.7";
  const Shape shape = Shape::From(burst, rate);
  testing::Host host("[[rule]]\nburst=" + std::to_string(burst) + "\nrate=" + std::to_string(rate));
  host.lending().Enable();
  std::vector<std::unique_ptr<Worker>> all;
  for (std::size_t i = 0; i < workers; ++i) all.push_back(std::make_unique<Worker>(host.lending()));
  Bucket strict, central;
  Prng prng(7);
  One its{};
  std::int64_t wished = 0, served = 0;
  double had = 0;
  const auto more = [&](Instant now) {
    for (auto& worker : all) worker->entries.Recall(now);
    return std::min(host.Level(tag, now), burst) - central.Level(shape, now);
  };
  Instant now = FromNanoseconds(0), turn = now;
  for (std::uint64_t turns = 0; now < FromNanoseconds(static_cast<std::int64_t>(kEnd * 1e9));) {
    const double chance = (static_cast<double>(prng.Next() >> 11) + 0.5) * 0x1p-53;
    now += Duration(static_cast<std::int64_t>(-std::log(chance) / (rate * load) * 1e9));
    for (; turn <= now; turn += WorkerEntries::kSettleEvery) {
      const bool looks = turns++ % (WorkerEntries::kLookEvery / WorkerEntries::kSettleEvery) == 0;
      for (auto& worker : all) {
        if (looks) {
          worker->entries.Look(turn);
        } else {
          worker->entries.Settle(turn);
        }
      }
    }
    const auto hop = static_cast<std::size_t>(now.time_since_epoch() / std::chrono::milliseconds(500));
    Worker& worker = *all[hops ? hop % workers : prng.Below(workers)];
    const auto says = worker.Decide(tag, now.time_since_epoch().count());
    const bool by_page = says != DTHROTTLE_PAGE_ASK;
    const bool serves = by_page ? says == DTHROTTLE_PAGE_SERVE : host.Serves(tag, now);
    if (!by_page && (worker.AskedAgain(tag) || !serves) &&
        prng.Below(std::max(worker.memory.page().head.note_one_in, 1u)) == 0) {
      worker.entries.Note(tag, now);
    }
    const bool would = central.Take(shape, 1, now);
    if (serves) its.over += !strict.Take(shape, 1, now);
    if (Seconds(now - FromNanoseconds(0)) < kWarm) continue;
    if (its.all++ == 0) had = more(now);
    its.local += by_page;
    wished += would, served += serves;
  }
  its.lost = 100 * (had + static_cast<double>(wished - served) - more(now)) / static_cast<double>(wished);
  return its;
}

void MeasureNear(double burst, double rate) {
  One worst{};
  double share = 1, at = 0;
  std::uint64_t over = 0;
  for (const double load : {0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.6, 2.0}) {
    for (const std::size_t workers : {1, 2, 8}) {
      for (const bool hops : {false, true}) {
        const One its = MeasureOne(burst, rate, load, workers, hops);
        over += its.over;
        share = std::min(share, static_cast<double>(its.local) / static_cast<double>(its.all));
        if (its.lost > worst.lost) worst = its, at = load;
      }
    }
  }
  std::printf("a tag of burst %.0f, rate %.0f/s, asked for at 0.7 to 2 times its rate, by 1 to 8 workers: at least %.0f "
              "%% by the page, over %llu, under %.2f %% at most, at %g times\n",
              burst, rate, 100 * share, static_cast<unsigned long long>(over), worst.lost, at);
}

}    // namespace
}    // namespace dthrottle

int main() {
  using namespace std::chrono_literals;
  dthrottle::MeasureLooking();
  for (const bool lends : {true, false}) dthrottle::MeasureBeside(lends);
  for (const double load : {1.0, 2.0, 5.0}) {
    dthrottle::MeasureShare({1'000'000, load, 20s, 0s});
    dthrottle::MeasureShare({2'000, load, 120s, 0s});
    if (load <= 2) dthrottle::MeasureShare({2'000, load, 120s, 500ms});
  }
  for (const double burst : {5.0, 10.0, 11.0, 15.0, 20.0, 50.0, 100.0, 300.0, 1000.0}) {
    for (const double rate : {20.0, 100.0, 1000.0}) {
      if (burst >= rate / 20) dthrottle::MeasureNear(burst, rate);
    }
  }
}
