// What a forecast costs the query path: decisions on one hot tag, in batches of 64, under `forecast` and under `debit`,
// in turns, by the thread's CPU time. The tag is asked for a million times a second, at ten times its rate, while peers
// say that they ask for as much.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "share/ways.h"
#include "test/support/host.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;

constexpr int kRounds = 21, kBatches = 20'000;
constexpr std::size_t kBatch = 64;

double CpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

class Side {
 public:
  Side(const std::string& share, double rate)
      : host_(fmt::format("[[rule]]\nname=\"r\"\nburst={}\nrate={}\nshare=\"{}\"\n", rate, rate, share)) {
    host_.limiter->ways().Get<Debits>().ShareWith(3, 1s);
    host_.limiter->ways().WatchTags(4096, [] {});
    host_.limiter->ways().SetHeard(true);
    queries_.fill({{"login:192.0.2.77", false}, 1, nullptr});
  }

  // ns for each decision.
  double Round() {
    double spent = 0;
    for (int i = 0; i < kBatches; ++i) {
      if (i % 100 == 0) Report();
      const double before = i % 20 == 0 ? CpuSeconds() : began_;
      if (i % 20 == 0) began_ = before;
      host_.limiter->Answer(queries_, verdicts_, 0, host_.prng, now_);
      now_ += kBatch * 1us;
      if (i % 20 == 19) spent += CpuSeconds() - began_;
    }
    return 1e9 * spent / (kBatches * static_cast<double>(kBatch));
  }

 private:
  void Report() {
    Draft urgent;
    Entries said;
    host_.limiter->ways().ReportUrgent(now_ - 1s, now_, urgent);
    said.Add(queries_[0].tag, 200, 0, {.demand = 1'000'000'000});
    host_.limiter->ways().Get<Debits>().Debit(said, 0, 1, now_ - 10ms, now_ - 1ms, now_, 1);
  }

  Host host_;
  std::array<Query, kBatch> queries_;
  std::array<Verdict, kBatch> verdicts_;
  Instant now_ = FromNanoseconds(10'000'000'000);
  double began_ = 0;
};

void Run(const char* name, double rate) {
  Side debit("debit", rate), forecast("forecast", rate);
  std::vector<double> a, b, ratios;
  for (int i = 0; i < kRounds; ++i) {
    a.push_back(debit.Round());
    b.push_back(forecast.Round());
    ratios.push_back(b.back() / a.back());
  }
  for (auto* all : {&a, &b, &ratios}) std::sort(all->begin(), all->end());
  fmt::print("{:28} debit {:5.1f} ns, forecast {:5.1f} ns, ratio {:.2f} ({:.2f} to {:.2f}); goal 1.1\n", name,
             a[kRounds / 2], b[kRounds / 2], ratios[kRounds / 2], ratios[2], ratios[kRounds - 3]);
}

}    // namespace
}    // namespace dthrottle::testing

int main() {
  dthrottle::testing::Run("mostly refused (rate 1e5/s)", 1e5);
  dthrottle::testing::Run("mostly served (rate 4e6/s)", 4e6);
}
