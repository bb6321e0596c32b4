#include "lab/capacity_fleet.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "capacity/exchange_state.h"
#include "capacity/topology.h"

namespace dthrottle::lab {
namespace {

using namespace std::chrono_literals;

Duration Intervals(double n) {
  return Duration(static_cast<Duration::rep>(n * 1e9));
}

}    // namespace

CapacityFleet::CapacityFleet(Options options, std::uint64_t seed)
    : World(options.hosts, options.lanes, seed),
      options_(std::move(options)),
      hosts_(options_.hosts),
      rift_{std::vector<bool>(options_.hosts)},
      sums_(options_.tags),
      lease_ends_(options_.hosts, WorldTime::max()) {
  for (std::uint32_t t = 0; t < options_.tags; ++t) {
    keys_.push_back(CapacityKeyOf(1, fmt::format("tag-{}", t), false));
    tag_of_[keys_.back()] = t;
  }
  for (std::uint32_t i = 0; i < hosts_.size(); ++i) names_.push_back(fmt::format("h{:04}", i));
  for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
    Host& h = hosts_[i];
    h.fleet = this;
    h.number = i;
    h.clock = RandomClock(1000s, static_cast<std::int64_t>(options_.drift * 1e9), prng());
    h.members = options_.members == 0 ? options_.hosts : options_.members;
    h.demands.assign(keys_.size(), 0);
    h.counted.assign(keys_.size(), 0);
    if (i < h.members) Start(i);
    Recount(i);
  }
}

CapacitySettings CapacityFleet::SettingsFor(const Host& host) const {
  const std::uint32_t members = host.members;
  CapacitySettings s{.members = {names_.begin(), names_.begin() + members},
                     .graph = options_.graph.value_or(RegularTopology(members, options_.degree))};
  s.digest = host.rules;
  s.reserve = options_.reserve;
  s.interval = 1s;
  s.lease = 10s;
  s.drift_max = options_.drift;
  s.gain = options_.gain;
  s.tags_max = options_.tags_max;
  return s;
}

void CapacityFleet::Start(std::uint32_t host, std::string life) {
  Host& h = hosts_[host];
  ++h.incarnation;
  h.paused_until = WorldTime();
  CapacityExchange::Options o{.name = names_[host], .incarnation = h.incarnation, .life = std::move(life)};
  if (!options_.forgetful) o.saved = h.saved;
  h.exchange = std::make_unique<CapacityExchange>(std::move(o), SettingsFor(h), h, Prng(prng().Next()), Local(h));
  ExchangeState::LeaveOut(*h.exchange, options_.without);
  if (!h.exchange->resumed()) {
    h.serial = ~std::uint64_t{0};
    h.shares.assign(keys_.size(), kUnsaid);
    for (std::uint32_t t = 0; t < keys_.size(); ++t) SetDemand(host, t, h.demands[t]);
  }
  Wake(host);
}

void CapacityFleet::Crash(std::uint32_t host, std::optional<double> restart_after) {
  hosts_[host].exchange.reset();
  Recount(host);
  if (restart_after) At(World::now() + Intervals(*restart_after), [this, host] { Restart(host); });
}

void CapacityFleet::Restart(std::uint32_t host) {
  if (hosts_[host].exchange == nullptr) Start(host);
}

void CapacityFleet::Pause(std::uint32_t host, double lasts) {
  hosts_[host].paused_until = World::now() + Intervals(lasts);
}

void CapacityFleet::Upgrade(std::uint32_t host, double lasts) {
  std::string life = hosts_[host].exchange->Life();
  hosts_[host].exchange.reset();
  Start(host, std::move(life));
  Pause(host, lasts);
}

void CapacityFleet::Cut(const std::set<std::uint32_t>& side, double lasts) {
  Mend(rift_);
  for (std::uint32_t i = 0; i < size(); ++i) rift_.inside[i] = side.contains(i);
  World::Cut(rift_);
  At(World::now() + Intervals(lasts), [this, rift = ++rifts_] {
    if (rift != rifts_) return;
    Mend(rift_);
    rift_.inside.assign(size(), false);
  });
}

void CapacityFleet::SetDemand(std::uint32_t host, std::uint32_t tag, double part) {
  Host& h = hosts_[host];
  h.demands[tag] = part;
  const TagDemand demand{keys_[tag], 1000, part * 1000};
  if (h.exchange != nullptr) h.exchange->SetDemand({&demand, 1});
}

void CapacityFleet::Pin(std::uint32_t host, std::uint32_t tag, Parts parts) {
  const TagDemand demand{keys_[tag], 1, hosts_[host].demands[tag], parts, ++pins_};
  hosts_[host].exchange->SetDemand({&demand, 1});
}

void CapacityFleet::SetSettings(std::uint32_t host, std::uint32_t members, std::uint64_t rules) {
  Host& h = hosts_[host];
  h.members = members;
  h.rules = rules;
  if (h.exchange != nullptr) h.exchange->SetSettings(SettingsFor(h));
  Recount(host);
}

