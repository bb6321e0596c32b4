// How questions are decided, for the length of one call. For the files of the limiter: ask.cc and ask_derived.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "limiter/limiter.h"
#include "query/question.h"
#include "rule/rulebook.h"

namespace dthrottle {

struct Asked;
struct RuleCounters;

// A tag of a question.
struct NamedTagAt {
  const Query* query;
  Table::Probe probe;
  const Limit* limit = nullptr;    // null: no bucket is asked
  const Tag* member = nullptr;     // the tag that it is charged with; null: it is asked about itself
  double weight = 1;               // of that one
  std::uint32_t times = 1;         // in the question: named, and charged with tags that are
  bool cut = false;                // it is divided among its tags, and this one has had its part
};

class Deciding {
 public:
  Deciding(LimiterCore& core, Ways& ways, const Shedder& shedder, std::string_view front_end, Lane& lane, Prng& prng,
           Instant now)
      : core_(core),
        ways_(ways),
        shedder_(shedder),
        front_end_(front_end),
        lane_(lane),
        prng_(prng),
        now_(now) {}

  // Decides a question about `tags`, and about what is charged with them. No shard is locked.
  Outcome Ask(const Questions::Question& question, std::span<NamedTagAt> tags, std::span<Standing> standings);
  // The same if some of the tags have others that are charged with them (Rule::also).
  Outcome AskDerived(const Questions::Question& question, std::span<const NamedTagAt> tags,
                     std::span<Standing> standings);

 private:
  template <std::size_t kNamedMax>
  Outcome AskCharged(const Questions::Question& question, std::span<const NamedTagAt> tags,
                     std::span<Standing> standings);
  Outcome LookAtAll(const Questions::Question& question, std::span<NamedTagAt> tags, std::span<Standing> standings);
  std::optional<Duration> LookAt(const Questions::Question& question, NamedTagAt& named, Standing& standing,
                                 Duration& slot);
  Outcome Decide(const Questions::Question& question, Outcome outcome, std::span<const NamedTagAt> tags,
                 std::span<Standing> standings);
  void LookAtQuotas(std::span<const NamedTagAt> tags, Outcome& outcome) const;
  void ShowQuotas(const Outcome& outcome, std::span<const NamedTagAt> tags, std::span<Standing> standings) const;
  void LookAtPlaces(std::span<const NamedTagAt> tags, std::span<Standing> standings, Outcome& outcome) const;
  void ShowFree(const Limit& limit, const NamedTagAt& at, Standing& standing) const;
  void Enter(std::span<const NamedTagAt> tags, std::span<Standing> standings);
  std::optional<std::size_t> Shed(std::span<const NamedTagAt> tags);
  bool IsCut(const NamedTagAt& named, const Shape& shape);
  Verdict Cut(Asked& asked, RuleCounters& counters);
  Tokens BelievedLevel(const NamedTagAt& named, const Standing& standing);
  void CountAmong(const NamedTagAt& named, Verb verb, const Standing& standing);
  Verdict DecideOne(const NamedTagAt& named, const Outcome& outcome, Duration patience, Standing& standing);

  LimiterCore& core_;
  Ways& ways_;
  const Shedder& shedder_;
  const std::string_view front_end_;
  Lane& lane_;
  Prng& prng_;
  const Instant now_;
  Duration apart_{};    // up to how much longer by chance the question waits for its turn
};

}    // namespace dthrottle
