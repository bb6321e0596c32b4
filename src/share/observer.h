// Somebody who is shown what is decided of some tags, and what peers say that they served: of the tags in a share of all
// keyed hashes, so that a tag is shown whole or not at all. Without an observer a decision costs one comparison more.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "bus/entries.h"
#include "hold/payment.h"
#include "query/question.h"
#include "share/debit/word.h"

namespace dthrottle {

// A share of all tags, by their hashes.
class TagSample {
 public:
  TagSample() = default;
  // REQUIRES: 0 <= share <= 1.
  explicit TagSample(double share) : below_(static_cast<std::uint64_t>(share * 0x1p32)) {}

  // The table of buckets uses other bits of the hash, so a sample is spread over all of it.
  bool Has(std::uint64_t hash) const { return (hash * 0xd6e8feb86659fd93) >> 32 < below_; }

  friend bool operator==(const TagSample&, const TagSample&) = default;

 private:
  std::uint64_t below_ = 0;
};

class Observer {
 public:
  static constexpr std::size_t kAtOnce = 64;    // queries of one call

  virtual ~Observer() = default;

  // ---- On any query thread, each with its own lane. No shard of the limiter's table is locked ----

  // Queries that were decided in this order: verdicts[i] answered queries[i]. None was refused because the host runs
  // hot, for want of a place, or by a quota.
  virtual void Answered(std::span<const Query> queries, std::span<const Verdict> verdicts, std::size_t lane,
                        Instant now) = 0;
  // A question of which the sample has a tag. It is no peek, and was not refused as above.
  virtual void Asked(const Questions::Question& question, std::span<const Query> queries, const Outcome& outcome,
                     std::size_t lane, Instant now) = 0;
  // A worker has decided so many queries of the tag, of one token each, by itself (share/loans.h,
  // Lending::CountRefused), and did not refuse them as above. A shard may be locked.
  virtual void Decided(const Query& query, bool served, Cost times, std::size_t lane, Instant now) = 0;
  // Limiter::Settle was called, or Limiter::GiveUp with nothing used. Asked has shown the question at paid.at, if
  // anybody looked then.
  virtual void Settled(const Payment& paid, Cost actual, Instant now) = 0;
  // Limiter::GiveBack was called.
  virtual void GivenBack(const Query& query, Instant now) = 0;
  // Forgive (limiter/inspect.h) was called.
  virtual void Forgiven(const Query& query, Instant now) = 0;

  // ---- On the owner's thread ----

  // Entries [first, first + n) of what the speaker served in (from, to], of any tags.
  virtual void Heard(const Entries& entries, std::size_t first, std::size_t n, Instant from, Instant to,
                     const Speaker& speaker, Instant now) = 0;
};

// The observer of a limiter, if it has one.
class Observed {
 public:
  // Null: nobody looks from now on; calls that are under way hold the one before.
  void By(std::shared_ptr<Observer> observer, TagSample sample) {
    const std::lock_guard lock(mutex_);
    observer_ = std::move(observer);
    sample_.store(observer_ != nullptr ? sample : TagSample(), std::memory_order_relaxed);
  }

  TagSample sample() const { return sample_.load(std::memory_order_relaxed); }
  std::shared_ptr<Observer> observer() const {
    const std::lock_guard lock(mutex_);
    return observer_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Observer> observer_;
  std::atomic<TagSample> sample_{};
};

}    // namespace dthrottle
