// One virtual host: the shipped limiter, its sharing and its exchange on memory and a clock of their own. What a
// process is to a machine, a life is to a host: it can be killed at any moment and started again, on its old table or a
// new one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/prefetch.h"
#include "base/prng.h"
#include "bus/exchange.h"
#include "lab/clock.h"
#include "lab/events.h"
#include "lab/host_transports.h"
#include "lab/inbox.h"
#include "lab/network.h"
#include "lab/workers.h"
#include "limiter/limiter.h"
#include "quota/quotas.h"
#include "rule/rulebook.h"
#include "share/capacity/dividing.h"
#include "share/debit/sharing.h"
#include "share/inspection.h"
#include "share/sites/site_presence.h"
#include "share/sites/site_sharing.h"
#include "share/ways.h"

namespace dthrottle::lab {

struct HostOptions {
  std::size_t hosts = 2;    // in the fleet; they know each other from the start
  std::shared_ptr<const Rulebook> rules;
  Duration period = std::chrono::seconds(5);
  std::size_t table_bytes = Table::kRegionBytesMin;
  std::size_t ring_bytes = std::size_t{64} << 20;
  std::size_t held_bytes = std::size_t{32} << 20;
  std::size_t watched_tags = 4096;
  std::shared_ptr<const Owners> owners{};    // by the names of hosts; none: everybody hears everything
  std::uint32_t sites = 1;                   // as lab::SiteOf; owners are those of the host's site
  std::shared_ptr<const std::vector<std::string>> all_owners{};    // of all sites
  Duration site_period{};                                          // between reports to other sites
  double site_part = 1;                                            // of a limit, while another site is not heard
  std::optional<CapacitySettings> capacity{};    // members are the hosts; none: nothing is divided
  std::size_t hand_over_max = 64;                // items in each ring between limiter and exchange
  std::shared_ptr<Codec> codec{};                // of all hosts together; null: each has its own
  std::size_t quota_bytes = Quotas::RegionBytes(Quotas::kSlotsMin);    // where the rules have quotas
  bool quota_file = true;    // their counts outlive the process; else a host that starts hears of them from others
  std::size_t workers = 0;             // that decide by themselves what they have asked before
  std::uint32_t page_entries = 2048;    // of each; a power of two
  bool counts_frequent_tags = true;
  std::size_t inbox_max = 1000;    // frames that wait for a host that is paused or behind; later ones are lost
};

class SimHost {
 public:
  SimHost(std::uint32_t number, const HostOptions& options, HostClock clock, Surroundings& surroundings, Prng prng);
  ~SimHost();

  // REQUIRES: !running().
  void Start(bool keep_table, WorldTime now);
  // The date has been set. REQUIRES: running().
  void FollowCalendar(WorldTime now);
  // The connection to `peer` is a new one, because it has started anew.
  void Connected(std::uint32_t peer);
  // Its settings name other owners, to which it connects. What a reload does, and what the next life begins with.
  void SetOwners(const std::shared_ptr<const Owners>& owners, WorldTime now);
  // Other settings of what is divided, with the same members.
  void SetCapacity(const CapacitySettings& settings);
  // Does what kill -9 does. REQUIRES: running().
  void Kill();
  void Pause() { ++pauses_; }
  void Resume() { --pauses_; }

  bool running() const { return life_ != nullptr; }
  bool paused() const { return pauses_ > 0; }
  bool answers() const { return running() && !paused(); }
  std::uint32_t lives() const { return lives_; }
  const HostClock& clock() const { return clock_; }

  // REQUIRES of both: running(). False if the frame found the queue full.
  bool Receive(Parcel parcel) { return life_->inbox.Add(std::move(parcel)); }
  // Whether a frame has come that is to be read now; others gather until it wants to be called.
  bool Reads(WorldTime now) const { return life_->inbox.IsDue(clock_.Local(now)); }
  // Brings what these need from memory: what is `later` calls of this away.
  void Expect(std::size_t later) const {
    if (later == 3) {
      Prefetch<1>(&clock_), Prefetch<1>(&life_), Prefetch<1>(&lives_);
    } else if (running()) {
      later == 2 ? Prefetch<4>(&life_->inbox) : life_->inbox.ExpectOne();
    }
  }

  // Moves everything that can move; returns when it wants to be called next. REQUIRES: answers().
  WorldTime Work(WorldTime now);

