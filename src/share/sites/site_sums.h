// What the hosts of this site have served of the tags that this host owns, and other sites have not been told
// (share/sites/site_sharing.h tells them). For one thread, as Sharing.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/parted_map.h"
#include "base/quota_word.h"
#include "base/tag.h"
#include "base/time.h"
#include "bucket/ticks.h"
#include "bus/account.h"
#include "bus/entries.h"
#include "share/report_budget.h"
#include "share/sites/site_penalties.h"

namespace dthrottle {

class SiteSums {
 public:
  static constexpr std::size_t kTagsMax = std::size_t{1} << 20;

  // Both lie beside the table. `untold`: how many hits are in the sums, so a life knows what the one before had not
  // told. `told`: how many have left them, so other sites know what of it never came.
  SiteSums(std::uint64_t& untold, Account told) : untold_(untold), told_(told), lost_(untold_.exchange(0)) {}

  struct Sum {
    std::string tag;    // as hosts say it (share/said_tag.h)
    bool is_digest = false;
    std::uint64_t hits = 0;    // not told
    Ticks began = 0;           // when the first of them was served
    bool changed = false;      // since it was looked at
    bool assumed = false;      // that other sites ask for it, while they are not heard
    // What other sites foretell of it: this demand, from when the integral of p was so much (share/forecast).
    double demand = 0, earned = 0;
    bool counted = false, placed = false;    // of its quota; or its places are others: other sites have not been told
    QuotaWord quota{};                       // that they were told last
    std::uint32_t places = 0;                // as they were told last
    std::uint64_t refusals = 0;              // by hosts of this site, not told
    ReportBudget budget{};
    Instant budget_at{};

    Tag said() const { return {tag, is_digest}; }
    // Other sites are to be told of it, or foretell something.
    bool used() const {
      return hits != 0 || demand != 0 || places != 0 || refusals != 0 || changed || counted || placed;
    }

    // Over a restart.
    static void Fields(auto& state, auto& self) { state(self.tag, self.is_digest, self.hits, self.began); }
  };

  // The tag of that hash was named with hits since `began`, maybe none. Null: there is no room for it.
  Sum* Add(std::uint64_t hash, const Tag& said, std::uint64_t hits, Ticks began) {
    Sum* known = sums_.Find(hash);
    if (known == nullptr) {
      if (sums_.size() >= kTagsMax) {
        crowded_ += hits;
        return nullptr;
      }
      known = &sums_.Add(hash);
      known->tag = said.bytes;
      known->is_digest = said.is_digest;
      order_.push_back(hash);
    }
    Sum& sum = *known;
    if (hits != 0) sum.began = sum.hits == 0 ? began : std::min(sum.began, began);
    sum.hits += hits;
    untold_ += hits;
    if (!std::exchange(sum.changed, true)) changed_.push_back(hash);
    return &sum;
  }

  // More of its quota is used.
  void Counted(std::uint64_t hash, const Tag& said) {
    if (Sum* const sum = Add(hash, said, 0, 0)) sum->counted = true;
  }
  // Some of its places are taken, or were.
  void Placed(std::uint64_t hash, const Tag& said) {
    if (Sum* const sum = Add(hash, said, 0, 0)) sum->placed = true;
  }
  // A host of this site says so beside hits.
  void Beside(std::uint64_t hash, const Entries& entries, const Entry& entry) {
    if (entries.quota(entry)) Counted(hash, entries.tag(entry));
    if (entries.places(entry)) Placed(hash, entries.tag(entry));
    if (const std::uint64_t refusals = entries.refusals(entry); refusals != 0) {
      if (Sum* const sum = Add(hash, entries.tag(entry), 0, 0)) sum->refusals += refusals;
    }
  }
  // A penalty of the tag has begun, or was lifted: what it was refused before counts no more.
  void Penalized(std::uint64_t hash, const Tag& said, Instant until, Instant now) {
    penalties_.Began(hash, said, until, now);
    if (Sum* const sum = Find(hash)) sum->refusals = 0;
  }

  // So many of its tokens have come back; those that other sites have been told of do not come back there.
  void TakeBack(std::uint64_t hash, std::uint64_t tokens) {
    if (tokens == 0) return;
    if (Sum* const known = Find(hash)) Drop(*known, std::min(known->hits, tokens));
  }

  // So many of the sum's hits are told from now on. REQUIRES: it has them.
  void Told(Sum& sum, std::uint64_t hits) {
    told_.TookHits(hits);
    Drop(sum, hits);
  }
  // Nobody is told of so many of them. REQUIRES: it has them.
  void Drop(Sum& sum, std::uint64_t hits) {
    sum.hits -= hits;
    untold_ -= hits;
  }

  // So many hits of the life before are in these sums.
  void Recovered(std::uint64_t hits) { lost_ -= std::min(lost_, hits); }
  std::uint64_t lost() const { return lost_; }    // that it had not told when it was killed

  Sum* Find(std::uint64_t hash) { return sums_.Find(hash); }
  void Forget(std::uint64_t hash) { sums_.Erase(hash); }
  template <class Do>
  void ForEach(Do&& each) const {
    sums_.ForEach(each);
  }

  // Hashes of all tags; those of tags that stay are to be put back by Keep.
  std::vector<std::uint64_t> TakeAll() { return std::exchange(order_, {}); }
  void Keep(std::uint64_t hash) { order_.push_back(hash); }
  // Hashes of tags that were named since.
  std::vector<std::uint64_t> TakeChanged() { return std::exchange(changed_, {}); }
  bool any_changed() const { return !changed_.empty(); }

  SitePenalties& penalties() { return penalties_; }
  const SitePenalties& penalties() const { return penalties_; }

  std::size_t size() const { return sums_.size(); }
  std::uint64_t crowded() const { return crowded_; }    // hits of tags for which there was no room

 private:
  PartedMap<Sum> sums_;
  std::vector<std::uint64_t> order_, changed_;     // hashes; of each sum once, and of those that are `changed`
  SitePenalties penalties_;
  std::uint64_t crowded_ = 0;
  std::atomic_ref<std::uint64_t> untold_;
  Account told_;
  std::uint64_t lost_;
};

}    // namespace dthrottle
