// The life of a full table: the input is a list of steps, each a byte that says which and two bytes of its numbers. Tags
// are asked, debited and flooded, rules are reloaded, the daemon is killed at any step, also while it rewrites the table
// for other rules, and somebody writes into the file before the next start.
//
// Whatever happened, nothing crashes; a fresh tag is served its burst and no more, under every rule; the table counts
// what it holds. Unless the file was damaged or a flood asked more than once for a tag, a tag that was refused before
// stays refused.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "rule/rulebook.h"
#include "share/ways.h"
#include "test/support/host.h"

using namespace dthrottle;

namespace {

struct alignas(64) Line {
  std::byte bytes[64];
};

// Bursts of the rules for "slow:*" and "quick:*" in each of the settings.
constexpr std::array<std::array<unsigned, 2>, 3> kBursts = {{{1, 3}, {2, 3}, {1, 5}}};
constexpr const char* kRules[] = {
    "[[rule]]\nmatch=\"slow:*\"\nburst=1\nrate=\"1/h\"\n[[rule]]\nmatch=\"quick:*\"\nburst=3\nrate=\"1/h\"\n",
    "[[rule]]\nmatch=\"slow:*\"\nburst=2\nrate=\"1/h\"\n[[rule]]\nmatch=\"quick:*\"\nburst=3\nrate=\"1/h\"\n",
    "[[rule]]\nmatch=\"quick:*\"\nburst=5\nrate=\"1/h\"\n[[rule]]\nmatch=\"slow:*\"\nburst=1\nrate=\"1/h\"\n"};
constexpr const char* kAbuser = "slow:abuser";
constexpr int kSteps = 24;    // most of them look at all of the table

class Counter final : public SlotVisitor {
 public:
  bool Visit(const Tag&, const Slot&, const Waste&) override { return ++seen > 0; }
  std::uint64_t seen = 0;
};

class Life {
 public:
  Life() : memory_(Table::kRegionBytesMin / sizeof(Line)) {
    for (const char* toml : kRules) rules_.push_back(testing::Rules(toml));
    Start();
    for (int i = 0; i < 8; ++i) Serves(kAbuser);
    while (limiter_->table().counts().evicted < 100) Serves("slow:first-" + std::to_string(fresh_++));
    End();
    pristine_ = memory_;
  }

  void Run(const std::uint8_t* data, std::size_t size) {
    memory_ = pristine_;
    rules_in_force_ = 0;
    now_ = FromNanoseconds(1);
    damaged_ = false;
    Start();
    Check();
    for (int steps = 0; size >= 3 && steps < kSteps; ++steps) {
      Step(data[0] % 8, data[1], data[2]);
      Check();
      data += 3;
      size -= 3;
    }
    Start();
    Check();
    End();
  }

 private:
  void Step(int step, unsigned a, unsigned b) {
    const std::string tag = (a & 1 ? "slow:" : "quick:") + std::to_string(a);
    switch (step) {
      case 0:
        for (unsigned i = 0; i <= b; ++i) Serves(tag);
        return;
      case 1: {
        Entries debits;
        if (!debits.Add({tag, false}, 1 + b, 0)) return;
        limiter_->ways().Get<Debits>().Debit(debits, 0, debits.size(), now_, now_, now_);
        return;
      }
      case 2:
        return Flood(a, 1);
      case 3:
        damaged_ = damaged_ || b % 16 > 0;
        return Flood(a, 1 + b % 16);
      case 4:
        rules_in_force_ = a % rules_.size();
        if (limiter_->reshaping()) Start();
        limiter_->Adopt(rules_[rules_in_force_]);
        for (unsigned i = 0; i < b && limiter_->Tick(now_); ++i) {
        }
        damaged_ = true;    // its bucket is another
        return;
      case 5:
        return Start();
      case 6: {    // an upgrade
        while (limiter_->Tick(now_)) {
        }
        return Start(limiter_->table().Notes());
      }
      default:
        return Damage(a, b);
    }
  }

  // So many hundreds of queries, each tag so many times.
  void Flood(unsigned hundreds, unsigned times) {
    for (unsigned i = 0; i < 100 * (hundreds % 8); i += times) {
      const std::string tag = (hundreds & 8 ? "quick:" : "slow:") + std::to_string(fresh_++);
      for (unsigned k = 0; k < times; ++k) Serves(tag);
    }
  }

  // A run of bytes in some group, or in the header.
  void Damage(unsigned a, unsigned b) {
    End();
    auto* const bytes = reinterpret_cast<std::uint8_t*>(memory_.data());
    const std::size_t at = b < 4 ? b * 64 + a : (b * 4099 + a * 17) % (Table::kRegionBytesMin - 32);
    for (std::size_t i = 0; i < 1 + a % 32; ++i) bytes[at + i] = static_cast<std::uint8_t>(bytes[at + i] * 5 + b + i);
    damaged_ = true;
    Start();
  }

  void Start(const std::string& notes = "") {
    End();
    const std::span<std::byte> region{reinterpret_cast<std::byte*>(memory_.data()), Table::kRegionBytesMin};
    limiter_ = std::make_unique<Limiter>(region, std::array<std::byte, 16>{}, TableKeys{{1, 2}, {}},
                                         rules_[rules_in_force_], 1, now_, notes);
  }

  void Check() {
    for (const std::size_t rule : {0, 1}) {
      const std::string tag = (rule == 0 ? "slow:fresh-" : "quick:fresh-") + std::to_string(fresh_++);
      const unsigned burst = kBursts[rules_in_force_][rule];
      unsigned served = 0;
      for (unsigned i = 0; i < burst + 3; ++i) served += Serves(tag);
      if (served != burst) std::abort();
    }
    if (!damaged_ && Serves(kAbuser)) std::abort();
  }

  // The next life counts anew, so this is the moment to hold the counts against the table. It takes as long as some
  // hundred queries.
  void End() {
    if (limiter_ == nullptr) return;
    const TableCounts counts = limiter_->table().counts();
    if (counts.cells_used > limiter_->table().cells()) std::abort();
    Counter counter;
    for (std::size_t cell = 0; limiter_->table().VisitSome(cell, 1 << 16, counter, now_);) {
    }
    if (!limiter_->reshaping() && counter.seen != counts.tags) std::abort();
    limiter_.reset();
  }

  bool Serves(const std::string& tag) {
    const Query query{{tag, false}};
    Verdict verdict;
    limiter_->Answer({&query, 1}, {&verdict, 1}, 0, prng_, now_);
    return verdict == Verdict::kServe;
  }

  std::vector<Line> memory_, pristine_;
  std::vector<std::shared_ptr<const Rulebook>> rules_;
  std::size_t rules_in_force_ = 0;
  std::unique_ptr<Limiter> limiter_;
  Prng prng_{1};
  Instant now_ = FromNanoseconds(1);
  std::uint64_t fresh_ = 0;
  bool damaged_ = false;
};

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Life life;
  life.Run(data, size);
  return 0;
}
