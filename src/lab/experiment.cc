#include "lab/experiment.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "base/worker_page.h"
#include "lab/dividing_hosts.h"
#include "rule/equal_part.h"

namespace dthrottle::lab {
namespace {

// Slots of a table with twice the room that the workloads' tags need.
constexpr std::size_t kBytesPerTag = 256;

std::uint64_t SplitQuota(std::uint64_t quota, std::uint32_t hosts) {
  return quota == 0 ? 0 : std::max<std::uint64_t>(quota / hosts, 1);
}

// With Share::kLocal the most frugal way: every host has an N-th of each limit.
std::shared_ptr<const Rulebook> RulesUnder(const FleetFile& file, std::optional<Share> scheme) {
  std::vector<Rule> rules = file.settings.rules;
  std::vector<Override> overrides = file.settings.overrides;
  for (Rule& rule : rules) {
    if (rule.mode == Mode::kShadow) rule.mode = Mode::kEnforce;
    rule.share = scheme.value_or(rule.share);
    if (rule.share != Share::kLocal && rule.share != Share::kDebit) rule.delay = {};    // nothing waits there
    if (scheme != Share::kLocal) continue;
    TakeEqualPart(rule, file.fleet.hosts);
    rule.quota = SplitQuota(rule.quota, file.fleet.hosts);
    if (rule.in_flight > 0) rule.in_flight = std::max(rule.in_flight / file.fleet.hosts, std::uint32_t{1});
  }
  for (Override& o : overrides) {
    if (o.mode == Mode::kShadow) o.mode = Mode::kEnforce;
    if (scheme != Share::kLocal) continue;
    TakeEqualPart(o, file.fleet.hosts);
    if (o.quota) o.quota = SplitQuota(*o.quota, file.fleet.hosts);
  }
  const std::uint32_t parts = scheme == Share::kLocal ? file.fleet.hosts : 1;
  return std::make_shared<Rulebook>(std::move(rules), std::move(overrides), parts);
}

// Tags that are asked for, and as many as may be charged with them.
std::size_t TagsOf(const FleetFile& file) {
  std::size_t tags = 0, charged = 0;
  for (const Workload& workload : file.workloads) tags += TagsOf(workload);
  for (const FleetFile::TraceFile& trace : file.traces) tags += trace.trace->tags.size();
  for (const Rule& rule : file.settings.rules) charged = std::max(charged, rule.also.size());
  return tags * (1 + charged);
}

std::size_t TableBytes(const FleetFile& file) {
  return std::max(Table::kRegionBytesMin, TagsOf(file) * kBytesPerTag / 4096 * 4096);
}

// What the file says, or plenty for its tags and what all hosts say of them.
std::size_t QuotaBytes(const FleetFile& file) {
  const std::size_t slots = Quotas::kSlotsMin + 4 * TagsOf(file) * (2 + file.fleet.hosts / QuotaSlot::kCounts);
  return std::min<std::size_t>(file.settings.quota.memory, Quotas::RegionBytes(slots));
}

// What the file says, or plenty for its tags.
std::size_t WatchedTags(const FleetFile& file) {
  constexpr std::size_t kLeast = 512, kPlaces = 8;    // for a tag
  return std::min<std::size_t>(file.settings.peers.watched_tags, kLeast + kPlaces * TagsOf(file));
}

// Runs from `begin` until just before `end`, and tells again and again which part of all time until `last` is over.
// Returns when it was not to go on, after whole seconds; `end` if that was never.
WorldTime RunInParts(Fleet& fleet, WorldTime begin, WorldTime end, WorldTime last,
                     const std::function<bool(double part)>& go_on) {
  constexpr int kParts = 200;
  for (int i = 1; i <= kParts; ++i) {
    const auto whole = std::chrono::floor<std::chrono::seconds>((end - begin) / kParts * i);
    const WorldTime until = i == kParts ? end : begin + whole;
    fleet.Run(std::max(fleet.now(), until - Duration(1)));
    if (go_on && !go_on(Seconds(until.time_since_epoch()) / Seconds(last.time_since_epoch()))) return until;
  }
  return end;
}

FleetOptions OptionsOf(const FleetFile& file, const SharedAs& as) {
  FleetOptions options;
  options.hosts = file.fleet.hosts;
  options.rules = RulesUnder(file, as.baseline ? Share::kLocal : as.share);
  options.ideal_rules = RulesUnder(file, std::nullopt);
  options.baseline = as.baseline;
  options.owners = OwnersOf(file);
  options.period = file.settings.peers.period;
  options.lanes = file.network;
  options.site_period = file.settings.sites.period;
  options.site_part = file.settings.sites.part > 0 ? file.settings.sites.part : 1;
  options.drift_ppm_max = file.fleet.drift_ppm;
  options.host.table_bytes = TableBytes(file);
  options.host.quota_bytes = QuotaBytes(file);
  options.host.quota_file = !file.settings.quota.file.empty();
  options.host.watched_tags = WatchedTags(file);
  options.host.workers = file.fleet.workers;
  options.host.page_entries = std::bit_ceil(std::max<std::uint32_t>(file.settings.page.entries, DTHROTTLE_PAGE_WAYS));
  options.host.capacity = CapacityOf(file.settings, *options.rules, file.fleet.hosts);
  return options;
}

}    // namespace

Outcome Simulate(const FleetFile& file, const SharedAs& as, std::uint64_t seed,
                 const std::function<bool(double part)>& go_on) {
  FleetOptions options = OptionsOf(file, as);
  const bool divides = options.host.capacity.has_value();
  const WorldTime begin = After(TimeToMeet(file.settings, divides));
  const Duration later = begin.time_since_epoch();
  options.wall.begins = file.fleet.date - later;
  Fleet fleet(options, seed);

  const WorldTime end = begin + file.fleet.duration;
  for (Workload workload : file.workloads) {
    // One that goes on behind the end stays as it is: its rate moves until then.
    workload.until = workload.until == WorldTime::max() ? end : workload.until + later;
    workload.from += later;
    fleet.Add(workload);
  }
  for (const FleetFile::TraceFile& trace : file.traces) fleet.Play(trace.trace, trace.from + later);
  std::vector<Fault> faults = file.faults;
  for (Fault& fault : faults) fault.at += later;
  fleet.Inject(faults);

  Meter meter(fleet, begin);
  fleet.Watch([&meter](const Decision& decision) { meter.Note(decision); });
  const bool met = RunInParts(fleet, WorldTime{}, begin, end, go_on) == begin;
  const FleetCounts before = fleet.counts();
  Outcome outcome;
  const Duration lasted = met ? RunInParts(fleet, begin, end, end, go_on) - begin : Duration(0);
  outcome.lasted = lasted;
  outcome.whole = lasted == file.fleet.duration;
  FleetCounts counts = fleet.counts();
  counts.entries -= before.entries;
  counts.queries -= before.queries;
  counts.by_workers -= before.by_workers;
  counts.network.sent -= before.network.sent;
  counts.network.bytes -= before.network.bytes;
  outcome.measures = meter.Finish(lasted, counts);
  outcome.seconds = meter.seconds();
  outcome.digest = fleet.digest();
  return outcome;
}

Series SimulateAll(const FleetFile& file, const SharedAs& as, const Effort& effort) {
  const std::uint32_t seeds = file.fleet.seeds;
  std::vector<std::optional<Outcome>> runs(seeds);
  std::atomic<bool> going{true};
  std::vector<std::atomic<double>> parts(seeds);
  DoAll(seeds, effort.jobs, [&](std::size_t i) {
    if (i > 0 && !going) return;    // there is a first one in any case
    runs[i] = Simulate(file, as, std::uint64_t{file.fleet.seed} + i, [&](double part) {
      parts[i] = part;
      double done = 0;
      for (const auto& one : parts) done += one;
      if (effort.go_on && !effort.go_on(done / seeds)) going = false;
      return going.load();
    });
  });
  // Runs stand under the seeds from the first on, so those behind a gap do not count.
  Series series{file.fleet.seed, {}};
  for (auto& run : runs) {
    if (!run || (!run->whole && !series.runs.empty())) break;
    series.runs.push_back(std::move(*run));
  }
  return series;
}

double Series::Mean(double Measures::*value) const {
  double sum = 0;
  for (const Outcome& run : runs) sum += run.measures.*value;
  return sum / static_cast<double>(runs.size());
}

double Series::Deviation(double Measures::*value) const {
  if (runs.size() < 2) return 0;
  const double mean = Mean(value);
  double squares = 0;
  for (const Outcome& run : runs) squares += (run.measures.*value - mean) * (run.measures.*value - mean);
  return std::sqrt(squares / static_cast<double>(runs.size() - 1));
}

}    // namespace dthrottle::lab
