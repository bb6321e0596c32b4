// All rules and overrides of one set of settings, ready to be asked which limit applies to a tag.
//
// The answer is an index (rules first, in order, then overrides), which the table keeps with the tag's bucket: rules
// and overrides are searched once for a tag that is new, never again while its bucket lives. A rulebook never changes;
// a reload makes another one. It only learns limits that tags name themselves (own_limits.h), which are numbered last.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/tag.h"
#include "bucket/bucket.h"
#include "rule/derivation.h"
#include "rule/glob.h"
#include "rule/own_limits.h"
#include "rule/rule.h"

namespace dthrottle {

class NetworkMap;
class Source;

// One rule's or override's effect on a bucket.
struct Limit {
  Shape shape;
  std::uint32_t rule;    // index into rules(), also for an override; rules().size() if no rule matches its tag
  Mode mode;
  bool shared = true;                          // with other hosts, which debit what this one serves
  bool divided = false;                        // among hosts: this one has a part of the rate
  std::uint8_t shed_priority = kShedPriorities;  // kShedPriorities: never sheds
  Ticks max_debt = -1;                         // of Bucket::Debit; negative: the limiter's
  Duration horizon{};                          // 0: the limiter's
  bool forecast = false;                       // by hosts of each other; then shared
  bool derives = false;                        // tags that are charged with it (Rule::also)
  Tokens max_unheard = 0;                      // of that; 0: the limiter's
  std::uint32_t in_flight = 0;                 // places of a tag; 0: any number
  Duration delay{};                            // most that a question waits for its tokens
  Among among = Among::kFirst;                 // how it is divided among the tags that are charged with it
  bool penalizes = false;                      // tags that it refuses too often (Rule::penalty)
  bool keeps_part = false;                     // while another site is not heard (Rule::cut_off)
  bool whole = false;                          // a query is a question: it derives, or has a quota
  bool plain = false;                          // none of: mode off, places, penalties, whole
  std::uint16_t calendar = 0;                  // of the quota, index into calendars()
  std::uint64_t quota = 0;                     // tokens of a tag in a period; 0: any number
  double weight = 1;                           // of its tags among those that are charged to one that is divided
};

class Rulebook {
 public:
  static constexpr std::size_t kRulesMax = 1000;
  static constexpr std::size_t kOverridesMax = 1'000'000;

  Rulebook() = default;    // no rules: every tag is served

  // REQUIRES: names and override tags are unique, at most one rule has no match, patterns compile, numbers are within
  // the bounds of bucket/bucket.h, counts within those above. A limit that a tag names itself is divided into
  // `own_parts` equal parts.
  Rulebook(std::vector<Rule> rules, std::vector<Override> overrides, std::uint32_t own_parts = 1);
  Rulebook(const Rulebook&) = delete;
  Rulebook& operator=(const Rulebook&) = delete;

  // The limit of a tag: its override, else its own, else the first rule that matches, else the default rule, else none.
  std::optional<LimitIndex> Find(std::string_view tag) const;
  // The same of a tag that `source` has named. None too: it is a peer, and has named too many limits of tags' own.
  std::optional<LimitIndex> Find(std::string_view tag, Source source) const;

  // The limit that the tag names itself. None: it names none, or the rule of the tag without it does not allow so much,
  // or that one has an override, or too many such limits are in use.
  std::optional<LimitIndex> FindOwn(std::string_view tag) const;
  std::optional<LimitIndex> FindOwn(std::string_view tag, Source source) const;

  // Find for an over-long tag, which no override can name, and which names no limit.
  std::optional<LimitIndex> Find(const OverLongTag& tag) const;

  // The rule that fits the tag, by its place, whatever other limit the tag has.
  std::optional<LimitIndex> RuleOf(std::string_view tag) const;

  // Whether some limit has places.
  bool any_in_flight() const { return any_in_flight_; }
  // Whether some limit is divided among the tags that are charged with it.
  bool any_among() const { return any_among_; }
  // The largest weight that a limit gives its tags.
  double weight_max() const { return weight_max_; }
  // Whether some limit has penalties.
  bool any_penalty() const { return any_penalty_; }

  // Whether some rule lets tags name limits.
  bool any_own() const { return own_ != nullptr; }
  // Their limits; null: there are none. They learn, so they are no part of what never changes.
  OwnLimits* own() const { return own_.get(); }

  // Whether some limit has a quota, and the calendars of all.
  bool any_quota() const { return !calendars_.empty(); }
  const std::vector<QuotaCalendar>& calendars() const { return calendars_; }

  // What a limit does to tags that it refuses too often. REQUIRES: limit.penalizes.
  const Penalty& penalty(const Limit& limit) const { return rules_[limit.rule].penalty; }

  // REQUIRES: index < limits().
  const Limit& limit(LimitIndex index) const { return limits_[index]; }
  std::size_t limits() const { return limits_.size(); }
  bool is_override(LimitIndex index) const { return index >= rules_.size() && index < first_own(); }
  bool is_own(LimitIndex index) const { return index >= first_own(); }

