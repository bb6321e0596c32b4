// What the daemon counts, at one instant. Counts by rule and by peer are in metrics.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/histogram.h"
#include "base/time.h"
#include "bus/exchange.h"
#include "capacity/capacity_exchange.h"
#include "hold/holds.h"
#include "hold/in_flight.h"
#include "lease/server.h"
#include "limiter/limiter.h"
#include "penalty/penalties.h"
#include "quota/quotas.h"
#include "share/debit/merge_counts.h"
#include "share/inspection.h"
#include "share/owners/owning_counts.h"
#include "share/sites/site_counts.h"
#include "shed/curve.h"
#include "shed/signal.h"
#include "tally/tally.h"

namespace dthrottle {

// What the thread that talks to other hosts counts (io/peer_thread.h).
struct PeerThreadCounts {
  std::uint64_t allowed = 0;      // handshakes of authorized keys
  std::uint64_t denied = 0;       // handshakes of other keys
  std::uint64_t malformed = 0;    // messages of more parts than any has
  std::uint64_t endless = 0;      // connections cut because they brought much and no whole message; of the process
  std::uint64_t unsent = 0;       // requests, answers and reports dropped because nobody takes them
  std::uint64_t redials = 0;      // connections made anew because nothing came of them
  std::uint64_t rebinds = 0;      // times the port was closed and opened to cut off a removed key
  std::uint64_t lookups = 0;      // of names
  std::uint64_t lookups_failed = 0;
  std::uint64_t nats_connects = 0;    // times that a server of NATS was there
  std::uint64_t nats_errors = 0;      // that it told of, or why there was none
  std::uint64_t nats_dropped = 0;     // frames that came by it and found no room
  std::uint64_t unsaved = 0;    // times that the state of the CapacityExchange could not be written
};

// What the exchange with other hosts counts.
struct PeerCounts {
  ExchangeCounts exchange;
  CapacityCounts capacity;
  PeerThreadCounts thread;
  OwningCounts owning;    // all 0 where this host owns no tags
  std::uint64_t configured = 0, up = 0;
  std::uint64_t owner_registered = 0;        // etcd has this host among those that are to own tags
  std::uint64_t owners_etcd_failures = 0;
  std::uint64_t capacity_tags = 0;       // take part, of this host's view
  std::uint64_t capacity_crowded = 0;    // times that one more could not
};

// What every front end counts.
struct SocketCounts {
  std::uint64_t connections = 0;    // open now
  std::uint64_t accepted = 0;
  std::uint64_t rejected_full = 0;    // all places were taken
};

// What the HTTP listener counts.
struct HttpCounts : SocketCounts {
  std::uint64_t timed_out = 0;        // admin.http_timeout
  std::uint64_t requests = 0;
  std::uint64_t misdirected = 0;    // requests for another host, or from another site
  std::uint64_t over_long = 0;      // tags longer than max_tag_bytes
};

// What clients of Redis are counted by.
struct RespCounts : SocketCounts {
  std::uint64_t commands = 0;
  std::uint64_t limited = 0;    // CL.THROTTLE refused
  std::uint64_t protocol_errors = 0;
  TableCounts brought;    // of limits that clients bring
};

// What questions about several tags are counted by.
struct AskCounts : SocketCounts {
  std::uint64_t questions = 0;
  std::uint64_t refused = 0;    // of them; a peek is never refused
  std::uint64_t waits = 0;      // of them, told to wait
  std::uint64_t given_up = 0;   // of those, given back before they went on
  std::uint64_t settlements = 0;    // of holds, and places given back
  std::uint64_t errors = 0;     // lines that are neither
};

// What questions of HAProxy are counted by.
struct SpopCounts : SocketCounts {
  std::uint64_t questions = 0;
  std::uint64_t refused = 0;            // of them; a peek is never refused
  std::uint64_t errors = 0;             // messages that are no question
  std::uint64_t protocol_errors = 0;    // connections
};

// What calls of Envoy are counted by.
struct EnvoyCounts : SocketCounts {
  std::uint64_t calls = 0;
  std::uint64_t refused = 0;          // of them, because of a limit
  std::uint64_t reports = 0;          // of quotas, or parts of long ones
  std::uint64_t calls_refused = 0;    // envoy.max_calls
  std::uint64_t calls_invalid = 0;
  std::uint64_t limits_refused = 0;    // that descriptors brought
  std::uint64_t restarts = 0;          // of dthrottle-grpc
};

// What limits that operators set are counted by.
struct SetLimitCounts {
  std::uint64_t in_force = 0, known = 0;    // now
  std::uint64_t taken = 0;       // from peers, and new here
  std::uint64_t sent = 0;        // limits in frames to peers
  std::uint64_t junk = 0;        // frames that cannot be read, and limits in them
  std::uint64_t forged = 0;      // the signature is not that of the key
  std::uint64_t strange = 0;     // under a key that is no operator's
  std::uint64_t ahead = 0;       // from the future
  std::uint64_t crowded = 0;     // without room
  std::uint64_t excess = 0;      // came too fast, and will come again
  std::uint64_t unsaved = 0;     // times that the file could not be written
  bool rules_unusable = false;   // rules that are set for all hosts are not in force here
};

// What rules that are tried beside those in force are counted by; all 0 while none are.
struct CandidateCounts {
  bool comparing = false;
  bool here = false;    // in force on this host alone
  std::uint64_t queries = 0;          // compared
  std::uint64_t newly_refused = 0;    // of them, served though the candidate would have refused
  std::uint64_t newly_served = 0;     // and the other way round
};

// What pages of workers are counted by.
struct PageCounts : SocketCounts {
  std::uint64_t failed = 0;      // could not be made
  std::uint64_t notes = 0;       // refusals that workers told of
  std::uint64_t strange = 0;     // messages that were no tag that a page can have
  std::uint64_t entries = 0;     // now
  std::uint64_t served = 0;      // by workers, with tokens that they were lent
  std::uint64_t refused = 0;     // by workers, on the word of their pages
  std::uint64_t clamped = 0;     // said to be refused, and more than a worker can refuse
};

// What measuring for load shedding counts.
struct ShedCounts {
  std::uint64_t samples = 0;
  std::uint64_t failures = 0;    // measurements that failed
  std::uint64_t expired = 0;     // values that became too old
  double signal = 0;             // as a part of the upper bound; 0 if there is no value
  bool blind = false;            // some rule sheds, and there is no value
};

// What load shedding goes by, now.
struct ShedStatus {
  ShedSignal signal{};
  std::string source;                    // a file or directory; empty: none
  std::optional<double> value;           // none: nothing is shed
  double maximum = 0;                    // 0: none
  std::optional<ShedCurve> curve;    // if there is a value
  Duration age{};                        // of the value
  std::string note;                      // why there is no value, or what is special about it; may be empty
};

// What the lease server and its sockets count.
struct LeaseCounts : SocketCounts {
  std::uint64_t lines = 0;         // answered
  bool master = false;
  std::uint64_t terms = 0;               // times that this host became master
  std::uint64_t grpc_connections = 0;    // of connections
  std::uint64_t grpc_calls = 0;
  std::uint64_t grpc_refused = 0;    // lease.grpc_max_calls
  std::uint64_t grpc_invalid = 0;
  std::uint64_t grpc_restarts = 0;    // of dthrottle-grpc
  std::uint64_t tls_connections = 0;    // of connections
  std::uint64_t tls_handshakes = 0;     // of connections that were made, those whose client is known
  std::uint64_t tls_restarts = 0;       // of dthrottle-tls
  std::uint64_t parent_asks = 0, parent_failures = 0;
  lease::ServerCounts server;
};

// The lease server, now.
struct LeaseStatus {
  std::string elector;    // empty: this host leases nothing
  BootInstant now{};
  std::string master;    // an address; empty: nobody knows
  bool here = false;     // this host may grant
  std::uint64_t token = 0;
  std::optional<Duration> valid;    // mastership, without further news; none: for good, or not master
  std::string trouble;              // of the election, or of etcd's resources; may be empty
  std::string_view resources_from = "settings";    // or "etcd", or "safe": etcd is silent
  std::string node;                 // of the tree
  std::uint32_t level = 0;
  std::string parent;    // who is asked; empty: this is a root
  std::string parent_trouble;
  std::optional<Duration> parent_heard;    // ago
  std::vector<lease::ResourceStatus> resources;
  std::vector<lease::HolderStatus> holders;    // of the resource that was asked for
};

// What passes between this host and other sites.
struct SitesCounts {
  std::size_t others = 0, heard = 0, partly = 0;    // sites, now
  SiteCounts sharing;
  std::uint64_t missed = 0, repaired = 0, lost = 0, lost_hits = 0;    // as ExchangeCounts
  std::uint64_t sent_bytes = 0, received_bytes = 0;
};

// What only the skin of the daemon can count.
struct ProcessCounts : SocketCounts {
  Duration uptime{};
  std::uint64_t accept_failures = 0;    // EMFILE and the like
  std::uint64_t crowded = 0;            // more from one source than process.source_share allows
  std::uint64_t spoke_http = 0;         // connections for lines that began with an HTTP request
  std::uint64_t strangers = 0;          // connections to the ports between hosts for which there was no place
  std::uint64_t idle_closed = 0;
  std::uint64_t stalled = 0;      // reads suspended because answers were not read
  std::uint64_t over_long = 0;    // tags longer than max_tag_bytes
  std::uint64_t reloads = 0;
  std::uint64_t reload_failures = 0;
  std::uint64_t log_suppressed = 0;
  bool last_reload_good = true;
  Duration settings_age{};    // since they were put in force
  Duration started{};         // since 1970
  Duration cpu{};
  std::uint64_t resident_bytes = 0;
  HistogramTotals answered_in;    // as in QueryCounters
  HistogramTotals loop_lag;
  PeerCounts peers;
  HttpCounts http;
  RespCounts resp;
  AskCounts ask;
  HoldCounts holds;
  SpopCounts spop;
  PageCounts page;
  SetLimitCounts set_limits;
  SitesCounts sites;
  CandidateCounts candidate;
  EnvoyCounts envoy;
  ShedCounts shed;
  LeaseCounts lease;
};

struct Snapshot {
  ProcessCounts process;
  TableCounts table;
  std::uint64_t table_bytes = 0;
  std::uint64_t table_cells = 0;
  RuleTotals all;    // over all rules
  std::uint64_t unmatched = 0;
  DebitTotals debits;    // over all rules
  MergeCounts merged;
  WatchCounts watched;
  InFlightCounts places;
  AmongCounts among;
  std::uint64_t own_limits = 0, own_limits_crowded = 0;
  PenaltyCounts penalties;
  QuotaCounts quotas;
  Deviation deviated;    // over all rules
  std::uint64_t accuracy_tags = 0, accuracy_crowded = 0, accuracy_alerts = 0;
  std::uint64_t rules = 0;
  std::uint64_t overrides = 0;
  bool reshaping = false;
  double shed_probability = 0;    // of the rules that are shed first
};

Snapshot TakeSnapshot(Limiter& limiter, const ProcessCounts& process);

}    // namespace dthrottle
