// The decision core of one host: the daemon without its input and output.
//
// A tag finds its rule, the rule shapes a bucket, the bucket gives a verdict. Everything else is arranged around that
// path: no allocation, no clock, no lock but the table's, held for one decision. The files beside this one are the
// things a limiter does: answer.cc queries, shed.cc how many to refuse, merge.cc what peers say, tick.cc the work
// between them, inspect.cc looking inside.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/tag.h"
#include "base/time.h"
#include "bucket/table.h"
#include "limiter/certificate.h"
#include "limiter/draft.h"
#include "limiter/lane.h"
#include "limiter/part_table.h"
#include "limiter/retention.h"
#include "limiter/watches.h"
#include "query/over_long.h"
#include "query/verdict.h"
#include "report/entries.h"
#include "rule/rulebook.h"
#include "shed/logistic.h"
#include "shed/signal.h"

namespace dthrottle {

// A tag as somebody typed it, whatever its length. Holds what its query points to.
class NamedTag {
 public:
  NamedTag(std::string bytes, std::size_t tag_bytes_max, const DigestKey& key);
  const Query& query() const { return query_; }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  std::unique_ptr<OverLongReader> reader_;
  OverLongTag over_long_;
  Query query_;
};

// What the limiter knows of one tag.
struct Inspection {
  std::optional<LimitIndex> limit;    // none: no rule matches, every query is served
  bool recorded = false;              // false: the bucket is full and takes no memory
  Bucket bucket;
  Shape shape{};      // of the bucket, on this host; interval 0: no limit applies
  double part = 1;    // of the limit's rate that this host has
  struct Foretold {
    Tokens level = 0;                       // of the one bucket, as this host believes
    double share = 1;                       // of its demand that it earns
    double demand = 0, peers_demand = 0;    // tokens/s, as announced
    bool held = false;                      // queries wait for the peers to hear
  };
  std::optional<Foretold> foretold;       // if it is watched, under a limit that is forecast
  bool watched = false;                   // its hits are reported early
  std::optional<TagAccuracy> accuracy;    // if it is looked at
};

// Where a tag stands right after one of its queries was decided.
struct Standing {
  Shape shape{};    // interval 0: no limit applies, and there is no bucket
  Bucket bucket;

  bool limited() const { return shape.interval != 0; }
};

struct RuleTotals {
  std::uint64_t served = 0, throttled = 0, shadowed = 0, near_limit = 0, shed = 0;

  RuleTotals& operator+=(const RuleTotals& o) {
    served += o.served, throttled += o.throttled, shadowed += o.shadowed, near_limit += o.near_limit, shed += o.shed;
    return *this;
  }
  RuleTotals& operator-=(const RuleTotals& o) {
    served -= o.served, throttled -= o.throttled, shadowed -= o.shadowed, near_limit -= o.near_limit, shed -= o.shed;
    return *this;
  }
};

// What peers' hits did to the buckets of a rule.
struct DebitTotals {
  std::uint64_t hits = 0;     // debited
  Tokens overadmitted = 0;    // of debt that they made: served elsewhere beyond the limit before all hosts knew
};

// What became of entries that peers sent.
struct MergeCounts {
  std::uint64_t entries = 0;       // all of them
  std::uint64_t unmatched = 0;     // of them, under no rule here, or under one that is not shared
  std::uint64_t unrecorded = 0;    // of them, without room in the table
  std::uint64_t expired = 0;       // hits dropped because they were older than the horizon
  std::uint64_t disbelieved = 0;    // demands that count for less than was announced, because hits do not bear them out
};

// Of tags that are watched.
struct WatchCounts {
  std::uint64_t tags = 0;       // now
  std::uint64_t crowded = 0;    // times that a tag could not be watched for want of room
  std::uint64_t held = 0;       // queries refused because peers had not heard of enough
};

class Limiter final : private SlotPolicy {
 public:
  // Takes over or clears the table in `region` (see Table::Open), which must outlive the limiter. `boot_id` tells
  // boots apart, `notes` are Table::Notes. REQUIRES: rules is not null, lanes > 0.
  Limiter(std::span<std::byte> region, const std::array<std::byte, 16>& boot_id, const TableKeys& fresh_keys,
          std::shared_ptr<const Rulebook> rules, std::size_t lanes, Instant now, std::string_view notes = {});

