// Holds: tokens that are taken now and settled later, when what they were taken for has been done and its cost is
// known.
//
// A hold has paid its costs like any question, so peers hear of them as of hits. A commit says what each tag has cost
// in the end: less comes back, more makes debt. A release gives back all, and so does the end of its time: a hold that
// nobody settles was for work that nobody finished. Only the first settlement counts; all that follow are told what it
// was, as long as the hold is remembered (hold_table.h).
//
// Many may end at one instant, when their time comes or a connection with 10^5 of them ends. So some end at a time.
// Until then they keep their records and tokens, but what has run out can no longer be settled.
//
// A hold is marked as ended before its tokens move, and recorded after they were taken. A process killed in between
// leaves tokens spent that nobody used; it never gives back twice. So does one that is killed or replaced with the tags
// of its open holds for which their records have no room, and with those that are charged with over-long ones: these
// are in memory only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/tag.h"
#include "hold/hold_table.h"
#include "hold/holder.h"
#include "hold/kept_ends.h"

namespace dthrottle {

struct HoldCounts {
  std::uint64_t max = 0;    // open at once
  std::uint64_t open = 0;
  std::uint64_t taken = 0;
  std::uint64_t committed = 0, released = 0, expired = 0;
  std::uint64_t repeated = 0;    // settled again, to no effect
  std::uint64_t unknown = 0;     // settled, and forgotten or never taken
  std::uint64_t full = 0;        // not taken for want of a record
  std::uint64_t returned = 0;    // tokens that came back
  std::uint64_t exceeded = 0;    // tokens charged beyond what was held
};

class Holds {
 public:
  // Makes what a tag has paid into what it has cost.
  using Settle = std::function<void(const Payment& paid, Cost actual, Instant now)>;

  // The region, and what follows it, are as in HoldTable.
  Holds(Settle settle, std::span<std::byte> region, std::size_t holds, const std::array<std::byte, 16>& boot_id,
        std::uint64_t fresh)
      : settle_(std::move(settle)), table_(region, holds, boot_id, fresh) {}

  // The longest time that a hold may be taken for.
  Duration ttl_max() const { return ttl_max_; }
  void SetTtlMax(Duration ttl_max) { ttl_max_ = ttl_max; }

  // Ends what was bound to connections of a process that is no more.
  void ReleaseBound(Instant now);
  // Ends all that is open.
  void ReleaseAll(Instant now);

  // How many more there is room for.
  std::size_t room() const { return table_.holds() - std::min(table_.open(), table_.holds()); }
  void CountFull() { ++counts_.full; }

  // Keeps what `paid` has paid until then, or until `holder` is gone; null: it is bound to no connection. REQUIRES: as
  // HoldTable::Add.
  HoldId Keep(std::span<const Payment> paid, Holder* holder, Instant until);

  // Settles a hold if it is open. `actual` is what each tag has cost, or one cost for each of them. Returns what became
  // of the hold, by this call or an earlier one; null: it is forgotten, or has never been, or has another number of
  // tags.
  const HoldRecord* Commit(HoldId id, std::span<const Cost> actual, Instant now);
  const HoldRecord* Release(HoldId id, Instant now);

  bool IsOpen(HoldId id) const { return table_.IsOpen(id); }

  // The number of tags of a hold; 0: it is not known.
  std::size_t TagsOf(HoldId id) const;

  // Gives back what the holder holds, by the next calls of EndSome.
  void Leave(Holder& holder);

  // Ends holds whose time has come, and those of holders that have left. Looks at `most` of them at most; true: there
  // are more.
  bool EndSome(Instant now, std::size_t most);
  // When there is something to end; Instant(): now.
  Instant next() const { return leaving_.empty() ? table_.next() : Instant(); }
  // Calls `wake` when next() has become earlier.
  void OnEarlier(std::function<void()> wake) { wake_ = std::move(wake); }

  HoldCounts counts() const;

 private:
  // What its record lacks of a tag: its bytes, or of an over-long one its ends.
  struct Lacking {
    std::string bytes;
    KeptEnds ends;
  };

  void KeepLacking(HoldId id, std::span<const Payment> paid);
  const HoldRecord* Look(HoldId id, Instant now);
  void End(const HoldRecord& record, HoldState state, std::span<const Cost> actual, Instant now);

  const Settle settle_;
  HoldTable table_;
  std::unordered_map<HoldId, std::vector<Lacking>> lacking_;    // of open holds: of tags that IsLacking, in order
  std::deque<std::vector<HoldId>> leaving_;    // of holders that have left; none is empty
  Duration ttl_max_ = std::chrono::minutes(10);
  HoldCounts counts_;
  std::function<void()> wake_ = [] {};
};

}    // namespace dthrottle
