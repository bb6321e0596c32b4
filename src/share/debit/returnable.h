// What may come back of hits that peers have been told of: a hold takes tokens that its settlement may give back, and
// what an application refunds may have been reported before.
//
// A host says of which tags hits may come back. Its peers count these hits, and all under a rule of which some came back,
// and believe it that so many come back and no more. Where the report of the hits is missing, what comes back waits for it.
// Peers share the room for that: in a full set a pair of the peer that has most there gives way, so one that names ever new
// tags takes nothing of the others' parts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "base/report_place.h"
#include "base/side_table.h"
#include "base/time.h"
#include "base/tokens.h"

namespace dthrottle {

// The latest tags of this host whose hits may come back. The lock of a tag's shard guards it.
class ReturnableTags {
 public:
  // Something holds tokens of the tag, or has given some back.
  void Note(std::uint64_t hash, Instant now) {
    const std::size_t at = noted_.FindOrPut(hash, [&](std::size_t place) { return std::optional(noted_[place]); });
    if (at != noted_.kNone) noted_[at] = now;
  }
  bool any() const { return noted_.used() > 0; }
  bool Has(std::uint64_t hash) const { return noted_.Find(hash) != noted_.kNone; }

 private:
  static constexpr std::size_t kTags = 2048, kWays = 8;

  SideTable<Instant, kWays> noted_{kTags};    // when last
};

// How many hits of a tag each peer was charged for that may come back, of the latest pairs of tag and peer. For one
// thread.
class ReturnableHits {
 public:
  // `said`: by the peer. Others take no place of these.
  void Told(std::uint64_t hash, std::uint32_t peer, std::uint64_t hits, bool said, Instant now) {
    Hits* const its = FindOrPut(hash, peer, said);
    if (its == nullptr) return;
    its->hits += hits;
    its->at = now;
    its->peer = peer;
    its->said = its->said || said;
  }

  // So many are to come back. Returns how many are believed to.
  std::uint64_t TakeBack(std::uint64_t hash, std::uint32_t peer, std::uint64_t tokens) {
    const std::size_t at = told_ != nullptr ? told_->Find(KeyOf(hash, peer)) : Table::kNone;
    return at != Table::kNone ? TakeFrom(at, tokens) : 0;
  }

  // A report gives back tokens of hits that it does not know, which may be in one that is missing before it. Returns how
  // many wait for those: all, or none where no report is missing.
  Cost Await(std::uint64_t hash, std::uint32_t peer, Cost tokens, const ReportPlace& in, Instant now) {
    if (tokens == 0 || in.missing == 0) return 0;
    Hits* const its = FindOrPut(hash, peer, true);
    if (its == nullptr) return 0;
    if (its->before.stream != in.stream || its->before.sequence <= in.missing) its->awaited = 0;    // lost
    if (its->awaited == 0 || its->before.before(in)) its->before = in;
    its->awaited += std::min(tokens, std::numeric_limits<Cost>::max() - its->awaited);
    its->at = now;
    its->peer = peer;
    its->said = true;
    any_awaited_ = true;
    return tokens;
  }
  // Told was told of so many hits in the report at that place. Returns how many of them a later one has given back.
  Cost TakeAwaited(std::uint64_t hash, std::uint32_t peer, std::uint64_t hits, const ReportPlace& in) {
    const std::size_t at = any_awaited_ ? told_->Find(KeyOf(hash, peer)) : Table::kNone;
    if (at == Table::kNone || !in.before((*told_)[at].before)) return 0;
    Cost& awaited = (*told_)[at].awaited;
    const auto most = static_cast<Cost>(std::min<std::uint64_t>(awaited, hits));
    awaited -= most;
    return static_cast<Cost>(TakeFrom(at, most));
  }

  // Over a restart, as long as peers keep their numbers.
  struct Pair {
    std::uint64_t key = 0, hits = 0;
    Instant at{};
    std::uint32_t peer = 0;
    bool said = false;
    Cost awaited = 0;
    ReportPlace before{};

    static void Fields(auto& state, auto& self) {
      state(self.key, self.hits, self.at, self.peer, self.said, self.awaited, self.before.stream, self.before.sequence);
    }
  };
  std::vector<Pair> Keep() const {
    std::vector<Pair> pairs;
    for (std::size_t at = 0; told_ != nullptr && at < told_->places(); ++at) {
      const std::uint64_t key = told_->HashAt(at);
      if (key == 0) continue;
      const Hits& its = (*told_)[at];
      pairs.push_back({key, its.hits, its.at, its.peer, its.said, its.awaited, its.before});
    }
    return pairs;
  }
  void Resume(const std::vector<Pair>& pairs) {
    if (told_ == nullptr && !pairs.empty()) told_ = std::make_unique<Table>(kPairs);
    for (const Pair& its : pairs) {
      const std::size_t at = told_->FindOrPut(its.key, [](std::size_t) { return std::optional<bool>(); });
      if (at != Table::kNone) (*told_)[at] = {its.hits, its.at, its.peer, its.said, its.awaited, its.before};
      any_awaited_ = any_awaited_ || its.awaited != 0;
    }
  }

 private:
  static constexpr std::size_t kPairs = 65536, kWays = 8;

  struct Hits {
    std::uint64_t hits = 0;
    Instant at{};
    std::uint32_t peer = 0;
    bool said = false;
    Cost awaited = 0;        // tokens that came back before their hits
    ReportPlace before{};    // the last report that gave some of these back
  };
  using Table = SideTable<Hits, kWays>;

  // The pairs of a tag lie in sets of their own.
  static std::uint64_t KeyOf(std::uint64_t hash, std::uint32_t peer) {
    return hash ^ (std::uint64_t{peer} + 1) * 0x9e3779b97f4a7c15;
  }

  // Returns where the hits of the pair are counted, from 0 if it is new; null: there is no room for it.
  Hits* FindOrPut(std::uint64_t hash, std::uint32_t peer, bool said) {
    if (told_ == nullptr) told_ = std::make_unique<Table>(kPairs);
    const std::uint64_t key = KeyOf(hash, peer);
    const auto worth = [&](std::size_t place) {
      const Hits& its = (*told_)[place];
      const auto spare = -static_cast<std::ptrdiff_t>(PairsNear(key, its.peer) + (its.peer == peer));
      return its.said && !said ? std::nullopt : std::optional(std::tuple(spare, its.said, its.at));
    };
    const std::size_t at = told_->FindOrPut(key, worth);
    return at != Table::kNone ? &(*told_)[at] : nullptr;
  }

  std::uint64_t TakeFrom(std::size_t at, std::uint64_t tokens) {
    Hits& its = (*told_)[at];
    const std::uint64_t believed = std::min(tokens, its.hits);
    its.hits -= believed;
    if (its.hits == 0 && its.awaited == 0) told_->Remove(at);
    return believed;
  }

  // How many pairs of the peer are in the set of the key.
  std::size_t PairsNear(std::uint64_t key, std::uint32_t peer) const {
    std::size_t pairs = 0;
    for (std::size_t place = told_->FirstNear(key), way = 0; way < kWays; ++way, ++place) {
      pairs += told_->HashAt(place) != 0 && (*told_)[place].peer == peer;
    }
    return pairs;
  }

  std::unique_ptr<Table> told_;    // from the first on
  bool any_awaited_ = false;       // or has been
};

}    // namespace dthrottle
