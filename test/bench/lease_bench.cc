// What leases cost: dividing among 100,000 clients at once, and answering one of 100,000 who hold leases.
#include <cstdio>
#include <string>

#include "lease/server.h"
#include "lease/share.h"
#include "test/bench/measure.h"

namespace dthrottle::lease {
namespace {

constexpr std::size_t kClients = 100'000;

void DivideAtOnce() {
  Prng prng(1);
  std::vector<Demand> demands(kClients);
  for (Demand& d : demands) d = {static_cast<double>(prng.Below(1'000'000)), static_cast<double>(1 + prng.Below(5))};
  std::vector<double> ms;
  double sum = 0;
  for (int i = 0; i < 9; ++i) {
    const double begin = CpuSeconds();
    sum += Divide(Algorithm::kFairShare, 1e10, demands).front();
    ms.push_back(1e3 * (CpuSeconds() - begin));
  }
  std::printf("fair_share of %zu clients at once: %.1f ms (goal 50; check %g)\n", kClients, Median(ms), sum);
}

void Answer(Algorithm algorithm) {
  LeaseServer server({}, *Templates::Make({{.identifier_glob = "*", .capacity = 1e6, .algorithm = algorithm}}));
  server.BecomeMaster({});
  Prng prng(2);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kClients; ++i) names.push_back("host" + std::to_string(i) + ".example:4711");
  BootInstant now(std::chrono::seconds(100));
  std::vector<double> per_second;
  double sum = 0;
  for (int round = 0; round < 6; ++round) {
    const double begin = CpuSeconds();
    for (std::size_t i = 0; i < kClients; ++i) {
      now += std::chrono::microseconds(100);
      const ResourceRequest request{.resource = "resource0", .wants = static_cast<double>(prng.Below(100))};
      sum += server.GetCapacity(names[prng.Below(kClients)], {&request, 1}, now)->front().lease.capacity;
    }
    if (round > 0) per_second.push_back(kClients / (CpuSeconds() - begin));
  }
  std::printf("%-21s GetCapacity %.0f a second on one core, %llu holders (goal 50,000; check %g)\n",
              std::string(Name(algorithm)).c_str(), Median(per_second),
              static_cast<unsigned long long>(server.Resources(now).front().holders), sum);
}

}    // namespace
}    // namespace dthrottle::lease

int main() {
  using dthrottle::lease::Algorithm;
  dthrottle::lease::DivideAtOnce();
  for (const Algorithm algorithm :
       {Algorithm::kFairShare, Algorithm::kProportionalShare, Algorithm::kProportionalScaling, Algorithm::kStatic}) {
    dthrottle::lease::Answer(algorithm);
  }
}
