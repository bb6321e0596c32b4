// Rules that are tried beside those in force: the queries of a sample of tags are decided once more, by a limiter of its
// own with the candidate's rules, and what the clients were told is compared with what they would have been told.
//
// It is the shipped limiter over a second table, which is smaller by the share of the sample, and has the same keys, so
// that both find a tag by one hash. Its buckets begin with what the tags have spent under the rules in force, and
// penalties go on.
//
// What peers report is debited here too. They decide by the rules in force: where the candidate would have served more
// or less of a tag on this host, the tag's hits elsewhere count for so much more or less.
//
// A host compares by itself. It knows neither parts of a capacity, which are compared as equal parts, nor places in
// flight, quotas, shedding and what peers say of refusals and penalties, which are left out (NotCompared says so).
//
// A hold or a wait that the candidate has refused is settled by the rules in force alone. Nobody knows which query a
// refund is for, so it comes back to both (NotCompared says so).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/counter.h"
#include "base/prng.h"
#include "base/side_table.h"
#include "base/tag.h"
#include "base/tokens.h"
#include "bus/entries.h"
#include "io/files.h"
#include "limiter/limiter.h"
#include "share/observer.h"

namespace dthrottle {

// Queries, by what became of them.
struct Differences {
  std::uint64_t queries = 0;
  std::uint64_t refused = 0;              // by the rules in force
  std::uint64_t candidate_refused = 0;    // by the candidate
  std::uint64_t newly_refused = 0;        // served, and the candidate would have refused
  std::uint64_t newly_served = 0;         // refused, and the candidate would have served

  void Add(bool served, bool would_serve, Cost times) {
    queries += times;
    refused += served ? 0 : times;
    candidate_refused += would_serve ? 0 : times;
    newly_refused += served && !would_serve ? times : 0;
    newly_served += !served && would_serve ? times : 0;
  }
  Differences& operator+=(const Differences& o) {
    queries += o.queries, refused += o.refused, candidate_refused += o.candidate_refused;
    newly_refused += o.newly_refused, newly_served += o.newly_served;
    return *this;
  }
};

// The candidate's rules as one of so many hosts can try them.
std::shared_ptr<const Rulebook> AsCompared(const Rulebook& candidate, std::size_t hosts);

// What of a candidate is compared in part or not at all, a sentence each. `refunds`: there were some.
std::vector<std::string> NotCompared(const Rulebook& candidate, double share, bool refunds = false);

class Comparison final : public Observer {
 public:
  // Compares with `live` on a share of its tags, in `memory`. `rules` are AsCompared. `clock` is what tells the cost.
  Comparison(MappedRegion memory, Limiter& live, std::shared_ptr<const Rulebook> rules, double share,
             Instant (*clock)(), Instant now);

  // The memory for a table of `live_bytes`.
  static std::size_t BytesFor(std::size_t live_bytes, double share);

  TagSample sample() const { return sample_; }

  // ---- The owner's thread ----

  // Takes over what tags of the sample have spent, a slice at a time, and penalties with the last one, before it
  // observes; returns whether there is more.
  bool CopySome(Instant now);
  // There may be another number of peers.
  void FollowPeers();

  // ---- Results, on any thread ----

  struct OfTag {
    std::string tag;
    bool is_digest = false;
    Differences seen;    // since the tag was first refused by either
  };
  // By the candidate's rules, in order, and of tags without one at the end.
  std::vector<Differences> ByRule() const;
  // The tags that differ most, most first, at most n.
  std::vector<OfTag> TopTags(std::size_t n);
  // A tag was refunded something.
  bool any_refunds() const { return any_refunds_.load(std::memory_order_relaxed); }
  // CPU time of a query that is compared, beyond what it costs anyway; 0: none was timed.
  double NanosecondsEach() const;

  // ---- Observer ----

  void Answered(std::span<const Query> queries, std::span<const Verdict> verdicts, std::size_t lane,
                Instant now) override;
  void Asked(const Questions::Question& question, std::span<const Query> queries, const Outcome& outcome,
             std::size_t lane, Instant now) override;
  void Decided(const Query& query, bool served, Cost times, std::size_t lane, Instant now) override;
  void Settled(const Payment& paid, Cost actual, Instant now) override;
  void GivenBack(const Query& query, Instant now) override;
  void Forgiven(const Query& query, Instant now) override;
  void Heard(const Entries& entries, std::size_t first, std::size_t n, Instant from, Instant to, const Speaker& speaker,
             Instant now) override;

 private:
  // What one query thread counts.
  struct LaneCounts {
    LaneCounts(std::size_t rules, std::uint64_t seed) : by_rule(rules), prng(seed) {}

    struct Counters {
      Counter queries, refused, candidate_refused, newly_refused, newly_served;
    };
    std::vector<Counters> by_rule;
    Counter timed_ns, timed_queries;
    std::uint64_t calls = 0;
    Prng prng;
    std::array<Standing, kAtOnce> standings;    // scratch: most calls need few of them
  };

  // A tag that either has refused.
  struct Seen {
    Differences seen;
    std::uint32_t served = 0, would_serve = 0;    // lately: both are halved now and then
    double owed = 0;                              // part of a hit of peers that is not debited yet
    KeptTag tag;
  };

  // Payments of a tag for holds or waits under the rules in force that it has not made here, of one instant and cost.
  struct Unpaid {
    std::uint32_t times = 0;
    Instant at{};
  };

  // What a query is counted as: one, or as many as it has tokens.
  enum class CountedAs : std::uint8_t { kOne, kTokens };

  void Compare(std::span<const Query> queries, std::span<const Verdict> verdicts, CountedAs counted_as,
               std::size_t lane, Instant now);
  // The same was decided so many times.
  void Note(const Query& query, const Standing& standing, bool served, bool would_serve, Cost times,
            LaneCounts& counts);
  void NoteTag(const Tag& tag, bool served, bool would_serve, Cost times, LaneCounts& counts);
  void KeepUnpaid(const Payment& paid);
  bool TakeUnpaid(const Payment& paid);
  std::uint64_t HitsOf(const Tag& tag, std::uint64_t hash, std::uint64_t hits);

  static constexpr std::size_t kTags = 8192, kTagWays = 8;
  static constexpr std::size_t kUnpaid = 16384, kUnpaidWays = 8;    // the oldest makes room

  const MappedRegion memory_;
  Limiter& live_;
  const std::shared_ptr<const Rulebook> rules_;
  const TagSample sample_;
  Instant (*const clock_)();
  Limiter shadow_;
  std::vector<std::unique_ptr<LaneCounts>> lanes_;
  SideTable<Seen, kTagWays> tags_{kTags};    // by the lock of the tag's shard of shadow_
  SideTable<Unpaid, kUnpaidWays> unpaid_{kUnpaid};    // by the same
  std::atomic<bool> any_refunds_{false};
  std::size_t copied_ = 0;                   // cells of the live table
  Entries heard_;                            // scratch
};

}    // namespace dthrottle
