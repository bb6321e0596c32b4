#include "sim/capacity_fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/check.h"
#include "capacity/topology.h"

namespace dthrottle::sim {
namespace {

using namespace std::chrono_literals;

Duration Intervals(double n) {
  return Duration(static_cast<Duration::rep>(n * 1e9));
}

}    // namespace

CapacityFleet::CapacityFleet(Options options, std::uint64_t seed)
    : options_(std::move(options)),
      prng_(seed),
      hosts_(options_.hosts),
      sums_(options_.tags),
      lease_ends_(options_.hosts, Duration::max()) {
  for (std::uint32_t t = 0; t < options_.tags; ++t) {
    keys_.push_back(CapacityKeyOf(1, fmt::format("tag-{}", t), false));
    tag_of_[keys_.back()] = t;
  }
  for (std::uint32_t i = 0; i < hosts_.size(); ++i) names_.push_back(fmt::format("h{:04}", i));
  for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
    Host& h = hosts_[i];
    h.wire.fleet = this;
    h.wire.host = i;
    h.rate = 1 + options_.drift * (static_cast<double>(prng_.Below(2'000'001)) / 1e6 - 1);
    h.offset = Upto(1000s);
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
  s.on_isolation = options_.on_isolation;
  s.gain = options_.gain;
  s.tags_max = options_.tags_max;
  return s;
}

Instant CapacityFleet::Local(const Host& host) const {
  return Instant(host.offset + Duration(static_cast<Duration::rep>(static_cast<double>(now_.count()) * host.rate)));
}

Duration CapacityFleet::WorldOf(const Host& host, Instant local) const {
  return Duration(static_cast<Duration::rep>(
             std::ceil(static_cast<double>((local.time_since_epoch() - host.offset).count()) / host.rate))) +
         1us;
}

void CapacityFleet::Start(std::uint32_t host, std::string life) {
  Host& h = hosts_[host];
  ++h.incarnation;
  h.paused_until = Duration();
  CapacityExchange::Options o{
      .name = NameOf(host), .incarnation = h.incarnation, .saved = h.saved, .life = std::move(life)};
  o.without = options_.without;
  h.exchange = std::make_unique<CapacityExchange>(std::move(o), SettingsFor(h), h.wire, Prng(prng_.Next()), Local(h));
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
  restarts_.erase(host);
  if (restart_after) restarts_[host] = now_ + Intervals(*restart_after);
}

void CapacityFleet::Restart(std::uint32_t host) {
  restarts_.erase(host);
  if (hosts_[host].exchange == nullptr) Start(host);
}

void CapacityFleet::Pause(std::uint32_t host, double lasts) {
  hosts_[host].paused_until = now_ + Intervals(lasts);
}

void CapacityFleet::Upgrade(std::uint32_t host, double lasts) {
  std::string life = hosts_[host].exchange->Life();
  hosts_[host].exchange.reset();
  Start(host, std::move(life));
  Pause(host, lasts);
}

void CapacityFleet::Cut(std::set<std::uint32_t> side, double lasts) {
  side_ = std::move(side);
  cut_until_ = now_ + Intervals(lasts);
}

void CapacityFleet::SetDemand(std::uint32_t host, std::uint32_t tag, double part) {
  Host& h = hosts_[host];
  h.demands[tag] = part;
  const TagDemand demand{keys_[tag], 1000, part * 1000};
  if (h.exchange != nullptr) h.exchange->SetDemand({&demand, 1}, Local(h));
}

void CapacityFleet::Pin(std::uint32_t host, std::uint32_t tag, Parts parts) {
  const TagDemand demand{keys_[tag], 1, hosts_[host].demands[tag], parts, ++pins_};
  hosts_[host].exchange->SetDemand({&demand, 1}, Local(hosts_[host]));
}

void CapacityFleet::SetSettings(std::uint32_t host, std::uint32_t members, std::uint64_t rules) {
  Host& h = hosts_[host];
  h.members = members;
  h.rules = rules;
  if (h.exchange != nullptr) h.exchange->SetSettings(SettingsFor(h), Local(h));
  Recount(host);
}

void CapacityFleet::Calm() {
  options_.loss = options_.duplication = options_.late = 0;
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
    for (const CapacityEdge& e : ledgers.back()->edges) received[{e.neighbour, NameOf(h.wire.host)}] = e.received;
  }
  Parts sum = 0;
  for (const Host& h : hosts_) {
    if (!ledgers[h.wire.host]) continue;
    for (const CapacityEdge& e : ledgers[h.wire.host]->edges) {
      const Parts arrived = received[{NameOf(h.wire.host), e.neighbour}];
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
}

void CapacityFleet::Recount(std::uint32_t host) {
  Host& h = hosts_[host];
  for (std::uint32_t t = 0; t < keys_.size(); ++t) {
    const Parts share = Share(host, t);
    sums_[t] += share - h.counted[t];
    h.counted[t] = share;
  }
  lease_ends_[host] = Duration::max();
  if (h.exchange == nullptr) return;
  const Instant until = h.exchange->standing().valid_until;
  if (Local(h) < until && until != Instant::max()) lease_ends_[host] = WorldOf(h, until) - 3us;    // not late
}

// After something happened, to that host if it was one.
void CapacityFleet::Check(std::optional<std::uint32_t> touched) {
  if (touched) Recount(*touched);
  for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
    if (lease_ends_[i] <= now_) Recount(i);
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
  const Instant next = h.exchange->Tick(Local(h));
  Took(host);
  events_.push({std::max(WorldOf(h, next), now_ + 1us), ++order_, host, host, ++h.wish, {}});
}

void CapacityFleet::Run(double until) {
  const Duration end = Intervals(until);
  while (true) {
    Duration at = events_.empty() ? end : events_.top().at;
    std::optional<std::uint32_t> restart;
    for (const auto& [host, when] : restarts_) {
      if (when <= at) at = when, restart = host;
    }
    if (at >= end) break;
    now_ = std::max(now_, at);
    std::uint32_t touched = 0;
    if (restart) {
      Restart(touched = *restart);
    } else {
      Event event = events_.top();
      events_.pop();
      touched = event.to;
      Deliver(std::move(event));
    }
    Check(touched);
  }
  now_ = end;
  Check(std::nullopt);
  for (std::uint32_t t = 0; t < keys_.size(); ++t) DT_CHECK(sums_[t] == Sum(t));
}

void CapacityFleet::Deliver(Event event) {
  Host& h = hosts_[event.to];
  const bool wake = event.from == event.to;
  if (h.exchange == nullptr || (wake && event.wish != h.wish)) return;
  if (now_ < h.paused_until) {    // it waits in front of the process
    event.at = h.paused_until + Upto(10ms);
    event.order = ++order_;
    events_.push(std::move(event));
    return;
  }
  if (wake) return Wake(event.to);
  if (now_ < cut_until_ && side_.contains(event.from) != side_.contains(event.to)) return;
  h.exchange->OnMessage(NameOf(event.from), event.frame, Local(h));
  Took(event.to);
}

void CapacityFleet::Wire::Send(std::string_view peer, std::string_view frame) {
  fleet->SendFrame(host, peer, frame);
}

void CapacityFleet::Wire::Save(std::string_view state) {
  fleet->hosts_[host].saved = state;
}

void CapacityFleet::SendFrame(std::uint32_t from, std::string_view to, std::string_view frame) {
  const auto target = static_cast<std::uint32_t>(std::strtoul(std::string(to.substr(1)).c_str(), nullptr, 10));
  if (now_ < cut_until_ && side_.contains(from) != side_.contains(target)) return;
  for (int copies = Chance(options_.duplication) ? 2 : 1; copies > 0; --copies) {
    if (Chance(options_.loss)) continue;
    const Duration delay = Upto(Chance(options_.late) ? options_.late_by : options_.delay);
    events_.push({now_ + delay + 1us, ++order_, from, target, 0, std::string(frame)});
  }
}

}    // namespace dthrottle::sim
