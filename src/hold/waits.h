// Granted waits: what the questions of a connection have taken to go on later. Until its wait is over, a question can
// give back what it has paid. A wait ends with its connection, unless its question wants it kept: then it goes over to
// those that connections have left behind.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/tag.h"
#include "base/time.h"
#include "hold/kept_ends.h"
#include "hold/payment.h"

namespace dthrottle {

// Names a wait. No hold ever has the same.
using WaitId = std::uint64_t;
inline constexpr WaitId kWaitBit = WaitId{1} << 63;

class Waits {
 public:
  // Tags that are kept of a connection, and of all together that have ended. What is granted beyond them cannot be
  // given back.
  static constexpr std::size_t kTagsMax = 2048, kLeftTagsMax = 8 * kTagsMax;

  Waits() = default;
  explicit Waits(std::size_t tags_max) : tags_max_(tags_max) {}

  // Drops waits that are over, now and then and where there is no room for so many more tags, and calls dropped(id) for
  // each.
  template <class Dropped>
  void DropOver(Instant now, std::size_t more, Dropped&& dropped) {
    if (tags_ < drop_at_ && tags_ + more <= tags_max_) return;
    std::erase_if(by_id_, [&](const auto& its) {
      const bool over = its.second.until <= now;
      if (over) tags_ -= its.second.paid.size(), dropped(its.first);
      return over;
    });
    drop_at_ = std::max(kDropAt, 2 * tags_);
  }

  // A question has paid, and goes on at `until`; `kept`: whatever becomes of its connection. False: there is no room to
  // keep it.
  bool Add(WaitId id, std::span<const Payment> paid, Instant until, bool kept = false) {
    if (tags_ + paid.size() > tags_max_) return false;
    tags_ += paid.size();
    Wait& wait = by_id_[id];
    wait.until = until;
    wait.kept = kept;
    for (const auto& [query, at, with, unpaid, with_unpaid] : paid) {
      wait.paid.push_back({query.cost, query.tag.is_digest, std::string(query.tag.bytes), KeptEnds(query), at,
                           with.value_or(0), unpaid, with_unpaid});
    }
    return true;
  }

  // Ends a wait, and calls back(paid) for each tag if it was not over. False: it was, or there is none.
  template <class Back>
  bool Give(WaitId id, Instant now, Back&& back) {
    const auto its = by_id_.find(id);
    if (its == by_id_.end()) return false;
    const Wait wait = std::move(its->second);
    by_id_.erase(its);
    tags_ -= wait.paid.size();
    if (wait.until <= now) return false;
    for (const Paid& paid : wait.paid) {
      const Tag tag{paid.tag, paid.is_digest};
      const std::optional<OverLongTag> over_long = paid.ends.Of(tag);
      back(Payment{{tag, paid.cost, over_long ? &*over_long : nullptr}, paid.at, paid.with, paid.unpaid,
                   paid.with_unpaid});
    }
    return true;
  }

  bool IsKept(WaitId id) const {
    const auto its = by_id_.find(id);
    return its != by_id_.end() && its->second.kept;
  }

  // The connection ends, and `left` has the wait from now on. False: it is over or there is no room, and nobody has it.
  // REQUIRES: there is such a wait.
  bool Leave(WaitId id, Waits& left, Instant now) {
    auto node = by_id_.extract(id);
    const std::size_t tags = node.mapped().paid.size();
    tags_ -= tags;
    if (node.mapped().until <= now || left.tags_ + tags > left.tags_max_) return false;
    left.tags_ += tags;
    left.by_id_.insert(std::move(node));
    return true;
  }

  std::size_t tags() const { return tags_; }

  std::vector<WaitId> ids() const {
    std::vector<WaitId> ids;
    for (const auto& [id, wait] : by_id_) ids.push_back(id);
    return ids;
  }

  bool any(Instant now) const {
    return std::ranges::any_of(by_id_, [&](const auto& its) { return its.second.until > now; });
  }

  static void Fields(auto& state, auto& self) { state(self.by_id_, self.tags_); }

 private:
  static constexpr std::size_t kDropAt = 16;

  struct Paid {
    Cost cost;
    bool is_digest;
    std::string tag;
    KeptEnds ends;
    Instant at;
    std::uint16_t with;
    bool unpaid;
    std::uint8_t with_unpaid;

    static void Fields(auto& state, auto& self) {
      state(self.cost, self.is_digest, self.tag, self.ends, self.at, self.with, self.unpaid, self.with_unpaid);
    }
  };
  struct Wait {
    Instant until;
    bool kept;
    std::vector<Paid> paid;

    static void Fields(auto& state, auto& self) { state(self.until, self.kept, self.paid); }
  };

  std::size_t tags_max_ = kTagsMax;
  std::map<WaitId, Wait> by_id_;
  std::size_t tags_ = 0;    // of them
  std::size_t drop_at_ = kDropAt;
};

}    // namespace dthrottle