  // The priorities of limits that shed.
  const std::bitset<kShedPriorities>& shed_priorities() const { return shed_priorities_; }

  // The rate of a limit, tokens/s.
  double rate(LimitIndex index) const {
    if (is_own(index)) return own_->rate(index - first_own());
    return is_override(index) ? overrides_[index - rules_.size()].rate : rules_[index].rate;
  }

  // A number for a rule that hosts agree on: a hash of its name.
  std::uint64_t number(std::size_t rule) const { return numbers_[rule]; }

  // Equal on hosts that divide the same rates under the same rules; 0 if no limit is divided.
  std::uint64_t divided_fingerprint() const { return divided_fingerprint_; }

  const std::vector<Rule>& rules() const { return rules_; }
  const std::vector<Override>& overrides() const { return overrides_; }

  // Calls use(std::string_view) for each tag that is charged with one under the limit, once: by Rule::also, without
  // those that such a tag's own rule would add. REQUIRES: the limit is that of the tag.
  template <class Use>
  void ForEachDerived(LimitIndex index, TagText tag, Use&& use) const {
    if (!limits_[index].derives) return;
    const std::uint32_t rule = limits_[index].rule;
    if (is_own(index)) tag = {ReadOwnLimit(tag.bytes)->tag};
    const std::size_t head = std::min<std::size_t>(heads_[rule], tag.bytes.size());
    std::array<std::array<char, kTagBytesMax>, Rule::kAlsoMax> texts;
    std::array<std::string_view, Rule::kAlsoMax> charged;
    std::size_t n = 0;
    for (const Derivation& derivation : rules_[rule].also) {
      const auto derived = Derive(derivation, tag, head, texts[n]);
      if (!derived || std::find(charged.begin(), charged.begin() + n, *derived) != charged.begin() + n) continue;
      use(charged[n++] = *derived);
    }
  }

  // The index of the rule of that name.
  std::optional<LimitIndex> Named(std::string_view name) const;

  // Equal exactly when limits have the same numbers and the same effect on the table.
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  struct Pattern {
    Glob glob;
    std::uint32_t rule;
    std::uint32_t head;    // bytes in front of the address
    // Finds the rule of the longest network, among rules that have this pattern and networks; null: they have none.
    std::shared_ptr<const NetworkMap> networks;
  };
  class Networks;

  // For each byte a set of patterns, 64 in a word.
  class PatternsByByte {
   public:
    void Reset(std::size_t patterns) { words_ = (patterns + 63) / 64, bits_.assign(256 * words_, 0); }
    void Add(unsigned char byte, std::size_t pattern) {
      bits_[byte * words_ + pattern / 64] |= std::uint64_t{1} << pattern % 64;
    }
    std::size_t words() const { return words_; }
    std::uint64_t Word(unsigned char byte, std::size_t word) const { return bits_[byte * words_ + word]; }

   private:
    std::size_t words_ = 0;
    std::vector<std::uint64_t> bits_;
  };

  // A limit that a tag names, as the rule allows it.
  struct Allowed {
    OwnLimit limit;
    LimitIndex rule;
  };
  std::optional<Allowed> AllowedOwn(std::string_view tag) const;
  std::optional<LimitIndex> PlaceOf(const Allowed& own, Source source) const;

  template <class Matcher>
  std::optional<LimitIndex> FirstRule(Matcher&& matches) const;
  void AddPattern(std::uint32_t rule, Networks& networks);
  static std::optional<LimitIndex> RuleIn(const Pattern& pattern, TagText tag);
  void IndexPatterns();

  std::size_t first_own() const { return rules_.size() + overrides_.size(); }

  std::uint16_t CalendarOf(const QuotaCalendar& calendar);

  std::vector<Rule> rules_;
  std::vector<Override> overrides_;
  std::vector<Limit> limits_;             // behind those of rules and overrides room for tags' own
  std::unique_ptr<OwnLimits> own_;        // null: no rule allows any
  std::vector<Pattern> patterns_;    // of the rules that have one, in order
  PatternsByByte begins_, ends_;     // patterns that a tag with this first (last) byte may match: one word for all,
                                     // where trying each would be most of what a new tag costs
  std::vector<std::uint32_t> heads_;    // by rule: Glob::literal_head
  std::optional<std::uint32_t> default_rule_;
  std::unordered_map<std::string_view, LimitIndex> by_tag_;    // views into overrides_
  std::bitset<kShedPriorities> shed_priorities_;
  std::vector<std::uint64_t> numbers_;    // by rule
  std::vector<QuotaCalendar> calendars_;
  bool any_in_flight_ = false, any_among_ = false, any_penalty_ = false;
  double weight_max_ = 0;
  std::uint64_t fingerprint_ = 0;
  std::uint64_t divided_fingerprint_ = 0;
};

}    // namespace dthrottle
