// One virtual host: the shipped limiter, its sharing and its exchange on memory and a clock of their own. What a
// process is to a machine, a life is to a host: it can be killed at any moment and started again, on its old table or a
// new one.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "limiter/limiter.h"
#include "limiter/sharing.h"
#include "report/exchange.h"
#include "sim/clock.h"
#include "sim/events.h"

namespace dthrottle::sim {

struct HostOptions {
  std::size_t hosts = 2;    // in the fleet; they know each other from the start
  std::shared_ptr<const Rulebook> rules;
  Duration period = std::chrono::seconds(5);
  std::size_t table_bytes = Table::kRegionBytesMin;
  std::size_t ring_bytes = std::size_t{64} << 20;
  std::size_t held_bytes = std::size_t{32} << 20;
  std::size_t hand_over_max = 64;    // items in each ring between limiter and exchange
  std::size_t inbox_max = 1000;      // frames that wait for a host that is paused or behind; later ones are lost
};

// What a host does to the world.
class Surroundings {
 public:
  // To `parcel.to`, or to everybody else if it is published.
  virtual void Send(const Parcel& parcel) = 0;
  // Hits are on their way into a report.
  virtual void Reported(std::uint32_t host, const Entries& entries) = 0;
  // Hits of peers are about to be debited.
  virtual void Debited(std::uint32_t host, const Entries& entries) = 0;
  // States of a peer's buckets are about to be merged.
  virtual void Merged(std::uint32_t host, const Entries& entries) = 0;

 protected:
  ~Surroundings() = default;
};

class SimHost final : private Transport {
 public:
  SimHost(std::uint32_t number, const HostOptions& options, HostClock clock, Surroundings& surroundings, Prng prng);
  ~SimHost();

  // REQUIRES: !running().
  void Start(bool keep_table, WorldTime now);
  // As kill -9. REQUIRES: running().
  void Kill();
  void Pause() { ++pauses_; }
  void Resume() { --pauses_; }

  bool running() const { return life_ != nullptr; }
  bool paused() const { return pauses_ > 0; }
  bool answers() const { return running() && !paused(); }
  std::uint32_t lives() const { return lives_; }
  const HostClock& clock() const { return clock_; }

  // False if the frame found the queue full.
  bool Receive(Parcel parcel);

  // Moves everything that can move; returns when it wants to be called next. REQUIRES: answers().
  WorldTime Work(WorldTime now);

  // REQUIRES: answers().
  bool Serves(std::string_view tag, Cost cost, WorldTime now);
  // REQUIRES: running(), tag has a limit.
  Tokens Level(std::string_view tag, WorldTime now);
  // The first moment at which one query would be served if nothing else happens.
  WorldTime ServesAt(std::string_view tag, WorldTime now);

  // REQUIRES: running().
  Limiter& limiter() { return life_->limiter; }
  const Sharing& sharing() const { return life_->sharing; }
  const Exchange& exchange() const { return life_->exchange; }

 private:
  // One process.
  struct Life {
    Life(SimHost& host, const HostOptions& options, Instant now);

    // The simulator stands between limiter and exchange, to see what passes: hence two rings each way.
    ToPeersRing from_limiter, to_exchange;
    FromPeersRing from_exchange, to_limiter;
    Limiter limiter;
    bool fresh_table;
    Sharing sharing;
    Exchange exchange;
  };

  struct alignas(64) Line {
    std::byte bytes[64];
  };

  void Publish(const Frame& frame) override;
  void Ask(LinkId link, const Frame& frame) override;
  void Answer(const Route& route, const Frame& frame) override;

  std::span<std::byte> region() {
    return {reinterpret_cast<std::byte*>(memory_.data()), memory_.size() * sizeof(Line)};
  }
  bool HandOver();
  void Take(const Parcel& parcel, Instant now);
  Inspection Look(std::string_view tag, Instant now);

  std::uint32_t number_;
  HostOptions options_;
  HostClock clock_;
  Surroundings& surroundings_;
  Prng prng_;
  std::vector<Line> memory_;
  std::unique_ptr<Life> life_;
  std::uint32_t lives_ = 0;
  int pauses_ = 0;
  std::deque<Parcel> inbox_;
};

// What hosts call each other.
std::string HostName(std::uint32_t number);

}    // namespace dthrottle::sim
