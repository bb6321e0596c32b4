// A fleet of hosts in one process, on one thread and in one order of events: the same options and seed give the same
// run, bit for bit, which digest() shows.
//
//     Fleet fleet({.hosts = 16, .rules = rules}, seed);
//     fleet.Add(Workload{.rate = 20, .poisson = true, .tags = 100});
//     fleet.Inject({{.kind = Fault::Kind::kKill, .at = After(10min), .lasts = 3s, .host = 7}});
//     fleet.Run(After(1h));
//     ... fleet.ledger(), fleet.LevelErrors(), fleet.counts() ...
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/baseline.h"
#include "lab/host.h"
#include "lab/ledger.h"
#include "lab/one_for_all.h"
#include "lab/stays.h"
#include "lab/trace.h"
#include "lab/workload.h"
#include "lab/world.h"

namespace dthrottle::lab {

struct FleetOptions {
  std::size_t hosts = 2;
  std::shared_ptr<const Rulebook> rules;
  std::shared_ptr<const Rulebook> ideal_rules{};    // what one bucket for all goes by; null: the same rules
  std::vector<std::string> owners{};    // hosts that own all tags, by HostName; none: everybody hears everything
  // Sites, each with those of the owners that are its hosts, as lanes.sites says; and what they tell each other.
  Duration site_period{};    // 0: as the period
  double site_part = 1;
  Duration period = std::chrono::seconds(5);
  LaneOptions lanes;
  Duration clock_offset_max = std::chrono::hours(28);
  std::uint32_t drift_ppm_max = 100;    // either way
  Duration started_within{};            // hosts start at random moments of it,
  std::vector<WorldTime> starts{};      // or at these
  HostOptions host{};                   // for what is not said above
  std::optional<BaselineKind> baseline{};    // decides in place of the hosts, which then tell each other nothing
  WallClock wall{};                     // for rules with a quota
  Duration sample{};                    // width of the samples in Fleet::samples(); zero: none
};

// What happens to hosts and wires, from `at` on, for as long as it `lasts`.
struct Fault {
  enum class Kind {
    kKill,     // kill -9 of `host`, which starts again on its old table
    kWipe,     // the same, and the table is gone
    kPause,    // `host` gets no time, but its clock goes on
    kSplit,    // `size` hosts from `host` on hear nothing of the rest, nor the other way
    kDeaf,     // those hosts do not hear the rest, which hears them
    kMute,     // the other way round
  };
  Kind kind{};
  WorldTime at{};
  Duration lasts{};
  std::uint32_t host = 0;
  std::uint32_t size = 1;
};

inline constexpr std::string_view kFaultKindNames[] = {"kill", "wipe", "pause", "split", "deaf", "mute"};
constexpr std::span<const std::string_view> Names(Fault::Kind) {
  return kFaultKindNames;
}

struct FleetCounts {
  std::uint64_t events = 0;
  std::uint64_t entries = 0;    // of tags, in reports that hosts made; one each, however many hear it
  std::uint64_t queries = 0;
  std::uint64_t by_workers = 0;    // of them, decided by workers themselves
  NetworkCounts network;
};

// Tokens asked for, served, and served by one bucket for all, of every tag together.
struct Sample {
  WorldTime from{};
  std::uint64_t asked = 0, served = 0, ideal = 0;
};

// One verdict, of a question on one of its tags.
struct Decision {
  WorldTime at{};
  std::uint32_t host = 0;
  TagNumber tag = 0;
  Cost cost = 1;
  bool served = false;
  bool ideal_served = false;    // by one bucket for all
  Duration wait{};              // of what is served, before it goes on
  bool held = false;            // what of it is used is known later
  bool charged = false;         // with a tag of the question, which does not name this one
};

// A host whose level of a tag is not what all hits together make of it.
struct LevelError {
  std::string tag;
  std::uint32_t host;
  Tokens level, truth;
  Tokens allowed;    // max(1 token, 2 % of burst), and what drifting clocks may have made of the time since it was full
};

class Fleet final : public World, private Surroundings {
 public:
  Fleet(const FleetOptions& options, std::uint64_t seed);

