#include "lab/workers.h"

#include <algorithm>
#include <array>

#include "base/worker_page.h"

namespace dthrottle::lab {

// What a process of its own has: what it reads, what it writes, and the tags that it has asked for lately.
struct SimWorkers::Worker {
  static constexpr std::size_t kAskedTags = 1024;    // as src/client/pages.c

  Worker(Limiter& limiter, std::uint32_t size, Prng& prng)
      : page(1 + dthrottle_page_bytes(size) / sizeof(dthrottle_page)),
        counts(size),
        entries(Keyed(page.front(), prng), counts.data(), size, Lending(limiter)) {}

  static dthrottle_page& Keyed(dthrottle_page& page, Prng& prng) {
    for (std::uint64_t& word : page.head.key) word = prng.Next();
    return page;
  }

  std::uint64_t HashOf(std::string_view tag) const {
    return dthrottle_page_hash(page.front().head.key, tag.data(), tag.size());
  }
  // Whether the tag was asked for lately too.
  bool AskedAgain(std::string_view tag) {
    const std::uint64_t hash = HashOf(tag);
    const auto part = static_cast<std::uint32_t>(hash >> 32) | 1;
    return std::exchange(asked[hash % kAskedTags], part) == part;
  }

  std::vector<dthrottle_page> page;    // its head, and behind it entries, of which so many fit into each of these
  std::vector<dthrottle_page_count> counts;
  WorkerEntries entries;
  std::array<std::uint32_t, kAskedTags> asked{};
  std::uint32_t answers = 0;
};

SimWorkers::SimWorkers(Limiter& limiter, std::size_t workers, std::uint32_t entries, Prng& prng) {
  Lending(limiter).Enable();
  for (std::size_t i = 0; i < workers; ++i) workers_.push_back(std::make_unique<Worker>(limiter, entries, prng));
}

SimWorkers::~SimWorkers() {
  for (const auto& worker : workers_) worker->entries.Abandon();
}

std::optional<bool> SimWorkers::Decide(std::size_t worker, std::string_view tag, Instant now) {
  Worker& w = *workers_[worker];
  const auto verdict =
      dthrottle_page_decide(w.page.data(), w.counts.data(), static_cast<std::uint32_t>(w.counts.size()), w.HashOf(tag),
                            now.time_since_epoch().count());
  if (verdict == DTHROTTLE_PAGE_ASK) return std::nullopt;
  ++decided_;
  return verdict == DTHROTTLE_PAGE_SERVE;
}

void SimWorkers::Answered(std::size_t worker, std::string_view tag, bool refused, Instant now) {
  Worker& w = *workers_[worker];
  if (!w.AskedAgain(tag) && !refused) return;
  const std::uint32_t one_in = w.page.front().head.note_one_in;
  if (one_in > 1 && w.answers++ % one_in != 0) return;
  w.entries.Note(tag, now);
  if (w.entries.live() > 0) look_at_ = std::min(look_at_, now + WorkerEntries::kLookEvery);
  if (w.entries.settles()) settle_at_ = std::min(settle_at_, now + WorkerEntries::kSettleEvery);
}

Instant SimWorkers::Look(Instant now) {
  const bool looks = now >= look_at_;
  if (!looks && now < settle_at_) return std::min(look_at_, settle_at_);
  bool live = false, settles = false;
  for (const auto& worker : workers_) {
    if (looks) {
      worker->entries.Look(now);
    } else {
      worker->entries.Settle(now);
    }
    live |= worker->entries.live() > 0;
    settles |= worker->entries.settles();
  }
  if (looks) look_at_ = live ? now + WorkerEntries::kLookEvery : Instant::max();
  settle_at_ = settles ? now + WorkerEntries::kSettleEvery : Instant::max();
  return std::min(look_at_, settle_at_);
}

}    // namespace dthrottle::lab
