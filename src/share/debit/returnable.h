// What may come back of hits that peers have been told of: a hold takes tokens that its settlement may give back, and
// what an application refunds may have been reported before.
//
// A host says of which tags hits may come back; its peers count how many it has said so of, and believe it that these
// come back and no more.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/side_table.h"
#include "base/time.h"

namespace dthrottle {

// The tags of this host, the latest of them. By the lock of a tag's shard.
class ReturnableTags {
 public:
  // Something holds tokens of the tag, or has given some back.
  void Note(std::uint64_t hash, Instant now) {
    std::size_t at = noted_.Find(hash);
    if (at == noted_.kNone) {
      at = noted_.RoomFor(hash, [&](std::size_t place) { return std::optional(noted_[place]); });
      if (at == noted_.kNone) return;
      noted_.Put(at, hash);
    }
    noted_[at] = now;
  }
  bool any() const { return noted_.used() > 0; }
  bool Has(std::uint64_t hash) const { return noted_.Find(hash) != noted_.kNone; }

 private:
  static constexpr std::size_t kTags = 2048, kWays = 8;

  SideTable<Instant, kWays> noted_{kTags};    // when last
};

// What peers have said so of, by tag and peer, the latest of it. For one thread.
class ReturnableHits {
 public:
  void Told(std::uint64_t hash, std::uint32_t peer, std::uint64_t hits, Instant now) {
    if (told_ == nullptr) told_ = std::make_unique<Table>(kPairs);
    const std::uint64_t key = KeyOf(hash, peer);
    std::size_t at = told_->Find(key);
    if (at == told_->kNone) {
      at = told_->RoomFor(key, [&](std::size_t place) { return std::optional((*told_)[place].at); });
      if (at == told_->kNone) return;
      told_->Put(at, key);
      (*told_)[at] = {};
    }
    (*told_)[at].hits += hits;
    (*told_)[at].at = now;
  }

  // So many are to come back. Returns how many are believed to.
  std::uint64_t TakeBack(std::uint64_t hash, std::uint32_t peer, std::uint64_t tokens) {
    const std::size_t at = told_ != nullptr ? told_->Find(KeyOf(hash, peer)) : Table::kNone;
    if (at == Table::kNone) return 0;
    std::uint64_t& hits = (*told_)[at].hits;
    const std::uint64_t believed = std::min(tokens, hits);
    if ((hits -= believed) == 0) told_->Remove(at);
    return believed;
  }

 private:
  static constexpr std::size_t kPairs = 65536, kWays = 8;

  struct Hits {
    std::uint64_t hits = 0;
    Instant at{};
  };
  using Table = SideTable<Hits, kWays>;

  // The pairs of a tag lie in sets of their own.
  static std::uint64_t KeyOf(std::uint64_t hash, std::uint32_t peer) {
    return hash ^ (std::uint64_t{peer} + 1) * 0x9e3779b97f4a7c15;
  }

  std::unique_ptr<Table> told_;    // from the first on
};

}    // namespace dthrottle
