#include "share/debit/debits.h"

namespace dthrottle {

void Debits::Waits(Asked& asked) {
  if (core_.window == 0) return;
  std::size_t at = waiting_.Find(asked.hash);
  if (at == waiting_.kNone) {
    at = waiting_.RoomFor(asked.hash, [](std::size_t) { return std::optional<int>(); });
    if (at == waiting_.kNone) return;
    waiting_.Put(at, asked.hash);
    waiting_[at] = KeptTag(asked.query.tag);
  }
  if (waiting_.SetUntold(at) && wake_) wake_();
}

bool Debits::TellWaits(Instant from, Instant now, Draft& out) {
  return waiting_.TellSome(core_.ShardLock(), [&](std::size_t place, Table::Shard& shard) {
    const Tag tag = waiting_[place].tag();
    if (Slot* const slot = shard.Find(tag, now); slot != nullptr && slot->unreported.any()) {
      if (!AddHits(tag, *slot, shard.waste(slot), from, now, out)) return false;
      shard.TakeUnreported(slot);
    }
    waiting_.Remove(place);
    return true;
  });
}

}    // namespace dthrottle
