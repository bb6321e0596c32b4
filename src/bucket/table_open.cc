// Opening a region, and what has to be put right in one that a killed process left.
//
// Reading gigabytes through takes seconds, in which applications would find nobody to answer. So Open looks at the
// header and the first 64 MiB; each group further on is put right, or cleared, when it is first touched, by a query or
// by the walk that ReshapeSome is. Until all are done no group's generation is the usable one, so that every look-up
// goes the slow way, past BringUpToDate; after that look-ups pay nothing.
//
// A group can be put right by itself, but for tags that live in their second group: these have to know whether they are
// in their first one too. `spilled` is believed: a kill leaves it right or one too large.
#include <algorithm>
#include <cstring>
#include <span>

#include "base/check.h"
#include "bucket/table_lookup.h"

namespace dthrottle {
namespace {

// Writes nothing where all is zero, so that memory that is fresh from the system stays untouched.
void Zero(std::span<std::byte> bytes) {
  if (std::ranges::any_of(bytes, [](std::byte b) { return b != std::byte{}; })) std::ranges::fill(bytes, std::byte{});
}

}    // namespace

// ---- Opening ----

bool Table::IsTable(std::string_view head) {
  std::uint64_t magic = 0;
  std::memcpy(&magic, head.data(), std::min(head.size(), sizeof magic));
  const bool untouched = std::all_of(head.begin(), head.end(), [](char c) { return c == 0; });
  return untouched || magic == Header::kMagic || magic == Header::kMagicBegun;
}

Table::Opened Table::Open(std::span<std::byte> region, const TableIdentity& identity, const TableKeys& fresh_keys,
                          bool shared, SlotPolicy& policy, Instant now, std::string_view notes,
                          std::optional<std::uint64_t> rules_before) {
  Opened opened{std::unique_ptr<Table>(new Table(region, shared, policy)), {}};
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
  } else if (found.identity.rules != identity.rules && found.identity.rules != rules_before) {
    opened.discarded = "it was made under other rules";
  }
  if (!opened.discarded.empty()) table.Clear(identity, fresh_keys);
  table.tag_hash_key_ = table.header().keys.tag_hash;
  table.generation_ = static_cast<std::uint8_t>(table.header().generation);
  table.usable_ = table.generation_;
  const bool other_rules = found.identity.rules != identity.rules;
  if (other_rules) {
    table.generation_before_ = table.generation_;
    table.StartGeneration(identity.rules);
  }
  const bool is_right = opened.discarded.empty() && !other_rules && table.TakeNotes(notes);
  if (!is_right) table.PutRightOnTouch(!opened.discarded.empty(), now);
  return opened;
}

std::optional<std::uint64_t> Table::RulesOf(std::span<const std::byte> region) {
  const Header& found = *reinterpret_cast<const Header*>(region.data());
  if (found.magic != Header::kMagic || found.region_bytes != region.size()) return std::nullopt;
  return found.identity.rules;
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
  Header& h = header();
  h.version = Header::kVersion;
  h.generation = 0;
  h.region_bytes = region_.size();
  h.identity = identity;
  h.keys = keys;
  for (std::uint64_t& word : h.words) word = 0;
  StoreBarrier();
  h.magic = Header::kMagic;
}

void Table::PutRightOnTouch(bool cleared, Instant now) {
  constexpr std::size_t kGroupsAtOnce = (std::size_t{64} << 20) / sizeof(Group);
  constexpr std::uint16_t kNoGeneration = 0x100;
  usable_ = kNoGeneration;
  cleared_ = cleared;
  right_groups_.assign(dirty_groups_.size(), 0);
  reshape_next_ = 0;
  ReshapeSome(kGroupsAtOnce, now);
}

bool Table::IsRight(std::size_t index) const {
  const std::size_t shard = index / groups_per_shard_, in_shard = index % groups_per_shard_;
  return right_groups_[shard * words_per_shard_ + in_shard / 64] >> in_shard % 64 & 1;
}

// Believes nothing: the region may have been cut off between any two stores, or hold anything else.
void Table::PutRight(Group& g, std::size_t shard, Instant now) {
  const std::size_t in_shard = IndexOf(&g) % groups_per_shard_;
  right_groups_[shard * words_per_shard_ + in_shard / 64] |= std::uint64_t{1} << in_shard % 64;
  if (cleared_) {
    Zero({reinterpret_cast<std::byte*>(&g), offsetof(Group, cells)});
    if (g.generation != generation_) g.generation = generation_;
  } else {
    shards_[shard].counts.dropped += DropTorn(g);
    shards_[shard].counts.dropped += DropImpossible(g, now);
  }
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
  g.dirty = 0;
  return dropped;
}

// A tag that was being moved when the process died is there twice: the one that a look-up finds stays.
bool Table::IsAtHome(const Group& g, const Tag& tag, std::uint64_t hash) const {
  Group& primary = group(Primary(hash));
  if (&primary == &g) return true;
  if (&group(Secondary(hash)) != &g) return false;       // it may be anything, and its groups another shard's
  if (!IsRight(IndexOf(&primary))) DropTorn(primary);    // so that it can be searched
  return FindIn(primary, Fingerprint(hash), tag) == nullptr;
}

// A group may be two generations old, where a kill left it while it waited to be rewritten.
bool Table::TakeOver(const Group& g, const Tag& tag, Slot& slot, Instant now) const {
  if (g.generation != generation_) {
    const WrittenFor rules = g.generation == generation_before_ ? WrittenFor::kRulesBefore : WrittenFor::kUnknown;
    if (rules == WrittenFor::kRulesBefore && !policy_->Restore(tag, slot, rules, now)) return false;
    if (!policy_->Reshape(tag, slot, rules, now)) return false;
  }
  return policy_->Restore(tag, slot, WrittenFor::kRulesInForce, now);
}

std::uint64_t Table::DropImpossible(Group& g, Instant now) {
  std::uint64_t dropped = 0;
  for (std::size_t i = 0; i < kCellsPerGroup; ++i) {
    const std::uint16_t value = g.directory[i];
    if (value < kFingerprintMin) continue;
    Slot& slot = g.cells[i].slot;
    const Tag tag = g.TagAt(i);
    const std::uint64_t hash = Hash(tag);
    const std::size_t cells = CellsFor(tag.bytes.size());
    if (Fingerprint(hash) == value && FindIn(g, value, tag) == &slot && IsAtHome(g, tag, hash) &&
        TakeOver(g, tag, slot, now)) {
      ShardState& shard = shards_[ShardOf(hash)];
      ++shard.counts.tags;
      shard.counts.cells_used += cells;
      if (slot.unreported.any()) MarkDirty(g, i);
    } else {
      for (std::size_t k = 0; k < cells; ++k) g.directory[i + k] = kFree;
      ++dropped;
    }
  }
  g.generation = generation_;
  return dropped;
}

}    // namespace dthrottle