  // REQUIRES: answers().
  bool Serves(const Query& query, WorldTime now);
  bool Serves(std::string_view tag, Cost cost, WorldTime now);
  // After how long a question about these tags goes on that rather waits so long than being refused; none: it is refused.
  std::optional<Duration> ServesWithin(Duration patience, Verb verb, std::span<const std::string_view> tags, Cost cost,
                                       WorldTime now);
  // A single question, as it comes.
  dthrottle::Outcome Decides(const Questions& asked, std::span<Standing> standings, WorldTime now);
  // So many of the tokens that were held have been used.
  void Settles(const Query& held, WorldTime since, Cost used, WorldTime now);
  // The tokens of a query are refunded.
  void GivesBack(const Query& refunded, WorldTime now);
  // Whether a query has made something urgent since this was asked.
  bool TakeWoken() { return std::exchange(woken_, false); }

  // REQUIRES: running(), tag has a limit.
  Tokens Level(std::string_view tag, WorldTime now);
  // The first moment at which one query would be served if nothing else happens.
  WorldTime ServesAt(std::string_view tag, WorldTime now);

  // REQUIRES: running().
  Limiter& limiter() { return life_->limiter; }
  std::uint64_t decided_by_workers() const { return decided_before_ + DecidedNow(); }
  const Sharing& sharing() const { return life_->sharing; }
  const Exchange& exchange() const { return life_->exchange; }

 private:
  struct Life;

  // Both halves of dividing limits.
  struct Halves {
    Halves(SimHost& host, Division& division, const CapacitySettings& settings, Instant now);
    Instant Work(Instant now);    // returns when it wants to be called next

    DividingRings rings;
    CapacityExchange exchange;
    Dividing dividing;
  };

  // Both halves of telling other sites.
  struct Abroad {
    Abroad(SimHost& host, Life& life, Instant now);

    ToPeersRing to_sites;
    FromPeersRing from_sites;
    Exchange exchange;
    SiteSharing sharing;
  };

  // One process.
  struct Life {
    Life(SimHost& host, const HostOptions& options, Instant now);

    // The simulator stands between limiter and exchange, to see what passes: hence two rings each way.
    ToPeersRing from_limiter, to_exchange;
    FromPeersRing from_exchange, to_limiter;
    Limiter limiter;
    std::unique_ptr<SimWorkers> workers;    // null: all is asked
    bool fresh_table;
    bool linked = false;
    std::shared_ptr<CountedStreams> counted;
    Sharing sharing;
    Exchange exchange;
    Inbox inbox;
    std::unique_ptr<Halves> division;    // none: nothing is divided
    std::unique_ptr<Abroad> abroad;      // none: there is one site, or this host owns nothing
  };

  class Memory {
   public:
    explicit Memory(std::size_t bytes);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    std::span<std::byte> bytes() const { return bytes_; }

   private:
    static constexpr std::size_t kHugePage = std::size_t{2} << 20;

    std::size_t mapped_bytes_;
    void* mapped_;
    std::span<std::byte> bytes_;
  };

  void AddLinks(Instant now);
  void RemoveLinks(Instant now);
  bool CallsFor(const Owners* owners, std::uint32_t peer) const;
  bool PassDebits();
  bool PassHits();
  void Take(const Parcel& parcel, Instant now);
  std::uint32_t SiteOf(std::uint32_t host) const { return lab::SiteOf(host, options_.hosts, options_.sites); }
  bool IsAbroad(std::uint32_t peer) const { return SiteOf(peer) != SiteOf(number_); }
  std::shared_ptr<CountedStreams> Counted(const SipKey& key);
  std::size_t HostsHere() const;    // of this host's site
  bool IsOwner(std::uint32_t host) const;
  Exchange* ExchangeWith(std::uint32_t peer) const;
  Instant WorkAbroad(Instant now);
  void CountQuotas();
  Inspection Look(std::string_view tag, Instant now);
  std::uint64_t DecidedNow() const {
    return life_ != nullptr && life_->workers != nullptr ? life_->workers->decided() : 0;
  }

  std::uint32_t number_;
  HostOptions options_;
  HostClock clock_;
  Surroundings& surroundings_;
  HostTransports transports_;
  Prng prng_;
  Memory memory_;
  std::unique_ptr<Life> life_;
  std::optional<Memory> quotas_;    // their file; none: no rule has one
  WorldTime looked_{};              // at the date, for when periods of quotas begin
  std::unique_ptr<std::array<std::uint64_t, CountedStreams::kWords>> counted_;    // their file; null: owned nothing yet
  std::uint32_t boots_ = 0;
  std::uint32_t lives_ = 0;
  std::uint64_t decided_before_ = 0;    // by workers of the lives before
  std::vector<std::uint32_t> leaving_links_;    // which the settings no longer name
  int pauses_ = 0;
  bool woken_ = false;
};

}    // namespace dthrottle::lab
