// What a fleet would have made of the questions in a log: every line asks one host, in the log's time.
//
// A log tells seconds, so the requests of one second are spread evenly over it. Logs are written when requests end, so
// a line may be earlier than the one before: it is taken as of the second under way, and counted. Time in which nobody
// asks is passed over once it is long enough for every bucket to be full again, whatever was owed, and every penalty to
// be forgotten. What ends at a time, such as a hold, ends by the log's.
//
// Beside the fleet there is one host of its own that is asked everything: one bucket for all. What a request has for a
// while ends on both when the log says so.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/settings.h"
#include "lab/fleet.h"
#include "lab/question_log.h"
#include "lab/refused_tags.h"
#include "lab/requests.h"
#include "lab/waits.h"
#include "query/named_tag.h"

namespace dthrottle::lab {

struct ReplayOptions {
  std::uint32_t hosts = 2;
  enum class Spread { kRandom, kSticky, kRoundRobin } spread = Spread::kRandom;    // sticky: by the first tag
  QuestionTemplate question;
  Settings settings;                                // rules, overrides, period; rules in mode shadow are enforced
  Duration delay = std::chrono::milliseconds(1);    // between hosts
  std::uint64_t seed = 1;
};

// The figures of one second of the log.
struct ReplaySecond {
  std::int64_t time_s = 0;    // since 1970 UTC
  std::uint64_t asked = 0, refused = 0, ideal_refused = 0;
};

class Replay {
 public:
  static constexpr std::size_t kPendingBytesMax = std::size_t{96} << 20;    // questions of one second
  static constexpr std::size_t kSamplesMax = 3;                             // unreadable lines that are kept

  explicit Replay(const ReplayOptions& options);
  ~Replay();

  // Called for every second that has requests, in order.
  void OnSecond(std::function<void(const ReplaySecond&)> call) { on_second_ = std::move(call); }

  // Lines that follow are of this log.
  void Begin(std::string log);
  // The next line of the log, which may be unreadable. `cut`: its end is missing.
  void Take(std::string_view line, bool cut = false);
  // Call once, at the end.
  void Finish();

  // ---- What came of it ----

  struct Counts {
    std::uint64_t lines = 0, unreadable = 0, late = 0;    // late: earlier than a line before
    std::int64_t late_s_max = 0;                          // by how much
    std::uint64_t asked = 0, refused = 0, ideal_refused = 0;    // questions
    std::uint64_t peeked = 0;                                   // questions that only look, which count for nothing
    std::uint64_t busy = 0, never = 0;    // refused for want of a place, and because they cost more than a bucket holds
    std::uint64_t evicted = 0;            // buckets that tables had no room for, before they were full
    std::int64_t first_s = 0, last_s = 0;
  };
  const Counts& counts() const { return counts_; }

  // Questions that waited before they went on; what they had for a while. By the fleet, and by one bucket for all.
  const Waits& waits() const { return hosts_.waits; }
  const Waits& ideal_waits() const { return one_.waits; }
  const Requests::Counts& requests() const { return hosts_.requests.counts(); }
  const Requests::Counts& ideal_requests() const { return one_.requests.counts(); }

  struct Unreadable {
    std::string log;
    std::uint64_t line = 0;    // of it
    std::string text, reason;    // text: its first bytes
  };
  const std::vector<Unreadable>& unreadable() const { return unreadable_; }

  // A question counts as asked under the rule of each tag, and as refused under that of the tag that refuses. Tags that
  // are charged with others count as well.
  struct RuleCounts {
    std::string name;
    std::uint64_t asked = 0, refused = 0, ideal_refused = 0;
    std::int64_t first_s = 0, last_s = 0;    // refused
  };
  // In the order of the rules; then overrides that no rule fits, and tags without a limit.
  const std::vector<RuleCounts>& rules() const { return rule_counts_; }

  // Tags that were refused, and their rules by their index in rules().
  const RefusedTags& refused() const { return refused_; }

 private:
  // A fleet, and what came of the questions to it.
  struct Side {
    Side(const FleetOptions& options, std::uint64_t seed) : fleet(options, seed), requests(fleet) {}

    Fleet fleet;
    Requests requests;
    Waits waits;
  };
  struct Answer {
    bool served = true;
    std::size_t tag = 0;    // that refused, by its place in the question,
    std::optional<LimitIndex> limit{};    // under this limit: its own, or that of a tag that is charged with it
    bool busy = false, never = false;
  };

  void Run(WorldTime until);
  void Do(const LoggedQuestion& question, std::size_t index, std::size_t count);
  void Read(const LoggedQuestion& question);
  void Ask(const LoggedQuestion& question);
  Answer AskOn(Side& side, std::uint32_t host, const LoggedQuestion& question);
  void CountAsked(std::size_t tags);
  void CountRefused(const LoggedQuestion& question, const Answer& answer);
  std::size_t RuleOf(std::optional<LimitIndex> limit) const;
  void ExpireHolds();
  void AskPending();
  void CloseSecond();
  void PassOver(std::int64_t seconds);
  void SetDate();
  std::uint32_t HostFor(const LoggedQuestion& question);

  ReplayOptions options_;
  std::shared_ptr<const Rulebook> rules_;
  Side hosts_, one_;
  Prng prng_;
  Duration idle_max_;    // longer silence is passed over
  WorldTime second_begins_;
  bool begun_ = false;
  ReplaySecond second_;
  QuestionReader reader_;
  QuestionList pending_;    // of this second
  std::uint32_t turn_ = 0;
  // The question that is being asked: its tags and their limits.
  NamedTags named_;
  std::array<Query, Questions::kTagsMax> queries_;
  std::array<std::optional<LimitIndex>, Questions::kTagsMax> limits_;
  Questions questions_;
  std::function<void(const ReplaySecond&)> on_second_;

  Counts counts_;
  std::string log_;
  std::uint64_t log_lines_ = 0;
  std::vector<Unreadable> unreadable_;
  std::vector<RuleCounts> rule_counts_;
  RefusedTags refused_;
};

}    // namespace dthrottle::lab
