#include "lab/fleet.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "base/siphash.h"
#include "lab/sampling.h"
#include "query/question.h"

namespace dthrottle::lab {
namespace {

HostOptions HostOptionsOf(const FleetOptions& options) {
  HostOptions result = options.host;
  result.hosts = options.hosts;
  result.rules = options.rules;
  result.period = options.period;
  result.codec = std::make_shared<Codec>();
  result.sites = options.lanes.sites;
  result.site_period = options.site_period != Duration() ? options.site_period : options.period;
  result.site_part = options.site_part;
  result.all_owners = std::make_shared<const std::vector<std::string>>(options.owners);
  if (!options.owners.empty()) result.owners = std::make_shared<const Owners>(options.owners);
  return result;
}

// The owners of a host's own site.
std::shared_ptr<const Owners> OwnersFor(std::uint32_t host, const FleetOptions& options) {
  std::vector<std::string> ours;
  const auto site = [&](std::uint32_t its) { return SiteOf(its, options.hosts, options.lanes.sites); };
  for (const std::string& owner : options.owners) {
    if (site(HostNumber(owner)) == site(host)) ours.push_back(owner);
  }
  return std::make_shared<const Owners>(std::move(ours));
}

Rift RiftOf(const Fault& fault, std::uint32_t hosts) {
  Rift rift{std::vector<bool>(hosts), fault.kind != Fault::Kind::kDeaf, fault.kind != Fault::Kind::kMute};
  for (std::uint32_t i = 0; i < hosts; ++i) rift.inside[i] = (i + hosts - fault.host) % hosts < fault.size;
  return rift;
}

}    // namespace

Fleet::Fleet(const FleetOptions& options, std::uint64_t seed)
    : World(options.hosts, options.lanes, seed),
      options_(options),
      seed_(seed),
      wall_(options.wall),
      ledger_(options.ideal_rules ? options.ideal_rules : options.rules, options.hosts, wall_),
      stays_(*this, ledger_, options.hosts) {
  HostOptions host_options = HostOptionsOf(options);
  Surroundings& surroundings = *this;
  for (std::uint32_t i = 0; i < options.hosts; ++i) {
    const HostClock clock = RandomClock(options.clock_offset_max, std::int64_t{options.drift_ppm_max} * 1000, prng());
    if (options.lanes.sites > 1) host_options.owners = OwnersFor(i, options);
    hosts_.push_back(std::make_unique<SimHost>(i, host_options, clock, surroundings, Prng(prng().Next())));
    const WorldTime chance = After(Uniform(options.started_within, prng()));
    At(options.starts.empty() ? chance : options.starts.at(i), [this, i] { Start(i, false); });
  }
  if (!options.baseline) return;
  Prng chance(seed);    // of its own, so that queries are those of every other way of sharing
  baseline_.emplace(*options.baseline, options.hosts, options.period, chance.Next());
  for (std::uint32_t i = 0; i < options.hosts; ++i) {
    At(After(Uniform(options.period, chance)), [this, i] { TellBaseline(i); });
  }
}

void Fleet::Add(const Workload& workload) {
  Running& running = workloads_.emplace_back();
  running.take = [stream = ArrivalStream(workload, hosts_.size(), seed_, Prng(prng().Next()))]() mutable {
    return stream.Next();
  };
  for (std::size_t i = 0; i < TagsOf(workload); ++i) {
    running.tags.push_back(ledger_.Open(TagOf(workload, i)));
  }
  Await(static_cast<std::uint32_t>(workloads_.size() - 1));
}

void Fleet::Play(std::shared_ptr<const Trace> trace, WorldTime from) {
  Running& running = workloads_.emplace_back();
  for (const std::string& tag : trace->tags) running.tags.push_back(ledger_.Open(tag));
  running.take = [trace = std::move(trace), from, next = std::size_t{0}]() mutable -> std::optional<Arrival> {
    if (next == trace->lines.size()) return std::nullopt;
    const Trace::Line& line = trace->lines[next++];
    return Arrival{from + line.at, line.host, line.tag, line.cost};
  };
  Await(static_cast<std::uint32_t>(workloads_.size() - 1));
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
          At(now() + fault.lasts, [this, fault, host] { Start(host, fault.kind == Fault::Kind::kKill); });
        });
        break;
      case Fault::Kind::kPause:
        At(fault.at, [this, host] { hosts_[host]->Pause(); });
        At(fault.at + fault.lasts, [this, host] {
          hosts_[host]->Resume();
          Wake(host);
        });
        break;
      case Fault::Kind::kSplit:
      case Fault::Kind::kDeaf:
      case Fault::Kind::kMute:
        At(fault.at, [this, rift = RiftOf(fault, size())] { Cut(rift); });
        At(fault.at + fault.lasts, [this, rift = RiftOf(fault, size())] { Mend(rift); });
        break;
    }
  }
}

