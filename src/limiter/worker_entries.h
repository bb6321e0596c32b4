// The entries of one worker's page, and what the daemon makes of the counts that come back.
//
// What an entry says is the limiter's (Lending::Deal), and is looked at again and again. It says at most a second ahead,
// so that what nobody looks at ends by itself: when the daemon is killed or stopped, when it has more entries than time.
// An entry that the worker does not use is not prolonged. So a worker that has nothing decided costs nothing. An entry takes
// memory here while it has a tag, but for its tickets, which go on.
//
// The counts are the worker's to write, and thus claims. Tokens that it says it has spent are at most those that it was
// lent; refusals count for at most kPlausible a second.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/allowance.h"
#include "base/time.h"
#include "base/worker_page.h"
#include "limiter/lending.h"
#include "share/loans.h"

namespace dthrottle {

class WorkerEntries {
 public:
  static constexpr Duration kLookEvery = std::chrono::milliseconds(100), kSettleEvery = std::chrono::milliseconds(5);
  static constexpr double kPlausible = 1e7;
  static constexpr Duration kIdle = std::chrono::milliseconds(900);    // tokens that lie unused for so long go back
  static constexpr std::uint32_t kBlindMax = 16;    // times a worker asks though its page has tokens for it

  // `page` and `counts` are of `entries` entries, zero but for the key, and outlive this object with the limiter that
  // lends, of which it uses lane 0.
  WorkerEntries(dthrottle_page& page, const dthrottle_page_count* counts, std::uint32_t entries, Lending lending);
  // REQUIRES: there are no entries.
  ~WorkerEntries();
  WorkerEntries(const WorkerEntries&) = delete;
  WorkerEntries& operator=(const WorkerEntries&) = delete;

  // The worker has asked for the tag, and would like to have it in its page.
  void Note(std::string_view tag, Instant now);

  // Takes the counts, and makes entries say what the limiter says now: of so many of them, in turn, to the end of the
  // round. A round begins each kLookEvery. Returns of how many.
  std::size_t Look(Instant now, std::size_t most = SIZE_MAX);
  bool looking() const { return next_look_ > 0; }    // a round is not at its end

  // Counts what is spent of tags near their limit whose bucket is about to be full: tokens that are not known to be
  // spent take room in it, and it would lose refill. Each kSettleEvery between two looks, if there are any: of so many
  // of them, in turn. Returns of how many.
  std::size_t Settle(Instant now, std::size_t most = SIZE_MAX);
  bool settles() const { return !filling_.empty(); }

  // Takes so many entries away, and returns how many.
  std::size_t Recall(Instant now, std::size_t most = SIZE_MAX);
  // Forgets them, with the tokens that were lent: the limiter is used no more.
  void Abandon() { live_.clear(); }

  std::size_t live() const { return live_.size(); }
  std::uint64_t refused() const { return refused_; }    // ever
  std::uint64_t clamped() const { return clamped_; }    // claims that were too many

 private:
  struct Kept {
    std::string tag;
    Loan loan;
    std::uint32_t refused = 0;       // of the counts, as they were taken last
    std::uint32_t decided = 0;
    std::uint32_t uses = 0;          // lately; halves with each look
    std::uint32_t live_at = 0;       // where live_ has it
    bool filling = false;            // it is in filling_
    Instant used_at{};
  };

  struct Entry {
    std::unique_ptr<Kept> kept;             // null: it has no tag
    std::uint32_t settled = 0, more = 0;    // how far its loans have come, whichever tags they were of
  };
  using Set = std::array<Entry, DTHROTTLE_PAGE_WAYS>;

  // REQUIRES: a tag of its set was noted.
  Entry& EntryAt(std::uint32_t place) const {
    return (*sets_[place / DTHROTTLE_PAGE_WAYS])[place % DTHROTTLE_PAGE_WAYS];
  }
  Kept* Find(std::uint32_t place) const { return EntryAt(place).kept.get(); }    // null: it has no tag
  Kept& At(std::uint32_t place) const { return *EntryAt(place).kept; }           // REQUIRES: it has a tag
  Query QueryOf(const Kept& kept) const { return {{kept.tag, false}}; }
  std::uint32_t PlaceFor(std::uint64_t hash) const;
  void Begin(std::uint32_t place, std::string_view tag, std::uint64_t name, Instant now);
  void Ask(std::uint32_t place, Instant now);
  std::uint32_t TakeCount(std::uint32_t place, Instant now);
  bool LookAt(std::uint32_t place, Instant now);
  void Free(std::uint32_t place, Instant now);
  void End(std::uint32_t place, Instant now);
  void SeeFilling(std::uint32_t place);
  void ForgetFilling();
  void PaceNotes(Instant now);

  dthrottle_page& page_;
  const dthrottle_page_count* const counts_;
  const std::uint32_t entries_;
  Lending lending_;
  std::vector<std::unique_ptr<Set>> sets_;    // from the first note on; null: no tag of it was noted
  std::vector<std::uint32_t> live_;           // places of entries
  std::size_t next_look_ = 0;                 // of them, in this round
  std::vector<std::uint32_t> filling_;    // those whose bucket is about to be full, since the last look
  std::size_t next_filling_ = 0;          // to be settled first
  Allowance plausible_{kPlausible, kPlausible};
  std::uint64_t refused_ = 0, clamped_ = 0, decided_ = 0;    // decided: served or refused, as the worker says
  std::uint32_t blind_ = 0;
  Instant paced_at_{};
  std::uint64_t notes_ = 0, decided_before_ = 0;    // since then, and until then
};

}    // namespace dthrottle
