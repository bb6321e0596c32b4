#include "lab/fleet_file.h"

#include <absl/time/time.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>

#include "config/kinds.h"
#include "config/sections.h"
#include "io/files.h"
#include "lab/access_log.h"
#include "lab/dividing_hosts.h"
#include "lab/owning_hosts.h"
#include "query/question.h"
#include "rule/rulebook.h"

namespace dthrottle::lab {
namespace {

bool IsHostOf(const std::string& name, std::uint32_t hosts) {
  for (std::uint32_t i = 0; i < hosts; ++i) {
    if (HostName(i) == name) return true;
  }
  return false;
}

using namespace std::chrono_literals;

constexpr std::size_t kTagTextMax = 200;    // room for a number behind it

// Values in the form of the file: world times are durations from the beginning.
struct WorkloadTable {
  Workload workload;
  Duration from{}, until{};    // until: zero is the end
  std::uint32_t tags = 1, with_tags = 1;
  std::uint32_t group = 1;
  double rate_at_end = 0;    // 0: the rate stays
  std::uint32_t line = 0;
};

struct TraceTable {
  std::string path;
  Duration from{};
  std::uint32_t line = 0;
};

struct FaultTable {
  Fault fault;
  Duration at{};
  std::uint32_t line = 0;
};

using Spread = Workload::Spread;
using Takes = Workload::Takes;

// "2000-01-01T00:00:00Z", from 1970 to 2200.
Result<Duration> ParseDate(const std::string& text) {
  absl::Time date;
  if (!absl::ParseTime(absl::RFC3339_sec, text, &date, nullptr)) return Fail("");
  if (date < absl::UnixEpoch() || date > absl::FromUnixSeconds(kDateMaxS)) return Fail("");
  return Duration(std::chrono::seconds(absl::ToUnixSeconds(date)));
}

std::string FormatDate(Duration date) {
  return FormatTime(date / 1s);
}

std::vector<Key<FleetFile>> FleetTable() {
  using F = FleetFile;
  return {
      Integer<F>("hosts", "2", 1, kHostsMax, MEMBER(F, fleet.hosts), "How many hosts there are, each with a daemon."),
      DurationKey<F>("duration", "\"1m\"", 1s, 24h * 366, MEMBER(F, fleet.duration),
                     "How long a run lasts, in the fleet's time."),
      Integer<F>("seed", "1", 0, 0xffffffff, MEMBER(F, fleet.seed),
                 "What chance is made of. The same file and seed give the same run, bit for bit."),
      Integer<F>("seeds", "1", 1, 1000, MEMBER(F, fleet.seeds),
                 "How many runs, with the seeds from *seed* on; figures are then means with their standard deviation."),
      Integer<F>("workers", "0", 0, kWorkersMax, MEMBER(F, fleet.workers),
                 "How many workers on each host ask, each of which decides by itself what it has asked before, with a page "
                 "of page.entries; a query goes to any of them. 0: every query is asked."),
      Integer<F>("drift_ppm", "100", 0, 10000, MEMBER(F, fleet.drift_ppm),
                 "How much too fast or slow a host's clock runs at most, in millionths."),
      Parsed<F, Duration>("date", "\"2000-01-01T00:00:00Z\"",
                          "a time from 1970 to 2200, such as \"2030-03-31T00:30:00+01:00\"",
                          MEMBER(F, fleet.date),
                          "When a run begins, by the wall clock that rules with *quota* go by. It is right on every host.",
                          ParseDate, FormatDate),
  };
}

std::vector<Key<FleetFile>> NetworkTable() {
  using F = FleetFile;
  return {
      DurationKey<F>("delay", "\"1ms\"", 0s, 1min, MEMBER(F, network.delay), "From one host to another."),
      Integer<F>("sites", "1", 1, 16, MEMBER(F, network.sites),
                 "How many sites the hosts are in: with 2 and 6 hosts, host-0 to host-2 are in one. Each has those of "
                 "*peers.owners* that are its hosts, and tells the others as *sites.period* and *sites.part* say."),
      DurationKey<F>("between_sites", "\"0s\"", 0s, 1min, MEMBER(F, network.between_sites),
                     "From one site to another takes so much longer."),
      DurationKey<F>("jitter", "\"0s\"", 0s, 1min, MEMBER(F, network.jitter), "Up to so much more, by chance."),
      Number<F>(
          "loss", "0", 0, 1, MEMBER(F, network.loss),
          "The probability that a message is lost. With loss or duplicates messages may overtake each other; without "
          "either they travel as on TCP."),
      Number<F>("duplicate", "0", 0, 1, MEMBER(F, network.duplication), "The probability that a message comes twice."),
      DurationKey<F>("reconnect", "\"2s\"", 0s, 1h, MEMBER(F, network.reconnecting),
                     "Up to so long a connection takes to be made anew, after a host was killed or a cut ended it."),
  };
}

bool FitsTag(const std::string& text) {
  return text.size() <= kTagTextMax && text.find('\n') == std::string::npos && !text.ends_with('\r');
}

// The arrivals are a flag of the workload; the table spells them.
Key<WorkloadTable> ArrivalsKey() {
  return Parsed<WorkloadTable, bool>(
      "arrivals", "\"poisson\"", "one of \"steady\", \"poisson\"", MEMBER(WorkloadTable, workload.poisson),
      "Whether queries come in equal steps, or by chance and independent of each other.",
      [](const std::string& text) -> Result<bool> {
        if (text != "steady" && text != "poisson") return Fail("");
        return text == "poisson";
      },
      [](bool poisson) { return poisson ? "poisson" : "steady"; });
}

std::vector<Key<WorkloadTable>> WorkloadKeys() {
  using W = WorkloadTable;
  constexpr Duration kLongest = 24h * 366;
  return {
      Number<W>("rate", "", 1e-6, 1e6, MEMBER(W, workload.rate), "Queries a second, of all tags and to all hosts."),
      ArrivalsKey(),
      DurationKey<W>("on", "\"0s\"", 0s, kLongest, MEMBER(W, workload.on), "How long queries come, before a pause."),
      DurationKey<W>("off", "\"0s\"", 0s, kLongest, MEMBER(W, workload.off),
                     "How long the pause is, in turns with *on*; \"0s\" is none."),
      Flag<W>("random_turns", "false", MEMBER(W, workload.random_turns),
              "Whether *on* and *off* are means of turns that last as long as chance will have it, exponentially "
              "distributed."),
      Number<W>("quiet", "0", 0, 1, MEMBER(W, workload.quiet), "The part of *rate* that comes in a pause."),
      Number<W>("rate_at_end", "0", 0, 1e6, MEMBER(W, rate_at_end),
                "What *rate* moves to between *from* and *until*, evenly; with 0 it stays. A move that goes on behind "
                "the end of the run comes as far as the run lasts."),
      DurationKey<W>("flash_after", "\"0s\"", 0s, kLongest, MEMBER(W, workload.flash_after),
                     "When a flash crowd comes, counted from *from*."),
      DurationKey<W>("flash_lasts", "\"0s\"", 0s, kLongest, MEMBER(W, workload.flash_lasts), "How long it stays."),
      Number<W>("flash_factor", "1", 0, 1e6, MEMBER(W, workload.flash_factor), "What it multiplies *rate* by."),
      DurationKey<W>("from", "\"0s\"", 0s, kLongest, MEMBER(W, from), "When the workload begins."),
      DurationKey<W>("until", "\"0s\"", 0s, kLongest, MEMBER(W, until), "When it ends; \"0s\" is with the run."),
      Choice<W, Spread>("spread", "\"uniform\"", MEMBER(W, workload.spread),
                        "To which host a query goes: each in its turn; any; the first ones most; the same for all "
                        "queries of a tag; or any of *group* hosts, and after *stays* of *group* others."),
      Number<W>("host_exponent", "1", 0, 10, MEMBER(W, workload.host_exponent),
                "With *spread* \"zipf\": host k gets a share of k to the power of minus this."),
      Integer<W>("group", "1", 1, kHostsMax, MEMBER(W, group), "With *spread* \"group\": how many hosts are asked at a time."),
      DurationKey<W>("stays", "\"2s\"", 1ms, kLongest, MEMBER(W, workload.stays),
                     "With *spread* \"group\": for how long, before others are asked."),
      Text<W>("tag", "\"client\"", fmt::format("text of at most {} bytes without LF", kTagTextMax),
              MEMBER(W, workload.tag),
              "The tag, or what tags begin with if there are several: client0, client1 and so on.",
              FitsTag),
      Integer<W>("tags", "1", 1, kTagsMax, MEMBER(W, tags), "How many tags there are."),
      Number<W>("tag_exponent", "0", 0, 10, MEMBER(W, workload.tag_exponent),
                "Tag k is asked for in proportion to k to the power of minus this; 0: all alike."),
      Integer<W>("cost", "1", 1, 1'000'000, MEMBER(W, workload.cost), "Tokens that a query spends."),
      DurationKey<W>("wait", "\"0s\"", 0s, 1min, MEMBER(W, workload.wait),
                     "How long a query rather waits than being refused, where its rule has *delay*."),
      Choice<W, Takes>("takes", "\"tokens\"", MEMBER(W, workload.takes),
                       "What a query takes: tokens for good; tokens that it holds and settles later; or, beside tokens, "
                       "a place of each tag whose rule has *in_flight*."),
      DurationKey<W>("lasts", "\"1s\"", 1ms, kLongest, MEMBER(W, workload.lasts),
                     "How long it is until a hold is settled or a place given back; with *arrivals* \"poisson\" that is "
                     "the mean of an exponential distribution."),
      Integer<W>("used_min", "0", 0, 1'000'000, MEMBER(W, workload.used_min), "Tokens that a hold has used at least."),
      Integer<W>("used_max", "0", 0, 1'000'000, MEMBER(W, workload.used_max),
                 "Tokens that a hold has used at most, any number from *used_min* on; 0: each has used *cost*."),
      Number<W>("released", "0", 0, 1, MEMBER(W, workload.released), "The part of holds that are given back whole."),
      Number<W>("lost", "0", 0, 1, MEMBER(W, workload.lost),
                "The part of holds that nobody settles. They come back whole after *ttl*."),
      DurationKey<W>("ttl", "\"1m\"", 1ms, kLongest, MEMBER(W, workload.ttl),
                     "The time that a hold is taken for. If it lasts longer it comes back whole then, and is lost."),
      TextList<W>("with", "a list of texts as *tag*", MEMBER(W, workload.with),
                  "Further tags of the same question, 15 at most. It is served if all of its tags have what it costs, and "
                  "then all of them pay.",
                  FitsTag),
      Integer<W>("with_tags", "1", 1, kTagsMax, MEMBER(W, with_tags),
                 "How many tags each of *with* stands for, numbered as those of *tag* are; any of them comes."),
  };
}

std::vector<Key<TraceTable>> TraceKeys() {
  using T = TraceTable;
  return {
      Text<T>("file", "", "a path, relative to the fleet file", MEMBER(T, path),
              "A file with a line \"SECONDS,HOST,COST,TAG\" for each query, in the order of time.",
              [](const std::string& text) { return !text.empty() && text.find('\0') == std::string::npos; }),
      DurationKey<T>("from", "\"0s\"", 0s, 24h * 366, MEMBER(T, from), "When the trace begins."),
  };
}

std::vector<Key<FaultTable>> FaultKeys() {
  using F = FaultTable;
  using Kind = Fault::Kind;
  return {
      Choice<F, Kind>("kind", "", MEMBER(F, fault.kind),
                      "What happens to *host*: its daemon is killed and starts again on its table; or without it; it "
                      "gets no time; or *size* hosts from it on and the rest hear nothing of each other; they do not "
                      "hear the rest; the rest does not hear them."),
      DurationKey<F>("at", "\"0s\"", 0s, 24h * 366, MEMBER(F, at), "When it happens."),
      DurationKey<F>("lasts", "\"1s\"", 0s, 24h * 366, MEMBER(F, fault.lasts), "For how long."),
      Integer<F>("host", "0", 0, kHostsMax - 1, MEMBER(F, fault.host), "To which host, counted from 0."),
      Integer<F>("size", "1", 1, kHostsMax, MEMBER(F, fault.size), "How many hosts are on its side of a cut."),
  };
}

class FleetReader {
 public:
  explicit FleetReader(std::string_view name) : name_(name) {}

