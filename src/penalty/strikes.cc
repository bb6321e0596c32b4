#include "penalty/strikes.h"

#include <optional>

namespace dthrottle {

void Strikes::Enable() {
  counts_ = std::make_unique<Table>(kCounted);
  untold_ = std::make_unique<ToldTable<Untold, 7>>(kUntold);
}

// The count of the tag as of now; null: there is no room for it. `worth(count)` is as of SideTable::RoomFor, of a count
// that is not over.
template <class WorthOf>
Strikes::Count* Strikes::CountOf(std::uint64_t hash, const Penalty& terms, Instant now, WorthOf&& worth) {
  const auto is_over = [&](const Count& its) { return now - its.since >= terms.within; };
  std::size_t at = counts_->Find(hash);
  if (at == Table::kNone) {
    at = counts_->RoomFor(hash, [&](std::size_t place) {
      const Count& its = (*counts_)[place];
      return is_over(its) ? std::optional(Worth(0, 0)) : worth(its);
    });
    if (at == Table::kNone) return nullptr;
    const Count& before = (*counts_)[at];
    if (counts_->HashAt(at) != 0 && !is_over(before)) crowded_.fetch_add(before.elsewhere, std::memory_order_relaxed);
    counts_->Put(at, hash);
    (*counts_)[at] = Count();
  }
  Count& its = (*counts_)[at];
  if (its.all() == 0 || is_over(its)) its = {.since = now};
  return &its;
}

std::uint32_t Strikes::Refused(const Tag& tag, std::uint64_t hash, const Penalty& terms, std::size_t hosts,
                               Instant now) {
  Count* const its = CountOf(hash, terms, now, [](const Count& other) { return std::optional(Worth(1, other.here)); });
  if (its == nullptr) return 1;
  ++its->here;
  if (hosts > 1 && its->all() < terms.after) Keep(tag, hash, terms, terms.after - its->all(), hosts, now);
  return its->all();
}

// Remembers a refusal for peers.
void Strikes::Keep(const Tag& tag, std::uint64_t hash, const Penalty& terms, std::uint64_t missing, std::size_t hosts,
                   Instant now) {
  const std::size_t at = untold_->FindOrPut(hash, [&](std::size_t place) {
    const Instant until = (*untold_)[place].until;
    return until <= now ? std::optional(until) : std::nullopt;
  });
  if (at == untold_->kNone) {
    not_told_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Untold& its = (*untold_)[at];
  if (its.until <= now) its = {KeptTag(tag), now + terms.within, 0};
  ++its.refusals;
  if (2 * hosts * its.refusals >= missing && untold_->SetUntold(at) && wake_) wake_();
}

std::uint32_t Strikes::Heard(std::uint64_t hash, std::uint32_t peer, std::uint64_t refusals, const Penalty& terms,
                             Instant now, const std::function<bool()>& may) {
  const std::size_t ours = HeardNear(hash, peer);
  Count* const its = CountOf(hash, terms, now, [&](const Count& other) {
    const std::size_t theirs = other.here == 0 ? HeardNear(hash, other.peer) : 0;
    return theirs > ours + 1 ? std::optional(Worth(1 + kWays - theirs, other.elsewhere)) : std::nullopt;
  });
  if (its == nullptr) {
    crowded_.fetch_add(refusals, std::memory_order_relaxed);
    return 0;
  }
  if (its->all() == 0 || HeardNear(hash, its->peer) > ours + 1) its->peer = peer;
  heard_.fetch_add(refusals, std::memory_order_relaxed);
  const std::uint32_t half = (terms.after - 1) / 2;
  const auto all = static_cast<std::uint32_t>(std::min<std::uint64_t>(its->elsewhere + refusals, terms.after));
  const bool counts = all <= half || all == its->elsewhere || may();
  its->elsewhere = counts ? all : std::max(its->elsewhere, half);
  return its->all();
}

void Strikes::Forget(std::uint64_t hash) {
  if (const std::size_t at = counts_->Find(hash); at != counts_->kNone) counts_->Remove(at);
  if (const std::size_t at = untold_->Find(hash); at != untold_->kNone) untold_->Remove(at);
}

}    // namespace dthrottle
