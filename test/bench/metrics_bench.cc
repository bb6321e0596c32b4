// What a scrape of the metrics costs: CPU time and bytes, of a daemon with so many tags, peers and rules.
//
//   metrics_bench [TAGS [PEERS [RULES]]]     default 1 million, 100 and 100
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "admin/metrics.h"
#include "base/prng.h"
#include "config/keys.h"
#include "rule/rulebook.h"
#include "test/bench/measure.h"
#include "test/support/quiet_daemon.h"

using namespace dthrottle;

namespace {

struct alignas(64) Line {
  std::byte bytes[64];
};

class Subject final : public testing::QuietDaemon {
 public:
  Subject(std::size_t tags, std::size_t peers, std::size_t rules) : memory_(std::max<std::size_t>(tags, 100'000)) {
    std::vector<Rule> list(rules);
    for (std::size_t i = 0; i < rules; ++i) {
      list[i].name = fmt::format("rule-of-the-service-{}", i);
      if (i > 0) list[i].match = fmt::format("{}:*", i);
    }
    const std::span<std::byte> region{reinterpret_cast<std::byte*>(memory_.data()), memory_.size() * sizeof(Line)};
    limiter_ =
        std::make_unique<Limiter>(region, std::array<std::byte, 16>{}, TableKeys{{1, 2}, {}},
                                  std::make_shared<Rulebook>(std::move(list), std::vector<Override>()), 1, Instant());
    Prng prng(1);
    Verdict verdict;
    for (std::size_t i = 0; i < tags; ++i) {
      const std::string tag = fmt::format("{}:{:010}", rules > 0 ? i % rules : 0, i);
      const Query query{{tag}};
      limiter_->Answer({&query, 1}, {&verdict, 1}, 0, prng, Instant());
    }
    for (std::size_t i = 0; i < peers; ++i) {
      PeerStatus peer;
      peer.address = fmt::format("tcp://10.0.{}.{}:7314", i / 250, i % 250);
      peer.name = fmt::format("web-{}", i), peer.version = "0.1.0";
      peer.state = PeerState::kUp;
      peer.reports = 1'000'000 + i;
      peers_.push_back(peer);
    }
  }

  Limiter& limiter() override { return *limiter_; }
  std::vector<PeerStatus> Peers() const override { return peers_; }

 private:
  std::vector<Line> memory_;
  std::unique_ptr<Limiter> limiter_;
  std::vector<PeerStatus> peers_;
};

}    // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, std::size_t otherwise) {
    return argc > i ? std::strtoul(argv[i], nullptr, 10) : otherwise;
  };
  const std::size_t tags = number(1, 1'000'000), peers = number(2, 100), rules = number(3, 100);
  Subject subject(tags, peers, rules);
  std::size_t bytes = 0;
  std::vector<double> ms;
  for (int i = 0; i < 101; ++i) {
    const double start = CpuSeconds();
    bytes = RenderMetrics(subject).size();
    ms.push_back((CpuSeconds() - start) * 1e3);
  }
  std::printf("metrics of %llu tags, %zu peers, %zu rules  %.3f ms of CPU, at most %.3f (goal: below 5), %zu bytes\n",
              static_cast<unsigned long long>(subject.limiter().table().counts().tags), peers, rules, Median(ms),
              *std::max_element(ms.begin(), ms.end()), bytes);
}
