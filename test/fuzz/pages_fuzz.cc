// Three workers with small pages, of which the last writes into its counts what the input says: never a crash, none of
// the tags is served more often than one bucket would serve it, and all is counted where no worker lies.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "bucket/bucket.h"
#include "tally/tally.h"
#include "test/support/input.h"
#include "test/support/page_worker.h"

using namespace dthrottle;
using namespace std::chrono_literals;
using testing::PageWorker;

namespace {

constexpr std::size_t kWorkers = 3, kTags = 6;
constexpr std::uint32_t kEntries = 8;    // two sets of the page
constexpr double kRate = 50;

void Expect(bool holds) {
  if (!holds) std::abort();
}

class Pages {
 public:
  explicit Pages(std::uint8_t shape)
      : burst_(1 + shape % 64),
        shape_(Shape::From(burst_, kRate)),
        host_("[[rule]]\nburst=" + std::to_string(burst_) + "\nrate=" + std::to_string(kRate)) {
    for (auto& worker : workers_) Begin(worker);
  }

  void Play(testing::Input& input) {
    while (!input.over()) {
      const std::uint8_t what = input.Byte();
      const std::size_t w = what / 16 % kWorkers, t = input.Byte() % kTags;
      PageWorker& worker = *workers_[w];
      switch (what % 16) {
        case 0:
          Pass(1us * (1 + input.Byte()));
          break;
        case 1:
          Pass(1ms * (1 + input.Byte()));
          break;
        case 2:
          Pass(25ms * input.Byte());
          break;
        case 3:
          if (worker.Spends(Tag(t), 1 + what / 16, now_)) Served(w, t, 1 + what / 16);
          break;
        case 4:
          worker.entries.Note(Tag(t), now_);
          break;
        case 5:
          worker.entries.Look(now_, 1 + input.Byte());
          break;
        case 6:
          worker.entries.Settle(now_, 1 + input.Byte());
          break;
        case 7:
          Begin(workers_[w]);
          break;
        case 8:
          Scribble(input, t);
          break;
        case 9:
          Decided(host_.Serves(Tag(t), now_), kWorkers, t);
          break;
        default:
          for (unsigned times = 1 + what / 16; times > 0; --times) Decided(worker.Serves(Tag(t), now_), w, t);
      }
    }
  }

  void End() {
    for (auto& worker : workers_) worker->entries.Recall(now_);
    if (lied_) return;
    const auto totals = host_.limiter->tally().GrandTotals();
    Expect(totals.served == served_ && totals.served + totals.throttled == decided_);
    // Tokens that are lent while the bucket fills up may be lost. Tokens that were served never come back.
    for (std::size_t t = 0; t < kTags; ++t) {
      Expect(host_.Level(Tag(t), now_) <= strict_[t].Level(shape_, now_) + 1e-3);
    }
  }

 private:
  static std::string Tag(std::size_t t) { return std::string(1, static_cast<char>('a' + t)); }

  void Begin(std::unique_ptr<PageWorker>& worker) {
    if (worker) worker->entries.Recall(now_);
    worker = std::make_unique<PageWorker>(host_, kEntries);
  }

  // Looks are as far apart as the daemon makes them at most.
  void Pass(Duration time) {
    for (const Instant end = now_ + time; now_ < end;) {
      now_ = std::min(end, now_ + WorkerEntries::kLookEvery);
      for (auto& worker : workers_) worker->entries.Look(now_);
    }
  }

  void Decided(bool serves, std::size_t by, std::size_t t) {
    if (serves) return Served(by, t, 1);
    ++decided_;
  }

  // What the last worker serves it may have made up.
  void Served(std::size_t by, std::size_t t, Cost tokens) {
    ++decided_, ++served_;
    if (by + 1 != kWorkers || !lied_) Expect(strict_[t].Take(shape_, tokens, now_));
  }

  void Scribble(testing::Input& input, std::size_t place) {
    lied_ = true;
    const auto any = [&] { return static_cast<std::uint32_t>(input.Number()); };
    dthrottle_page_count& count = workers_.back()->counts()[place];
    count = {count.taken + any(), any(), any(), 0};
  }

  const double burst_;
  const Shape shape_;
  testing::LendingHost host_;
  std::array<std::unique_ptr<PageWorker>, kWorkers> workers_;
  std::array<Bucket, kTags> strict_;
  Instant now_ = FromNanoseconds(1'000'000'000);
  std::uint64_t decided_ = 0, served_ = 0;
  bool lied_ = false;
};

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  testing::Input input(data, std::min<std::size_t>(size, 1000));
  Pages pages(input.Byte());
  pages.Play(input);
  pages.End();
  return 0;
}
