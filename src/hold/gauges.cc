#include "hold/gauges.h"

#include <algorithm>

namespace dthrottle {

namespace {

// Makes it one more than the number at least. One thread does.
void Exceed(std::atomic<std::uint32_t>& highest, std::uint32_t number) {
  if (number >= highest.load(std::memory_order_relaxed)) highest.store(number + 1, std::memory_order_relaxed);
}

}    // namespace

std::uint32_t Gauges::Elsewhere(std::uint64_t hash, Instant now) {
  const std::size_t at = tags_.Find(hash);
  if (at == Tags::kNone) return 0;
  if (now >= tags_[at].recount_at) Recount(tags_[at], hash, now);
  return tags_[at].elsewhere;
}

// Calls use(place) for what each of the others has said of the tag.
template <class Use>
void Gauges::ForEachHeard(std::uint64_t hash, Use&& use) {
  const auto one = [&](std::uint32_t peer) {
    if (const std::size_t at = heard_.Find(KeyOf(hash, peer)); at != Heards::kNone) use(at);
  };
  for (std::uint32_t peer = 0; peer < peers_.load(std::memory_order_relaxed); ++peer) one(peer);
  for (std::uint32_t site = 0; site < sites_.load(std::memory_order_relaxed); ++site) one(Site(site));
  one(kOwner);
}

void Gauges::Recount(Gauge& gauge, std::uint64_t hash, Instant now) {
  gauge.elsewhere = 0;
  gauge.recount_at = Instant::max();
  ForEachHeard(hash, [&](std::size_t at) {
    const Word& word = heard_[at].word;
    if (word.until <= now) return heard_.Remove(at);
    gauge.elsewhere += word.places;
    gauge.recount_at = std::min(gauge.recount_at, word.until);
  });
}

void Gauges::RemoveIfDone(std::size_t place) {
  const Gauge& gauge = tags_[place];
  if (!gauge.here && gauge.elsewhere == 0 && gauge.announced == 0 && !gauge.to_announce) tags_.Remove(place);
}

// ---- Here ----

// How many tags of its set take their places as those of the peer.
std::size_t Gauges::OfPeerNear(std::uint64_t hash, std::uint32_t peer) const {
  return tags_.CountNear(hash, [&](const Gauge& its) { return !its.here && its.by == peer; });
}

// The peer that has most of the set makes room first, by the tag of which least is taken.
std::size_t Gauges::RoomHere(std::uint64_t hash) const {
  return tags_.RoomFor(hash, [&](std::size_t place) -> std::optional<Worth> {
    const Gauge& its = tags_[place];
    if (its.here) return std::nullopt;
    return Worth(kWays - OfPeerNear(hash, its.by), its.elsewhere);
  });
}

// The same for a tag that the peer names: one of a peer that has more of the set makes room.
std::size_t Gauges::RoomElsewhere(std::uint64_t hash, std::uint32_t peer, Instant now) {
  const std::size_t ours = OfPeerNear(hash, peer);
  return tags_.RoomFor(hash, [&](std::size_t place) -> std::optional<Worth> {
    const Gauge& its = tags_[place];
    if (its.here) return std::nullopt;
    if (Elsewhere(tags_.HashAt(place), now) == 0) return Worth(0, 0);
    const std::size_t theirs = OfPeerNear(hash, its.by);
    return theirs > ours + 1 ? std::optional(Worth(1 + kWays - theirs, its.elsewhere)) : std::nullopt;
  });
}

bool Gauges::HasRoom(std::uint64_t hash) const {
  return Knows(hash) || RoomHere(hash) != Tags::kNone;
}

// The place of the tag, or `room`, which may be kNone.
std::size_t Gauges::PlaceOf(const Tag& tag, std::uint64_t hash, std::size_t room) {
  if (room == Tags::kNone) {
    crowded_.fetch_add(1, std::memory_order_relaxed);
    return room;
  }
  if (const std::uint64_t other = tags_.HashAt(room); other != 0) {
    ForEachHeard(other, [&](std::size_t at) { heard_.Remove(at); });
  }
  tags_.Put(room, hash);
  tags_.SetTold(room);
  tags_[room] = {.tag = KeptTag(tag)};
  return room;
}

void Gauges::SetUntold(std::size_t place) {
  if (tags_.SetUntold(place) && wake_) wake_();
}

void Gauges::Changed(const Tag& tag, std::uint64_t hash) {
  std::size_t at = tags_.Find(hash);
  if (at == Tags::kNone) at = PlaceOf(tag, hash, RoomHere(hash));
  if (at == Tags::kNone) return;
  tags_[at].here = true;
  SetUntold(at);
}

void Gauges::Changed(std::uint64_t hash) {
  if (const std::size_t at = tags_.Find(hash); at != Tags::kNone && tags_[at].here) SetUntold(at);
}

// ---- Peers ----

// How many words of a set are the peer's.
std::size_t Gauges::HeardNear(std::uint64_t key, std::uint32_t peer) const {
  return heard_.CountNear(key, [&](const Heard& its) { return its.peer == peer; });
}

// Keeps the word in place of the one before. That nothing is taken is kept only where an earlier word may yet come, and
// takes no room from what is taken. In a full set a word of the peer that has most there makes room for one of a peer
// with less. False: there is no room.
bool Gauges::Keep(std::uint64_t hash, std::uint32_t peer, const Word& word, Instant now) {
  const std::uint64_t key = KeyOf(hash, peer);
  const bool matters = word.places != 0 || word.in.missing != 0;
  std::size_t at = heard_.Find(key);
  if (at == Heards::kNone && matters) {
    const std::size_t ours = HeardNear(key, peer);
    at = heard_.RoomFor(key, [&](std::size_t place) -> std::optional<std::size_t> {
      const Heard& its = heard_[place];
      if (its.word.until <= now || its.word.places == 0) return std::size_t{its.word.until > now};
      const std::size_t theirs = HeardNear(key, its.peer);
      return word.places != 0 && theirs > ours + 1 ? std::optional(2 + kHeardWays - theirs) : std::nullopt;
    });
    if (at != Heards::kNone) Displace(at, hash, now);
    if (at != Heards::kNone) heard_.Put(at, key);
  }
  if (at == Heards::kNone) {
    if (word.places == 0) return true;
    crowded_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  heard_[at] = {word, peer};
  if (!matters) heard_.Remove(at);
  return true;
}

// What was said there counts no longer, since a word about the tag of that hash takes its place.
void Gauges::Displace(std::size_t heard, std::uint64_t hash, Instant now) {
  if (heard_.HashAt(heard) == 0) return;
  const Heard its = heard_[heard];
  const std::uint64_t other = HashOf(heard_.HashAt(heard), its.peer);
  heard_.Remove(heard);
  if (its.word.places == 0 || its.word.until <= now) return;
  crowded_.fetch_add(1, std::memory_order_relaxed);
  const std::size_t at = tags_.Find(other);
  if (at == Tags::kNone || other == hash) return;
  Recount(tags_[at], other, now);
  RemoveIfDone(at);
}

bool Gauges::Hear(const Tag& tag, std::uint64_t hash, std::uint32_t peer, const Word& word, Instant now) {
  const std::size_t known = heard_.Find(KeyOf(hash, peer));
  if (known != Heards::kNone && word.in.before(heard_[known].word.in)) return true;
  std::size_t at = tags_.Find(hash);
  if (at == Tags::kNone && word.places == 0) return Keep(hash, peer, word, now);
  if (at == Tags::kNone) {
    at = PlaceOf(tag, hash, RoomElsewhere(hash, peer, now));
    if (at == Tags::kNone) return false;
    tags_[at].by = peer;
  }
  const std::size_t theirs = OfPeerNear(hash, tags_[at].by);
  if (tags_[at].by == kNobody || theirs > OfPeerNear(hash, peer) + 1) tags_[at].by = peer;
  if (peer < Site(0)) {
    Exceed(peers_, peer);
  } else if (peer != kOwner) {
    Exceed(sites_, peer - Site(0));
  }
  if (!Keep(hash, peer, word, now)) return false;
  Recount(tags_[at], hash, now);
  RemoveIfDone(at);
  return true;
}

void Gauges::ForgetAt(std::size_t place, std::uint32_t peer, Instant now) {
  const std::uint64_t hash = tags_.HashAt(place);
  const std::size_t at = heard_.Find(KeyOf(hash, peer));
  if (at == Heards::kNone) return;
  heard_.Remove(at);
  Recount(tags_[place], hash, now);
  RemoveIfDone(place);
}

// ---- Where this host owns the tag ----

std::optional<Tag> Gauges::TagOf(std::uint64_t hash) const {
  const std::size_t at = tags_.Find(hash);
  return at != Tags::kNone ? std::optional(tags_[at].tag.tag()) : std::nullopt;
}

std::uint32_t Gauges::OfPeer(std::uint64_t hash, std::uint32_t peer, Instant now) const {
  const std::size_t at = heard_.Find(KeyOf(hash, peer));
  return at != Heards::kNone && heard_[at].word.until > now ? heard_[at].word.places : 0;
}

std::uint32_t Gauges::OfSites(std::uint64_t hash, Instant now) const {
  std::uint32_t places = 0;
  for (std::uint32_t site = 0; site < sites_.load(std::memory_order_relaxed); ++site) {
    places += OfPeer(hash, Site(site), now);
  }
  return places;
}

std::uint32_t Gauges::announced(std::uint64_t hash) const {
  const std::size_t at = tags_.Find(hash);
  return at != Tags::kNone ? tags_[at].announced : 0;
}

void Gauges::Announced(std::uint64_t hash, std::uint32_t places) {
  const std::size_t at = tags_.Find(hash);
  if (at == Tags::kNone) return;
  tags_[at].announced = places;
  tags_[at].to_announce = false;
  RemoveIfDone(at);
}

}    // namespace dthrottle