void Fleet::Start(std::uint32_t host, bool keep_table) {
  if (hosts_[host]->lives() > 0 && !keep_table) ledger_.Wiped(host);
  const bool anew = hosts_[host]->lives() > 0;    // else the wires have been there from the beginning
  if (anew) network().Reconnect(host, now());
  hosts_[host]->Start(keep_table, now());
  stays_.Started(host, keep_table);
  for (std::uint32_t other = 0; anew && other < size(); ++other) {
    if (other != host) hosts_[other]->Connected(host);
  }
  WakeAt(host, now());
}

void Fleet::Kill(std::uint32_t host) {
  network().Disconnect(host);
  hosts_[host]->Kill();
  stays_.Killed(host);
  WakeAt(host, WorldTime::max());
}

bool Fleet::Ask(std::uint32_t host, std::string_view tag, Cost cost) {
  const TagNumber number = ledger_.Open(tag);
  return Decide(host, {.tags = {&number, 1}, .cost = cost});
}

void Fleet::SetDate(Duration since_1970) {
  wall_.begins = since_1970 - now().time_since_epoch();
  for (const auto& host : hosts_) {
    if (host->running()) host->FollowCalendar(now());
  }
  if (one_) one_->At(now()).FollowCalendar(now());
}

bool Fleet::AskOnly(std::uint32_t host, const Query& query) {
  ++counts_.queries;
  const bool served = hosts_[host]->Serves(query, now());
  if (hosts_[host]->TakeWoken()) Work(host);
  Mix(std::uint64_t{host} << 1 | served);
  return served;
}

dthrottle::Outcome Fleet::AskOnly(std::uint32_t host, const Questions& asked, std::span<Standing> standings) {
  ++counts_.queries;
  const dthrottle::Outcome outcome = hosts_[host]->Decides(asked, standings, now());
  if (hosts_[host]->TakeWoken()) Work(host);
  Mix(std::uint64_t{host} << 1 | (outcome.verdict == Verdict::kServe));
  return outcome;
}

void Fleet::Wake(std::uint32_t host) {
  if (hosts_[host]->answers()) Work(host);
}

void Fleet::Deliver(Parcel parcel) {
  const std::uint32_t to = parcel.to;
  SimHost& host = *hosts_[to];
  if (!host.running() || host.lives() != parcel.connection || !host.Receive(std::move(parcel))) {
    network().CountLoss();
    return;
  }
  network().CountArrival();
  if (host.Reads(now())) Wake(to);
}

void Fleet::Work(std::uint32_t host) {
  WakeAt(host, hosts_[host]->Work(now()));
}

void Fleet::Await(std::uint32_t workload) {
  const std::optional<Arrival> next = workloads_[workload].take();
  if (!next.has_value()) return;
  workloads_[workload].next = *next;
  ArriveAt(workload, next->at);
}

// A balancer of load passes over hosts that do not answer.
void Fleet::Arrive(std::uint32_t workload) {
  const Running& running = workloads_[workload];
  std::uint32_t host = running.next.host, tried = 0;
  while (tried < size() && !hosts_[host]->answers()) {
    host = host + 1 == size() ? 0 : host + 1;
    ++tried;
  }
  if (tried < size()) {
    std::array<TagNumber, Questions::kTagsMax> tags{running.tags[running.next.tag]};
    std::size_t n = 1;
    for (const std::size_t tag : running.next.with) tags[n++] = running.tags[tag];
    Decide(host, {std::span(tags).first(n), running.next.cost, running.next.wait, running.next.stay});
  }
  Await(workload);
}

void Fleet::TellBaseline(std::uint32_t host) {
  const auto demands = baseline_->Tell(host);
  counts_.entries += demands->size();
  for (std::uint32_t other = 0; other < size(); ++other) {
    if (other == host || Happens(options_.lanes.loss, prng())) continue;
    At(now() + options_.lanes.delay + Uniform(options_.lanes.jitter, prng()),
       [this, host, other, demands] { baseline_->Hear(other, host, *demands); });
  }
  At(now() + options_.period, [this, host] { TellBaseline(host); });
}

bool Fleet::Decide(std::uint32_t host, const Question& question) {
  const std::span<const TagNumber> tags = question.tags;
  const Cost cost = question.cost;
  const std::optional<Duration> wait = Ask(host, question);
  ++counts_.queries;
  // A baseline knows neither waits nor what is taken for a while, so one bucket for all is not asked for them.
  const bool ideally = AskOf(one(), baseline_ ? Question{tags, cost} : question).has_value();
  const bool held = question.takes(Workload::Takes::kHold);
  for (const TagNumber tag : tags) {
    ledger_.ForEachPaying(tag, [&](TagNumber pays) {
      ledger_.Asked(pays, cost, ideally, now());
      if (wait) ledger_.Served(pays, host, cost, now(), held);
    });
  }
  if (question.stay && !baseline_) {
    const Duration waits = wait.value_or(Duration(0));
    stays_.Begin({host, {tags.begin(), tags.end()}, cost, *question.stay, wait.has_value(), ideally, waits});
  }
  if (hosts_[host]->TakeWoken()) Work(host);
  for (const TagNumber tag : tags) Tell(host, tag, question, ideally, wait);
  return wait.has_value();
}

