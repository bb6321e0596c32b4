#include "share/owners/quota_telling.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "share/debit/ownership.h"
#include "share/said_tag.h"

namespace dthrottle {

// Calls see(quotas, tag, limit) if the tag is this host's to speak of, with its shard locked.
template <class See>
void QuotaTelling::LookAt(std::uint64_t hash, Instant now, See&& see) {
  LimiterCore& core = ways_.core();
  Quotas* const quotas = ways_.quotas();
  if (quotas == nullptr) return;
  Table::Shard shard(*core.table, hash);
  const auto tag = quotas->TagOf(hash);
  const auto index = tag ? LimitOfOwned(core, shard, *tag, now) : std::nullopt;
  if (index && core.limit(*index).quota > 0) see(*quotas, *tag, *index);
}

// Adds the word of all hosts about the tag, if so much is used; false: there is no room for it.
bool QuotaTelling::Add(std::uint64_t hash, Which which, Instant now, Entries& out) {
  const Rulebook& rules = *ways_.core().rules;
  bool full = false;
  LookAt(hash, now, [&](Quotas& quotas, const Tag& tag, LimitIndex index) {
    const Limit& limit = rules.limit(index);
    if (which == Which::kHalfUsed && !quotas.IsHalfUsed(hash, limit, now)) return;
    const auto word = quotas.OfAll(hash, limit, now);
    full = word && !AddSaidTag(rules, tag, index, 0, {.quota = word}, out);
  });
  return !full;
}

void QuotaTelling::Counted(std::uint64_t hash, std::uint32_t peer, Instant now) {
  if (peer != kNobody) answers_.Owe(peer, hash);
  LookAt(hash, now, [&](Quotas& quotas, const Tag&, LimitIndex index) {
    if (quotas.IsNews(hash, ways_.core().limit(index), now)) news_.push_back(hash);
  });
}

bool QuotaTelling::AddAnswers(std::uint32_t peer, Instant now, Entries& out) {
  return answers_.Give(peer, [&](std::uint64_t hash) { return Add(hash, Which::kUsed, now, out); });
}

void QuotaTelling::AddNews(Instant now, Entries& out) {
  const std::size_t before = out.size();
  while (!news_.empty() && room_.Left(now) >= 1 && Add(news_.front(), Which::kUsed, now, out)) {
    room_.Spend(1);
    news_.pop_front();
  }
  counts_.told += out.size() - before;
}

bool QuotaTelling::Tell(Instant now) {
  if (now < next()) return true;
  if (to_peers_.full()) {
    due_at_ = now + kNearRetry;
    return false;
  }
  Entries entries;
  const Quotas* const quotas = ways_.quotas();
  const std::size_t places = quotas != nullptr ? quotas->places() : 0;
  for (const std::size_t until = std::min(places, place_ + kPlacesPerSlice); place_ < until; ++place_) {
    const std::uint64_t hash = quotas->HashAt(place_);
    if (hash != 0 && !Add(hash, Which::kHalfUsed, now, entries)) break;
  }
  if (!entries.empty()) to_peers_.TryPush(NearFrame(ways_.core(), std::move(entries), now, came_.front()));
  if (place_ >= places) {
    place_ = 0;
    came_.pop_front();
  }
  return true;
}

}    // namespace dthrottle
