// The wires between hosts: a full mesh of lanes, one for each direction of each pair.
//
// A lane is a stream or lossy. A stream is what TCP makes of a network: frames of one channel arrive in order or not at
// all, and what gets lost is what was under way when a connection ended: because its host was killed, or because a cut
// lasted longer than the sender's patience. A shorter cut only delays. A lossy lane loses, repeats and overtakes, frame
// by frame: harder than any stream, and what repair is for.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "base/prng.h"
#include "lab/events.h"

namespace dthrottle::lab {

struct LaneOptions {
  Duration delay = std::chrono::milliseconds(1);
  Duration jitter{};    // up to so much more
  std::uint32_t sites = 1;     // of the hosts, as SiteOf
  Duration between_sites{};    // so much more

  // Lossy lanes.
  bool lossy = false;
  double loss = 0, duplication = 0;    // probability for each frame
  double overtaken = 0;                // probability of being held up, by up to `held_up`
  Duration held_up = std::chrono::seconds(1);

  // Streams.
  Duration patience = std::chrono::seconds(8);        // a longer cut ends the connection
  Duration reconnecting = std::chrono::seconds(2);    // takes up to so long; published frames pass by meanwhile
  std::size_t queued_max = 1000;                      // frames that wait for the end of a cut; later ones are lost
};

struct NetworkCounts {
  std::uint64_t sent = 0, bytes = 0;    // frames, one for each receiver
  std::uint64_t arrived = 0;            // at a running host; repeated ones twice
  std::uint64_t lost = 0;               // at random, in cuts, with connections
  std::uint64_t repeated = 0;
};

// Hosts of a site have numbers in a row.
inline std::uint32_t SiteOf(std::uint32_t host, std::size_t hosts, std::uint32_t sites) {
  return static_cast<std::uint32_t>(std::uint64_t{host} * sites / hosts);
}

class Network {
 public:
  // Arrivals go into `events`, which must outlive the network.
  Network(std::size_t hosts, const LaneOptions& options, EventQueue& events, Prng prng);

  void Send(Parcel parcel, WorldTime now);
  LaneOptions& options() { return options_; }
  std::function<bool(const Parcel&)> filter;    // false: lost

  // Cuts count: a lane is whole again when each of them has been mended.
  void Cut(std::uint32_t from, std::uint32_t to, WorldTime now);
  void Mend(std::uint32_t from, std::uint32_t to, WorldTime now);

  // All connections of a host that was killed, and their making anew when it starts.
  void Disconnect(std::uint32_t host);
  void Reconnect(std::uint32_t host, WorldTime now);

  void CountArrival() { ++counts_.arrived; }
  void CountLoss() { ++counts_.lost; }
  const NetworkCounts& counts() const { return counts_; }

 private:
  static constexpr std::size_t kChannels = 4;

  struct Lane {
    std::array<WorldTime, kChannels> last{};    // arrival of the newest frame
    std::uint32_t cuts = 0;
    WorldTime up_at = WorldTime::min();    // frames before are lost: nobody is connected
    WorldTime cut_since{};                 // while this lane or its opposite is cut
  };

  std::size_t Index(std::uint32_t from, std::uint32_t to) const { return std::size_t{from} * hosts_ + to; }
  Duration DelayOf(const Parcel& parcel) const;
  void Arrive(Lane& lane, Parcel parcel, WorldTime at);
  void Resume(std::uint32_t from, std::uint32_t to, bool alive, WorldTime now);

  std::size_t hosts_;
  LaneOptions options_;
  std::vector<Lane> lanes_;
  std::uint64_t cuts_ = 0;    // of all lanes
  std::unordered_map<std::size_t, std::vector<Parcel>> waiting_;    // on streams that are cut, by lane
  EventQueue& events_;
  Prng prng_;
  NetworkCounts counts_;
};

}    // namespace dthrottle::lab
