// The decision core of one host: the daemon without its input and output.
//
// A tag finds its limit, the limit shapes a bucket, and the limit's way of sharing (share/share.h) lets the bucket give
// a verdict. Nothing on that path allocates, reads a clock or takes a lock but the table's, which is held for one
// decision. The files beside this one are what a limiter does: answer.cc queries, ask.cc questions about several tags,
// settle.cc what was paid, tick.cc the work between them. Beside it stand lending.h for workers, places.h for what is in
// flight, and inspect.h for looking inside.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/tag.h"
#include "base/time.h"
#include "bucket/table.h"
#include "hold/payment.h"
#include "query/verdict.h"

namespace dthrottle {

class Lane;
class Observer;
class Prng;
class Questions;
class Retention;
class Rulebook;
class Shedder;
class TagSample;
class Tally;
class Ways;
enum class Verb : std::uint8_t;
struct Limit;
struct LimiterCore;
struct Outcome;
struct RuleCounters;

// Where a tag stands right after one of its queries was decided.
struct Standing {
  Shape shape{};    // interval 0: the tag has no limit, or one whose mode is off
  Bucket bucket{};
  std::optional<LimitIndex> limit{};    // the limit that applies, if one does
  bool paid = false;                    // what the query costs; in mode shadow it is served also if the tag has less
  std::uint8_t with_unpaid = 0;         // as Payment has it
  std::optional<std::uint32_t> free{};    // places of it, if it has a number of them
  bool entered = false;                   // a place was taken
  Duration penalty{};                     // for so long the tag is refused whatever its bucket holds
  // The tag's quota bounds it more than its bucket (under_limit.h): shape and bucket are those of the quota, as a bucket
  // that its period would fill, and after so long the quota is whole again.
  Duration renewed{};

  bool limited() const { return shape.interval != 0; }
  // Until it has so many tokens, and all. REQUIRES: limited(), cost <= burst.
  Duration Until(Cost cost, Instant now) const {
    const Duration wait = bucket.ServesAt(shape, cost, now) - now;
    return wait > Duration::zero() && renewed != Duration::zero() ? renewed : wait;
  }
  Duration UntilFull(Instant now) const { return renewed != Duration::zero() ? renewed : bucket.UntilFull(now); }
};

// Says who decides: a lane of the tally, and for people who look at refusals the front end, a constant.
struct LaneUse {
  // A lane alone is the query protocol's.
  LaneUse(std::size_t lane_number, std::string_view asked_through = "query")
      : number(lane_number), front_end(asked_through) {}

  std::size_t number;
  std::string_view front_end;
};

class Limiter final : private SlotPolicy {
 public:
  // Takes over or clears the table in `region` (see Table::Open), which must outlive the limiter. `boot_id` tells
  // boots apart, `notes` are Table::Notes. A table under the rules `before`, unless these are null, is kept too, and
  // rewritten as by Adopt. REQUIRES: rules is not null, lanes > 0.
  Limiter(std::span<std::byte> region, const std::array<std::byte, 16>& boot_id, const TableKeys& fresh_keys,
          std::shared_ptr<const Rulebook> rules, std::size_t lanes, Instant now, std::string_view notes = {},
          std::shared_ptr<const Rulebook> before = nullptr);
  ~Limiter();

  // A tag that is derived from another goes by its digest if it is longer than this (query.max_tag_bytes), as one does
  // that a front end reads. To be called before the first query.
  void SetTagBytesMax(std::size_t bytes);

  // Decides queries in order, as if each came alone: verdicts[i] answers queries[i]. If `standings` is not empty,
  // standings[i] is what the query left. Any thread, each with its own lane and prng. REQUIRES: verdicts.size() ==
  // queries.size(), standings.size() too or 0, a lane of tally(), now never runs backwards in one thread.
  void Answer(std::span<const Query> queries, std::span<Verdict> verdicts, LaneUse lane, Prng& prng, Instant now,
              std::span<Standing> standings = {});

