#include "frontend/page/refusals.h"

#include <algorithm>

namespace dthrottle {

namespace {

constexpr Duration kPace = std::chrono::seconds(1);
constexpr std::uint64_t kFewNotes = 32;

std::int64_t ToNs(Instant at) {
  return at.time_since_epoch().count();
}

}    // namespace

WorkerRefusals::WorkerRefusals(dthrottle_page& page, const std::uint32_t* counts, std::uint32_t entries,
                               Refuser& refuser)
    : page_(page), counts_(counts), entries_(entries), refuser_(refuser) {}

void WorkerRefusals::Note(std::string_view tag, Instant now) {
  ++notes_;
  const Instant until = std::min(refuser_.RefusedUntil(tag, now), now + kAhead);
  if (until - now < kWorthwhile) return;
  if (kept_.empty()) kept_.resize(entries_);
  const std::uint64_t name = dthrottle_page_name(page_.head.key, tag.data(), tag.size());
  const std::uint32_t place = PlaceFor(name, tag);
  Kept& kept = kept_[place];
  if (kept.tag == tag) {
    dthrottle_page_move(dthrottle_page_at(&page_, place), name, ToNs(kept.until = until));
    return;
  }
  kept.tag.empty() ? live_.push_back(place) : Free(place, now);
  kept = {std::string(tag), until, __atomic_load_n(&counts_[place], __ATOMIC_RELAXED), 1};
  dthrottle_page_put(dthrottle_page_at(&page_, place), name, ToNs(until));
}

// The entry of the tag, else one that is free, else the one that was used least.
std::uint32_t WorkerRefusals::PlaceFor(std::uint64_t name, std::string_view tag) const {
  const std::uint32_t first = dthrottle_page_set(name, entries_);
  std::uint32_t least = first;
  for (std::uint32_t place = first; place < first + DTHROTTLE_PAGE_WAYS; ++place) {
    // Two tags of one name would be one to the worker.
    if (kept_[place].tag == tag || dthrottle_page_at(&page_, place)->name == name) return place;
    const auto rank = [&](std::uint32_t at) { return kept_[at].tag.empty() ? 0 : std::uint64_t{kept_[at].uses} + 1; };
    if (rank(place) < rank(least)) least = place;
  }
  return least;
}

// Returns how often the worker has refused the tag since the last time.
std::uint32_t WorkerRefusals::TakeCount(std::uint32_t place, Instant now) {
  Kept& kept = kept_[place];
  const std::uint32_t count = __atomic_load_n(&counts_[place], __ATOMIC_RELAXED);
  const std::uint32_t claimed = count - kept.counted;
  kept.counted = count;
  if (claimed == 0) return 0;
  const auto most = static_cast<std::uint32_t>(std::max(plausible_.Left(now), 0.0));
  const std::uint32_t times = std::min(claimed, most);
  plausible_.Spend(times);
  refused_ += times;
  clamped_ += claimed - times;
  if (times > 0) refuser_.CountRefused(kept.tag, times, now);
  return times;
}

// The count is taken when no more comes.
void WorkerRefusals::Free(std::uint32_t place, Instant now) {
  dthrottle_page_clear(dthrottle_page_at(&page_, place));
  TakeCount(place, now);
  kept_[place].tag.clear();
}

void WorkerRefusals::Look(Instant now) {
  for (std::size_t i = 0; i < live_.size();) {
    if (LookAt(live_[i], now)) {
      ++i;
      continue;
    }
    Free(live_[i], now);
    live_[i] = live_.back();
    live_.pop_back();
  }
  PaceNotes(now);
}

// False: the page has nothing to say of the tag any more.
bool WorkerRefusals::LookAt(std::uint32_t place, Instant now) {
  Kept& kept = kept_[place];
  const std::uint32_t times = TakeCount(place, now);
  kept.uses = std::min(kept.uses / 2, ~times) + times;
  if (times == 0 && kept.until <= now) return false;
  Instant until = std::min(refuser_.RefusedUntil(kept.tag, now), now + kAhead);
  if (times == 0) until = std::min(until, kept.until);
  if (until <= now) return false;
  dthrottle_page_entry* const entry = dthrottle_page_at(&page_, place);
  if (until != kept.until) dthrottle_page_move(entry, entry->name, ToNs(kept.until = until));
  return true;
}

void WorkerRefusals::Recall(Instant now) {
  for (const std::uint32_t place : live_) Free(place, now);
  live_.clear();
}

// A worker whose notes are not worth it, because few of the tags come again, tells of fewer.
void WorkerRefusals::PaceNotes(Instant now) {
  if (now - paced_at_ < kPace) return;
  const std::uint64_t refused = refused_ - refused_before_;
  std::uint32_t one_in = std::max(page_.head.note_one_in, 1u);
  if (notes_ >= kFewNotes && refused < notes_) {
    one_in = std::min<std::uint32_t>(one_in * 2, DTHROTTLE_PAGE_NOTE_ONE_IN_MAX);
  } else if (refused >= 2 * notes_) {
    one_in = std::max(one_in / 2, 1u);
  }
  __atomic_store_n(&page_.head.note_one_in, one_in, __ATOMIC_RELAXED);
  paced_at_ = now;
  notes_ = 0;
  refused_before_ = refused_;
}

}    // namespace dthrottle
