// A fleet in a file: dthrottled.toml with five tables more. Rules, overrides and the period are the daemon's own keys,
// so what has been tried here can be put in force as it is.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys.h"
#include "config/load.h"
#include "lab/fleet.h"
#include "lab/trace.h"

namespace dthrottle::lab {

inline constexpr std::uint32_t kHostsMax = 1024;
inline constexpr std::uint32_t kWorkersMax = 64;
inline constexpr std::uint32_t kTagsMax = 1'000'000;                     // of a workload
inline constexpr std::uint64_t kAccountsMax = std::uint64_t{1} << 24;    // tags x hosts, some 30 bytes each
inline constexpr std::size_t kWorkloadsMax = 1000, kFaultsMax = 100'000, kTracesMax = 100;

struct FleetFile {
  struct {
    std::uint32_t hosts = 2;
    Duration duration = std::chrono::minutes(1);
    std::uint32_t seed = 1, seeds = 1;    // runs have the seeds from `seed` on
    std::uint32_t workers = 0;    // of a host, that decide by themselves what they have asked before
    std::uint32_t drift_ppm = 100;
    Duration date = std::chrono::seconds(946'684'800);    // when a run begins, since 1970 UTC: for quotas
  } fleet;
  LaneOptions network;
  std::vector<Workload> workloads;
  std::vector<Fault> faults;
  // Queries of a file, from `from` on.
  struct TraceFile {
    std::string path;    // relative to the fleet file
    WorldTime from{};
    std::uint32_t line = 0;    // of the table
    std::shared_ptr<const Trace> trace{};    // once it has been read
  };
  std::vector<TraceFile> traces;
  Settings settings;
};

// The hosts that own all tags: those that the settings name, or the first of each site where etcd would name them.
// None: everybody hears everything.
std::vector<std::string> OwnersOf(const FleetFile& file);

struct LoadedFleet {
  FleetFile file;
  std::vector<Problem> problems;    // in the order of the file

  bool ok() const;
};

// `name` is what messages call the text.
LoadedFleet ParseFleet(std::string_view text, std::string_view name);

// Takes over the text of a trace. The problem, if it is none or has tags without a rule.
Result<void> TakeTrace(FleetFile& file, std::size_t index, std::string_view text, std::string_view name);

// The tables and their keys, for the check that the manual has them: "fleet.hosts", default and meaning.
struct FleetKey {
  std::string path;
  std::string_view default_text, meaning;
  std::string allowed;
  Value built_in;    // what a file without the key means
};
std::vector<FleetKey> FleetKeys();

}    // namespace dthrottle::lab
