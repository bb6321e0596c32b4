// A walk through the whole table in slices, for a host that wants a snapshot or for the new owners of tags. A part has
// one instant for all of its buckets, so it is handed over as it is after each slice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time.h"
#include "share/debit/outlet.h"
#include "share/debit/ownership.h"
#include "share/ways.h"

namespace dthrottle {

class TableWalk final : SlotVisitor {
 public:
  // All must outlive it.
  TableWalk(Ways& ways, Outlet& outlet, const Ownership& ownership)
      : debits_(ways.Get<Debits>()), table_(*ways.core().table), outlet_(outlet), ownership_(ownership) {}

  void BeginSnapshot(std::uint64_t number) { Begin(ToPeers::Kind::kSnapshotPart, ToPeers::Kind::kSnapshotEnd, number); }
  // Only tags that have another owner now.
  void BeginHandover() { Begin(ToPeers::Kind::kHandoverPart, ToPeers::Kind::kHandoverEnd, 0); }
  void BreakOff();
  bool walking() const { return stage_ != Stage::kNone; }

  // Does one slice; whether that was the last.
  bool Go(Instant now);

 private:
  enum class Stage { kNone, kTable, kEnd };

  void Begin(ToPeers::Kind part, ToPeers::Kind end, std::uint64_t number);
  bool Visit(const Tag& tag, const Slot& slot, const Waste& waste) override;

  Debits& debits_;
  Table& table_;
  Outlet& outlet_;
  const Ownership& ownership_;
  Stage stage_ = Stage::kNone;
  ToPeers::Kind part_kind_{}, end_kind_{};
  std::uint64_t number_ = 0;    // of the snapshot
  std::size_t cell_ = 0;
  ToPeers part_;         // waits for room if there is anything in it
  bool more_ = false;    // behind it
};

}    // namespace dthrottle
