#include "lab/network.h"

#include <algorithm>

#include "base/check.h"
#include "lab/sampling.h"

namespace dthrottle::lab {

Network::Network(std::size_t hosts, const LaneOptions& options, EventQueue& events, Prng prng)
    : hosts_(hosts), options_(options), lanes_(hosts * hosts), events_(events), prng_(prng) {}

Duration Network::DelayOf(const Parcel& parcel) const {
  const auto site = [&](std::uint32_t host) { return SiteOf(host, hosts_, options_.sites); };
  const bool same = options_.sites == 1 || site(parcel.from) == site(parcel.to);
  return options_.delay + (same ? Duration(0) : options_.between_sites);
}

void Network::Send(Parcel parcel, WorldTime now) {
  ++counts_.sent;
  counts_.bytes += parcel.frame->size();
  const std::size_t index = Index(parcel.from, parcel.to);
  Lane& lane = lanes_[index];
  const bool cut = lane.cuts > 0;
  if (now < lane.up_at || (filter && !filter(parcel))) return CountLoss();

  if (options_.lossy) {
    if (cut || Happens(options_.loss, prng_)) return CountLoss();
    const int copies = Happens(options_.duplication, prng_) ? 2 : 1;
    counts_.repeated += static_cast<std::uint64_t>(copies - 1);
    for (int i = 0; i < copies; ++i) {
      WorldTime at = now + DelayOf(parcel) + Uniform(options_.jitter, prng_);
      if (Happens(options_.overtaken, prng_)) at += Uniform(options_.held_up, prng_);
      events_.Push(at, {Event::Kind::kParcel, parcel});
    }
    return;
  }

  // Without acknowledgements a connection ends as well, so a cut one way counts both ways.
  const bool unheard = cut || (cuts_ > 0 && lanes_[Index(parcel.to, parcel.from)].cuts > 0);
  if (unheard && now - lane.cut_since > options_.patience) return CountLoss();
  if (cut) {
    std::vector<Parcel>& waiting = waiting_[index];
    if (waiting.size() >= options_.queued_max) return CountLoss();
    waiting.push_back(std::move(parcel));
    return;
  }
  Arrive(lane, std::move(parcel), now);
}

void Network::Arrive(Lane& lane, Parcel parcel, WorldTime sent) {
  WorldTime& last = lane.last[static_cast<std::size_t>(parcel.channel)];
  last = std::max(last, sent + DelayOf(parcel) + Uniform(options_.jitter, prng_));
  events_.Push(last, {Event::Kind::kParcel, std::move(parcel)});
}

void Network::Cut(std::uint32_t from, std::uint32_t to, WorldTime now) {
  Lane &lane = lanes_[Index(from, to)], &back = lanes_[Index(to, from)];
  if (lane.cuts == 0 && back.cuts == 0) lane.cut_since = back.cut_since = now;
  ++lane.cuts, ++cuts_;
}

void Network::Mend(std::uint32_t from, std::uint32_t to, WorldTime now) {
  Lane &lane = lanes_[Index(from, to)], &back = lanes_[Index(to, from)];
  DT_CHECK(lane.cuts > 0);
  --lane.cuts, --cuts_;
  if (lane.cuts > 0 || back.cuts > 0) return;
  const bool alive = now - lane.cut_since <= options_.patience;
  Resume(from, to, alive, now);
  Resume(to, from, alive, now);
}

// A living connection delivers what has waited, after a pause that grows with the cut as retransmissions back off.
void Network::Resume(std::uint32_t from, std::uint32_t to, bool alive, WorldTime now) {
  const std::size_t index = Index(from, to);
  Lane& lane = lanes_[index];
  if (options_.lossy) return;
  std::vector<Parcel> waiting;
  if (const auto it = waiting_.find(index); it != waiting_.end()) {
    waiting = std::move(it->second);
    waiting_.erase(it);
  }
  if (!alive) {
    counts_.lost += waiting.size();
    lane.up_at = std::max(lane.up_at, now + Uniform(options_.reconnecting, prng_));
    return;
  }
  const WorldTime resumed = now + Uniform(now - lane.cut_since, prng_);
  for (Parcel& parcel : waiting) Arrive(lane, std::move(parcel), resumed);
}

void Network::Disconnect(std::uint32_t host) {
  for (std::uint32_t peer = 0; peer < hosts_; ++peer) {
    if (peer == host) continue;
    for (const std::size_t index : {Index(host, peer), Index(peer, host)}) {
      if (const auto it = waiting_.find(index); it != waiting_.end()) {
        counts_.lost += it->second.size();
        waiting_.erase(it);
      }
      lanes_[index].up_at = WorldTime::max();
    }
  }
}

void Network::Reconnect(std::uint32_t host, WorldTime now) {
  for (std::uint32_t peer = 0; peer < hosts_; ++peer) {
    if (peer == host) continue;
    for (const std::size_t index : {Index(host, peer), Index(peer, host)}) {
      Lane& lane = lanes_[index];
      lane.up_at = options_.lossy ? now : now + Uniform(options_.reconnecting, prng_);
    }
  }
}

}    // namespace dthrottle::lab
