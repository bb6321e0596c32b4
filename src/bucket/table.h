// The table of buckets: one flat region of fixed size, without pointers, so that it can be a file that outlives us.
//
// The region is a header and then groups of 1 KiB. A group is a directory of one cache line, 24 cells of 32 bytes, and
// beside each cell the account of its bucket's waste, which only hosts with peers read:
//
//     +------------------------------------------------------+--------+-- - --+---------+---------------+
//     | 24 x 16-bit fingerprint, dirty, generation, spilled  | cell 0 |       | cell 23 | 24 x waste    |
//     +------------------------------------------------------+--------+-- - --+---------+---------------+
//
// A tag of up to 16 bytes takes one cell (bucket, limit, tag), a longer one the cells that follow as well, so a tag
// pays for its own length only. The keyed hash of a tag names two groups. It lives in the first unless that was nearly
// full when it came; the group then remembers that something spilled, and only then a look-up visits the second. A
// look-up therefore touches one line of directory and one of cell, in one page; a batch prefetches both and waits for
// neither.
//
// When neither group has the cells, though the shard has room, tags that are in the way move to their other groups.
// When the shard has none, a bucket that is full again is forgotten, because it is the same as no bucket. When there is
// none of those either, a tag that was asked on this host takes the cells of another, which forget.h chooses by what
// the line of the directory remembers of its cells; a tag that a peer tells of takes the cells of tags that only peers
// spoke of, each within its part, or goes unrecorded. No tag that was asked is ever without a bucket.
//
// Threads: the region is cut into shards by the hash. All access is through a guard, Shard or Shards, which holds their
// locks; locks live outside the region, so a killed process leaves none behind. Stores are ordered so that a process
// killed between any two of them leaves a region that Open() can put right without inventing a token.
//
// A slot with hits that no report has carried is dirty. Directories say which of their cells are, and a bitmap beside
// the region which groups have any, so that collecting them costs nothing for the rest of the table.
//
// What this class does not know: rules, shapes, peers, files. A SlotPolicy answers what depends on them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/siphash.h"
#include "base/tag.h"
#include "base/time.h"
#include "bucket/bucket.h"
#include "bucket/forget.h"

namespace dthrottle {

inline constexpr LimitIndex kLimitIndexMax = (1u << 23) - 1;    // what a slot has room for

// Hits that no report has carried yet, less tokens that have come back. Where more came back than was left to report,
// peers have heard of the rest, and a report has to take it back. While there is neither the same four bytes say which
// peer told of the tag: one that only peers spoke of has no hits here.
class Unreported {
 public:
  static constexpr std::uint32_t kMax = 0x7fffffff;        // hits
  static constexpr std::uint32_t kBackMax = 0x7fffff00;    // tokens

  Unreported() = default;
  explicit Unreported(Teller teller) : word_(teller == kNoTeller ? 0 : kMax + kBackMax + 1 + teller) {}

  bool any() const { return word_ - 1 < kMax + kBackMax; }
  std::uint32_t hits() const { return word_ <= kMax ? word_ : 0; }
  std::uint32_t back() const { return any() && word_ > kMax ? word_ - kMax : 0; }    // to be taken back
  Teller teller() const { return any() ? kNoTeller : static_cast<Teller>(word_); }

  // Both stay at the most there can be.
  void Add(Cost more) { Set(Net() + more); }
  void TakeBack(Cost tokens) { Set(Net() - tokens); }

 private:
  std::int64_t Net() const { return std::int64_t{hits()} - back(); }
  void Set(std::int64_t net) {
    word_ = static_cast<std::uint32_t>(net >= 0 ? std::min<std::int64_t>(net, kMax)
                                                : kMax + std::min<std::int64_t>(-net, kBackMax));
  }