SimHost& Fleet::one() {
  if (!one_) {
    HostOptions options = HostOptionsOf(options_);
    if (options_.ideal_rules) options.rules = options_.ideal_rules;
    one_.emplace(options, wall_, Prng(seed_), now());
  }
  return one_->At(now());
}

// None: it is refused.
std::optional<Duration> Fleet::Ask(std::uint32_t host, const Question& question) {
  if (!baseline_) return AskOf(*hosts_[host], question);
  return BaselineServes(host, question) ? std::optional(Duration(0)) : std::nullopt;
}

std::optional<Duration> Fleet::AskOf(SimHost& host, const Question& question) const {
  const auto& [tags, cost, patience, stay] = question;
  if (tags.size() == 1 && patience == Duration(0) && !stay) {
    return host.Serves(ledger_.account(tags[0]).tag, cost, now()) ? std::optional(Duration(0)) : std::nullopt;
  }
  std::array<std::string_view, Questions::kTagsMax> names;
  for (std::size_t i = 0; i < tags.size(); ++i) names[i] = ledger_.account(tags[i]).tag;
  const Verb verb = question.takes(Workload::Takes::kHold)    ? Verb::kHold
                    : question.takes(Workload::Takes::kPlace) ? Verb::kEnter
                                                              : Verb::kTake;
  return host.ServesWithin(patience, verb, std::span(names).first(tags.size()), cost, now());
}

// A baseline knows no questions: tags pay one by one, until one refuses, and for good.
bool Fleet::BaselineServes(std::uint32_t host, const Question& question) {
  bool served = true;
  for (const TagNumber tag : question.tags) {
    ledger_.ForEachPaying(tag, [&](TagNumber pays) {
      const Account& account = ledger_.account(pays);
      served = served && (account.exempt || baseline_->Serves(host, pays, account.shape, question.cost, now()));
    });
  }
  return served;
}

void Fleet::Tell(std::uint32_t host, TagNumber tag, const Question& question, bool ideally,
                 std::optional<Duration> wait) {
  const Cost cost = question.cost;
  Mix(std::uint64_t{host} << 33 | std::uint64_t{tag} << 1 | wait.has_value());
  if (watcher_) {
    ledger_.ForEachPaying(tag, [&](TagNumber pays) {
      watcher_({now(), host, pays, cost, wait.has_value(), ideally, wait.value_or(Duration(0)),
                question.takes(Workload::Takes::kHold), pays != tag});
    });
  }
  if (options_.sample == Duration::zero()) return;
  const auto index = static_cast<std::size_t>(now().time_since_epoch() / options_.sample);
  while (samples_.size() <= index) {
    samples_.push_back({After(options_.sample * static_cast<Duration::rep>(samples_.size())), 0, 0, 0});
  }
  samples_[index].asked += cost;
  samples_[index].served += wait ? cost : 0;
  samples_[index].ideal += ideally ? cost : 0;
}

void Fleet::SetOwners(std::uint32_t host, const std::vector<std::string>& owners) {
  hosts_[host]->SetOwners(std::make_shared<const Owners>(owners), now());
  Wake(host);
}

void Fleet::Send(const Parcel& parcel) {
  if (parcel.frame != sent_) {    // the same goes to many, one after the other
    sent_ = parcel.frame;
    sent_hash_ = SipHash<1, 3>({parcel.from, 0}, *parcel.frame);
  }
  Mix(sent_hash_ + parcel.to);
  Parcel copy = parcel;
  copy.connection = hosts_[parcel.to]->lives();
  network().Send(std::move(copy), now());
}

void Fleet::Reported(std::uint32_t host, const Entries& entries) {
  counts_.entries += entries.list().size();
  ledger_.Reported(host, entries);
}

void Fleet::Debited(std::uint32_t host, const Entries& entries) {
  ledger_.Debited(host, entries);
}

void Fleet::Mix(std::uint64_t word) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  digest_ = (std::rotl(digest_, 29) ^ word ^ static_cast<std::uint64_t>(now().time_since_epoch().count())) * kOdd;
}

FleetCounts Fleet::counts() const {
  FleetCounts counts = counts_;
  counts.events = events();
  counts.network = network().counts();
  for (const auto& host : hosts_) counts.by_workers += host->decided_by_workers();
  return counts;
}

std::vector<LevelError> Fleet::LevelErrors(bool all) {
  std::vector<LevelError> errors;
  for (const Account& account : ledger_.accounts()) {
    if (!account.shared) continue;
    const Tokens truth = account.Level(now());
    const double interval = static_cast<double>(account.shape.interval);
    const Tokens burst = account.shape.burst();
    const Tokens drifted = 2e-6 * options_.drift_ppm_max * static_cast<double>(account.Busy(now()).count()) *
                           kTicksPerNanosecond / interval;
    const Tokens allowed = std::max(1.0, 0.02 * burst) + drifted;
    for (std::uint32_t host = 0; host < size(); ++host) {
      if (!hosts_[host]->running()) continue;
      const Tokens level = hosts_[host]->Level(account.tag, now());
      if (all || std::abs(level - truth) > allowed) errors.push_back({account.tag, host, level, truth, allowed});
    }
  }
  return errors;
}

}    // namespace dthrottle::lab
