#include "share/owners/penalty_telling.h"

#include <chrono>
#include <utility>
#include <vector>

#include "share/debit/ownership.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Duration kGap = 20ms;    // between two frames
constexpr Duration kAgain = 1s, kLast = 8s, kAgainEvery = 250ms;
constexpr std::size_t kAgainMax = 8192;    // penalties that are to be told again

}    // namespace

void PenaltyTelling::Began(const Tag& said, std::uint64_t left, Instant now) {
  const auto lasts = std::chrono::milliseconds(left);
  Say(said, lasts, now);
  for (const Duration later : {kAgain, kLast}) {
    if (again_.size() >= kAgainMax) again_.pop_front();
    again_.push_back({KeptTag(said), now + lasts, now + later});
  }
}

void PenaltyTelling::Say(const Tag& said, Duration left, Instant now) {
  const bool first = said_.empty();
  const bool added = room_.Take(now) && said_.Add(said, 0, 0, {.penalty = PenaltyMilliseconds(left)});
  counts_.told += added, counts_.cut += !added;
  if (!added || !first) return;
  said_at_ = now;
  due_at_ = std::max(now, told_at_ + kGap);
}

bool PenaltyTelling::Tell(Instant now) {
  if (now >= again_at_) {
    std::erase_if(again_, [&](const Again& its) {
      if (its.at <= now) Say(its.said.tag(), its.until - now, now);
      return its.at <= now;
    });
    again_at_ = now + kAgainEvery;
  }
  if (now < due_at_) return true;
  if (to_peers_.full()) {
    due_at_ = now + kNearRetry;
    return false;
  }
  due_at_ = Instant::max();
  told_at_ = now;
  // Penalties last as long as they say from the instant of the first on.
  to_peers_.TryPush(NearFrame(ways_.core(), std::exchange(said_, {}), said_at_));
  return true;
}

void PenaltyTelling::TellTo(std::uint32_t peer, const Ownership& ownership, Instant now) {
  LimiterCore& core = ways_.core();
  Debits& debits = ways_.Get<Debits>();
  std::vector<PenaltyAt> ours;
  core.penalties.ForEach(core.ShardLock(), now, [&](const PenaltyAt& its) {
    if (ownership.Owns(its.tag.tag())) ours.push_back(its);
  });
  Draft draft;
  const auto push = [&] {
    if (draft.entries.empty()) return;
    ToPeers item = NearFrame(core, std::move(draft.entries), now, peer);
    draft.Clear();
    to_peers_.TryPush(std::move(item));
  };
  for (const PenaltyAt& its : ours) {
    const Tag tag = its.tag.tag();
    const auto add = [&] {
      Table::Shard shard(*core.table, core.table->Hash(tag));
      return debits.beside().Add(tag, {.penalty = PenaltyMilliseconds(its.until - now)}, shard, now, draft);
    };
    if (add()) continue;
    push();
    static_cast<void>(add());    // a frame has room for one
  }
  push();
}

}    // namespace dthrottle