void CapacityFleet::Calm() {
  network().options().loss = network().options().duplication = network().options().overtaken = 0;
}

Parts CapacityFleet::Share(std::uint32_t host, std::uint32_t tag) const {
  const Host& h = hosts_[host];
  if (h.exchange == nullptr) return 0;
  const CapacityStanding standing = h.exchange->standing();
  if (Local(h) >= standing.valid_until) return standing.reserve;
  return h.shares[tag] == kUnsaid ? standing.other : h.shares[tag];
}

CapacitySum CapacityFleet::SumAsSaid(std::uint32_t host, std::uint32_t tag) {
  return exchange(host).Sum(keys_[tag], Local(hosts_[host]));
}

Parts CapacityFleet::Sum(std::uint32_t tag) const {
  Parts sum = 0;
  for (std::uint32_t i = 0; i < hosts_.size(); ++i) sum += Share(i, tag);
  return sum;
}

Parts CapacityFleet::UnderWay(std::uint32_t tag) const {
  std::map<std::pair<std::string, std::string>, Parts> received;    // by giver and receiver
  std::vector<std::optional<CapacityTag>> ledgers;
  for (const Host& h : hosts_) {
    ledgers.push_back(h.exchange == nullptr ? std::nullopt : h.exchange->Inspect(keys_[tag]));
    if (!ledgers.back()) continue;
    for (const CapacityEdge& e : ledgers.back()->edges) received[{e.neighbour, names_[h.number]}] = e.received;
  }
  Parts sum = 0;
  for (const Host& h : hosts_) {
    if (!ledgers[h.number]) continue;
    for (const CapacityEdge& e : ledgers[h.number]->edges) {
      const Parts arrived = received[{names_[h.number], e.neighbour}];
      if (e.given > arrived) sum += e.given - arrived;
    }
  }
  return sum;
}

CapacityCounts CapacityFleet::Counts(std::uint32_t host) const {
  return hosts_[host].exchange == nullptr ? CapacityCounts() : hosts_[host].exchange->Counts(Local(hosts_[host]));
}

void CapacityFleet::Took(std::uint32_t host) {
  Host& h = hosts_[host];
  if (const std::uint64_t serial = h.exchange->standing().serial; serial != h.serial) {
    h.serial = serial;
    h.shares.assign(keys_.size(), kUnsaid);
  }
  std::vector<TagShare> changed;
  while (h.exchange->TakeShares(changed, 2)) {
  }
  for (const TagShare& share : changed) {
    if (const auto at = tag_of_.find(share.key); at != tag_of_.end()) h.shares[at->second] = share.parts;
  }
  Check(host);
}

void CapacityFleet::Recount(std::uint32_t host) {
  Host& h = hosts_[host];
  for (std::uint32_t t = 0; t < keys_.size(); ++t) {
    const Parts share = Share(host, t);
    sums_[t] += share - h.counted[t];
    h.counted[t] = share;
  }
  lease_ends_[host] = WorldTime::max();
  if (h.exchange == nullptr) return;
  const BootInstant until = h.exchange->standing().valid_until;
  if (Local(h) < until && until != BootInstant::max()) lease_ends_[host] = h.clock.When(OffBootClock(until));
}

// After something happened, to that host if it was one.
void CapacityFleet::Check(std::optional<std::uint32_t> touched) {
  if (touched) Recount(*touched);
  for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
    if (lease_ends_[i] <= World::now()) Recount(i);
  }
  bool above = false;
  for (const Parts sum : sums_) {
    most_ = std::max(most_, sum);
    above |= sum > kWhole;
  }
  violations_ += above;
}

void CapacityFleet::Wake(std::uint32_t host) {
  Host& h = hosts_[host];
  if (h.exchange == nullptr) return;
  if (World::now() < h.paused_until) return WakeAt(host, h.paused_until);
  const Instant next = OffBootClock(h.exchange->Tick(Local(h)));
  Took(host);
  WakeAt(host, std::max(h.clock.When(next), World::now() + 1us));
}

void CapacityFleet::Run(double until) {
  World::Run(After(Intervals(until)));
  Check(std::nullopt);
  for (std::uint32_t t = 0; t < keys_.size(); ++t) DT_CHECK(sums_[t] == Sum(t));
}

void CapacityFleet::Deliver(Parcel parcel) {
  const std::uint32_t to = parcel.to;
  Host& h = hosts_[to];
  if (h.exchange == nullptr) return;
  if (World::now() < h.paused_until) return Postpone(std::move(parcel), h.paused_until);
  h.exchange->OnMessage(names_[parcel.from], *parcel.frame, Local(h));
  Took(to);
}

void CapacityFleet::Host::Send(std::string_view peer, std::string_view frame) {
  const auto to = static_cast<std::uint32_t>(std::stoul(std::string(peer.substr(1))));
  const World& world = *fleet;
  fleet->network().Send({Channel::kCapacity, number, to, 0, std::make_shared<const std::string>(frame)}, world.now());
}

}    // namespace dthrottle::lab
