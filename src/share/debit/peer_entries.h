// Entries of peers' frames: the buckets that they are about, what each peer may still say, and what became of it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/allowance.h"
#include "base/check.h"
#include "base/tag.h"
#include "bucket/table_lookup.h"
#include "bus/entries.h"
#include "bus/peer_ceilings.h"
#include "rule/rulebook.h"
#include "share/debit/merge_counts.h"
#include "share/debit/word.h"
#include "share/said_tag.h"
#include "share/share.h"

namespace dthrottle {

// What one peer may still say, and what it said beyond.
struct HeardPeer {
  std::uint32_t number;
  Allowance new_tags, penalties;
  PeerMergeCounts counts{};
  Duration period{};          // of its reports, if it is longer than this host's
  std::uint64_t hosts = 1;    // for which it speaks
};

// An entry and the bucket that it is about, with the shard locked.
struct ToldEntry {
  const Entry& entry;
  Table::Shard& shard;
  Tag tag;
  std::uint64_t hash;
  Slot* slot;
  LimitIndex index;
};

// The most that a bucket gives at one instant: its burst, and what queries wait for.
inline Ticks AtOnce(const Limit& limit) {
  return limit.shape.depth + ToTicks(limit.delay);
}

class PeerEntries {
 public:
  explicit PeerEntries(LimiterCore& core) : core_(core) {}

  // Calls change(told) for each of the entries [first, first + n) of `source` that a limit of ours is for which is not
  // this host's alone.
  template <class Change>
  void ForEach(const Entries& entries, std::size_t first, std::size_t n, Source source, Instant now, Change&& change);

  // Puts the bucket into the tag's slot, or into a new one if there is room. Returns the slot.
  Slot* Store(const ToldEntry& told, const Bucket& bucket, const Waste& waste, Source source, Instant now);

  // The most that a tag can owe, in ticks.
  Ticks MaxDebt(const Limit& limit) const;

  // The peer, which says something now.
  HeardPeer& Of(const Speaker& speaker);
  // The peer names a tag that is new here. False, and counted: it has named too many.
  bool MayName(HeardPeer& peer, Instant now);
  // From now on each peer may name this many tags a second that have no bucket here, on average over ten seconds, and a
  // site as many for each of its hosts; more are dropped. For a thousandth of it a peer may say that a tag is
  // penalized, or no longer: 100/s by default.
  void SetNewTagsMax(std::uint64_t per_second);

  MergeCounts& counts() { return counts_; }
  const MergeCounts& counts() const { return counts_; }
  // All 0 for a number that nobody has.
  PeerMergeCounts counts_of(std::uint32_t peer) const {
    return peer < heard_peers_.size() ? heard_peers_[peer].counts : PeerMergeCounts();
  }

 private:
  static bool Concerns(const Entries& entries, const Entry& entry, const Limit& limit);
  std::uint64_t penalties_max() const { return std::max<std::uint64_t>(new_tags_max_ / 1000, 1); }

  LimiterCore& core_;
  MergeCounts counts_;
  std::vector<HeardPeer> heard_peers_, heard_sites_;    // by number
  std::uint64_t new_tags_max_ = PeerCeilings().new_tags;
};

template <class Change>
void PeerEntries::ForEach(const Entries& entries, std::size_t first, std::size_t n, Source source, Instant now,
                          Change&& change) {
  DT_CHECK(first + n <= entries.size());
  const Entry* const list = entries.list().data() + first;
  counts_.entries += n;
  const bool rare = entries.any_rare();
  const auto tag_of = [&](std::size_t i) { return TableTag(entries.tag(list[i])); };
  core_.table->ForEach(n, true, tag_of, [&](std::size_t i, const Table::Probe& probe) {
    const Entry& entry = list[i];
    const Tag tag = tag_of(i);
    Table::Shard shard(*core_.table, probe.hash);
    Slot* const slot = shard.Find(tag, probe, now);
    const auto index = LimitOfSaid(*core_.rules, slot, entries.tag(entry), source);
    const Limit* const limit = index ? &core_.limit(*index) : nullptr;
    if (limit == nullptr || !(rare ? Concerns(entries, entry, *limit) : limit->shared)) {
      ++counts_.unmatched;
      return;
    }
    change(ToldEntry{entry, shard, tag, probe.hash, slot, *index});
  });
}

}    // namespace dthrottle
