#include "sim/fleet.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/siphash.h"
#include "sim/sampling.h"

namespace dthrottle::sim {
namespace {

HostOptions HostOptionsOf(const FleetOptions& options) {
  HostOptions result = options.host;
  result.hosts = options.hosts;
  result.rules = options.rules;
  result.period = options.period;
  return result;
}

HostClock RandomClock(const FleetOptions& options, Prng& prng) {
  const Duration offset = Uniform(options.clock_offset_max, prng);
  const auto most = std::int64_t{options.drift_ppm_max} * 1000;
  return HostClock(offset, static_cast<std::int64_t>(prng.Below(static_cast<std::uint64_t>(2 * most + 1))) - most);
}

}    // namespace

FleetOptions InPhase(FleetOptions options, std::uint64_t seed) {
  options.starts.assign(options.hosts, WorldTime{});
  Fleet fleet(options, seed);
  fleet.Run(WorldTime{});
  for (std::uint32_t i = 0; i < options.hosts; ++i) {
    const Duration waits = fleet.host(i).clock().When(fleet.host(i).sharing().next()) - fleet.now();
    options.starts[i] += options.period - waits;
  }
  return options;
}

std::vector<Fault> RandomFaults(const FaultOptions& options, Prng& prng) {
  constexpr std::uint64_t kKinds = 6;
  std::vector<Fault> faults;
  WorldTime from = options.from;
  for (std::size_t i = 0; i < options.count && from < options.until; ++i) {
    Fault fault;
    fault.kind = static_cast<Fault::Kind>(prng.Below(kKinds));
    const auto left = static_cast<Duration::rep>(options.one_by_one ? options.count - i : 1);
    fault.at = from + Uniform((options.until - from) / left - Duration(1), prng);
    fault.lasts = Uniform(options.lasts_max, prng);
    fault.host = static_cast<std::uint32_t>(prng.Below(options.hosts));
    fault.size = 1 + static_cast<std::uint32_t>(prng.Below(std::max<std::size_t>(options.hosts / 2, 1)));
    faults.push_back(fault);
    if (options.one_by_one) from = fault.at + fault.lasts + options.healed;
  }
  return faults;
}

Fleet::Fleet(const FleetOptions& options, std::uint64_t seed)
    : options_(options),
      prng_(seed),
      network_(options.hosts, options.lanes, events_, Prng(prng_.Next())),
      ledger_(options.ideal_rules ? options.ideal_rules : options.rules, options.hosts),
      wishes_(options.hosts),
      rebased_(options.hosts) {
  const HostOptions host_options = HostOptionsOf(options);
  Surroundings& surroundings = *this;
  for (std::uint32_t i = 0; i < options.hosts; ++i) {
    const HostClock clock = RandomClock(options, prng_);
    hosts_.push_back(std::make_unique<SimHost>(i, host_options, clock, surroundings, Prng(prng_.Next())));
    const WorldTime chance = After(Uniform(options.started_within, prng_));
    At(options.starts.empty() ? chance : options.starts.at(i), [this, i] { Start(i, false); });
  }
}

void Fleet::Add(const Workload& workload) {
  Running& running = workloads_.emplace_back(workload, hosts_.size(), Prng(prng_.Next()));
  running.cost = workload.cost;
  for (std::size_t i = 0; i < workload.tags; ++i) {
    running.tags.push_back(ledger_.Open(TagOf(workload, i)));
  }
  Await(static_cast<std::uint32_t>(workloads_.size() - 1));
}

void Fleet::At(WorldTime at, std::function<void()> call) {
  calls_.push_back(std::move(call));
  Event event{Event::Kind::kCall, {}};
  event.parcel.from = static_cast<std::uint32_t>(calls_.size() - 1);
  events_.Push(at, std::move(event));
}

void Fleet::Inject(const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    const std::uint32_t host = fault.host;
    switch (fault.kind) {
      case Fault::Kind::kKill:
      case Fault::Kind::kWipe:
        At(fault.at, [this, fault, host] {
          if (!hosts_[host]->running()) return;    // another fault is first
          Kill(host);
          At(now_ + fault.lasts, [this, fault, host] { Start(host, fault.kind == Fault::Kind::kKill); });
        });
        break;
      case Fault::Kind::kPause:
        At(fault.at, [this, host] { hosts_[host]->Pause(); });
        At(fault.at + fault.lasts, [this, host] {
          hosts_[host]->Resume();
          if (hosts_[host]->answers()) Work(host);
        });
        break;
      case Fault::Kind::kSplit:
      case Fault::Kind::kDeaf:
      case Fault::Kind::kMute:
        At(fault.at, [this, fault] { CutOff(fault, false); });
        At(fault.at + fault.lasts, [this, fault] { CutOff(fault, true); });
        break;
    }
  }
}