  std::uint32_t word_ = 0;
};

// What the table keeps for a tag.
struct Slot {
  Bucket bucket;
  LimitIndex limit : 23 = 0;
  std::uint32_t is_digest : 1 = 0;    // maintained by the table
  std::uint32_t tag_bytes : 8 = 0;    // maintained by the table
  Unreported unreported;              // changed by Shard::AddUnreported and TakeBack
};

// The secrets of a table. They live in its header, because a table read under another key is noise.
struct TableKeys {
  SipKey tag_hash;
  std::array<std::byte, 32> digest;    // for over-long tags
};

// Identifies what a region's contents depend on. A region whose identity differs is started afresh.
struct TableIdentity {
  std::array<std::byte, 16> boot_id;    // instants mean nothing after a reboot
  std::uint64_t rules;                  // fingerprint of the rules; limits are numbered by them
};

struct TableCounts {
  std::uint64_t tags = 0;                // recorded now
  std::uint64_t cells_used = 0;          // of 32 bytes
  std::uint64_t reclaimed = 0;           // full buckets forgotten to make room: costs nobody anything
  std::uint64_t evicted = 0;             // buckets forgotten before they were full: forgave what they had spent
  std::uint64_t evicted_refusing = 0;    // of them, had refused queries: somebody washes them out
  std::uint64_t hearsay_forgotten = 0;   // what only peers spoke of, for more of it; not among `evicted`
  std::uint64_t moved = 0;               // moved to their other group, or within it, to make room
  std::uint64_t dropped = 0;             // entries that a former process left torn or impossible
  std::uint64_t unreported = 0;          // hits forgotten with their bucket before a report could carry them
};

// The party that spoke of a tag first.
class Source {
 public:
  static const Source kQuery, kPeer;    // kPeer: no peer in particular, as for what a snapshot brings
  static constexpr Source Peer(std::uint32_t number) { return {false, TellerOf(number)}; }

  bool is_query() const { return is_query_; }
  Teller teller() const { return teller_; }

 private:
  constexpr Source(bool is_query, Teller teller) : is_query_(is_query), teller_(teller) {}

  bool is_query_;
  Teller teller_;
};

inline constexpr Source Source::kQuery{true, kNoTeller}, Source::kPeer{false, kNoTeller};

// The rules that a slot is written for. After a kill those of some slots are unknown.
enum class WrittenFor { kRulesInForce, kRulesBefore, kUnknown };

// What the table has to ask about a slot. Called with the shard's lock held.
class SlotPolicy {
 public:
  virtual Claim ClaimOf(const Slot&, Instant now) const = 0;
  // A bucket with this merit (forget.h) is forgotten though it is not full.
  virtual void Forgot(const Slot&, unsigned earned) = 0;
  // Rewrites a slot of an earlier generation for the rules in force. False: forget it.
  virtual bool Reshape(const Tag&, Slot&, WrittenFor, Instant now) const = 0;
  // Puts right what only the process that wrote the slot knew, for rules that are known. False: it cannot be what we
  // wrote.
  virtual bool Restore(const Tag&, Slot&, WrittenFor, Instant now) const = 0;

 protected:
  ~SlotPolicy() = default;
};

// Is shown slots. Called with the shard's lock held.
class SlotVisitor {
 public:
  // False: no more for now; the same slot comes first the next time.
  virtual bool Visit(const Tag&, const Slot&, const Waste&) = 0;
  // True: TakeUnreported passes over this one, which stays dirty.
  virtual bool CanWait(const Tag&, const Slot&) { return false; }

 protected:
  ~SlotVisitor() = default;
};

class Table {
 public:
  static constexpr std::size_t kRegionBytesMin = std::size_t{1} << 20;

  struct Opened;

  // Whether a file that begins so, by its first 4 KiB or fewer, was written by a table of any version, or holds nothing
  // yet. The region of any other file is not this program's to clear.
  static bool IsTable(std::string_view head);

  // Takes over what the region holds if it has our format and the given identity, dropping entries that are torn or
  // impossible. The same of a table under the rules `rules_before`, whose slots the policy rewrites. Any other is cleared
  // and starts with `fresh_keys`. These are new, so that what is left of older entries is noise, or those of the table
  // that an upgrade goes on from. Beyond the first 64 MiB this is done to a group when it is touched, or by ReshapeSome.
  // The region stays the caller's and must outlive the table, as must the policy. Only a `shared` table may be used by
  // several threads.
  // REQUIRES: the region is aligned to 64 bytes and has at least kRegionBytesMin.
  //
  // With the notes of the table that was in the region until now, and has not changed since, every entry is as it
  // should be, and the region is not read through. Notes of another table are ignored.
  static Opened Open(std::span<std::byte> region, const TableIdentity&, const TableKeys& fresh_keys, bool shared,
                     SlotPolicy&, Instant now, std::string_view notes = {},
                     std::optional<std::uint64_t> rules_before = {});

  // The fingerprint of the rules that the table in a region is under; none: there is no table that Open would keep.
  static std::optional<std::uint64_t> RulesOf(std::span<const std::byte> region);

  // What Open would otherwise have to read the whole region for. REQUIRES: nobody else uses the table; !reshaping().
  std::string Notes() const;

  ~Table();

