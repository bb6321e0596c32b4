#include "limiter/worker_entries.h"

#include <algorithm>

#include "base/check.h"

namespace dthrottle {

namespace {

constexpr Duration kPace = std::chrono::seconds(1);
constexpr std::uint64_t kFewNotes = 32;
const LaneUse kUse{0, "page"};

}    // namespace

WorkerEntries::WorkerEntries(dthrottle_page& page, const dthrottle_page_count* counts, std::uint32_t entries,
                             Lending lending)
    : page_(page), counts_(counts), entries_(entries), lending_(lending) {}

WorkerEntries::~WorkerEntries() {
  DT_CHECK(live_.empty());
}

void WorkerEntries::Note(std::string_view tag, Instant now) {
  ++notes_;
  if (sets_.empty()) sets_.resize(entries_ / DTHROTTLE_PAGE_WAYS);
  const std::uint64_t hash = dthrottle_page_hash(page_.head.key, tag.data(), tag.size());
  std::unique_ptr<Set>& set = sets_[dthrottle_page_set(hash, entries_) / DTHROTTLE_PAGE_WAYS];
  if (set == nullptr) set = std::make_unique<Set>();
  const std::uint32_t place = PlaceFor(hash);
  const Kept* const kept = Find(place);
  if (kept == nullptr || kept->tag != tag) {
    // A tag that is served may be one of which there is nothing to say.
    if (kept != nullptr && kept->uses > 0 && lending_.RefusedUntil({{tag, false}}, now) <= now) return;
    if (kept != nullptr) Free(place, now);
    Begin(place, tag, dthrottle_page_name(hash), now);
  }
  Ask(place, now);
  if (At(place).loan.Speaks(now)) return SeeFilling(place);
  End(place, now);
}

void WorkerEntries::Begin(std::uint32_t place, std::string_view tag, std::uint64_t name, Instant now) {
  Entry& entry = EntryAt(place);
  if (entry.kept == nullptr) {
    entry.kept = std::make_unique<Kept>();
    entry.kept->live_at = static_cast<std::uint32_t>(live_.size());
    live_.push_back(place);
  }
  Kept& kept = *entry.kept;
  kept.tag = tag;
  kept.loan = {};
  kept.loan.entry = dthrottle_page_at(&page_, place);
  kept.loan.count = &counts_[place];
  kept.loan.name = name;
  kept.loan.settled = entry.settled;
  kept.loan.more = entry.more;
  kept.refused = __atomic_load_n(&counts_[place].refused, __ATOMIC_RELAXED);
  kept.decided = kept.loan.seen = kept.loan.Decided();
  kept.uses = 1;
  kept.used_at = now;
}

// A worker that asks again and again though tokens lie in its page does not look there, and is lent no more.
void WorkerEntries::Ask(std::uint32_t place, Instant now) {
  Kept& kept = At(place);
  kept.loan.trusted = blind_ < kBlindMax;
  if (lending_.Deal(QueryOf(kept), kept.loan, true, kUse, now)) ++blind_;
}

void WorkerEntries::SeeFilling(std::uint32_t place) {
  Kept& kept = At(place);
  if (!kept.loan.fills || kept.filling) return;
  kept.filling = true;
  filling_.push_back(place);
}

// The entry of the tag, else one that is free, else the one that was used least.
std::uint32_t WorkerEntries::PlaceFor(std::uint64_t hash) const {
  const std::uint32_t first = dthrottle_page_set(hash, entries_);
  std::uint32_t least = first;
  for (std::uint32_t place = first; place < first + DTHROTTLE_PAGE_WAYS; ++place) {
    const Kept* const kept = Find(place);
    // Two tags of one name would be one to the worker.
    if (kept != nullptr && kept->loan.name == dthrottle_page_name(hash)) return place;
    const auto rank = [&](std::uint32_t at) { return Find(at) == nullptr ? 0 : std::uint64_t{At(at).uses} + 1; };
    if (rank(place) < rank(least)) least = place;
  }
  return least;
}

// Counts what the worker has refused, and returns how often it has decided since the last time.
std::uint32_t WorkerEntries::TakeCount(std::uint32_t place, Instant now) {
  Kept& kept = At(place);
  const std::uint32_t decided = kept.loan.Decided() - kept.decided;
  kept.decided += decided;
  const std::uint32_t refused = __atomic_load_n(&counts_[place].refused, __ATOMIC_RELAXED);
  const std::uint32_t claimed = refused - kept.refused;
  kept.refused = refused;
  if (decided != claimed) blind_ = 0;    // it takes tokens
  if (claimed > 0) {
    const auto most = static_cast<std::uint32_t>(std::max(plausible_.Left(now), 0.0));
    const std::uint32_t times = std::min(claimed, most);
    plausible_.Spend(times);
    refused_ += times;
    clamped_ += claimed - times;
    if (times > 0) lending_.CountRefused(QueryOf(kept), times, kUse, now);
  }
  decided_ += decided;
  return decided;
}

void WorkerEntries::End(std::uint32_t place, Instant now) {
  Free(place, now);
  const std::uint32_t at = At(place).live_at, last = live_.back();
  live_[at] = last;
  At(last).live_at = at;
  live_.pop_back();
  EntryAt(place).kept.reset();
}

// The counts are taken when no more comes.
void WorkerEntries::Free(std::uint32_t place, Instant now) {
  Entry& entry = EntryAt(place);
  Kept& kept = *entry.kept;
  lending_.Return(QueryOf(kept), kept.loan, kUse, now);
  dthrottle_page_clear(kept.loan.entry);
  TakeCount(place, now);
  entry.settled = kept.loan.settled;
  entry.more = kept.loan.more;
}

std::size_t WorkerEntries::Look(Instant now, std::size_t most) {
  if (next_look_ == 0) ForgetFilling();
  std::size_t looks = 0;
  for (; next_look_ < live_.size() && looks < most; ++looks) {
    const std::uint32_t place = live_[next_look_];
    if (LookAt(place, now)) {
      SeeFilling(place);
      ++next_look_;
      continue;
    }
    End(place, now);
  }
  if (next_look_ < live_.size()) return looks;
  next_look_ = 0;
  PaceNotes(now);
  return looks;
}

void WorkerEntries::ForgetFilling() {
  for (const std::uint32_t place : filling_) {
    if (Kept* const kept = Find(place)) kept->filling = false;
  }
  filling_.clear();
}

std::size_t WorkerEntries::Settle(Instant now, std::size_t most) {
  const std::size_t count = std::min(most, filling_.size());
  for (std::size_t i = 0; i < count; ++i) {
    const Kept* const kept = Find(filling_[next_filling_++ % filling_.size()]);
    if (kept != nullptr && kept->loan.fills) lending_.Settle(QueryOf(*kept), kUse, now);
  }
  return count;
}

// False: the page has nothing to say of the tag any more.
bool WorkerEntries::LookAt(std::uint32_t place, Instant now) {
  Kept& kept = At(place);
  const std::uint32_t times = TakeCount(place, now);
  if (times > 0) kept.used_at = now;
  kept.uses = std::min(kept.uses / 2, ~times) + times;
  kept.loan.fills = false;
  // Another worker's look may have dealt already, for all.
  if (kept.loan.dealt_at + kLookEvery / 2 <= now) lending_.Deal(QueryOf(kept), kept.loan, false, kUse, now);
  return kept.loan.Speaks(now) && (!kept.loan.lends || kept.used_at + kIdle > now);
}

std::size_t WorkerEntries::Recall(Instant now, std::size_t most) {
  ForgetFilling();
  std::size_t recalled = 0;
  for (; recalled < most && !live_.empty(); ++recalled) {
    End(live_.back(), now);
  }
  next_look_ = 0;
  return recalled;
}

// A worker whose notes are not worth it, because few of the tags come again, tells of fewer.
void WorkerEntries::PaceNotes(Instant now) {
  if (now - paced_at_ < kPace) return;
  const std::uint64_t decided = decided_ - decided_before_;
  std::uint32_t one_in = std::max(page_.head.note_one_in, 1u);
  if (notes_ >= kFewNotes && decided < notes_) {
    one_in = std::min<std::uint32_t>(one_in * 2, DTHROTTLE_PAGE_NOTE_ONE_IN_MAX);
  } else if (decided >= 2 * notes_) {
    one_in = std::max(one_in / 2, 1u);
  }
  __atomic_store_n(&page_.head.note_one_in, one_in, __ATOMIC_RELAXED);
  paced_at_ = now;
  notes_ = 0;
  decided_before_ = decided_;
}

}    // namespace dthrottle
