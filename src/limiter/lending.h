// Lends tokens of a limiter to workers (share/loans.h), and stands in for them where they refuse by themselves.
//
// A worker that uses its entry has tokens there before it wants them: out of what the bucket holds while that is
// something, else tokens that are due soon, each for one worker alone. In between and afterwards the entry refuses until
// the bucket has a token that nobody has. So a worker asks only for what is new.
#pragma once

#include <cstdint>

#include "base/tag.h"
#include "base/time.h"
#include "limiter/limiter.h"

namespace dthrottle {

struct Loan;

// A handle: copies are the same.
class Lending {
 public:
  // The limiter must outlive this object.
  explicit Lending(Limiter& limiter) : limiter_(limiter) {}

  // From now on tokens may be lent. Before, workers are only told of refusals. Until `strays` workers may have tokens
  // of the table's buckets that another process lent, and did not take back because it was killed.
  void Enable(Instant strays = Instant::min());

  // The rest is for any thread, as Limiter::Answer.

  // Brings the entries of the tag up to date, `loan` among them, which may be a new one: what is spent counts as served,
  // and who uses an entry is lent more. `alone`: only `loan`, whose worker has just asked; returns whether it asked
  // though tokens lay there. REQUIRES: the loan's entry, count and name are set, and it has been with no other tag since
  // the last Return.
  bool Deal(const Query& query, Loan& loan, bool alone, LaneUse lane, Instant now);
  // Counts what is spent of the tag by now, and makes room for it in the bucket. Changes no entry.
  void Settle(const Query& query, LaneUse lane, Instant now);
  // Takes back what is not spent. The entry is its owner's again.
  void Return(const Query& query, Loan& loan, LaneUse lane, Instant now);

  // Until when the tag's queries are refused, as far as its bucket and its penalty can tell now; `now`: they are not, or
  // only asking tells. What gives tokens back, other rules and a larger part of a capacity end it sooner.
  Instant RefusedUntil(const Query& query, Instant now) const;
  // So many queries of the tag were refused on that word, and nobody has asked. Limiter::Answer counts refusals so.
  void CountRefused(const Query& query, Cost times, LaneUse lane, Instant now);

  std::uint64_t served() const;    // queries, by workers

 private:
  Limiter& limiter_;
};

}    // namespace dthrottle
