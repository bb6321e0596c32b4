// Recording a newcomer, and making room for it.
//
// Room is looked for where it costs least: a free cell; free cells that other tags lie between; a tag that can move to
// its other group; a bucket that is full again, which is the same as none. What peers say goes a little further, to the
// room of what other peers said: hearsay makes nobody forget what was asked here. A tag that was asked always finds
// room; forget.h says whose.

#include "bucket/table_lookup.h"

namespace dthrottle {

namespace {

constexpr int kFreeCellsAtEase = 6;
constexpr std::size_t kLongCells = 3;

// Moving tags between groups succeeds seldom in a shard that is fuller than this.
constexpr double kCrowdedFill = 63.0 / 64;

// Decides in which of its two groups a tag makes room at the same cost: a bit of the hash that chooses neither them nor
// the shard.
constexpr unsigned kRoomBit = 48;

// Bits of it that chance is taken from, up to the shard's.
constexpr unsigned kChanceBit = 49;

bool IsAtEase(std::uint32_t free) {
  for (int i = 1; i < kFreeCellsAtEase; ++i) free &= free - 1;
  return free != 0;
}

}    // namespace

Slot* Table::Locked::Insert(const Tag& tag, const Bucket& bucket, LimitIndex limit, Source source, Instant now) {
  ShardState& shard = table_.shards_[shard_];
  const std::size_t cells = CellsFor(tag.bytes.size());
  Slot slot;
  slot.bucket = bucket;
  slot.limit = limit & kLimitIndexMax;
  slot.unreported = Unreported(source.teller());
  const auto place = [&](Group& g, std::size_t at) {
    const Entry entry{tag, hash_, slot, Waste::From(ToTicks(now)), source.is_query() ? merit::kAsked : merit::kHeard};
    return table_.Place(g, at, entry, shard);
  };

  const auto free_in = [](const Group& g) { return Match(g.directory, kFree); };
  Group& first = table_.group(table_.Primary(hash_));
  table_.Refresh(first, shard_, now);
  // Most find room at once; memory of the second group is not waited for then. Long tags look at both: some of them in
  // one group would have most of its cells, and rules share each group.
  const bool is_long = cells > kLongCells;
  if (const std::uint32_t free = free_in(first); IsAtEase(free) && !is_long) {
    const std::size_t at = FirstRun(free, cells);
    if (at < kCellsPerGroup) return place(first, at);
  }
  // A first group that is getting full, or is asked for much, shares with the second while there is something to share.
  std::array<Group*, 2> choices = {&first, &table_.group(table_.Secondary(hash_))};
  table_.Refresh(*choices[1], shard_, now);
  std::array<Group*, 2> forgetful = choices;
  if ((hash_ >> kRoomBit & 1) != 0) std::swap(forgetful[0], forgetful[1]);
  if ((is_long || !IsAtEase(free_in(first))) && std::popcount(free_in(*choices[1])) > std::popcount(free_in(first))) {
    std::swap(choices[0], choices[1]);
  }
  for (Group* g : choices) {
    const std::size_t at = FirstRun(free_in(*g), cells);
    if (at < kCellsPerGroup) return place(*g, at);
  }

  Group* roomy = table_.RoomForNothing(choices, cells, shard_, now);
  if (roomy == nullptr && source.is_query()) {
    roomy = &table_.ForgetFor(forgetful, slot, cells, shard, now);
  }
  for (std::size_t i = 0; roomy == nullptr && i < choices.size(); ++i) {
    if (table_.ForgetHearsayFor(*choices[i], source.teller(), cells, hash_, shard)) roomy = choices[i];
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
    if (!slot.bucket.IsFull(now) || slot.unreported.any()) continue;
    Remove(g, first, shard);
    ++shard.counts.reclaimed;
    if (Gather(g, cells, shard)) return true;
  }
  return false;
}

Crowd Table::CrowdOf(const Group& g, const Slot& newcomer, std::size_t cells, Instant now) const {
  Crowd crowd(policy_->ClaimOf(newcomer, now).rule, cells);
  for (std::uint32_t left = g.Firsts(); left != 0; left &= left - 1) {
    const auto first = static_cast<std::size_t>(std::countr_zero(left));
    const Slot& slot = g.cells[first].slot;
    crowd.Add(first, g.CellsAt(first), policy_->ClaimOf(slot, now), slot.unreported.teller());
  }
  return crowd;
}

// Makes room in the first of the groups, or in the second if that gives what is worth less. One tag after another goes
// until the newcomer has its cells together.
Table::Group& Table::ForgetFor(const std::array<Group*, 2>& choices, const Slot& newcomer, std::size_t cells,
                               ShardState& shard, Instant now) {
  Group* g = choices[0];
  Crowd crowd = CrowdOf(*g, newcomer, cells, now);
  const auto cost_in = [&](const Crowd& one, const Group& of) {
    return one.Cost(of.merits, static_cast<std::size_t>(std::popcount(Match(of.directory, kFree))));
  };
  const Sacrifice cost = cost_in(crowd, *g);
  if (cost.of_another_rule || cost.merit >= merit::kRefused) {
    const Crowd second = CrowdOf(*choices[1], newcomer, cells, now);
    if (cost_in(second, *choices[1]) < cost) {
      g = choices[1];
      crowd = second;
    }
  }
  do {
    const Crowd::Victim victim = crowd.Choose(g->merits);
    const Slot& slot = g->cells[victim.first].slot;
    ++shard.counts.evicted;
    shard.counts.evicted_refusing += victim.merit >= merit::kRefused;
    shard.counts.unreported += slot.unreported.hits();
    policy_->Forgot(slot, victim.merit);
    Remove(*g, victim.first, shard);
  } while (!Gather(*g, cells, shard));
  return *g;
}

// Makes room for a tag that a peer told of by forgetting tags that only peers spoke of, as Hearsay chooses them. Either
// enough of them go or none. False: too few may go, or long tags that were asked here lie between them. Not inlined,
// because Insert seldom comes here.
[[gnu::noinline]] bool Table::ForgetHearsayFor(Group& g, Teller teller, std::size_t cells, std::uint64_t hash,
                                               ShardState& shard) {
  Hearsay hearsay(teller, cells);
  for (std::uint32_t left = g.Firsts(); left != 0; left &= left - 1) {
    const auto first = static_cast<std::size_t>(std::countr_zero(left));
    const Unreported& unreported = g.cells[first].slot.unreported;
    if (g.merits.at(first) != merit::kHeard || unreported.any()) continue;
    hearsay.Add(first, g.CellsAt(first), unreported.teller());
  }
  std::uint32_t free = Match(g.directory, kFree), going = 0;
  while (static_cast<std::size_t>(std::popcount(free)) < cells) {
    const std::optional<std::size_t> victim = hearsay.Choose(static_cast<std::uint32_t>(hash >> kChanceBit));
    if (!victim.has_value()) return false;
    going |= 1u << *victim;
    free |= MaskOf(*victim, g.CellsAt(*victim));
  }
  for (; going != 0; going &= going - 1) {
    Remove(g, static_cast<std::size_t>(std::countr_zero(going)), shard);
    ++shard.counts.hearsay_forgotten;
  }
  return Gather(g, cells, shard);
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
  if (entry.slot.unreported.any()) MarkDirty(g, first);
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
