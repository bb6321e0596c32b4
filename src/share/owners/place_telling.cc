#include "share/owners/place_telling.h"

#include <algorithm>
#include <utility>

#include "share/debit/ownership.h"
#include "share/owners/places_taken.h"
#include "share/said_tag.h"

namespace dthrottle {

// Calls see(gauges, tag, limit) if the tag is this host's to speak of, with its shard locked.
template <class See>
void PlaceTelling::LookAt(std::uint64_t hash, Instant now, See&& see) {
  LimiterCore& core = ways_.core();
  if (core.gauges == nullptr) return;
  Table::Shard shard(*core.table, hash);
  const auto tag = core.gauges->TagOf(hash);
  const auto index = tag ? LimitOfOwned(core, shard, *tag, now) : std::nullopt;
  if (index && core.limit(*index).in_flight > 0) see(*core.gauges, *tag, *index);
}

// Adds the word about the tag: of all hosts but that one; kNobody: of all. False: there is no room for it.
bool PlaceTelling::Add(std::uint64_t hash, std::uint32_t peer, Instant now, Entries& out) {
  const LimiterCore& core = ways_.core();
  bool full = false;
  LookAt(hash, now, [&](Gauges& gauges, const Tag& tag, LimitIndex index) {
    const std::uint32_t all = PlacesTakenOf(ways_.core(), hash, now).all();
    const std::uint64_t places = peer == kNobody ? all : all - std::min(gauges.OfPeer(hash, peer, now), all);
    full = !AddSaidTag(*core.rules, tag, index, 0, {.places = places}, out);
    if (!full && peer == kNobody) gauges.Announced(hash, all);
  });
  return !full;
}

void PlaceTelling::Changed(std::uint64_t hash, std::uint32_t peer) {
  if (peer != kNobody) answers_.Owe(peer, hash);
  changed_.push_back(hash);
}

// A host that has places says so again itself, and is answered.
void PlaceTelling::PeriodEnds(Instant now) {
  LimiterCore& core = ways_.core();
  if (core.gauges == nullptr) return;
  core.gauges->ForEach(core.ShardLock(), [&](std::uint64_t hash) { changed_.push_back(hash); });
  for (const std::uint64_t hash : changed_) {
    LookAt(hash, now, [&](Gauges& gauges, const Tag&, LimitIndex index) {
      if (gauges.announced(hash) * 2 >= core.limit(index).in_flight && gauges.Announce(hash)) news_.push_back(hash);
    });
  }
}

// Where less is left, fewer places are news.
std::vector<std::uint64_t> PlaceTelling::Judge(Instant now) {
  judge_at_ = now + kJudgeEvery;
  std::vector<std::uint64_t> news;
  for (const std::uint64_t hash : std::exchange(changed_, {})) {
    LookAt(hash, now, [&](Gauges& gauges, const Tag&, LimitIndex index) {
      const std::uint32_t most = ways_.core().limit(index).in_flight, told = gauges.announced(hash);
      const std::uint32_t all = PlacesTakenOf(ways_.core(), hash, now).all();
      const std::uint32_t step = std::max((most - std::min(all, most)) / 4, std::uint32_t{1});
      if (std::max(all, told) * 2 < most || std::max(all, told) - std::min(all, told) < step) return;
      news.push_back(hash);
      if (gauges.Announce(hash)) news_.push_back(hash);
    });
  }
  return news;
}

bool PlaceTelling::AddAnswers(std::uint32_t peer, Instant now, Entries& out) {
  return answers_.Give(peer, [&](std::uint64_t hash) { return Add(hash, peer, now, out); });
}

void PlaceTelling::AddNews(Instant now, Entries& out) {
  const std::size_t before = out.size();
  while (!news_.empty() && room_.Left(now) >= 1 && Add(news_.front(), kNobody, now, out)) {
    room_.Spend(1);
    news_.pop_front();
  }
  counts_.told += out.size() - before;
}

}    // namespace dthrottle
