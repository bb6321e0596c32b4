#include "share/debit/table_walk.h"

namespace dthrottle {

namespace {

constexpr std::size_t kCellsPerSlice = 2048;

}    // namespace

void TableWalk::Begin(ToPeers::Kind part, ToPeers::Kind end, std::uint64_t number) {
  stage_ = Stage::kTable;
  part_kind_ = part;
  end_kind_ = end;
  number_ = number;
  cell_ = 0;
}

void TableWalk::BreakOff() {
  stage_ = Stage::kNone;
  part_ = ToPeers();
}

bool TableWalk::Visit(const Tag& tag, const Slot& slot, const Waste&) {
  const SaidBuckets& buckets = debits_.buckets();
  if (part_kind_ == ToPeers::Kind::kSnapshotPart) return buckets.AddBucket(tag, slot, part_.to, part_.entries);
  return !ownership_.IsGiven(tag) || buckets.AddOwned(tag, slot, part_.to, part_.entries);
}

bool TableWalk::Go(Instant now) {
  if (stage_ == Stage::kTable) {
    if (part_.entries.empty()) {
      part_.kind = part_kind_;
      part_.to = now;
      part_.snapshot = number_;
      more_ = table_.VisitSome(cell_, kCellsPerSlice, *this, now);
    }
    if ((!part_.entries.empty() && !outlet_.Push(part_, now)) || more_) return false;
    stage_ = Stage::kEnd;
  }
  if (!outlet_.Push(end_kind_, now, now, number_)) return false;
  stage_ = Stage::kNone;
  return true;
}

}    // namespace dthrottle