void Fleet::CutOff(const Fault& fault, bool mend) {
  const auto inside = [&](std::uint32_t host) { return (host + size() - fault.host) % size() < fault.size; };
  const auto change = [&](std::uint32_t from, std::uint32_t to) {
    mend ? network_.Mend(from, to, now_) : network_.Cut(from, to, now_);
  };
  for (std::uint32_t a = 0; a < size(); ++a) {
    if (!inside(a)) continue;
    for (std::uint32_t b = 0; b < size(); ++b) {
      if (inside(b)) continue;
      if (fault.kind != Fault::Kind::kDeaf) change(a, b);
      if (fault.kind != Fault::Kind::kMute) change(b, a);
    }
  }
}

void Fleet::Start(std::uint32_t host, bool keep_table) {
  if (hosts_[host]->lives() > 0 && !keep_table) {
    rebased_[host] = true;
    ledger_.Wiped(host);
  }
  network_.Reconnect(host, now_);
  hosts_[host]->Start(keep_table, now_);
  for (std::uint32_t other = 0; other < size(); ++other) {
    if (other != host) hosts_[other]->Connected(host, now_);
  }
  if (hosts_[host]->answers()) Work(host);
}

void Fleet::Kill(std::uint32_t host) {
  network_.Disconnect(host);
  hosts_[host]->Kill();
  ++wishes_[host].number;    // whoever slept in that process sleeps for ever
  wishes_[host].at = WorldTime::max();
}

bool Fleet::Ask(std::uint32_t host, std::string_view tag, Cost cost) {
  return Decide(host, ledger_.Open(tag), cost);
}

bool Fleet::AskOnly(std::uint32_t host, const Query& query) {
  ++counts_.queries;
  const bool served = hosts_[host]->Serves(query, now_);
  Mix(std::uint64_t{host} << 1 | served);
  return served;
}

void Fleet::Run(WorldTime until) {
  while (!events_.empty() && events_.next() <= until) {
    now_ = events_.next();
    ++counts_.events;
    Handle(events_.Pop());
  }
  now_ = until;
}

void Fleet::Handle(Event event) {
  switch (event.kind) {
    case Event::Kind::kParcel:
      return Deliver(std::move(event.parcel));
    case Event::Kind::kArrival:
      return Arrive(event.parcel.from);
    case Event::Kind::kWake: {
      const std::uint32_t host = event.parcel.to;
      if (event.parcel.life != wishes_[host].number) return;    // it has been woken since, and wished anew
      wishes_[host].at = WorldTime::max();
      if (hosts_[host]->answers()) Work(host);
      return;
    }
    case Event::Kind::kCall:
      return calls_[event.parcel.from]();
  }
}

void Fleet::Deliver(Parcel parcel) {
  const std::uint32_t to = parcel.to;
  SimHost& host = *hosts_[to];
  if (!host.running() || host.lives() != parcel.life || !host.Receive(std::move(parcel))) {
    network_.CountLoss();
    return;
  }
  network_.CountArrival();
  if (host.answers()) Work(to);
}

void Fleet::Work(std::uint32_t host) {
  const WorldTime at = hosts_[host]->Work(now_);
  Wish& wish = wishes_[host];
  if (at == wish.at) return;
  wish.at = at;
  Event event{Event::Kind::kWake, {}};
  event.parcel.to = host;
  event.parcel.life = ++wish.number;
  events_.Push(at, std::move(event));
}

void Fleet::Await(std::uint32_t workload) {
  const std::optional<Arrival> next = workloads_[workload].arrivals.Next();
  if (!next.has_value()) return;
  workloads_[workload].next = *next;
  Event event{Event::Kind::kArrival, {}};
  event.parcel.from = workload;
  events_.Push(next->at, std::move(event));
}