  LoadedFleet Read(std::string_view text) {
    const std::vector<FurtherTable> further = {
        {"fleet", 0, [this](std::uint32_t) { return KeysOf(FleetTable(), loaded_.file); }},
        {"network", 0, [this](std::uint32_t) { return KeysOf(NetworkTable(), loaded_.file); }},
        {"workload", kWorkloadsMax,
         [this](std::uint32_t line) {
           workloads_.push_back(std::make_unique<WorkloadTable>());
           workloads_.back()->workload.poisson = true;
           workloads_.back()->line = line;
           return KeysOf(WorkloadKeys(), *workloads_.back());
         }},
        {"trace", kTracesMax,
         [this](std::uint32_t line) {
           traces_.push_back(std::make_unique<TraceTable>());
           traces_.back()->line = line;
           return KeysOf(TraceKeys(), *traces_.back());
         }},
        {"fault", kFaultsMax,
         [this](std::uint32_t line) {
           faults_.push_back(std::make_unique<FaultTable>());
           faults_.back()->fault.lasts = 1s;
           faults_.back()->line = line;
           return KeysOf(FaultKeys(), *faults_.back());
         }},
    };
    LoadedSettings settings = ParseSettings(text, name_, "/run/dthrottle", further, ReadNamedFile);
    const bool fine = settings.ok();
    loaded_.problems = std::move(settings.problems);
    loaded_.file.settings = std::move(settings.settings);
    if (fine) TakeOver();
    std::stable_sort(loaded_.problems.begin(), loaded_.problems.end(),
                     [](const Problem& a, const Problem& b) { return a.line < b.line; });
    return std::move(loaded_);
  }

