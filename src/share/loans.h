// Tokens that workers of this host have on loan, to be spent in their own memory (base/worker_page.h).
//
// A token that is lent is charged to its bucket at once. What a worker has spent is seen by the tickets that it took,
// and counts as served then; what it has not spent can be taken back at any time. So the sum is right whatever a worker
// does: it spends what it was lent, or says that it did.
//
// A bucket with tokens out fills up to `burst` less these (Bucket::LeaveRoom), before tickets are read. Otherwise it
// would fill up while they are out, and both could be spent at once.
//
// A token costs what it did when it was lent. Where hosts divide a limit and this host's part of it has changed since,
// tokens that are not spent come back at that price, and others are lent under the new part.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/side_table.h"
#include "base/time.h"
#include "base/tokens.h"
#include "base/worker_page.h"
#include "bucket/bucket.h"

namespace dthrottle {

// What workers have spent: queries that were served, and their tokens.
struct WorkerSpent {
  Cost tokens = 0, queries = 0;

  WorkerSpent& operator+=(const WorkerSpent& other) {
    tokens += other.tokens, queries += other.queries;
    return *this;
  }
};

// The entry of one tag in the page of one worker. While it is among Loans, it is guarded by the lock of its tag's shard.
struct Loan {
  static constexpr Cost kWantMin = 16, kWantMax = 4096;
  static constexpr std::uint32_t kStray = 1024;    // tickets beyond what is lent; more are no accident
  static constexpr Duration kLast = std::chrono::milliseconds(1600);    // the longest that a page says anything
  // How old the time may be by which a worker looks. A web server looks at the clock once a turn, to the millisecond.
  static constexpr Duration kOldClock = std::chrono::milliseconds(50);

  dthrottle_page_entry* entry = nullptr;
  const dthrottle_page_count* count = nullptr;
  std::uint64_t name = 0;      // of the tag, in the page
  std::uint32_t settled = 0;   // tickets below this one are accounted for; `settled + out` is what the page allows
  std::uint32_t more = 0;      // of these, beyond the first one of each query, as far as they were counted so
  Cost out = 0;                // tokens that are lent and not known to be spent
  double part = 1;             // of the limit, this host's, when they were lent
  Cost want = kWantMin;        // tokens to be lent at once
  std::uint32_t seen = 0;      // of Decided, as of the last time that it was dealt
  std::uint32_t uses = 0;      // between that and the time before
  Instant lent_at{}, due{};    // the tokens: since when, and from when on they may be spent
  // The thread that deals remembers what the entry says: until when it refuses without tokens, and whether it has some.
  Instant says_until{};
  bool lends = false;
  bool fills = false;    // the bucket may fill up before the next look, and lose what its clients are refused later
  Instant dealt_at{};
  bool listed = false;         // among Loans
  bool trusted = true;         // the worker looks into its page before it asks
  Loan* next = nullptr;        // of the same tag

  // How often the worker has decided by the entry, modulo 2^32. It is the worker's claim.
  std::uint32_t Decided() const;
  // What was spent since the last time.
  WorkerSpent Settle();
  // Takes back what is not spent. Returns how much that is, and adds to `spent`.
  Cost Recall(WorkerSpent& spent);
  // Lends more. REQUIRES: they are charged, and what is lent already was under the same part.
  void Lend(Cost tokens, double under, Instant from, Instant now);
  // Tells the worker: what is lent, and until when the tag is refused when that is spent.
  void Say(Instant until, Instant now);

  // Whether the entry says anything.
  bool Speaks(Instant now) const { return lends || says_until > now; }
  // Whether tokens have lain there for so long.
  bool Idle(Duration time, Instant now) const { return out > 0 && std::max(lent_at, due) + time <= now; }
};

// The loans of one tag, and how much it is asked for. That is remembered after the last loan, until its place is
// needed.
class LentTag {
 public:
  Loan* first = nullptr;
  Instant plenty_at = Instant::min();    // when the bucket was nearly full for the last time, with what is lent
  Instant settled_at = Instant::min();    // what was spent until then has been counted

  // So many tokens were wanted, of workers' pages or by asking.
  void Count(std::uint64_t tokens) { wanted_ += tokens; }
  // Takes what was counted since the last time.
  void Measure(Instant now);
  Instant measured_at() const { return measured_at_; }
  // Tokens a second that were wanted in the last kLately and kLong seconds or so; 0 until it was measured twice.
  double demand() const { return demand_; }
  double demand_long() const { return demand_long_; }
  static constexpr double kLately = 1, kLong = 10;

 private:
  std::uint64_t wanted_ = 0;
  double demand_ = 0, demand_long_ = 0;
  Instant measured_at_{};
};

// All of them, by the hash of their tag. With the tag's shard locked.
class Loans {
 public:
  // Takes memory, once; before, nothing is lent. Until `strays` workers may have tokens that a process lent which was
  // killed. With the table locked.
  void Enable(Instant strays);

  bool any() const { return table_ != nullptr && (table_->used() > 0 || strays_.load(std::memory_order_relaxed)); }
  // Whether tokens may be out without a loan. Nobody knows how many, and a bucket of the table does not fill up beside
  // them.
  bool AnyStrays(Instant now);
  void LeaveRoomForStrays(Bucket& bucket, const Shape& shape, Instant now) const;
  // How many tokens more of a bucket may be lent, where so many are.
  static std::int64_t Room(const Shape& shape, Cost out) { return shape.depth / shape.interval / 2 - out; }
  // The tag's loans, or the memory of them. Null: there is neither.
  LentTag* Find(std::uint64_t hash) const;
  // The first of its loans, or null.
  Loan* Of(std::uint64_t hash) const {
    const LentTag* const tag = Find(hash);
    return tag != nullptr ? tag->first : nullptr;
  }
  // False: there is no room.
  bool Join(std::uint64_t hash, Loan& loan);
  void Leave(std::uint64_t hash, Loan& loan);

  void CountServed(std::uint64_t queries) { served_.fetch_add(queries, std::memory_order_relaxed); }
  std::uint64_t served() const { return served_.load(std::memory_order_relaxed); }    // queries, ever

  static Cost Out(const Loan* first) {
    std::uint64_t out = 0;
    for (const Loan* loan = first; loan != nullptr; loan = loan->next) out += loan->out;
    return static_cast<Cost>(std::min<std::uint64_t>(out, UINT32_MAX));
  }

 private:
  static constexpr std::size_t kTags = 65536, kWays = 8;

  std::unique_ptr<SideTable<LentTag, kWays>> table_;
  Instant strays_end_{};
  std::atomic<bool> strays_{false};
  std::atomic<std::uint64_t> served_{0};
};

}    // namespace dthrottle
