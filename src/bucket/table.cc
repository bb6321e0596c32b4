#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "bucket/table_lookup.h"

namespace dthrottle {

namespace {

constexpr int kFreeCellsAtEase = 6;
constexpr std::size_t kShardsMax = 64;
constexpr std::size_t kGroupsPerShardMin = 128;    // fewer would fill too unevenly

constexpr std::size_t kMoveTries = 64;    // at some 100 ns each

// How drained a bucket may be that is forgotten to make room.
constexpr double kNothing = -std::numeric_limits<double>::infinity();    // free cells only
constexpr double kEmpty = 1;                                             // anything but debt

// Stops counting, and decrementing, there: the second group is then always visited.
constexpr std::uint8_t kSpilledMax = 255;

// Keeps stores before it from being moved behind stores after it: a kill -9 then finds them in this order.
void StoreBarrier() {
  std::atomic_signal_fence(std::memory_order_acq_rel);
}

}    // namespace

// Cells that one tag of `first` occupies, or would.
static std::size_t CellsFor(std::size_t tag_bytes) {
  return tag_bytes <= kInlineTagBytes
             ? 1
             : 1 + (tag_bytes - kInlineTagBytes + sizeof(Table::Cell) - 1) / sizeof(Table::Cell);
}

// Consecutive cells of one group and the most drained bucket among them: what it would cost to have them.
struct Table::Window {
  Group* group = nullptr;
  std::size_t first = 0;
  std::size_t cells = 0;
  double drained = std::numeric_limits<double>::infinity();
};

// The first of `cells` consecutive cells that are in the mask, or kCellsPerGroup.
static std::size_t FirstRun(std::uint32_t mask, std::size_t cells) {
  for (std::size_t i = 1; i < cells && mask != 0; ++i) mask &= mask >> 1;
  return mask == 0 ? kCellsPerGroup : static_cast<std::size_t>(std::countr_zero(mask));
}

static bool IsAtEase(std::uint32_t free) {
  for (int i = 1; i < kFreeCellsAtEase; ++i) free &= free - 1;
  return free != 0;
}

// ---- Geometry ----

Table::Table(std::span<std::byte> region, bool shared, const SlotPolicy& policy)
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

// ---- Opening ----

bool Table::IsTable(std::string_view head) {
  std::uint64_t magic = 0;
  std::memcpy(&magic, head.data(), std::min(head.size(), sizeof magic));
  const bool untouched = std::all_of(head.begin(), head.end(), [](char c) { return c == 0; });
  return untouched || magic == Header::kMagic || magic == Header::kMagicBegun;
}

Table::Opened Table::Open(std::span<std::byte> region, const TableIdentity& identity, const TableKeys& fresh_keys,
                          bool shared, const SlotPolicy& policy, Instant now, std::string_view notes) {
  Opened opened{std::unique_ptr<Table>(new Table(region, shared, policy)), {}, 0};
  Table& table = *opened.table;
  const Header& found = table.header();
  if (found.magic == 0 || found.magic == Header::kMagicBegun) {
    opened.discarded = "it was empty";
  } else if (found.magic != Header::kMagic || found.version != Header::kVersion) {
    opened.discarded = "its format is another version's";
  } else if (found.region_bytes != region.size()) {
    opened.discarded = "its size was another";
  } else if (found.identity.boot_id != identity.boot_id) {
    opened.discarded = "the host has booted since";
  } else if (found.identity.rules != identity.rules) {
    opened.discarded = "it was made under other rules";
  }
  if (!opened.discarded.empty()) table.Clear(identity, fresh_keys);
  table.tag_hash_key_ = table.header().keys.tag_hash;
  table.generation_ = static_cast<std::uint8_t>(table.header().generation);
  if (opened.discarded.empty() && !table.TakeNotes(notes)) opened.dropped = table.Recover(now);
  return opened;
}

// The hash key tells one table from another. Behind it: tags and used cells of each shard, then the dirty groups.
std::string Table::Notes() const {
  DT_CHECK(!reshaping());
  std::vector<std::uint64_t> used;
  for (std::size_t i = 0; i < shard_count(); ++i) {
    used.insert(used.end(), {shards_[i].counts.tags, shards_[i].counts.cells_used});
  }
  const auto bytes = [](const auto& words) {
    return std::string_view(reinterpret_cast<const char*>(words.data()), words.size() * sizeof words[0]);
  };
  std::string notes(reinterpret_cast<const char*>(&tag_hash_key_), sizeof tag_hash_key_);
  return notes.append(bytes(used)).append(bytes(dirty_groups_));
}

bool Table::TakeNotes(std::string_view notes) {
  std::vector<std::uint64_t> used(2 * shard_count());
  const std::size_t used_bytes = used.size() * sizeof used[0], dirty_bytes = dirty_groups_.size() * sizeof used[0];
  if (notes.size() != sizeof tag_hash_key_ + used_bytes + dirty_bytes) return false;
  if (std::memcmp(notes.data(), &tag_hash_key_, sizeof tag_hash_key_) != 0) return false;
  notes.remove_prefix(sizeof tag_hash_key_);
  std::memcpy(used.data(), notes.data(), used_bytes);
  std::memcpy(dirty_groups_.data(), notes.data() + used_bytes, dirty_bytes);
  for (std::size_t i = 0; i < shard_count(); ++i) {
    shards_[i].counts.tags = used[2 * i];
    shards_[i].counts.cells_used = used[2 * i + 1];
  }
  return true;
}

void Table::Clear(const TableIdentity& identity, const TableKeys& keys) {
  header().magic = Header::kMagicBegun;    // until the rest is in place
  StoreBarrier();
  // Writes every page, so that no query has to wait for the kernel to find one.
  std::memset(region_.data() + Header::kBytes, 0, region_.size() - Header::kBytes);
  Header& h = header();
  h.version = Header::kVersion;
  h.generation = 0;
  h.region_bytes = region_.size();
  h.identity = identity;
  h.keys = keys;
  StoreBarrier();
  h.magic = Header::kMagic;
}

// Believes nothing: the region may have been cut off between any two stores, or be somebody's idea of a joke.
std::uint64_t Table::Recover(Instant now) {
  std::uint64_t dropped = 0;
  for (std::size_t i = 0; i < groups_; ++i) dropped += DropTorn(group(i));
  for (std::size_t i = 0; i < groups_; ++i) dropped += DropImpossible(i, now);
  return dropped;
}

// Frees cells that do not form whole tags, so that everything the directory names can be read.
std::uint64_t Table::DropTorn(Group& g) const {
  std::uint64_t dropped = 0;
  for (std::size_t i = 0; i < kCellsPerGroup;) {
    const std::size_t cells = CellsFor(g.cells[i].slot.tag_bytes);
    bool whole = g.directory[i] >= kFingerprintMin && i + cells <= kCellsPerGroup;
    for (std::size_t k = 1; whole && k < cells; ++k) whole = g.directory[i + k] == kContinued;
    if (whole) {
      i += cells;
    } else {
      dropped += g.directory[i] >= kFingerprintMin;
      g.directory[i++] = kFree;    // what it continued into is freed as the loop meets it
    }
  }
  g.spilled = 0;
  g.dirty = 0;
  return dropped;
}

std::uint64_t Table::DropImpossible(std::size_t index, Instant now) {
  Group& g = group(index);
  std::uint64_t dropped = 0;
  for (std::size_t i = 0; i < kCellsPerGroup; ++i) {
    const std::uint16_t value = g.directory[i];
    if (value < kFingerprintMin) continue;
    Slot& slot = g.cells[i].slot;
    const Tag tag = g.TagAt(i);
    const std::uint64_t hash = Hash(tag);
    Group& primary = group(Primary(hash));
    const bool spilled = &primary != &g;
    // A tag that was being moved when the process died is there twice: the one that a look-up finds stays.
    const bool is_first = FindIn(g, value, tag) == &slot && (!spilled || FindIn(primary, value, tag) == nullptr);
    const bool at_home = is_first && (!spilled || Secondary(hash) == index);
    const std::size_t cells = CellsFor(tag.bytes.size());
    if (Fingerprint(hash) == value && at_home && (g.generation == generation_ || policy_->Reshape(tag, slot, now)) &&
        policy_->Plausible(slot, now)) {
      if (spilled && primary.spilled < kSpilledMax) ++primary.spilled;
      ShardState& shard = shards_[ShardOf(hash)];
      ++shard.counts.tags;
      shard.counts.cells_used += cells;
      if (slot.unreported != 0) MarkDirty(g, i);
    } else {
      for (std::size_t k = 0; k < cells; ++k) g.directory[i + k] = kFree;
      ++dropped;
    }
  }
  g.generation = generation_;
  return dropped;
}

Slot* Table::Shard::Find(const Tag& tag, Instant now) {
  Group& first = table_.group(table_.Primary(hash_));
  table_.Refresh(first, shard_, now);
  const std::uint16_t fingerprint = Fingerprint(hash_);
  Slot* slot = table_.FindIn(first, fingerprint, tag);
  if (slot != nullptr || first.spilled == 0) return slot;
  Group& second = table_.group(table_.Secondary(hash_));
  table_.Refresh(second, shard_, now);
  return table_.FindIn(second, fingerprint, tag);
}

// ---- Recording and forgetting ----

Slot* Table::Shard::Insert(const Tag& tag, const Bucket& bucket, LimitIndex limit, Instant now) {
  ShardState& shard = table_.shards_[shard_];
  const std::size_t cells = CellsFor(tag.bytes.size());
  Slot slot;
  slot.bucket = bucket;
  slot.limit = limit & kLimitIndexMax;
  const Waste waste = Waste::From(ToTicks(now));

  const auto free_in = [](const Group* g) { return Match(g->directory, kFree); };
  Group& first = table_.group(table_.Primary(hash_));
  table_.Refresh(first, shard_, now);
  // Most find room at once; memory of the second group is not waited for then.
  if (const std::uint32_t free = free_in(&first); IsAtEase(free)) {
    const std::size_t at = FirstRun(free, cells);
    if (at < kCellsPerGroup) return table_.Place(first, at, tag, hash_, slot, waste, shard);
  }
  // A first group that is getting full shares with the second while there is something to share.
  std::array<Group*, 2> choices = {&first, &table_.group(table_.Secondary(hash_))};
  table_.Refresh(*choices[1], shard_, now);
  if (!IsAtEase(free_in(choices[0])) && std::popcount(free_in(choices[1])) > std::popcount(free_in(choices[0]))) {
    std::swap(choices[0], choices[1]);
  }
  for (Group* g : choices) {
    const std::size_t at = FirstRun(free_in(g), cells);
    if (at < kCellsPerGroup) return table_.Place(*g, at, tag, hash_, slot, waste, shard);
  }

  // Two full groups in a shard that has room are bad luck, which moving a tag to its other group mends.
  const bool has_room = shard.counts.cells_used * 64 < table_.groups_per_shard_ * kCellsPerGroup * 63;
  if (has_room) {
    if (const auto room = table_.MoveAway(choices, cells, kNothing, shard, now)) {
      return table_.Place(*room->group, room->first, tag, hash_, slot, waste, shard);
    }
  }

  const Window windows[] = {table_.Cheapest(*choices[0], cells, now), table_.Cheapest(*choices[1], cells, now)};
  const Window& cheaper = windows[1].drained < windows[0].drained ? windows[1] : windows[0];
  if (cheaper.drained <= kEmpty) {
    table_.Vacate(cheaper, shard, now);
    return table_.Place(*cheaper.group, cheaper.first, tag, hash_, slot, waste, shard);
  }

  // Everything in reach is in debt. Somebody may have an emptier place to go.
  if (const auto room = table_.MoveAway(choices, cells, kEmpty, shard, now)) {
    return table_.Place(*room->group, room->first, tag, hash_, slot, waste, shard);
  }
  ++shard.counts.unrecorded;
  return nullptr;
}

void Table::Shard::Erase(Slot* slot) {
  Group& g = table_.group(table_.IndexOf(slot));
  table_.Remove(g, static_cast<std::size_t>(reinterpret_cast<Cell*>(slot) - g.cells), table_.shards_[shard_]);
}

void Table::Shard::TakeUnreported(Slot* slot) {
  Group& g = table_.group(table_.IndexOf(slot));
  slot->unreported = 0;
  g.dirty &= ~(1u << (reinterpret_cast<Cell*>(slot) - g.cells));
}

void Table::Shard::AddUnreported(Slot* slot, Cost hits) {
  if (hits == 0) return;
  if (slot->unreported == 0) {
    Group& g = table_.group(table_.IndexOf(slot));
    table_.MarkDirty(g, static_cast<std::size_t>(reinterpret_cast<Cell*>(slot) - g.cells));
  }
  slot->unreported = std::max(slot->unreported + hits, slot->unreported);    // or stays at the most there can be
}

void Table::MarkDirty(Group& g, std::size_t cell) {
  g.dirty |= 1u << cell;
  const std::size_t index = IndexOf(&g), shard = index / groups_per_shard_, in_shard = index % groups_per_shard_;
  dirty_groups_[shard * words_per_shard_ + in_shard / 64] |= std::uint64_t{1} << (in_shard % 64);
}

// The directory entry comes last: until then the cells are free whatever they hold.
Slot* Table::Place(Group& g, std::size_t first, const Tag& tag, std::uint64_t hash, const Slot& slot,
                   const Waste& waste, ShardState& shard) {
  Cell& cell = g.cells[first];
  cell.slot = slot;
  g.waste[first] = waste;
  cell.slot.is_digest = tag.is_digest ? 1 : 0;
  cell.slot.tag_bytes = static_cast<std::uint8_t>(tag.bytes.size());
  // A tag runs on into the cells behind, which is one object only to the bytes.
  CopyBytes(reinterpret_cast<char*>(&cell) + offsetof(Cell, tag), tag.bytes.data(), tag.bytes.size());
  const std::size_t cells = CellsFor(tag.bytes.size());
  StoreBarrier();
  for (std::size_t k = 1; k < cells; ++k) g.directory[first + k] = kContinued;
  Group& primary = group(Primary(hash));
  if (&primary != &g && primary.spilled < kSpilledMax) ++primary.spilled;
  StoreBarrier();
  g.directory[first] = Fingerprint(hash);
  if (slot.unreported != 0) MarkDirty(g, first);
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

Table::Window Table::Cheapest(Group& g, std::size_t cells, Instant now) const {
  std::array<double, kCellsPerGroup> drained;
  for (std::size_t i = 0; i < kCellsPerGroup; ++i) {
    const std::uint16_t value = g.directory[i];
    drained[i] = value == kFree        ? kNothing
                 : value == kContinued ? drained[i - 1]
                                       : policy_->Drained(g.cells[i].slot, now);
  }
  Window best;
  for (std::size_t first = 0; first + cells <= kCellsPerGroup; ++first) {
    const double cost = *std::max_element(&drained[first], &drained[first] + cells);
    if (cost < best.drained) best = {&g, first, cells, cost};
  }
  return best;
}

void Table::Vacate(const Window& window, ShardState& shard, Instant now) {
  Group& g = *window.group;
  for (std::size_t i = window.first; i < window.first + window.cells; ++i) {
    if (g.directory[i] == kFree) continue;
    std::size_t first = i;
    while (g.directory[first] == kContinued) --first;
    const Slot& slot = g.cells[first].slot;
    ++(slot.bucket.IsFull(now) ? shard.counts.reclaimed : shard.counts.evicted);
    shard.counts.unreported += slot.unreported;
    Remove(g, first, shard);
  }
}

// Makes room for `cells` by moving the tags that are in their way, where fewest are. Nothing more drained than
// `drained_max` is forgotten for it. Long tags fragment a group, so it may take several; a bounded number is tried.
std::optional<Table::Window> Table::MoveAway(std::array<Group*, 2> groups, std::size_t cells, double drained_max,
                                             ShardState& shard, Instant now) {
  std::size_t tries = kMoveTries;
  for (std::size_t used = 1; used <= cells; ++used) {
    for (Group* g : groups) {
      for (std::size_t first = 0; first + cells <= kCellsPerGroup; ++first) {
        const std::uint32_t window = ((1u << cells) - 1) << first;
        const std::uint32_t in_the_way = window & ~Match(g->directory, kFree);
        if (static_cast<std::size_t>(std::popcount(in_the_way)) != used || g->directory[first] == kContinued) continue;
        bool free = true;
        for (std::size_t i = first; free && i < first + cells; ++i) {
          if (g->directory[i] == kFree) continue;    // also what a tag just moved away has left
          if (tries-- == 0) return std::nullopt;
          free = Move(*g, i, window, drained_max, shard, now);
        }
        if (free) return Window{g, first, cells, 0};
      }
    }
  }
  return std::nullopt;
}

// Moves a tag to its other group, or out of the window within its own. The copy is complete before the original goes,
// so a kill in between leaves the tag twice, which Recover mends.
bool Table::Move(Group& g, std::size_t first, std::uint32_t window, double drained_max, ShardState& shard,
                 Instant now) {
  const Tag tag = g.TagAt(first);
  const std::uint64_t hash = Hash(tag);
  const std::size_t cells = CellsFor(tag.bytes.size());
  Group& primary = group(Primary(hash));
  Group& other = &primary == &g ? group(Secondary(hash)) : primary;
  Refresh(other, ShardOf(hash), now);
  Group* to = &other;
  std::size_t at = FirstRun(Match(other.directory, kFree), cells);
  if (at == kCellsPerGroup) {
    to = &g;
    at = FirstRun(Match(g.directory, kFree) & ~window, cells);
  }
  if (at == kCellsPerGroup) {
    if (drained_max == kNothing) return false;
    const Window cheapest = Cheapest(other, cells, now);
    if (cheapest.drained > drained_max) return false;
    Vacate(cheapest, shard, now);
    to = &other;
    at = cheapest.first;
  }
  Place(*to, at, tag, hash, g.cells[first].slot, g.waste[first], shard);
  Remove(g, first, shard);
  ++shard.counts.moved;
  return true;
}

// ---- Generations ----

void Table::RewriteGroup(Group& g, std::size_t shard, Instant now) {
  for (std::size_t i = 0; i < kCellsPerGroup; ++i) {
    if (g.directory[i] < kFingerprintMin) continue;
    if (!policy_->Reshape(g.TagAt(i), g.cells[i].slot, now)) Remove(g, i, shards_[shard]);
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
  return reshaping();
}

// ---- Going through ----

bool Table::TakeUnreported(std::size_t groups, SlotVisitor& visitor) {
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
      for (std::uint32_t dirty = g.dirty; taken && dirty != 0; dirty &= dirty - 1) {
        const auto i = static_cast<std::size_t>(std::countr_zero(dirty));
        Slot& slot = g.cells[i].slot;
        if (visitor.CanWait(g.TagAt(i), slot)) continue;
        taken = visitor.Visit(g.TagAt(i), slot, g.waste[i]);
        if (!taken) break;
        slot.unreported = 0;
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
    sum.moved += c.moved;
    sum.unrecorded += c.unrecorded;
    sum.unreported += c.unreported;
  }
  return sum;
}

}    // namespace dthrottle