  // Decides queries in order, as if each came alone: verdicts[i] answers queries[i], and standings[i], for whoever asks
  // for them, is what it left. Any thread, each with its own lane and prng. REQUIRES: verdicts.size() ==
  // queries.size(), standings.size() too or 0, lane < lanes(), now never runs backwards in one thread.
  void Answer(std::span<const Query> queries, std::span<Verdict> verdicts, std::size_t lane, Prng& prng, Instant now,
              std::span<Standing> standings = {});

  // Gives back `query.cost` tokens that the tag has spent, on this host: hits that peers heard of stay charged there.
  // Any thread.
  Standing GiveBack(const Query& query, Instant now);

  // ---- The rest is for one thread, the owner's ----

  // Puts other rules in force at once; buckets keep the tokens they have spent and are rewritten one by one, by Tick or
  // when they are asked for. REQUIRES: !reshaping().
  void Adopt(std::shared_ptr<const Rulebook> rules);
  bool reshaping() const { return table_->reshaping(); }

  // A slice of background work of some 100 us; returns whether there is more to do.
  bool Tick(Instant now);

  // Rules that no slot needs any more, if there are any. Freeing 10^5 overrides takes time; choose where.
  std::shared_ptr<const Rulebook> TakeRetired() { return std::move(retired_); }

  const Rulebook& rules() const { return *rules_; }
  const TableKeys& keys() const { return table_->keys(); }
  Table& table() { return *table_; }
  std::size_t lanes() const { return lanes_.size(); }
  const Lane& lane(std::size_t i) const { return *lanes_[i]; }

  // Why the table found in the region was discarded, or empty; and how many of its entries were dropped if not.
  const std::string& discarded() const { return discarded_; }
  std::uint64_t dropped() const { return table_->counts().dropped; }

  // ---- Sharing with peers (sharing.h drives it) ----

  // From now on hits under shared limits are kept until a report takes them. `period` is the time between reports,
  // `peers` how many other hosts there are: what debt and the age of hits are bounded by, unless a rule says otherwise.
  // A period of zero ends it.
  void ShareWith(std::size_t peers, Duration period);

  // Debits entries [first, first + n) of what `peer` served in (from, to].
  void Debit(const Entries& entries, std::size_t first, std::size_t n, Instant from, Instant to, Instant now,
             std::uint32_t peer = 0);

  // Takes over entries [first, first + n) of a peer's buckets, as of `at`, where they are emptier than ours.
  void Merge(const Entries& entries, std::size_t first, std::size_t n, Instant at, Instant now);

  // Hands hits of a slot over as an entry of a report on (from, to], or its bucket as one of a snapshot; false if there
  // is no room. A limit that is not shared counts as handed over.
  bool AddHits(const Tag& tag, const Slot& slot, const Waste& waste, Instant from, Instant to, Draft& out);
  bool AddBucket(const Tag& tag, const Slot& slot, Instant now, Entries& out) const;

  const MergeCounts& merge_counts() const { return merge_counts_; }

  // ---- Limits divided among hosts (part_table.h; dividing.h drives it) ----

  // Lets no query be decided while `change` runs on the parts; keep it short.
  template <class Change>
  void ChangeParts(Change&& change) {
    table_->Exclusively([&] { change(parts_); });
  }
  const PartTable& parts() const { return parts_; }

  // A tag under a divided limit that nobody has named yet: it has no entry and was refused, or it has one. Not all are
  // noted at once.
  bool TakeNoted(NotedTag& noted);

  // The key of a tag under that limit, for all hosts. REQUIRES: the limit is divided.
  CapacityKey KeyOf(const Tag& tag, const Limit& limit) const;
  // ---- Hits that should not wait for the end of the period (watch.cc) ----

  // From now on tags are watched, at most so many (rounded up): those under `forecast`, and with `eager` all that are
  // shared. `wake` is called by whoever answers when something is urgent, once until ReportUrgent; it may be any
  // thread.
  void WatchTags(std::size_t tags, bool eager, std::function<void()> wake);

  // Whether peers can hear of hits now. Until then, and without peers, `forecast` does what `debit` does.
  void SetHeard(bool heard);