 private:
  void TakeOver() {
    FleetFile& file = loaded_.file;
    file.network.lossy = file.network.loss > 0 || file.network.duplication > 0;
    for (const auto& table : workloads_) {
      table->workload.from = After(table->from);
      table->workload.until = table->until == Duration::zero() ? WorldTime::max() : After(table->until);
      table->workload.tags = table->tags;
      table->workload.with_tags = table->with_tags;
      table->workload.group = table->group;
      if (table->rate_at_end > 0) table->workload.rate_at_end = table->rate_at_end;
      file.workloads.push_back(table->workload);
    }
    for (const auto& table : traces_) {
      file.traces.push_back({.path = table->path, .from = After(table->from), .line = table->line});
    }
    for (const auto& table : faults_) {
      table->fault.at = After(table->at);
      file.faults.push_back(table->fault);
    }
    CheckWorkloads();
    CheckFaults();
    const Settings& settings = file.settings;
    if (file.fleet.workers > 0 && settings.page.entries == 0) {
      Error(0, fmt::format("fleet.workers = {} with page.entries = 0: must be 0, or workers have no page",
                           file.fleet.workers));
    }
    for (const std::string& owner : settings.peers.owners) {
      if (IsHostOf(owner, file.fleet.hosts)) continue;
      Error(0, fmt::format("peers.owners has \"{}\": must be hosts of the fleet, \"host-0\" to \"host-{}\"", owner,
                           file.fleet.hosts - 1));
    }
    CheckSites();
    for (std::string& warning : PartWarnings(settings, file.fleet.hosts)) {
      Add(Problem::Severity::kWarning, 0, std::move(warning));
    }
    if (const auto fits = CheckCapacity(settings, file.fleet.hosts); !fits) Error(0, fits.error().message);
    if (std::string note = CapacityNote(settings); !note.empty()) {
      Add(Problem::Severity::kWarning, 0, std::move(note));
    }
  }