// Whoever balances the load passes over hosts that do not answer.
void Fleet::Arrive(std::uint32_t workload) {
  const Running& running = workloads_[workload];
  const TagNumber tag = running.tags[running.next.tag];
  std::uint32_t host = running.next.host, tried = 0;
  while (tried < size() && !hosts_[host]->answers()) {
    host = host + 1 == size() ? 0 : host + 1;
    ++tried;
  }
  if (tried == size()) {
    ++counts_.homeless;
  } else {
    Decide(host, tag, running.cost);
  }
  Await(workload);
}

bool Fleet::Decide(std::uint32_t host, TagNumber tag, Cost cost) {
  const Account& account = ledger_.account(tag);
  const std::uint64_t ideal = account.ideal;
  const bool served = hosts_[host]->Serves(account.tag, cost, now_);
  ++counts_.queries;
  ledger_.Asked(tag, cost, now_);
  if (served) ledger_.Served(tag, host, cost, now_);
  if (hosts_[host]->TakeWoken()) Work(host);
  Mix(std::uint64_t{host} << 33 | std::uint64_t{tag} << 1 | served);
  if (watcher_) watcher_({now_, host, tag, cost, served, account.ideal != ideal});
  if (options_.sample > Duration::zero()) {
    const auto index = static_cast<std::size_t>(now_.time_since_epoch() / options_.sample);
    while (samples_.size() <= index) {
      samples_.push_back({After(options_.sample * static_cast<Duration::rep>(samples_.size())), 0, 0, 0});
    }
    samples_[index].asked += cost;
    samples_[index].served += served ? cost : 0;
    samples_[index].ideal += account.ideal - ideal;
  }
  return served;
}

void Fleet::Send(const Parcel& parcel) {
  Mix(SipHash<1, 3>({parcel.from, parcel.to}, *parcel.frame));
  Parcel copy = parcel;
  copy.life = hosts_[parcel.to]->lives();
  network_.Send(std::move(copy), now_);
}

void Fleet::Reported(std::uint32_t host, const Entries& entries) {
  counts_.entries += entries.list().size();
  ledger_.Reported(host, entries);
}

void Fleet::Debited(std::uint32_t host, const Entries& entries) {
  ledger_.Debited(host, entries);
}

void Fleet::Merged(std::uint32_t host, const Entries&) {
  rebased_[host] = true;
}

void Fleet::Mix(std::uint64_t word) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  digest_ = (std::rotl(digest_, 29) ^ word ^ static_cast<std::uint64_t>(now_.time_since_epoch().count())) * kOdd;
}

FleetCounts Fleet::counts() const {
  FleetCounts counts = counts_;
  counts.network = network_.counts();
  return counts;
}

std::vector<LevelError> Fleet::LevelErrors(bool all) {
  std::vector<LevelError> errors;
  for (const Account& account : ledger_.accounts()) {
    if (!account.shared) continue;
    const Tokens truth = account.Level(now_);
    const double interval = static_cast<double>(account.shape.interval);
    const Tokens burst = account.shape.burst();
    const Tokens drifted = 2e-6 * options_.drift_ppm_max * static_cast<double>(account.Busy(now_).count()) *
                           kTicksPerNanosecond / interval;
    const Tokens allowed = std::max(1.0, 0.02 * burst) + drifted;
    for (std::uint32_t host = 0; host < size(); ++host) {
      if (!hosts_[host]->running()) continue;
      const Tokens level = hosts_[host]->Level(account.tag, now_);
      if (all || std::abs(level - truth) > allowed) errors.push_back({account.tag, host, level, truth, allowed});
    }
  }
  return errors;
}

Fleet::Untold Fleet::CountUntold() const {
  Untold untold;
  for (const Account& account : ledger_.accounts()) {
    if (!account.shared) continue;
    for (std::uint32_t host = 0; host < size(); ++host) {
      const std::int64_t missing = account.Missing(host);
      (missing > 0 ? untold.lost : untold.twice) += static_cast<std::uint64_t>(std::abs(missing));
    }
  }
  return untold;
}

}    // namespace dthrottle::sim
