#include "share/loans.h"

#include <optional>
#include <utility>

namespace dthrottle {

namespace {

std::int64_t ToNs(Instant at) {
  return at.time_since_epoch().count();
}

}    // namespace

std::uint32_t Loan::Decided() const {
  return dthrottle_page_taken(count) + __atomic_load_n(&count->refused, __ATOMIC_RELAXED);
}

// A ticket that was taken too late for a token counts for the next one that is lent: its thread may look only then. So
// each ticket is accounted for once, and in its order. A worker whose count is nonsense begins anew where it is. What it
// says of the tickets beyond the first of a query may come later than these, and is no more than its word.
WorkerSpent Loan::Settle() {
  const std::uint32_t taken = dthrottle_page_taken(count), tickets = taken - settled;
  const Cost spent = std::min(tickets, out);
  out -= spent;
  settled += spent;
  const std::uint32_t said = __atomic_load_n(&count->more, __ATOMIC_RELAXED);
  if (tickets - spent > kStray) {
    settled = taken;
    more = said;
    return {spent, spent};
  }
  const Cost beyond = std::min(said - more, spent);
  more += beyond;
  return {spent, spent - beyond};
}

// What was taken before `allowed` was lowered, and what was taken between that and now, counts as spent.
Cost Loan::Recall(WorkerSpent& spent) {
  spent += Settle();
  if (out == 0) return 0;
  dthrottle_page_lower(entry, name, settled);
  spent += Settle();
  return std::exchange(out, 0);
}

void Loan::Lend(Cost tokens, double under, Instant from, Instant now) {
  out += tokens;
  part = under;
  due = from;
  lent_at = now;
}

// The page rounds `due` up, and an entry that has no tokens says nothing that is later than `until`. Tokens that are there
// were so for a worker with an old clock too.
void Loan::Say(Instant until, Instant now) {
  says_until = until;
  lends = out > 0;
  const std::int64_t then = ToNs(until), unit = DTHROTTLE_PAGE_UNIT_NS;
  const std::int64_t from = out == 0 ? then / unit * unit : ToNs(due > now ? due : now - kOldClock);
  dthrottle_page_put(entry, name, settled + out, dthrottle_page_times(from, until > now ? then : from));
}

void LentTag::Measure(Instant now) {
  const double time = Seconds(now - measured_at_);
  if (time <= 0) return;
  const auto wanted = static_cast<double>(std::exchange(wanted_, 0));
  // Averages that forget with half of that time count for so long.
  demand_ += std::min(2 * time / kLately, 1.0) * (wanted / time - demand_);
  demand_long_ += std::min(2 * time / kLong, 1.0) * (wanted / time - demand_long_);
  measured_at_ = now;
}

void Loans::Enable(Instant strays) {
  if (table_ == nullptr) table_ = std::make_unique<SideTable<LentTag, kWays>>(kTags);
  strays_end_ = strays;
  strays_ = true;    // until somebody looks
}

bool Loans::AnyStrays(Instant now) {
  if (!strays_.load(std::memory_order_relaxed)) return false;
  if (now >= strays_end_) strays_.store(false, std::memory_order_relaxed);
  return now < strays_end_;
}

// They are charged. So a bucket has too much of its own only by what it has gained since the other process was killed,
// and only where it is more than half full.
void Loans::LeaveRoomForStrays(Bucket& bucket, const Shape& shape, Instant now) const {
  const Instant killed = strays_end_ - 2 * Loan::kLast;    // at the earliest; what was lent before has ended
  const Ticks had = ToTicks(bucket.UntilFull(now) + (now - killed));
  bucket.LeaveRoom(std::min(had, Room(shape, 0) * shape.interval), now);
}

LentTag* Loans::Find(std::uint64_t hash) const {
  if (table_ == nullptr) return nullptr;
  const std::size_t place = table_->Find(hash);
  return place != table_->kNone ? &(*table_)[place] : nullptr;
}

bool Loans::Join(std::uint64_t hash, Loan& loan) {
  if (table_ == nullptr) return false;
  const std::size_t place = table_->FindOrPut(
      hash, [&](std::size_t its) { return (*table_)[its].first == nullptr ? std::optional(0) : std::nullopt; });
  if (place == table_->kNone) return false;
  loan.next = std::exchange((*table_)[place].first, &loan);
  return true;
}

void Loans::Leave(std::uint64_t hash, Loan& loan) {
  const std::size_t place = table_->Find(hash);
  LentTag& tag = (*table_)[place];
  Loan** at = &tag.first;
  while (*at != &loan) at = &(*at)->next;
  *at = std::exchange(loan.next, nullptr);
  tag.Count(loan.Decided() - loan.seen);
}

}    // namespace dthrottle
