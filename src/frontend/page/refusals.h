// The refusals of one worker: what stands in its page, and what the daemon makes of the counts that come back.
//
// An entry is a promise of the limiter that is looked at again and again (Look). It says at most kAhead, so that what
// nobody looks at ends by itself: when the daemon is killed or stopped, when it has more entries than time. An entry
// that the worker does not use is not prolonged. So a worker that has nothing refused costs nothing.
//
// The counts are the worker's to write, and thus claims. One worker counts for at most kPlausible refusals a second.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/allowance.h"
#include "base/time.h"
#include "base/worker_page.h"

namespace dthrottle {

// Decides what the page says.
class Refuser {
 public:
  // Until when queries of the tag are refused; `now`: they are not.
  virtual Instant RefusedUntil(std::string_view tag, Instant now) = 0;
  // So many of them were.
  virtual void CountRefused(std::string_view tag, std::uint32_t times, Instant now) = 0;

 protected:
  ~Refuser() = default;
};

class WorkerRefusals {
 public:
  static constexpr Duration kAhead = std::chrono::seconds(1);
  static constexpr double kPlausible = 1e7;
  static constexpr Duration kWorthwhile = std::chrono::microseconds(100);    // a shorter wait makes no entry

  // `page` and `counts` are of `entries` entries, zero but for the key, and outlive this object with the refuser.
  WorkerRefusals(dthrottle_page& page, const std::uint32_t* counts, std::uint32_t entries, Refuser& refuser);

  // The worker was refused the tag. The page says so from now on, if the refuser does.
  void Note(std::string_view tag, Instant now);

  // Takes the counts, and makes every entry say what the refuser says now.
  void Look(Instant now);

  // Takes all entries away.
  void Recall(Instant now);

  std::size_t live() const { return live_.size(); }
  std::uint64_t refused() const { return refused_; }    // ever
  std::uint64_t clamped() const { return clamped_; }    // claims that were too many

 private:
  struct Kept {
    std::string tag;    // empty: there is no entry
    Instant until{};
    std::uint32_t counted = 0;    // of the counts, as they were taken last
    std::uint32_t uses = 0;       // lately; halves with each look
  };

  std::uint32_t PlaceFor(std::uint64_t name, std::string_view tag) const;
  std::uint32_t TakeCount(std::uint32_t place, Instant now);
  bool LookAt(std::uint32_t place, Instant now);
  void Free(std::uint32_t place, Instant now);
  void PaceNotes(Instant now);

  dthrottle_page& page_;
  const std::uint32_t* const counts_;
  const std::uint32_t entries_;
  Refuser& refuser_;
  std::vector<Kept> kept_;               // of each entry, from the first note on
  std::vector<std::uint32_t> live_;      // places of entries
  Allowance plausible_{kPlausible, kPlausible};
  std::uint64_t refused_ = 0, clamped_ = 0;
  Instant paced_at_{};
  std::uint64_t notes_ = 0, refused_before_ = 0;    // since then, and until then
};

}    // namespace dthrottle