  // Hands over what is urgent, of hits since `from`, as long as there is room; true if not all of it found some. To be
  // called at urgent_at(), though not more often than every kUrgentEvery, and soon after `wake`.
  bool ReportUrgent(Instant from, Instant now, Draft& out);
  Instant urgent_at() const { return noted_.load(std::memory_order_relaxed) ? Instant::min() : look_at_; }
  static constexpr Duration kUrgentEvery = std::chrono::milliseconds(5);

  // Whether the hits of this slot can wait for a later report than that of this period. With its shard's lock.
  bool CanWait(const Tag& tag, const Slot& slot, Instant now) const;

  WatchCounts watch_counts() const;

  // ---- How accurate shared limits are (certificate.h; certify.cc) ----

  // Looks at the tags that peers' hits have drained, if that is due. Once a period.
  void Certify(Instant now);
  const Certificate& certificate() const { return certificate_; }
  std::vector<AccuracyNews> TakeAccuracyNews() { return certificate_.TakeNews(); }
  // Of a rule.
  const RuleAccuracy& accuracy(std::size_t rule) const { return certificate_.rule(counter_of_rule_[rule]); }
  // What the theory says of a limit, other hosts being as old as that.
  BoundTerms BoundTermsOf(const Limit& limit) const;

  // ---- What is forgotten for want of room (retention.h) ----

  // Once every Retention::kEvery.
  void LookAtRetention(Instant now);
  std::optional<Duration> RetentionOf(std::size_t rule) const { return retention_.of(counter_of_rule_[rule]); }
  // `rule` may also be Lane::kNoRule.
  Retention::Totals Forgotten(std::size_t rule) const;

  // ---- Shedding (shed/logistic.h) ----

  // From now on some queries are refused under limits that shed, as `curve` has it where the signal is at `x`. The
  // curve's interval is cut into as many equal steps as there are priorities in the rules, the least important first:
  // the next one begins to be refused when all of the one before it is. With one priority it is the whole interval.
  void Shed(const LogisticCurve& curve, double x);
  void StopShedding();

  // Of limits with that priority; 0 for kShedPriorities, which is those that never shed.
  double rejection_probability(std::size_t priority) const {
    return shed_.probability[priority].load(std::memory_order_relaxed);
  }
  bool shedding() const { return shed_.any.load(std::memory_order_relaxed); }

  Inspection Inspect(const Query& query, Instant now);

  // Forgets what the tag has spent or owes. False if there was nothing.
  bool Forgive(const Query& query, Instant now);

  // Sums over lanes. `rule` may also be Lane::kUnmatched or Lane::kNoRule.
  RuleTotals Totals(std::size_t rule) const;

  // Sums over lanes and everything that has a limit, since the start.
  RuleTotals GrandTotals() const;

  // The same two of what peers' hits did. `rule` may also be Lane::kNoRule.
  DebitTotals Debits(std::size_t rule) const;
  DebitTotals GrandDebits() const { return all_debits_; }

 private:
  Claim ClaimOf(const Slot&, Instant now) const override;
  void Forgot(const Slot&, unsigned earned) override;
  bool Reshape(const Tag&, Slot&, Instant now) const override;
  bool Plausible(const Slot&, Instant now) const override;

