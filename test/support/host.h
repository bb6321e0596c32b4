// A limiter on memory of its own, and the shortest way to ask it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "config/load.h"
#include "limiter/inspect.h"
#include "limiter/lending.h"
#include "limiter/limiter.h"
#include "query/named_tag.h"
#include "rule/rulebook.h"
#include "share/inspection.h"

namespace dthrottle::testing {

inline std::shared_ptr<const Rulebook> Rules(std::string_view toml) {
  LoadedSettings loaded = ParseSettings(toml, "test");
  std::string problems;
  for (const Problem& p : loaded.problems) {
    if (p.severity == Problem::Severity::kError) problems += Format(p) + "\n";
  }
  if (!problems.empty()) throw std::runtime_error(problems);
  return std::make_shared<Rulebook>(std::move(loaded.settings.rules), std::move(loaded.settings.overrides));
}

class Host {
 public:
  explicit Host(std::string_view toml, std::size_t lanes = 1, std::size_t bytes = Table::kRegionBytesMin)
      : memory_(bytes / sizeof(Line)), lanes_(lanes) {
    Start(Rules(toml), FromNanoseconds(0));
  }

  // As after kill -9: another limiter on the same region. `before` are the rules of the table there, if those differ.
  void Start(std::shared_ptr<const Rulebook> rules, Instant now, std::shared_ptr<const Rulebook> before = nullptr) {
    limiter.reset();
    const std::span<std::byte> region{reinterpret_cast<std::byte*>(memory_.data()), memory_.size() * sizeof(Line)};
    limiter = std::make_unique<Limiter>(region, std::array<std::byte, 16>{}, TableKeys{{3, 4}, {}}, std::move(rules),
                                        lanes_, now, "", std::move(before));
  }

  bool Serves(std::string_view tag, Instant now, Cost cost = 1, std::size_t lane = 0) {
    return Ask(tag, now, cost, lane) == Verdict::kServe;
  }

  Verdict Ask(std::string_view tag, Instant now, Cost cost = 1, std::size_t lane = 0) {
    const NamedTag named(std::string(tag), kTagBytesMax, limiter->keys().digest);
    Query query = named.query();
    query.cost = cost;
    Verdict verdict;
    limiter->Answer({&query, 1}, {&verdict, 1}, lane, prng, now);
    return verdict;
  }

  double Level(std::string_view tag, Instant now) {
    const NamedTag named(std::string(tag), kTagBytesMax, limiter->keys().digest);
    const Inspection seen = Inspect(*limiter, named.query(), now);
    return seen.bucket.Level(seen.shape, now);
  }

  Lending lending() { return Lending(*limiter); }

  std::unique_ptr<Limiter> limiter;
  Prng prng{1};

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory_;
  std::size_t lanes_;
};

}    // namespace dthrottle::testing