  void CheckSites() {
    const FleetFile& file = loaded_.file;
    const std::uint32_t sites = file.network.sites;
    if (sites == 1) return;
    const Settings& settings = file.settings;
    std::vector<bool> owned(sites);
    for (const std::string& owner : OwnersOf(file)) {
      if (IsHostOf(owner, file.fleet.hosts)) owned[SiteOf(HostNumber(owner), file.fleet.hosts, sites)] = true;
    }
    if (!std::ranges::all_of(owned, [](bool any) { return any; })) {
      Error(0, fmt::format("network.sites = {}: peers.owners must have a host of each", sites));
    }
    if (const std::string complaint = ComplaintAboutSitePeriod(settings); !complaint.empty()) Error(0, complaint);
  }

  void CheckWorkloads() {
    const FleetFile& file = loaded_.file;
    if (workloads_.empty() && traces_.empty()) {
      Error(0, "no [[workload]] and no [[trace]]: must be one at least, or nobody asks");
    }
    if (file.settings.rules.empty() && file.settings.overrides.empty()) {
      return Error(0, "no [[rule]]: must be one at least, or there is no limit to simulate");
    }
    const Rulebook rules(file.settings.rules, file.settings.overrides);
    std::uint64_t tags = 0;
    for (const auto& table : workloads_) {
      const Workload& w = table->workload;
      tags += TagsOf(w);
      if (w.off > Duration::zero() && w.on == Duration::zero()) {
        Error(table->line,
              fmt::format("workload.off = \"{}\" without workload.on: must be both or neither", FormatDuration(w.off)));
      }
      if (w.until <= w.from) {
        Error(table->line, fmt::format("workload.until = \"{}\": must be more than workload.from = \"{}\"",
                                       FormatDuration(table->until), FormatDuration(table->from)));
      }
      CheckBegin(table->line, "workload.from", table->from);
      if (w.group > file.fleet.hosts) {
        Error(table->line,
              fmt::format("workload.group = {}: must be at most fleet.hosts = {}", w.group, file.fleet.hosts));
      }
      CheckQuestion(*table);
      CheckStay(rules, *table);
      CheckLimits(rules, *table);
    }
    if (tags * file.fleet.hosts > kAccountsMax) {
      Error(0, fmt::format("{} tags of all workloads x fleet.hosts = {}: must be at most {}", tags, file.fleet.hosts,
                           kAccountsMax));
    }
  }