  const TableKeys& keys() const;
  std::size_t region_bytes() const { return region_.size(); }
  std::size_t cells() const;

  [[gnu::always_inline]] std::uint64_t Hash(const Tag& tag) const { return SipHash<1, 3>(tag_hash_key_, tag.bytes); }

  struct Header;
  struct Group;
  struct Cell;

  // A look-up under way. Aim() asks for the memory of the directory; Approach(), once that has had time to arrive, for
  // the memory of the cell, and with `with_waste` of its account of waste. Neither locks. Defined in table_lookup.h, as
  // are ForEach and what the guard does for each entry of a report.
  struct Probe {    // nothing by default: an array of them costs nothing
    std::uint64_t hash;
    Group* first;
    int cell;    // where the tag seems to be; -1: nothing is known
  };
  Probe Aim(const Tag& tag) const;
  void Approach(Probe& probe, bool with_waste) const;

  // Calls use(i, probe) for the tags tag_of(i), 0 <= i < n, in order, and waits for as little memory as can be.
  template <class TagOf, class Use>
  void ForEach(std::size_t n, bool with_waste, TagOf&& tag_of, Use&& use) const;

  // What the table has of one hash, for the holder of its shard's lock. Slots stay valid as long as that is held, or
  // until Insert.
  class Locked {
   public:
    // REQUIRES: the shard of `hash` stays locked for this object's lifetime.
    Locked(Table& table, std::uint64_t hash);

    // The slot of `tag`, brought up to the current generation, or null. REQUIRES: `hash` is Hash(tag), and the probe is
    // that of the tag.
    Slot* Find(const Tag& tag, const Probe& probe, Instant now);
    Slot* Find(const Tag& tag, Instant now);

    // Records a tag that Find did not find. Null: a peer spoke of it, and all room is taken by tags that were asked,
    // and by peers that have no more than it.
    Slot* Insert(const Tag& tag, const Bucket& bucket, LimitIndex limit, Source source, Instant now);

    // REQUIRES of all: the slot came from this object.
    void Refused(Slot* slot);    // its bucket had too little for a query
    void Erase(Slot* slot);
    Waste& waste(Slot* slot);
    void AddUnreported(Slot* slot, Cost hits);
    void TakeBack(Slot* slot, Cost tokens);    // of hits, whether a report has carried them or not
    void TakeUnreported(Slot* slot);    // they are in a report

   protected:
    void MarkUnreported(Slot* slot);

    Table& table_;
    std::uint64_t hash_;
    std::size_t shard_;
  };

  // Exclusive access to the shard of one hash, for the guard's lifetime.
  class Shard : public Locked {
   public:
    Shard(Table& table, std::uint64_t hash);
    ~Shard();
    Shard(const Shard&) = delete;
    Shard& operator=(const Shard&) = delete;
  };

  // Exclusive access to the shards of several hashes. A thread that holds one shard takes no other unless by this guard
  // or Exclusively, which both lock in ascending order, so threads never wait for each other in a circle.
  class Shards {
   public:
    // The hashes are hash_of(i) for 0 <= i < n.
    template <class HashOf>
    Shards(Table& table, std::size_t n, HashOf&& hash_of);
    ~Shards();
    Shards(const Shards&) = delete;
    Shards& operator=(const Shards&) = delete;

   private:
    Table& table_;
    std::uint64_t set_ = 0;    // a bit for each shard
  };

  // Runs `change` while every shard is locked: the one place where the policy may change its mind.
  template <class Change>
  void Exclusively(Change&& change) {
    LockAll();
    change();
    UnlockAll();
  }

  // Begins a new generation under other rules: until ReshapeSome has visited every group, slots are rewritten by the
  // policy when they are touched. REQUIRES: called within Exclusively; !reshaping().
  void StartGeneration(std::uint64_t rules_fingerprint);

  // Visits up to `groups` groups, to rewrite them or to do what Open has left to do; returns whether there are more to
  // come. One thread.
  bool ReshapeSome(std::size_t groups, Instant now);
  bool reshaping() const { return reshape_next_ < groups_; }

  // Shows every dirty slot that cannot wait, which is then clean. Goes through at most `groups` dirty groups; returns
  // whether there are more. A slot that gets dirty again behind the place where this stands waits for the next round,
  // which begins when it has returned false.
  bool TakeUnreported(std::size_t groups, SlotVisitor& visitor, Instant now);

  // Shows every slot, `cells` cells at most from `cell` on, which is moved along; returns whether there are more. Tags
  // that move meanwhile may be shown twice or not at all.
  bool VisitSome(std::size_t& cell, std::size_t cells, SlotVisitor& visitor, Instant now);

