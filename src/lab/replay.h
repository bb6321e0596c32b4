// What a fleet would have made of the requests in a web server's log: every line asks one host, in the log's time.
//
// A log tells seconds, so the requests of one second are spread evenly over it. Logs are written when requests end, so
// a line may be earlier than the one before: it is taken as of the second under way, and counted. Time in which nobody
// asks is passed over once it is long enough for every bucket to be full again, whatever was owed.
//
// Beside the fleet there is one host of its own that is asked everything: one bucket for all.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "config/settings.h"
#include "lab/access_log.h"
#include "lab/fleet.h"

namespace dthrottle::lab {

struct ReplayOptions {
  std::uint32_t hosts = 2;
  enum class Spread { kRandom, kSticky, kRoundRobin } spread = Spread::kRandom;    // sticky: all of a tag to one host
  TagTemplate tag;
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
  static constexpr std::size_t kRefusedTagsMax = 1'000'000;                 // of which figures are kept
  static constexpr std::size_t kPendingBytesMax = std::size_t{64} << 20;    // tags of one second
  static constexpr std::size_t kSamplesMax = 3;                             // unreadable lines that are kept

  explicit Replay(const ReplayOptions& options);
  ~Replay();

  // Called for every second that has requests, in order.
  void OnSecond(std::function<void(const ReplaySecond&)> call) { on_second_ = std::move(call); }

  // The next line of the log, which may be unreadable. `cut`: its end is missing.
  void Take(std::string_view line, bool cut = false);
  // Call once, at the end.
  void Finish();

  // ---- What came of it ----

  struct Counts {
    std::uint64_t lines = 0, unreadable = 0, late = 0;    // late: earlier than a line before
    std::int64_t late_s_max = 0;                          // by how much
    std::uint64_t asked = 0, refused = 0, ideal_refused = 0;
    std::uint64_t evicted = 0;    // buckets that tables had no room for, before they were full
    std::int64_t first_s = 0, last_s = 0;
  };
  const Counts& counts() const { return counts_; }

  struct Unreadable {
    std::uint64_t line = 0;
    std::string text, reason;    // text: its first bytes
  };
  const std::vector<Unreadable>& unreadable() const { return unreadable_; }

  struct RuleCounts {
    std::string name;
    std::uint64_t asked = 0, refused = 0, ideal_refused = 0;
    std::int64_t first_s = 0, last_s = 0;    // refused
  };
  // In the order of the rules; then overrides that no rule fits, and tags without a limit.
  const std::vector<RuleCounts>& rules() const { return rule_counts_; }

  struct Refused {
    std::string tag;
    std::uint64_t refused = 0;
    std::int64_t first_s = 0, last_s = 0;
    std::size_t rule = 0;    // index into rules()
    bool override_ = false;
  };
  // The most refused tags, most first.
  std::vector<Refused> MostRefused(std::size_t count) const;
  // Tags that were refused; at most kRefusedTagsMax.
  std::size_t refused_tags() const { return refused_.size(); }
  std::uint64_t refused_untold() const { return refused_untold_; }    // refusals of further tags

 private:
  void Ask(std::string_view tag, std::size_t index, std::size_t count);
  void AskPending();
  void CloseSecond();
  void SetDate();
  std::uint32_t HostFor(std::string_view tag);
  void NoteRefused(std::string_view tag, std::size_t rule, bool override_);

  ReplayOptions options_;
  std::shared_ptr<const Rulebook> rules_;
  Fleet fleet_, one_;
  Prng prng_;
  Duration idle_max_;    // longer silence is passed over
  WorldTime second_begins_;
  bool begun_ = false;
  ReplaySecond second_;
  std::string pending_;    // tags of this second, behind each other
  std::vector<std::size_t> pending_ends_;
  std::uint32_t turn_ = 0;
  std::function<void(const ReplaySecond&)> on_second_;

  Counts counts_;
  std::vector<Unreadable> unreadable_;
  std::vector<RuleCounts> rule_counts_;
  struct TagCounts {
    std::uint64_t refused = 0;
    std::int64_t first_s = 0, last_s = 0;
    std::uint32_t rule = 0;
    bool override_ = false;
  };
  std::unordered_map<std::string, TagCounts> refused_;
  std::uint64_t refused_untold_ = 0;
};

}    // namespace dthrottle::lab
