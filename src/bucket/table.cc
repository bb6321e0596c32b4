#include <algorithm>

#include "base/check.h"
#include "bucket/table_lookup.h"

namespace dthrottle {

namespace {

constexpr std::size_t kShardsMax = 64;             // Table::Shards has a bit for each
constexpr std::size_t kGroupsPerShardMin = 128;    // fewer would fill too unevenly

}    // namespace

// ---- Geometry ----

Table::Table(std::span<std::byte> region, bool shared, SlotPolicy& policy)
    : region_(region), shared_(shared), policy_(&policy) {
  static_assert(sizeof(Group) == 1024 && sizeof(Cell) == 32 && sizeof(Slot) == 16 && sizeof(Header) <= Header::kBytes);
  DT_CHECK(region.size() >= kRegionBytesMin && reinterpret_cast<std::uintptr_t>(region.data()) % alignof(Group) == 0);
  const std::size_t groups = (region.size() - Header::kBytes) / sizeof(Group);
  const std::size_t shards = std::min(kShardsMax, std::bit_floor(groups / kGroupsPerShardMin));
  groups_per_shard_ = groups / shards;
  groups_ = groups_per_shard_ * shards;
  shard_shift_ = 64u - static_cast<unsigned>(std::countr_zero(shards));
  reshape_next_ = groups_;
  words_per_shard_ = (groups_per_shard_ + 63) / 64;
  dirty_groups_.resize(words_per_shard_ * shards);
  shards_ = std::make_unique<ShardState[]>(shards);
}

Table::~Table() = default;

std::size_t Table::cells() const {
  return groups_ * kCellsPerGroup;
}

const TableKeys& Table::keys() const {
  return header().keys;
}

void Table::SetDigestKey(const std::array<std::byte, 32>& key) {
  header().keys.digest = key;
}

// ---- Looking up ----

Slot* Table::Locked::Find(const Tag& tag, Instant now) {
  Group& first = table_.group(table_.Primary(hash_));
  table_.Refresh(first, shard_, now);
  const std::uint16_t fingerprint = Fingerprint(hash_);
  const std::size_t other = table_.Secondary(hash_);
  Group& second = table_.group(other);
  // A copy that a kill has left in the second group goes before the first can be forgotten.
  if (!table_.right_groups_.empty() && !table_.IsRight(other)) table_.Refresh(second, shard_, now);
  Slot* slot = table_.FindIn(first, fingerprint, tag);
  if (slot != nullptr || first.spilled == 0) return slot;
  table_.Refresh(second, shard_, now);
  return table_.FindIn(second, fingerprint, tag);
}

// ---- Recording ----

void Table::Locked::Erase(Slot* slot) {
  Group& g = table_.group(table_.IndexOf(slot));
  table_.Remove(g, g.CellOf(slot), table_.shards_[shard_]);
}

std::span<std::uint64_t, Table::kWords> Table::words() const {
  return std::span(header().words);
}

void Table::Locked::TakeUnreported(Slot* slot) {
  Group& g = table_.group(table_.IndexOf(slot));
  slot->unreported = {};
  g.dirty &= ~(1u << g.CellOf(slot));
}

void Table::Locked::AddUnreported(Slot* slot, Cost hits) {
  if (hits == 0) return;
  if (!slot->unreported.any()) MarkUnreported(slot);
  slot->unreported.Add(hits);
}

void Table::Locked::TakeBack(Slot* slot, Cost tokens) {
  if (tokens == 0) return;
  if (!slot->unreported.any()) MarkUnreported(slot);
  slot->unreported.TakeBack(tokens);
}

void Table::Locked::MarkUnreported(Slot* slot) {
  Group& g = table_.group(table_.IndexOf(slot));
  const std::size_t cell = g.CellOf(slot);
  table_.MarkDirty(g, cell);
  g.merits.Asked(cell);
}

void Table::MarkDirty(Group& g, std::size_t cell) {
  g.dirty |= 1u << cell;
  const std::size_t index = IndexOf(&g), shard = index / groups_per_shard_, in_shard = index % groups_per_shard_;
  dirty_groups_[shard * words_per_shard_ + in_shard / 64] |= std::uint64_t{1} << (in_shard % 64);
}

// ---- Generations ----

void Table::BringUpToDate(Group& g, std::size_t shard, Instant now) {
  if (!right_groups_.empty() && !IsRight(IndexOf(&g))) PutRight(g, shard, now);
  if (g.generation != generation_) RewriteGroup(g, shard, now);
}

void Table::RewriteGroup(Group& g, std::size_t shard, Instant now) {
  for (std::size_t i = 0; i < kCellsPerGroup; ++i) {
    if (g.directory[i] < kFingerprintMin) continue;
    if (!policy_->Reshape(g.TagAt(i), g.cells[i].slot, WrittenFor::kRulesBefore, now)) Remove(g, i, shards_[shard]);
  }
  g.generation = generation_;
}

void Table::LockAll() {
  for (std::size_t i = 0; i < shard_count(); ++i) Lock(i);
}

void Table::UnlockAll() {
  for (std::size_t i = shard_count(); i-- > 0;) Unlock(i);
}

void Table::StartGeneration(std::uint64_t rules_fingerprint) {
  DT_CHECK(!reshaping());
  header().generation = ++generation_;
  usable_ = generation_;
  StoreBarrier();
  header().identity.rules = rules_fingerprint;
  reshape_next_ = 0;
}

bool Table::ReshapeSome(std::size_t groups, Instant now) {
  for (; groups > 0 && reshaping(); --groups, ++reshape_next_) {
    const std::size_t shard = reshape_next_ / groups_per_shard_;
    Lock(shard);
    Refresh(group(reshape_next_), shard, now);
    Unlock(shard);
  }
  if (!reshaping() && !right_groups_.empty()) {
    Exclusively([&] {
      usable_ = generation_;
      right_groups_ = {};
    });
  }
  return reshaping();
}

// ---- Going through ----

bool Table::TakeUnreported(std::size_t groups, SlotVisitor& visitor, Instant now) {
  for (; take_next_ < dirty_groups_.size(); ++take_next_) {
    const std::size_t shard = take_next_ / words_per_shard_;
    const std::size_t base = shard * groups_per_shard_ + take_next_ % words_per_shard_ * 64;
    std::uint64_t waiting = 0;    // groups whose dirty slots can all wait
    for (;;) {
      Lock(shard);
      std::uint64_t& word = dirty_groups_[take_next_];
      const std::uint64_t left = word & ~waiting;
      if (left == 0) break;
      const std::uint64_t lowest = left & (~left + 1);
      Group& g = group(base + static_cast<std::size_t>(std::countr_zero(left)));
      bool taken = groups-- > 0;
      if (taken) Refresh(g, shard, now);
      for (std::uint32_t dirty = g.dirty; taken && dirty != 0; dirty &= dirty - 1) {
        const auto i = static_cast<std::size_t>(std::countr_zero(dirty));
        Slot& slot = g.cells[i].slot;
        if (visitor.CanWait(g.TagAt(i), slot)) continue;
        taken = visitor.Visit(g.TagAt(i), slot, g.waste[i]);
        if (!taken) break;
        slot.unreported = {};
        g.dirty &= ~(1u << i);
      }
      if (taken && g.dirty == 0) word &= ~lowest;
      if (taken && g.dirty != 0) waiting |= lowest;
      Unlock(shard);
      if (!taken) return true;
    }
    Unlock(shard);
  }
  take_next_ = 0;
  return false;
}

bool Table::VisitSome(std::size_t& cell, std::size_t cells, SlotVisitor& visitor, Instant now) {
  for (; cells > 0 && cell < groups_ * kCellsPerGroup; --cells, ++cell) {
    const std::size_t index = cell / kCellsPerGroup, i = cell % kCellsPerGroup, shard = index / groups_per_shard_;
    Lock(shard);
    Group& g = group(index);
    Refresh(g, shard, now);
    const bool goes_on = g.directory[i] < kFingerprintMin || visitor.Visit(g.TagAt(i), g.cells[i].slot, g.waste[i]);
    Unlock(shard);
    if (!goes_on) return true;
  }
  return cell < groups_ * kCellsPerGroup;
}

TableCounts Table::counts() {
  TableCounts sum;
  for (std::size_t i = 0; i < shard_count(); ++i) {
    Lock(i);
    const TableCounts c = shards_[i].counts;
    Unlock(i);
    sum.tags += c.tags;
    sum.cells_used += c.cells_used;
    sum.reclaimed += c.reclaimed;
    sum.evicted += c.evicted;
    sum.evicted_refusing += c.evicted_refusing;
    sum.hearsay_forgotten += c.hearsay_forgotten;
    sum.moved += c.moved;
    sum.dropped += c.dropped;
    sum.unreported += c.unreported;
  }
  return sum;
}

}    // namespace dthrottle
