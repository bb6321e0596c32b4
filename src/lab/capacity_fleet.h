// Hosts that share capacities by the exchange that is shipped, in one process, over a network that loses, repeats,
// overtakes and cuts, with clocks that run at different rates; and after every event the sum of what they may use.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/prng.h"
#include "capacity/ablation.h"
#include "capacity/capacity_exchange.h"
#include "lab/world.h"

namespace dthrottle::lab {

class CapacityFleet final : private World {
 public:
  struct Options {
    std::uint32_t hosts = 6;
    std::uint32_t members = 0;    // of them at first, the others not started; 0: all
    std::uint32_t degree = 4;
    std::optional<Graph> graph = {};    // of all hosts, instead
    std::uint32_t tags = 3;
    LaneOptions lanes = {.delay = std::chrono::microseconds(1),
                         .jitter = std::chrono::milliseconds(500),
                         .lossy = true,
                         .loss = 0.1,
                         .duplication = 0.1,
                         .overtaken = 0.05,
                         .held_up = std::chrono::seconds(10)};
    double drift = 0.01;
    double reserve = 0.1;
    CapacityAblation without = {};
    bool forgetful = false;    // a restarted host has forgotten what it promised
    std::optional<double> gain = {};
    std::size_t tags_max = 10'000;
  };

  CapacityFleet(Options options, std::uint64_t seed);

  // In intervals of the world's clock.
  void Run(double until);
  double now() const { return Seconds(World::now().time_since_epoch()); }

  void Crash(std::uint32_t host, std::optional<double> restart_after);
  void Restart(std::uint32_t host);
  void Pause(std::uint32_t host, double lasts);
  void Upgrade(std::uint32_t host, double lasts);    // another process goes on with its life, after a pause
  void Cut(const std::set<std::uint32_t>& side, double lasts);           // and no other side any more
  void SetDemand(std::uint32_t host, std::uint32_t tag, double part);    // of the capacity
  void Pin(std::uint32_t host, std::uint32_t tag, Parts parts);          // of what it has, until it dies
  // The first so many hosts are members, under rules with this digest.
  void SetSettings(std::uint32_t host, std::uint32_t members, std::uint64_t rules = 0);
  void Calm();    // from now on no frame is lost, repeated or late

  // Parts of a tag that hosts may use now.
  Parts Share(std::uint32_t host, std::uint32_t tag) const;
  Parts Sum(std::uint32_t tag) const;
  CapacitySum SumAsSaid(std::uint32_t host, std::uint32_t tag);    // by the hosts to this one
  Parts UnderWay(std::uint32_t tag) const;                         // of gifts between hosts that are up
  double demand(std::uint32_t host, std::uint32_t tag) const { return hosts_[host].demands[tag]; }
  bool up(std::uint32_t host) const { return hosts_[host].exchange != nullptr; }
  CapacityExchange& exchange(std::uint32_t host) { return *hosts_[host].exchange; }
  CapacityCounts Counts(std::uint32_t host) const;
  using World::prng;

  Parts most() const { return most_; }                        // the largest sum ever of any tag
  std::uint64_t violations() const { return violations_; }    // events after which a sum was above the whole
  using World::events;

 private:
  struct Host final : CapacityTransport {
    void Send(std::string_view peer, std::string_view frame) override;
    void Save(std::string_view state) override { saved = state; }

    CapacityFleet* fleet = nullptr;
    std::uint32_t number = 0;
    std::unique_ptr<CapacityExchange> exchange;
    HostClock clock;
    std::uint64_t incarnation = 0;
    std::string saved;
    WorldTime paused_until{};
    std::vector<double> demands;
    std::uint32_t members = 0;
    std::uint64_t rules = 0;
    std::uint64_t serial = ~std::uint64_t{0};
    std::vector<Parts> shares;     // kUnsaid: `other`
    std::vector<Parts> counted;    // in sums_, until its lease is over
  };
  static constexpr Parts kUnsaid = ~Parts{0};

  CapacitySettings SettingsFor(const Host& host) const;
  BootInstant Local(const Host& host) const { return OnBootClock(host.clock.Local(World::now())); }
  void Start(std::uint32_t host, std::string life = {});
  void Deliver(Parcel parcel) override;
  void Wake(std::uint32_t host) override;
  void Took(std::uint32_t host);
  void Recount(std::uint32_t host);
  void Check(std::optional<std::uint32_t> touched);

  Options options_;
  std::uint32_t pins_ = 0;
  std::vector<Host> hosts_;
  std::vector<std::string> names_;    // of the hosts
  std::vector<CapacityKey> keys_;
  std::map<CapacityKey, std::uint32_t> tag_of_;
  Rift rift_;
  std::uint32_t rifts_ = 0;
  std::vector<Parts> sums_;              // of what hosts may use, by tag; as Sum, without asking everybody
  std::vector<WorldTime> lease_ends_;    // of the hosts, as far as counted
  Parts most_ = 0;
  std::uint64_t violations_ = 0;
};

}    // namespace dthrottle::lab
