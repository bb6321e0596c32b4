// Recording a newcomer, and making room for it.
//
// Room is looked for where it costs least: a free cell; free cells that other tags lie between; a tag that can move to
// its other group; a bucket that is full again, which is the same as none. What peers say goes no further: hearsay
// makes nobody forget. A tag that was asked here always finds room, and forget.h says whose.
#include <algorithm>

#include "bucket/table_lookup.h"

namespace dthrottle {

namespace {

constexpr int kFreeCellsAtEase = 6;

// Moving tags between groups succeeds seldom in a shard that is fuller than this.
constexpr double kCrowdedFill = 63.0 / 64;

// Decides in which of its two groups a tag makes room: a bit of the hash that chooses neither them nor the shard.
constexpr unsigned kRoomBit = 48;

bool IsAtEase(std::uint32_t free) {
  for (int i = 1; i < kFreeCellsAtEase; ++i) free &= free - 1;
  return free != 0;
}

}    // namespace

Slot* Table::Shard::Insert(const Tag& tag, const Bucket& bucket, LimitIndex limit, Source source, Instant now) {
  ShardState& shard = table_.shards_[shard_];
  const std::size_t cells = CellsFor(tag.bytes.size());
  Slot slot;
  slot.bucket = bucket;
  slot.limit = limit & kLimitIndexMax;
  const auto place = [&](Group& g, std::size_t at) {
    const Entry entry{tag, hash_, slot, Waste::From(ToTicks(now)),
                      source == Source::kQuery ? merit::kAsked : merit::kHeard};
    return table_.Place(g, at, entry, shard);
  };

  const auto free_in = [](const Group& g) { return Match(g.directory, kFree); };
  Group& first = table_.group(table_.Primary(hash_));
  table_.Refresh(first, shard_, now);
  // Most find room at once; memory of the second group is not waited for then.
  if (const std::uint32_t free = free_in(first); IsAtEase(free)) {
    const std::size_t at = FirstRun(free, cells);
    if (at < kCellsPerGroup) return place(first, at);
  }
  // A first group that is getting full shares with the second while there is something to share.
  std::array<Group*, 2> choices = {&first, &table_.group(table_.Secondary(hash_))};
  table_.Refresh(*choices[1], shard_, now);
  Group& forgetful = *choices[hash_ >> kRoomBit & 1];
  if (!IsAtEase(free_in(first)) && std::popcount(free_in(*choices[1])) > std::popcount(free_in(first))) {
    std::swap(choices[0], choices[1]);
  }
  for (Group* g : choices) {
    const std::size_t at = FirstRun(free_in(*g), cells);
    if (at < kCellsPerGroup) return place(*g, at);
  }

  Group* roomy = table_.RoomForNothing(choices, cells, shard_, now);
  if (roomy == nullptr && source == Source::kQuery) {
    table_.ForgetFor(forgetful, slot, cells, shard, now);
    roomy = &forgetful;
  }
  return roomy != nullptr ? place(*roomy, FirstRun(free_in(*roomy), cells)) : nullptr;
}

// Makes room that costs nobody anything. Null: there is none.
Table::Group* Table::RoomForNothing(const std::array<Group*, 2>& choices, std::size_t cells, std::size_t shard_index,
                                    Instant now) {
  ShardState& shard = shards_[shard_index];
  for (Group* g : choices) {
    if (Gather(*g, cells, shard)) return g;
  }
  const auto cells_in_shard = static_cast<double>(groups_per_shard_ * kCellsPerGroup);
  if (static_cast<double>(shard.counts.cells_used) < kCrowdedFill * cells_in_shard) {
    for (Group* g : choices) {
      if (MoveAway(*g, cells, shard)) return g;
    }
  }
  for (Group* g : choices) {
    if (Reclaim(*g, cells, shard, now)) return g;
  }
  return nullptr;
}

// Frees consecutive cells by moving tags within the group, if enough of it is free. Tags move only to cells that they
// do not lie in, so that a kill never finds one half moved.
bool Table::Gather(Group& g, std::size_t cells, ShardState& shard) {
  const std::uint32_t free = Match(g.directory, kFree);
  if (static_cast<std::size_t>(std::popcount(free)) < cells) return false;
  if (FirstRun(free, cells) < kCellsPerGroup) return true;
  struct Step {
    std::size_t from, to;
  };
  for (std::size_t begin = 0; begin + cells <= kCellsPerGroup; ++begin) {
    std::uint32_t room = free & ~MaskOf(begin, cells);
    std::array<Step, kCellsPerGroup> steps;
    std::size_t n = 0, at = begin;
    while (g.directory[at] == kContinued) --at;
    bool fits = true;
    while (fits && at < begin + cells) {
      if (g.directory[at] == kFree) {
        ++at;
        continue;
      }
      const std::size_t length = g.CellsAt(at), to = FirstRun(room, length);
      fits = to < kCellsPerGroup;
      if (fits) room &= ~MaskOf(to, length);
      steps[n++] = {at, to};
      at += length;
    }
    if (!fits) continue;
    for (std::size_t i = 0; i < n; ++i) Move(g, steps[i].from, g, steps[i].to, shard);
    return true;
  }
  return false;
}

// Moves tags of a group to their other groups until `cells` are free. A group that is still to be rewritten takes none.
bool Table::MoveAway(Group& g, std::size_t cells, ShardState& shard) {
  std::array<Group*, kCellsPerGroup> others;
  for (std::uint32_t left = g.Firsts(); left != 0; left &= left - 1) {
    const auto first = static_cast<std::size_t>(std::countr_zero(left));
    const std::uint64_t hash = Hash(g.TagAt(first));
    Group& primary = group(Primary(hash));
    others[first] = &primary == &g ? &group(Secondary(hash)) : &primary;
    __builtin_prefetch(others[first]->directory);
  }
  for (std::uint32_t left = g.Firsts(); left != 0; left &= left - 1) {
    const auto first = static_cast<std::size_t>(std::countr_zero(left));
    Group& other = *others[first];
    if (other.generation != usable_) continue;
    const std::size_t at = FirstRun(Match(other.directory, kFree), g.CellsAt(first));
    if (at == kCellsPerGroup) continue;
    Move(g, first, other, at, shard);
    if (Gather(g, cells, shard)) return true;
  }
  return false;
}

bool Table::Reclaim(Group& g, std::size_t cells, ShardState& shard, Instant now) {
  for (std::uint32_t left = g.Firsts(); left != 0; left &= left - 1) {
    const auto first = static_cast<std::size_t>(std::countr_zero(left));
    const Slot& slot = g.cells[first].slot;
    if (!slot.bucket.IsFull(now) || slot.unreported != 0) continue;
    Remove(g, first, shard);
    ++shard.counts.reclaimed;
    if (Gather(g, cells, shard)) return true;
  }
  return false;
}

// One tag after another goes until the newcomer has its cells together.
void Table::ForgetFor(Group& g, const Slot& newcomer, std::size_t cells, ShardState& shard, Instant now) {
  Crowd crowd(policy_->ClaimOf(newcomer, now).rule, cells);
  for (std::uint32_t left = g.Firsts(); left != 0; left &= left - 1) {
    const auto first = static_cast<std::size_t>(std::countr_zero(left));
    crowd.Add(first, g.CellsAt(first), policy_->ClaimOf(g.cells[first].slot, now));
  }
  do {
    const Crowd::Victim victim = crowd.Choose(g.merits);
    const Slot& slot = g.cells[victim.first].slot;
    ++shard.counts.evicted;
    shard.counts.evicted_refusing += victim.merit >= merit::kRefused;
    shard.counts.unreported += slot.unreported;
    policy_->Forgot(slot, victim.merit);
    Remove(g, victim.first, shard);
  } while (!Gather(g, cells, shard));
}

// The copy is complete before the original goes, so a kill in between leaves the tag twice, which Open mends.
void Table::Move(Group& from, std::size_t first, Group& to, std::size_t at, ShardState& shard) {
  const Tag tag = from.TagAt(first);
  const Entry entry{tag, Hash(tag), from.cells[first].slot, from.waste[first], from.merits.at(first)};
  Place(to, at, entry, shard);
  Remove(from, first, shard);
  ++shard.counts.moved;
}

// The directory entry comes last: until then the cells are free whatever they hold.
Slot* Table::Place(Group& g, std::size_t first, const Entry& entry, ShardState& shard) {
  const Tag& tag = entry.tag;
  Cell& cell = g.cells[first];
  cell.slot = entry.slot;
  g.waste[first] = entry.waste;
  g.merits.Set(first, entry.merit);
  cell.slot.is_digest = tag.is_digest ? 1 : 0;
  cell.slot.tag_bytes = static_cast<std::uint8_t>(tag.bytes.size());
  // A tag runs on into the cells behind, which is one object only to the bytes.
  CopyBytes(reinterpret_cast<char*>(&cell) + offsetof(Cell, tag), tag.bytes.data(), tag.bytes.size());
  const std::size_t cells = CellsFor(tag.bytes.size());
  StoreBarrier();
  for (std::size_t k = 1; k < cells; ++k) g.directory[first + k] = kContinued;
  Group& primary = group(Primary(entry.hash));
  if (&primary != &g && primary.spilled < kSpilledMax) ++primary.spilled;
  StoreBarrier();
  g.directory[first] = Fingerprint(entry.hash);
  if (entry.slot.unreported != 0) MarkDirty(g, first);
  ++shard.counts.tags;
  shard.counts.cells_used += cells;
  return &cell.slot;
}

void Table::Remove(Group& g, std::size_t first, ShardState& shard) {
  const Tag tag = g.TagAt(first);
  Group& primary = group(Primary(Hash(tag)));
  const std::size_t cells = CellsFor(tag.bytes.size());
  g.directory[first] = kFree;
  StoreBarrier();
  for (std::size_t k = 1; k < cells; ++k) g.directory[first + k] = kFree;
  g.dirty &= ~(1u << first);
  if (&primary != &g && primary.spilled < kSpilledMax) --primary.spilled;
  --shard.counts.tags;
  shard.counts.cells_used -= cells;
}

}    // namespace dthrottle
