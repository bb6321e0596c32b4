// What the daemon counts, at one instant, and what each count means. The table below is the one place that names a
// count: `stats`, its JSON and the manual follow it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/time.h"
#include "limiter/limiter.h"
#include "report/exchange.h"
#include "shed/logistic.h"
#include "shed/signal.h"

namespace dthrottle {

// What the exchange with other hosts counts.
struct PeerCounts {
  ExchangeCounts exchange;
  std::uint64_t configured = 0, up = 0;
  std::uint64_t keys_denied = 0;    // connections with a key that is not authorized
  std::uint64_t hung_up = 0;        // connections ended because they subscribed to what nobody publishes
  std::uint64_t malformed = 0;      // messages of more parts than any has
  std::uint64_t lookups_failed = 0;
};

// What measuring for load shedding counts.
struct ShedCounts {
  std::uint64_t samples = 0;
  std::uint64_t failures = 0;    // measurements that failed
  std::uint64_t expired = 0;     // values that became too old
  double signal = 0;             // as a part of the upper bound; 0 if there is no value
};

// What load shedding goes by, now.
struct ShedStatus {
  ShedSignal signal{};
  std::string source;                    // a file or directory; empty: none
  std::optional<double> value;           // none: nothing is shed
  double maximum = 0;                    // 0: none
  std::optional<LogisticCurve> curve;    // if there is a value
  Duration age{};                        // of the value
  std::string note;                      // why there is no value, or what is special about it; may be empty
};

// What only the skin of the daemon can count.
struct ProcessCounts {
  Duration uptime{};
  std::uint64_t connections = 0;    // open now
  std::uint64_t accepted = 0;
  std::uint64_t rejected_full = 0;      // max_connections
  std::uint64_t accept_failures = 0;    // EMFILE and the like
  std::uint64_t idle_closed = 0;
  std::uint64_t stalled = 0;      // reads suspended because answers were not read
  std::uint64_t over_long = 0;    // tags longer than max_tag_bytes
  std::uint64_t reloads = 0;
  std::uint64_t reload_failures = 0;
  std::uint64_t log_suppressed = 0;
  PeerCounts peers;
  ShedCounts shed;
};

struct Snapshot {
  ProcessCounts process;
  TableCounts table;
  std::uint64_t table_bytes = 0;
  std::uint64_t table_cells = 0;
  std::uint64_t table_dropped = 0;
  RuleTotals all;    // over all rules
  std::uint64_t unmatched = 0;
  MergeCounts merged;
  std::uint64_t rules = 0;
  std::uint64_t overrides = 0;
  bool reshaping = false;
  double shed_probability = 0;    // of the rules that are shed first
};

Snapshot TakeSnapshot(Limiter& limiter, const ProcessCounts& process);

struct Count {
  std::string_view name;
  std::string_view unit;    // empty for a plain number
  std::string_view meaning;
  double (*value)(const Snapshot&);
};

std::span<const Count> Counts();

// The counts as a list for the manual, in mdoc.
std::string RenderCountsManual();

}    // namespace dthrottle
