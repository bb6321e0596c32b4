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

void Gauges::Recount(Gauge& gauge, std::uint64_t hash, Instant now) {
  gauge.elsewhere = 0;
  gauge.recount_at = Instant::max();
  const auto count = [&](std::uint32_t peer) {
    const std::size_t at = heard_.Find(KeyOf(hash, peer));
    if (at == Heards::kNone) return;
    if (heard_[at].until <= now) return heard_.Remove(at);
    gauge.elsewhere += heard_[at].places;
    gauge.recount_at = std::min(gauge.recount_at, heard_[at].until);
  };
  for (std::uint32_t peer = 0; peer < peers_.load(std::memory_order_relaxed); ++peer) count(peer);
  for (std::uint32_t site = 0; site < sites_.load(std::memory_order_relaxed); ++site) count(Site(site));
  count(kOwner);
}

void Gauges::RemoveIfDone(std::size_t place) {
  const Gauge& gauge = tags_[place];
  if (!gauge.here && gauge.elsewhere == 0 && gauge.announced == 0 && !gauge.to_announce) tags_.Remove(place);
}

// ---- Here ----

std::size_t Gauges::RoomHere(std::uint64_t hash) const {
  return tags_.RoomFor(hash, [&](std::size_t place) {
    return tags_[place].here ? std::nullopt : std::optional(tags_[place].elsewhere);
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

bool Gauges::Hear(const Tag& tag, std::uint64_t hash, std::uint32_t peer, std::uint32_t places, Instant until,
                  Instant now) {
  std::size_t at = tags_.Find(hash);
  if (at == Tags::kNone && places == 0) return true;
  if (at == Tags::kNone) {
    at = PlaceOf(tag, hash, tags_.RoomFor(hash, [&](std::size_t place) {
      return !tags_[place].here && Elsewhere(tags_.HashAt(place), now) == 0 ? std::optional(0) : std::nullopt;
    }));
    if (at == Tags::kNone) return false;
  }
  if (peer < Site(0)) {
    Exceed(peers_, peer);
  } else if (peer != kOwner) {
    Exceed(sites_, peer - Site(0));
  }
  const std::uint64_t key = KeyOf(hash, peer);
  const auto over = [&](std::size_t place) { return heard_[place].until <= now ? std::optional(0) : std::nullopt; };
  const std::size_t its = heard_.FindOrPut(key, over);
  if (its == Heards::kNone) {
    crowded_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  heard_[its] = {places, until};
  if (places == 0) heard_.Remove(its);
  Recount(tags_[at], hash, now);
  RemoveIfDone(at);
  return true;
}

// ---- Where this host owns the tag ----

std::optional<Tag> Gauges::TagOf(std::uint64_t hash) const {
  const std::size_t at = tags_.Find(hash);
  return at != Tags::kNone ? std::optional(tags_[at].tag.tag()) : std::nullopt;
}

std::uint32_t Gauges::OfPeer(std::uint64_t hash, std::uint32_t peer, Instant now) const {
  const std::size_t at = heard_.Find(KeyOf(hash, peer));
  return at != Heards::kNone && heard_[at].until > now ? heard_[at].places : 0;
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