  void CheckQuestion(const WorkloadTable& table) {
    const Workload& w = table.workload;
    if (w.with.size() >= Questions::kTagsMax) {
      Error(table.line, fmt::format("workload.with has {} tags: must be at most {}", w.with.size(), Questions::kTagsMax - 1));
    }
    std::set<std::string> tags;
    for (std::size_t i = 0; !w.with.empty() && i < TagsOf(w); ++i) {
      if (tags.insert(TagOf(w, i)).second) continue;
      return Error(table.line, fmt::format("workload.with: {} is there twice; must be tags of their own", Quote(TagOf(w, i))));
    }
  }

  void CheckStay(const Rulebook& rules, const WorkloadTable& table) {
    const Workload& w = table.workload;
    if (w.takes != Takes::kHold && (w.used_max != 0 || w.used_min != 0 || w.released > 0 || w.lost > 0)) {
      Error(table.line, fmt::format("workload.takes = {}: must be \"hold\" with used_min, used_max, released and lost",
                                    Quote(std::string(kTakesNames[static_cast<std::size_t>(w.takes)]))));
    }
    if (w.used_min > w.used_max) {
      Error(table.line, fmt::format("workload.used_min = {}: must be at most workload.used_max = {}", w.used_min, w.used_max));
    }
    if (w.released + w.lost > 1) {
      Error(table.line, fmt::format("workload.released = {:g}, workload.lost = {:g}: must be at most 1 together", w.released,
                                    w.lost));
    }
    if (w.takes == Takes::kPlace && !AnyPlaces(rules, w)) {
      Error(table.line, fmt::format("workload.takes = \"place\": the rule of {} has no in_flight; must be tags that have "
                                    "places", Quote(TagOf(w, 0))));
    }
  }

  // Whether a query takes a place of any of its tags, or of one charged with them. No limit is an error of its own.
  static bool AnyPlaces(const Rulebook& rules, const Workload& w) {
    for (std::size_t i = 0; i < TagsOf(w); ++i) {
      const std::string tag = TagOf(w, i);
      const auto limit = rules.Find(tag);
      bool any = !limit || rules.limit(*limit).in_flight > 0;
      if (limit) {
        rules.ForEachDerived(*limit, {tag}, [&](std::string_view with) {
          const auto its = rules.Find(with);
          any |= its && rules.limit(*its).in_flight > 0;
        });
      }
      if (any) return true;
    }
    return false;
  }

  // The ledger keeps account of tags that have a limit.
  void CheckLimits(const Rulebook& rules, const WorkloadTable& table) {
    for (std::size_t i = 0; i < TagsOf(table.workload); ++i) {
      const std::string tag = TagOf(table.workload, i);
      if (rules.Find(tag)) continue;
      return Error(table.line, fmt::format("workload.{}: no rule fits {}; must be tags that have a limit",
                                           i < table.workload.tags ? "tag" : "with", Quote(tag)));
    }
  }

