#include "share/debit/peer_entries.h"

#include <algorithm>
#include <limits>

namespace dthrottle {

// A peer can take a bucket into debt by what it may itself have served; so much, for all of them, is the most that is
// ever owed. Where a bucket takes months to fill, many hosts make more than can be counted.
Ticks PeerEntries::MaxDebt(const Limit& limit) const {
  constexpr Ticks kMost = std::numeric_limits<Ticks>::max() / 4;
  if (limit.max_debt >= 0) return limit.max_debt;
  const auto hosts = static_cast<Ticks>(core_.peers + 1);
  return hosts * std::min(AtOnce(limit) + core_.window, kMost / hosts);
}

HeardPeer& PeerEntries::Of(const Speaker& speaker) {
  std::vector<HeardPeer>& heard = speaker.abroad ? heard_sites_ : heard_peers_;
  while (heard.size() <= speaker.number) {
    const auto number = static_cast<std::uint32_t>(heard.size());
    heard.push_back({number, PeerCeilings::Room(new_tags_max_), PeerCeilings::Room(penalties_max())});
  }
  HeardPeer& peer = heard[speaker.number];
  peer.period = speaker.period;
  peer.hosts = std::max<std::uint64_t>(speaker.hosts, 1);
  return peer;
}

// One host that names as many as it may leaves the others of its site their own.
bool PeerEntries::MayName(HeardPeer& peer, Instant now) {
  if (peer.new_tags.Take(now, 1 / static_cast<double>(peer.hosts))) return true;
  ++counts_.new_tags_cut, ++peer.counts.new_tags_cut;
  return false;
}

void PeerEntries::SetNewTagsMax(std::uint64_t per_second) {
  new_tags_max_ = per_second;
  for (auto* const heard : {&heard_peers_, &heard_sites_}) {
    for (HeardPeer& peer : *heard) {
      peer.new_tags = PeerCeilings::Room(new_tags_max_);
      peer.penalties = PeerCeilings::Room(penalties_max());
    }
  }
}

// Whether a limit is concerned by the entry, which says something beside hits.
bool PeerEntries::Concerns(const Entries& entries, const Entry& entry, const Limit& limit) {
  if (entries.quota(entry).has_value()) return limit.quota > 0 && (limit.shared || limit.divided);
  if (entries.places(entry).has_value()) return limit.shared && limit.in_flight != 0;
  if (entries.member(entry).has_value()) return limit.shared && limit.among == Among::kLevel;
  if (entries.penalty(entry).has_value() || entries.refusals(entry) != 0) {
    return limit.penalizes && (limit.shared || limit.divided);
  }
  return limit.shared;
}

Slot* PeerEntries::Store(const ToldEntry& told, const Bucket& bucket, const Waste& waste, Source source, Instant now) {
  Slot* slot = told.slot;
  if (slot != nullptr) {
    slot->bucket = bucket;
  } else {
    slot = told.shard.Insert(told.tag, bucket, told.index, source, now);
  }
  if (slot != nullptr) {
    told.shard.waste(slot) = waste;
  } else {
    ++counts_.unrecorded;
  }
  return slot;
}

}    // namespace dthrottle