  Verdict Decide(const Query& query, const Table::Probe& probe, Lane& lane, Prng& prng, Instant now,
                 Standing* standing);
  Verdict Refuse(const Query& query, std::uint64_t hash, const Limit& limit, RuleCounters& counters);
  PartTable::Entry* EntryOf(const Tag& tag, const Limit& limit);
  Shape ShapeHere(const Limit& limit, const PartTable::Entry* entry, Instant now) const;
  std::optional<LimitIndex> FindLimit(const Query& query) const;
  template <class Change>
  void ForEach(const Entries& entries, std::size_t first, std::size_t n, Instant now, Change&& change);
  struct Said {
    std::uint64_t value;
    std::optional<std::uint64_t> demand;
  };
  bool AddEntry(const Tag& tag, LimitIndex limit, const Said& said, Entries& out) const;
  bool AddHits(const Tag& tag, LimitIndex limit, const Said& said, Ticks began, Draft& out) const;
  // What a debit under a limit is done by.
  struct DebitTerms {
    LimitIndex index = std::numeric_limits<LimitIndex>::max();    // of none
    const Limit* limit = nullptr;
    Ticks max_debt = 0;
    Duration horizon{};
    DebitTotals* totals = nullptr;
  };
  DebitTerms TermsOf(LimitIndex index);
  void NoteDrained(const Tag& tag, std::uint64_t hash, const Bucket& before, const Bucket& bucket,
                   const DebitTerms& terms, bool unrecorded, Instant now);
  Ticks MaxDebt(const Limit& limit) const;
  Duration Horizon(const Limit& limit) const;
  bool Watched(const Limit& limit) const { return watches_ != nullptr && (limit.forecast || (eager_ && limit.shared)); }
  Pace PaceOf(const Limit& limit) const;
  Tokens UnheardMax(const Limit& limit) const;
  void StepWatch(Watch& watch, const Bucket& bucket, const Limit& limit, Instant now);
  // False: it is to be refused, tokens or not.
  bool Foresees(Watch& watch, const Bucket& bucket, const Limit& limit, Cost cost, Lane& lane, Instant now) {
    if (watch.forecast.Stale(now)) StepWatch(watch, bucket, limit, now);
    if (watch.forecast.Admits(cost) || !limit.forecast || !heard_ || cost == 0) return true;
    if (watch.forecast.held()) {
      lane.held_.Add();
      Note(watch);
    }
    return false;
  }
  void WatchNew(const Query& query, std::uint64_t hash, const Slot& slot, const Limit& limit, Instant now);
  void Note(Watch& watch) {
    if (!watch.noted) NoteNow(watch);
  }
  void NoteNow(Watch& watch);
  void LookAgain(const Watch& watch, Instant now);
  Instant Hear(const PeerWord& word, const Tag& tag, std::uint64_t hash, const Slot* slot, const Limit& limit,
               Instant now);
  bool ReportHits(Watch& watch, LimitIndex limit, Tokens hits, const Waste* waste, Instant from, Instant to,
                  Draft& out);
  bool LookAt(std::uint64_t hash, Instant from, Instant now, Draft& out);
  void CertifyTag(std::size_t set, std::size_t way, std::uint64_t hash, Instant now);
  std::uint64_t HeardOf(std::size_t counter) const;
  RuleTotals CounterTotals(std::size_t counter) const;
  std::vector<std::size_t> AssignCounters(const Rulebook& rules);

  // Changed only while every shard of the table is locked, read while one is.
  std::shared_ptr<const Rulebook> rules_;
  std::shared_ptr<const Rulebook> previous_;    // while reshaping: what older slots mean
  std::vector<std::size_t> counter_of_rule_;    // index into a lane's counters; one more entry, for kNoRule

  // Written by the owner's thread when the signal was measured, read with every query: on a line of its own.
  struct alignas(64) Shedding {
    std::atomic<bool> any{false};    // whether some probability is not 0
    std::array<std::atomic<double>, kShedPriorities + 1> probability{};
  } shed_;

  PartTable parts_;

  std::size_t peers_ = 0;
  Ticks window_ = 0;    // the period of reports; 0: nothing is shared

  // Watched tags; null: none. Every watch is under the lock of its tag's shard.
  std::unique_ptr<Watches> watches_;
  bool eager_ = false, heard_ = false;
  double root_hosts_ = 1;
  std::function<void()> wake_;
  std::atomic<bool> noted_{false};
  // Of ReportUrgent's rounds: when the next part is due, how long after the one before, and after those of this round.
  Instant look_at_ = Instant::max();
  Duration look_every_ = Duration::max(), round_every_ = Duration::max();
  std::size_t next_set_ = 0;

  MergeCounts merge_counts_;
  std::vector<DebitTotals> debits_ = std::vector<DebitTotals>(Lane::kCounters);    // by counter, as in a lane
  DebitTotals all_debits_;
  Certificate certificate_{Lane::kCounters};
  Retention retention_{Lane::kCounters};
  std::shared_ptr<const Rulebook> retired_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::string> counter_names_;    // the rule that each of the lanes' counters counts for
  std::vector<RuleTotals> counter_bases_;     // what it had counted for another rule before
  std::string discarded_;
  std::unique_ptr<Table> table_;
};

}    // namespace dthrottle