  void CheckFaults() {
    const std::uint32_t hosts = loaded_.file.fleet.hosts;
    for (const auto& table : faults_) {
      const Fault& fault = table->fault;
      if (fault.host >= hosts) {
        Error(table->line,
              fmt::format("fault.host = {}: must be less than fleet.hosts = {}; the first is 0", fault.host, hosts));
      }
      if (fault.size > hosts) {
        Error(table->line, fmt::format("fault.size = {}: must be at most fleet.hosts = {}", fault.size, hosts));
      }
      CheckBegin(table->line, "fault.at", table->at);
    }
  }

  // What begins after the end of the run does nothing.
  void CheckBegin(std::uint32_t line, std::string_view key, Duration begin) {
    const Duration end = loaded_.file.fleet.duration;
    if (begin < end) return;
    Add(Problem::Severity::kWarning, line,
        fmt::format("{} = \"{}\": never comes, since fleet.duration = \"{}\"", key, FormatDuration(begin),
                    FormatDuration(end)));
  }

  void Error(std::uint32_t line, std::string message) { Add(Problem::Severity::kError, line, std::move(message)); }
  void Add(Problem::Severity severity, std::uint32_t line, std::string message) {
    loaded_.problems.push_back({severity, std::string(name_), line, line == 0 ? 0u : 1u, std::move(message)});
  }

  std::string_view name_;
  LoadedFleet loaded_;
  std::vector<std::unique_ptr<WorkloadTable>> workloads_;    // where keys write: they stay where they are
  std::vector<std::unique_ptr<TraceTable>> traces_;
  std::vector<std::unique_ptr<FaultTable>> faults_;
};

template <class T>
void List(std::string_view table, const std::vector<Key<T>>& keys, const T& built_in, std::vector<FleetKey>& list) {
  for (const Key<T>& key : keys) {
    list.push_back({fmt::format("{}.{}", table, key.name), key.default_text, key.meaning, key.allowed,
                    key.default_text.empty() ? Value() : key.get(built_in)});
  }
}

}    // namespace

bool LoadedFleet::ok() const {
  return std::none_of(problems.begin(), problems.end(),
                      [](const Problem& p) { return p.severity == Problem::Severity::kError; });
}

std::vector<std::string> OwnersOf(const FleetFile& file) {
  const Settings& settings = file.settings;
  if (!settings.peers.owners.empty()) return settings.peers.owners;
  return FirstHosts(OwnersIn(settings), file.fleet.hosts, file.network.sites);
}

LoadedFleet ParseFleet(std::string_view text, std::string_view name) {
  return FleetReader(name).Read(text);
}

Result<void> TakeTrace(FleetFile& file, std::size_t index, std::string_view text, std::string_view name) {
  Result<Trace> trace = ParseTrace(text, name, file.fleet.hosts);
  if (!trace) return tl::unexpected(trace.error());
  if (trace->tags.size() * file.fleet.hosts > kAccountsMax) {
    return Fail(fmt::format("{}: {} tags x fleet.hosts = {}: must be at most {}", name, trace->tags.size(),
                            file.fleet.hosts, kAccountsMax));
  }
  const Rulebook rules(file.settings.rules, file.settings.overrides);
  for (const std::string& tag : trace->tags) {
    if (!rules.Find(tag)) return Fail(fmt::format("{}: no rule fits {}; must be tags that have a limit", name, Quote(tag)));
  }
  file.traces[index].trace = std::make_shared<const Trace>(*std::move(trace));
  return {};
}

std::vector<FleetKey> FleetKeys() {
  std::vector<FleetKey> list;
  WorkloadTable workload;
  workload.workload.poisson = true;
  FaultTable fault;
  fault.fault.lasts = 1s;
  List("fleet", FleetTable(), FleetFile(), list);
  List("network", NetworkTable(), FleetFile(), list);
  List("workload", WorkloadKeys(), workload, list);
  List("trace", TraceKeys(), TraceTable(), list);
  List("fault", FaultKeys(), fault, list);
  return list;
}

}    // namespace dthrottle::lab