  // Over-long tags recorded under another key are not found any more.
  void SetDigestKey(const std::array<std::byte, 32>& key);

  TableCounts counts();

  // A few words that live and die with the table, 0 at first: the table keeps them and does not look at them.
  static constexpr std::size_t kWords = 8;
  std::span<std::uint64_t, kWords> words() const;

 private:
  struct ShardState;

  // What a tag has in the table.
  struct Entry {
    Tag tag;
    std::uint64_t hash;
    Slot slot;
    Waste waste;
    unsigned merit;
  };

  Table(std::span<std::byte> region, bool shared, SlotPolicy& policy);

  void Clear(const TableIdentity&, const TableKeys&);
  bool TakeNotes(std::string_view notes);
  void PutRightOnTouch(bool cleared, Instant now);
  bool IsRight(std::size_t group) const;
  void PutRight(Group&, std::size_t shard, Instant now);
  std::uint64_t DropTorn(Group&) const;
  bool TakeOver(const Group&, const Tag& tag, Slot&, Instant now) const;
  bool IsAtHome(const Group&, const Tag& tag, std::uint64_t hash) const;
  std::uint64_t DropImpossible(Group&, Instant now);

  Header& header() const;
  Group& group(std::size_t index) const;
  std::size_t IndexOf(const void* within_group) const;
  std::size_t ShardOf(std::uint64_t hash) const { return hash >> shard_shift_; }
  std::size_t Primary(std::uint64_t hash) const;
  std::size_t Secondary(std::uint64_t hash) const;
  Probe Seek(const Tag& tag) const;

  static bool Holds(const Group&, std::size_t cell, const Tag&);
  Slot* FindIn(Group&, std::uint16_t fingerprint, const Tag&) const;
  void Refresh(Group&, std::size_t shard, Instant now);
  void BringUpToDate(Group&, std::size_t shard, Instant now);
  void RewriteGroup(Group&, std::size_t shard, Instant now);
  void MarkDirty(Group&, std::size_t cell);

  // table_room.cc
  Slot* Place(Group&, std::size_t first, const Entry&, ShardState&);
  void Remove(Group&, std::size_t first, ShardState&);
  void Move(Group& from, std::size_t first, Group& to, std::size_t at, ShardState&);
  Group* RoomForNothing(const std::array<Group*, 2>& choices, std::size_t cells, std::size_t shard, Instant now);
  bool Gather(Group&, std::size_t cells, ShardState&);
  bool MoveAway(Group&, std::size_t cells, ShardState&);
  bool Reclaim(Group&, std::size_t cells, ShardState&, Instant now);
  Crowd CrowdOf(const Group&, const Slot& newcomer, std::size_t cells, Instant now) const;
  Group& ForgetFor(const std::array<Group*, 2>&, const Slot& newcomer, std::size_t cells, ShardState&, Instant now);
  bool ForgetHearsayFor(Group&, Teller, std::size_t cells, std::uint64_t hash, ShardState&);

  std::size_t shard_count() const { return groups_ / groups_per_shard_; }
  void Lock(std::size_t shard);
  void Unlock(std::size_t shard);
  void LockAll();
  void UnlockAll();

  std::span<std::byte> region_;
  bool shared_;
  SlotPolicy* policy_;
  std::size_t groups_;
  std::size_t groups_per_shard_;
  unsigned shard_shift_;
  SipKey tag_hash_key_{};
  std::uint8_t generation_ = 0;    // of groups whose slots are written for the rules in force
  std::uint16_t usable_ = 0;       // of groups that can be used as they are: generation_, or none's while Open's work
                                   // is not done
  std::optional<std::uint8_t> generation_before_;    // of groups whose slots are written for the policy's rules before
  bool cleared_ = false;           // that work is to clear groups
  std::size_t reshape_next_;
  std::size_t words_per_shard_;                // of dirty_groups_
  std::size_t take_next_ = 0;                  // word of dirty_groups_ where TakeUnreported goes on
  std::vector<std::uint64_t> dirty_groups_;    // a bit for each group; a shard's words are under its lock
  std::vector<std::uint64_t> right_groups_;    // the same: those for which Open's work is done; empty: all
  std::unique_ptr<ShardState[]> shards_;
};

struct Table::Opened {
  std::unique_ptr<Table> table;
  std::string_view discarded;    // why the former contents were discarded; empty if they were kept
};

}    // namespace dthrottle