  // Decides questions in order, each all or nothing: every tag pays its cost, or none does. outcomes[i] answers
  // questions[i], and standings[i] is where the tag of questions.queries()[i] stands then. Any thread, as Answer.
  // REQUIRES: as Answer; every question names a tag; outcomes.size() == questions.size(), standings.size() ==
  // questions.queries().size().
  void Ask(const Questions& questions, std::span<Outcome> outcomes, std::span<Standing> standings, LaneUse lane,
           Prng& prng, Instant now);

  // Makes what the tag has paid for a hold, `paid.query.cost`, into `actual`, and the same of tags that are charged
  // with it: less comes back, more is charged without asking and may make debt, down to the floor of debits that peers
  // make. Peers hear of either as of hits. A digest without its over-long tag needs a recorded bucket. The thread of
  // lane 0.
  Standing Settle(const Payment& paid, Cost actual, Instant now);
  // Gives back what the tag has paid for a wait that was given up. The thread of lane 0.
  void GiveUp(const Payment& paid, Instant now);
  // Gives back `query.cost` tokens that the tag has spent, nobody knows when, in this period of its quota. Any thread, as
  // Answer.
  Standing GiveBack(const Query& query, LaneUse lane, Instant now);

  // ---- The rest is for one thread, the owner's ----

  // From now on `observer` is shown what becomes of the tags of the sample; null: nobody is.
  void Observe(std::shared_ptr<Observer> observer, TagSample sample);

  // Puts other rules in force at once; buckets keep the tokens they have spent and are rewritten one by one, by Tick or
  // when they are asked for. REQUIRES: !reshaping().
  void Adopt(std::shared_ptr<const Rulebook> rules);
  bool reshaping() const { return table().reshaping(); }
  // Begins to free the places of limits that tags named themselves and no bucket needs (rule/own_limits.h), as Adopt does
  // with the same rules. REQUIRES: !reshaping(), rules().any_own().
  void RenewOwnLimits();

  // A slice of background work of some 100 us; returns whether there is more to do.
  bool Tick(Instant now);

  // Rules that no slot needs any more, if there are any. Freeing 10^5 overrides takes time; choose where.
  std::shared_ptr<const Rulebook> TakeRetired() { return std::move(retired_); }

  const Rulebook& rules() const;
  Table& table();
  const Table& table() const;
  const TableKeys& keys() const { return table().keys(); }
  // The same as Table::Notes; empty where the next process has to look at the slots.
  std::string Notes() const;

  // Why the table found in the region was discarded, or empty.
  const std::string& discarded() const { return discarded_; }

  // How limits are shared with other hosts, what became of queries, and which of them a hot host refuses.
  Ways& ways() { return *ways_; }
  const Ways& ways() const { return *ways_; }
  const Tally& tally() const;
  Shedder& shedder() { return *shedder_; }
  const Shedder& shedder() const { return *shedder_; }

  // The buckets that were forgotten for want of room, by counters of tally().
  const Retention& retention() const { return *retention_; }
  // Once every Retention::kEvery.
  void SampleRetention(Instant now);

 private:
  Claim ClaimOf(const Slot&, Instant now) const override;
  void Forgot(const Slot&, unsigned earned) override;
  bool Reshape(const Tag&, Slot&, WrittenFor, Instant now) const override;
  bool Restore(const Tag&, Slot&, WrittenFor, Instant now) const override;

  class Shown;

  std::optional<Verdict> Decide(const Query& query, const Table::Probe& probe, Lane& lane, Prng& prng, Instant now,
                                Standing* standing, Shown& shown);
  std::optional<Verdict> DecideBefore(const Query& query, std::uint64_t hash, const Limit& limit,
                                      RuleCounters& counters, Prng& prng, Instant now, Standing* standing,
                                      Shown& shown);
  Outcome DecideDerived(const Query& query, const Table::Probe& probe, LaneUse use, Prng& prng, Instant now,
                        Standing* standing);
  void Reassigned(std::size_t counter);

  const std::unique_ptr<LimiterCore> core_;
  const std::unique_ptr<Ways> ways_;
  const std::unique_ptr<Shedder> shedder_;
  const std::unique_ptr<Retention> retention_;
  std::shared_ptr<const Rulebook> previous_;    // while reshaping: what older slots mean
  std::shared_ptr<const Rulebook> retired_;
  std::string discarded_;
};

}    // namespace dthrottle