  // ---- Before and while it runs ----

  void Add(const Workload& workload);
  // The queries of a trace, which begins then.
  void Play(std::shared_ptr<const Trace> trace, WorldTime from);
  void Inject(const std::vector<Fault>& faults);

  // Tells of every verdict from now on.
  void Watch(std::function<void(const Decision&)> watcher) { watcher_ = std::move(watcher); }

  // The date is another one from now on, and every host knows.
  void SetDate(Duration since_1970);

  // One query now, to that host.
  bool Ask(std::uint32_t host, std::string_view tag, Cost cost = 1);

  // The same about any tag, which needs no limit; the ledger is not told.
  bool AskOnly(std::uint32_t host, const Query& query);
  // A question in the same way: `asked` has one, and `standings` as many as that has tags.
  dthrottle::Outcome AskOnly(std::uint32_t host, const Questions& asked, std::span<Standing> standings);

  // The settings of that host name these owners from now on.
  void SetOwners(std::uint32_t host, const std::vector<std::string>& owners);

  // ---- Looking ----

  SimHost& host(std::uint32_t number) { return *hosts_[number]; }
  // One bucket for all, which has been asked everything but what AskOnly asks.
  SimHost& one();
  const Ledger& ledger() const { return ledger_; }
  const StayCounts& stays() const { return stays_.counts(); }
  FleetCounts counts() const;
  const std::vector<Sample>& samples() const { return samples_; }

  // A digest of every message that was sent and of every verdict.
  std::uint64_t digest() const { return digest_; }

  // Running hosts and shared tags with more of an error than allowed; all of them if `all`. Worth asking when reports
  // of everything have had time to arrive.
  std::vector<LevelError> LevelErrors(bool all = false);

 private:
  struct Running {
    std::function<std::optional<Arrival>()> take;    // the next one
    Arrival next{};
    std::vector<TagNumber> tags;    // by Arrival::tag
  };

  void Send(const Parcel& parcel) override;
  void Reported(std::uint32_t host, const Entries& entries) override;
  void Debited(std::uint32_t host, const Entries& entries) override;
  Duration Date() const override { return wall_.Date(now()); }

  void Deliver(Parcel parcel) override;
  void Expect(std::uint32_t host, std::size_t later) override { hosts_[host]->Expect(later); }
  void Wake(std::uint32_t host) override;
  void Arrive(std::uint32_t workload) override;
  void Await(std::uint32_t workload);
  struct Question {
    std::span<const TagNumber> tags;
    Cost cost = 1;
    Duration patience{};
    std::optional<Stay> stay{};    // of what takes more than tokens

    bool takes(Workload::Takes what) const { return stay && stay->takes == what; }
  };
  bool Decide(std::uint32_t host, const Question& question);
  std::optional<Duration> Ask(std::uint32_t host, const Question& question);
  std::optional<Duration> AskOf(SimHost& host, const Question& question) const;
  bool BaselineServes(std::uint32_t host, const Question& question);
  void Tell(std::uint32_t host, TagNumber tag, const Question& question, bool ideally, std::optional<Duration> wait);
  void TellBaseline(std::uint32_t host);
  void Work(std::uint32_t host);
  void Start(std::uint32_t host, bool keep_table);
  void Kill(std::uint32_t host);
  void Mix(std::uint64_t word);

  FleetOptions options_;
  std::uint64_t seed_;
  WallClock wall_;
  Ledger ledger_;
  Stays stays_;
  std::vector<std::unique_ptr<SimHost>> hosts_;
  std::optional<OneForAll> one_;    // from the first question on
  std::optional<Baseline> baseline_;
  std::deque<Running> workloads_;
  std::vector<Sample> samples_;
  std::function<void(const Decision&)> watcher_;
  FleetCounts counts_;
  std::uint64_t digest_ = 0;
  std::shared_ptr<const std::string> sent_;    // the latest frame
  std::uint64_t sent_hash_ = 0;                // its part of the digest
};

}    // namespace dthrottle::lab
