// Everything that hosts say to each other about shares (protocol/capacity.md), and its way to bytes and back. One
// structure for all kinds: a kind leaves out the fields that it has no use for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "capacity/capacity_exchange.h"

namespace dthrottle {

inline constexpr std::size_t kItemsBytesMax = 60 * 1024;    // of one frame
inline constexpr std::size_t kAskedMax = 32;                // tags of an ask, and of its answer
inline constexpr std::size_t kMemberBitsBytesMax = (kMembersMax + 7) / 8;

enum class CapacityKind : std::uint8_t {
  kBeat = 1,        // I am alive, in this life, with this best friend
  kGrant = 2,       // from a witness: you were when you said so
  kDead = 3,        // from a witness: this life of yours has been taken for dead
  kLog = 4,         // to the best friend: ledgers
  kGifts = 5,       // to a neighbour: what it has been given in all, and indicators
  kSettle = 6,      // to a neighbour of a dead host: what its log says of the edge; `last`: and nothing else
  kHave = 7,        // the answer to a log, gifts or settling: that frame has come
  kFence = 8,       // to a witness: is this life over?
  kFenced = 9,      // the answer: it is, for good
  kPrepare = 10,    // from the coordinator: stop, a new generation begins
  kPromise = 11,    // the answer
  kCommit = 12,     // from anybody who knows: it has begun
  kAsk = 13,        // how much of these tags may you use?
  kShare = 14,      // the answer
};

// A set of members, by their number in the ascending list of names; bytes, lowest bit first, no zero byte at the end.
class MemberBits {
 public:
  bool Has(std::size_t i) const { return i / 8 < bytes_.size() && (bytes_[i / 8] >> (i % 8) & 1) != 0; }
  void Add(std::size_t i) {
    if (bytes_.size() <= i / 8) bytes_.resize(i / 8 + 1);
    bytes_[i / 8] = static_cast<char>(bytes_[i / 8] | 1 << (i % 8));
  }
  void Add(const MemberBits& more) {
    if (bytes_.size() < more.bytes_.size()) bytes_.resize(more.bytes_.size());
    for (std::size_t i = 0; i < more.bytes_.size(); ++i) bytes_[i] = static_cast<char>(bytes_[i] | more.bytes_[i]);
  }
  std::size_t Count() const;
  const std::string& bytes() const { return bytes_; }
  // False if these are not the bytes of a set.
  bool Assign(std::string_view bytes) {
    bytes_ = bytes;
    return bytes.size() <= kMemberBitsBytesMax && (bytes.empty() || bytes.back() != 0);
  }
  friend bool operator==(const MemberBits&, const MemberBits&) = default;

  static void Fields(auto& state, auto& self) {
    state(self.bytes_);
    state.Check(self.bytes_.size() <= kMemberBitsBytesMax && (self.bytes_.empty() || self.bytes_.back() != 0));
  }

 private:
  std::string bytes_;
};

// One edge of a ledger in a log or a settling: grow-only.
struct EdgeSums {
  Parts given = 0, received = 0;
  friend bool operator==(const EdgeSums&, const EdgeSums&) = default;
  static void Fields(auto& state, auto& self) { state(self.given, self.received); }
};

struct CapacityItem {
  CapacityKey key;
  std::int64_t base = 0;          // log: what the ledger began with, and what came of edges that are over
  Parts given = 0;                // gifts; share: what may be used
  double indicator = 0;           // gifts; not a number: none
  std::uint64_t neighbour = 0;    // settling: the life of the receiver that the sums are about

  static void Fields(auto& state, auto& self) {
    state(self.key, self.base, self.given, self.indicator, self.neighbour);
  }
};

struct CapacityMessage {
  CapacityKind kind{};
  std::string host;                          // all: the sender
  std::uint64_t generation = 0;              // all; prepare, promise: the one to come
  std::uint64_t epoch = 0;                   // all: of the sender
  std::uint64_t to_epoch = 0;                // log, gifts, grant, dead, have: of the receiver; 0: not known
  std::uint64_t sequence = 0;                // log, gifts, settle, have, ask, share
  std::uint64_t answered = 0;                // have: kind of the frame that has come
  std::int64_t sent = 0;                     // beat, grant: the host's clock at the beat, ns
  std::uint64_t binding = 0;                 // beat, grant, log, fence, fenced: number of the bond to a best friend
  std::uint64_t bound = 0;                   // beat: the number that a majority of witnesses is known to have
  std::uint64_t digest = 0;                  // beat, prepare, promise, commit: settings the sender wants
  std::string member;                        // fence, fenced, settle: who is dead
  std::uint64_t life = 0;                    // fence, fenced, settle: which of its lives; dead: which
  Parts base = 0, reserve = 0, aside = 0;    // commit; promise: reserve, aside of the old generation
  std::uint64_t former = 0;                  // promise: the generation the sender is in
  bool last = false;     // settle: no more; beat: wishes for a new generation; log: something is not settled; promise:
                         // who is no member any more holds no lease of this witness either
  MemberBits members;    // beat, log: seats; promise: members that hold no lease of this witness; commit:
                         // those who take part
  std::vector<std::string> witnesses;    // promise: of the former generation, if its settings are others
  std::uint64_t degree = 0;              // log: edges of each item; settle: 1
  std::vector<CapacityItem> items;       // log, gifts, settle, ask, share
  std::vector<EdgeSums> edges;           // log, settle: `degree` for each item
  std::vector<std::uint64_t> lives;      // log: of the neighbours, one for each edge

  void Clear();
};

// The most items that surely fit into a frame.
std::size_t ItemsMax(CapacityKind kind, std::uint64_t degree);

// Replaces `frame`; at most kCapacityFrameBytesMax bytes. REQUIRES: items within ItemsMax.
void EncodeCapacity(const CapacityMessage& message, std::string& frame);

enum class CapacityFault { kNone, kJunk, kVersion };

// `message` is unspecified unless kNone is returned.
CapacityFault DecodeCapacity(std::string_view frame, CapacityMessage& message);

}    // namespace dthrottle
