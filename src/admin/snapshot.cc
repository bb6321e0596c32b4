#include "admin/snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace dthrottle {

namespace {

template <class T>
double D(T value) {
  return static_cast<double>(value);
}

constexpr Count kCounts[] = {
    {"uptime", "seconds", "Since the daemon started.", [](const Snapshot& s) { return Seconds(s.process.uptime); },
     CountKind::kGauge},
    {"cpu", "seconds", "CPU time of the process, all threads.",
     [](const Snapshot& s) { return Seconds(s.process.cpu); }, CountKind::kCounter, "process_cpu_seconds_total"},
    {"resident_memory", "bytes", "Memory that the process holds now, with as much of the table as has been touched.",
     [](const Snapshot& s) { return D(s.process.resident_bytes); }, CountKind::kGauge, "process_resident_memory_bytes"},
    {"start_time", "seconds since 1970", "When the daemon started.",
     [](const Snapshot& s) { return std::floor(Seconds(s.process.started)); }, CountKind::kGauge,
     "process_start_time_seconds"},
    {"queries", "", "Queries answered.",
     [](const Snapshot& s) { return D(s.all.served + s.all.throttled + s.all.shed + s.all.shadowed + s.unmatched); },
     CountKind::kSum, "dthrottled_queries_total"},
    {"served", "", "Answered OK within a limit: hits.", [](const Snapshot& s) { return D(s.all.served); },
     CountKind::kSum, "dthrottled_queries_total{verdict=\"served\"}"},
    {"throttled", "", "Answered NO by a limit.", [](const Snapshot& s) { return D(s.all.throttled); }, CountKind::kSum,
     "dthrottled_queries_total{verdict=\"throttled\"}"},
    {"shed", "", "Answered NO because the host runs hot, at no cost for the tag.",
     [](const Snapshot& s) { return D(s.all.shed); }, CountKind::kSum, "dthrottled_queries_total{verdict=\"shed\"}"},
    {"shadowed", "", "Answered OK by a rule in shadow mode; enforced, it would have said NO.",
     [](const Snapshot& s) { return D(s.all.shadowed); }, CountKind::kSum,
     "dthrottled_queries_total{verdict=\"shadowed\"}"},
    {"near_limit", "", "Of the served, left less than a fifth of the burst.",
     [](const Snapshot& s) { return D(s.all.near_limit); }, CountKind::kSum, "dthrottled_near_limit_total"},
    {"unmatched", "", "Answered OK because no rule fits the tag.", [](const Snapshot& s) { return D(s.unmatched); },
     CountKind::kSum, "dthrottled_queries_total{verdict=\"unmatched\"}"},
    {"over_long_tags", "", "Queries whose tag was longer than query.max_tag_bytes and went by its digest.",
     [](const Snapshot& s) { return D(s.process.over_long); }},
    {"rules", "", "Rules in force.", [](const Snapshot& s) { return D(s.rules); }, CountKind::kGauge},
    {"overrides", "", "Overrides in force.", [](const Snapshot& s) { return D(s.overrides); }, CountKind::kGauge},
    {"table_memory", "bytes", "The size of the table, all of it taken at start.",
     [](const Snapshot& s) { return D(s.table_bytes); }, CountKind::kGauge},
    {"table_tags", "", "Tags whose bucket is recorded.", [](const Snapshot& s) { return D(s.table.tags); },
     CountKind::kGauge},
    {"table_fill", "ratio", "Used cells of the table; it may stay near 1, where full buckets make room for new ones.",
     [](const Snapshot& s) { return D(s.table.cells_used) / D(s.table_cells); }, CountKind::kGauge},
    {"table_reclaimed", "", "Full buckets forgotten to make room, which changes no answer.",
     [](const Snapshot& s) { return D(s.table.reclaimed); }},
    {"table_evicted", "",
     "Buckets forgotten before they were full, which forgave what had been spent: raise table.memory.",
     [](const Snapshot& s) { return D(s.table.evicted); }, CountKind::kSum, "dthrottled_table_evicted_total"},
    {"table_evicted_refusing", "",
     "Of them, had refused queries: somebody asks many tags many times each to wash them out.",
     [](const Snapshot& s) { return D(s.table.evicted_refusing); }, CountKind::kSum,
     "dthrottled_table_evicted_refusing_total"},
    {"table_moved", "", "Buckets moved within the table to make room.",
     [](const Snapshot& s) { return D(s.table.moved); }},
    {"table_dropped", "", "Entries of the file that were torn or impossible when the daemon started.",
     [](const Snapshot& s) { return D(s.table_dropped); }},
    {"table_reshaping", "",
     "1 while buckets are being rewritten for other rules, or a large table is looked through after the start.",
     [](const Snapshot& s) { return D(s.reshaping); }, CountKind::kGauge},
    {"connections", "", "Applications connected now.", [](const Snapshot& s) { return D(s.process.connections); },
     CountKind::kGauge},
    {"connections_accepted", "", "Applications that have connected.",
     [](const Snapshot& s) { return D(s.process.accepted); }},
    {"connections_rejected", "", "Closed at once because query.max_connections were open.",
     [](const Snapshot& s) { return D(s.process.rejected_full); }},
    {"accept_failures", "", "Connections that the system could not give us, mostly for want of file descriptors.",
     [](const Snapshot& s) { return D(s.process.accept_failures); }},
    {"connections_crowded", "",
     "Closed at once because one address, or one local user, had its part of a socket's places.",
     [](const Snapshot& s) { return D(s.process.crowded); }},
    {"connections_http", "", "Closed because they sent an HTTP request to a socket for lines.",
     [](const Snapshot& s) { return D(s.process.spoke_http); }},
    {"connections_strangers", "", "Connections to peers.bind closed at once for want of places.",
     [](const Snapshot& s) { return D(s.process.strangers); }},
    {"connections_idle_closed", "", "Closed after query.idle_timeout.",
     [](const Snapshot& s) { return D(s.process.idle_closed); }},
    {"connections_stalled", "", "Times that an application was not read from because it did not read its answers.",
     [](const Snapshot& s) { return D(s.process.stalled); }},
    {"http_connections", "", "HTTP connections open now.",
     [](const Snapshot& s) { return D(s.process.http.connections); }, CountKind::kGauge},
    {"http_connections_accepted", "", "HTTP connections that have been opened.",
     [](const Snapshot& s) { return D(s.process.http.accepted); }},
    {"http_connections_rejected", "", "Closed at once because admin.http_connections were open.",
     [](const Snapshot& s) { return D(s.process.http.rejected_full); }},
    {"http_connections_timed_out", "", "Closed because no request was finished within admin.http_timeout.",
     [](const Snapshot& s) { return D(s.process.http.timed_out); }},
    {"http_requests", "", "HTTP requests answered.", [](const Snapshot& s) { return D(s.process.http.requests); }},
    {"http_misdirected", "", "Of them, turned down for naming another host or coming from another site.",
     [](const Snapshot& s) { return D(s.process.http.misdirected); }},
    {"peers", "", "Other hosts that limits are shared with, as far as their addresses are known.",
     [](const Snapshot& s) { return D(s.process.peers.configured); }, CountKind::kGauge},
    {"peers_up", "", "Of them, heard within three of their periods.",
     [](const Snapshot& s) { return D(s.process.peers.up); }, CountKind::kGauge},
    {"reports_sent", "", "Frames of reports published.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.published); }},
    {"reports_sent_bytes", "bytes", "The size of these frames.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.published_bytes); }},
    {"reports_sent_entries", "", "Tags with hits in these frames.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.published_entries); }},
    {"reports_urgent", "", "Of these frames, sent before the period was over.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.urgent_frames); }},
    {"reports_urgent_entries", "", "Tags in them.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.urgent_entries); }},
    {"watched_tags", "", "Tags now whose hits are reported early, or foretold.",
     [](const Snapshot& s) { return D(s.watched.tags); }, CountKind::kGauge},
    {"watches_crowded", "", "Times that a tag could not be watched for want of room: raise peers.watched_tags.",
     [](const Snapshot& s) { return D(s.watched.crowded); }},
    {"unheard_held", "", "Queries refused because peers had not heard of a rule's max_unheard; of \"throttled\".",
     [](const Snapshot& s) { return D(s.watched.held); }},
    {"reports_heard", "", "Frames of reports taken from other hosts.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.received); }},
    {"reports_heard_bytes", "bytes", "The size of these frames.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.received_bytes); }},
    {"reports_heard_entries", "", "Tags with hits in these frames.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.received_entries); }},
    {"reports_missed", "", "Frames that did not come when it was their turn.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.missed); }},
    {"reports_repaired", "", "Of them, came after all.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.repaired); }},
    {"reports_lost", "", "Of them, are gone for good: raise peers.history.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.lost); }},
    {"reports_duplicate", "", "Frames dropped because they had come before.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.duplicates); }},
    {"reports_repeated", "", "Frames sent again because a host had missed them.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.repeated); }},
    {"reports_overflow", "", "Frames dropped because merging was too far behind; they are asked for again.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.overflow); }},
    {"history_bytes", "bytes", "Frames kept to be sent again; at most peers.history.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.ring_bytes); }, CountKind::kGauge},
    {"snapshots_given", "", "Copies of the table given to hosts that came up.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.snapshots_given); }},
    {"snapshots_taken", "", "Copies of another host's table taken.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.snapshots_taken); }},
    {"merged_entries", "", "Tags of other hosts' reports and snapshots that were looked up.",
     [](const Snapshot& s) { return D(s.merged.entries); }},
    {"merged_unmatched", "", "Of them, under no rule of this host, or under one that it does not share.",
     [](const Snapshot& s) { return D(s.merged.unmatched); }},
    {"merged_unrecorded", "",
     "Of them, not recorded: what peers say takes no room from tags of this host. Raise table.memory.",
     [](const Snapshot& s) { return D(s.merged.unrecorded); }},
    {"merged_expired", "", "Hits of other hosts dropped because they were older than the horizon.",
     [](const Snapshot& s) { return D(s.merged.expired); }},
    {"demands_disbelieved", "",
     "Announcements of other hosts that count for less demand than they say, because hits do not bear it out.",
     [](const Snapshot& s) { return D(s.merged.disbelieved); }},
    {"debited", "", "Hits of other hosts charged to buckets of this one.",
     [](const Snapshot& s) { return D(s.debits.hits); }, CountKind::kSum, "dthrottled_debited_total"},
    {"overadmitted", "tokens",
     "Debt that such hits made: what was served beyond limits because hosts did not know of each other yet. Each host "
     "counts all that it hears of.",
     [](const Snapshot& s) { return s.debits.overadmitted; }, CountKind::kSum, "dthrottled_overadmitted_tokens_total"},
    {"accuracy_over", "tokens",
     "Served by all hosts beyond what one bucket would have served, as far as reports have revealed it.",
     [](const Snapshot& s) { return s.deviated.over; }, CountKind::kSum, "dthrottled_accuracy_over_tokens_total"},
    {"accuracy_under", "tokens",
     "Refused by all hosts though one bucket would have served it, if others refuse as much as this one.",
     [](const Snapshot& s) { return s.deviated.under; }, CountKind::kSum, "dthrottled_accuracy_under_tokens_total"},
    {"accuracy_tags", "", "Tags now for which this is looked at.", [](const Snapshot& s) { return D(s.accuracy_tags); },
     CountKind::kGauge},
    {"accuracy_crowded", "",
     "Times that there was no room for a tag; then all debt that peers' hits made counts as over-admitted.",
     [](const Snapshot& s) { return D(s.accuracy_crowded); }},
    {"accuracy_alerts", "", "Times that more was over-admitted under a rule than its tolerance.",
     [](const Snapshot& s) { return D(s.accuracy_alerts); }},
    {"unreported_forgotten", "",
     "Hits forgotten with their bucket before a report could carry them: raise table.memory.",
     [](const Snapshot& s) { return D(s.table.unreported); }},
    {"peer_junk", "", "Frames that could not be read, or made no sense.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.junk + s.process.peers.malformed); }},
    {"peer_other_version", "", "Frames of another major version of the protocol.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.other_version); }},
    {"peer_strangers", "", "Requests of hosts that are not configured, or under a name that is not theirs.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.strangers); }},
    {"peer_forged", "", "Frames of a peer in another's name, dropped.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.forged); }},
    {"peer_implausible", "",
     "Times that a peer said what cannot be: a life that its welcome did not state, an instant far off its clock, a "
     "position of another that it had not published.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.implausible); }},
    {"peer_subscribers", "", "Connections that reports go to, now.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.subscribers); }, CountKind::kGauge},
    {"reports_cut", "", "Entries that did not count because one peer had more than 200,000 a second.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.cut); }},
    {"peer_excess", "", "Requests of other hosts turned down because they came too fast.",
     [](const Snapshot& s) { return D(s.process.peers.exchange.excess); }},
    {"peer_keys_denied", "", "Connections refused because their key is not authorized.",
     [](const Snapshot& s) { return D(s.process.peers.keys_denied); }},
    {"peer_lookups_failed", "", "Lookups of peers' names that failed; the last good answer holds.",
     [](const Snapshot& s) { return D(s.process.peers.lookups_failed); }},
    {"capacity_tags", "", "Tags that take part in dividing limits with share = \"capacity\".",
     [](const Snapshot& s) { return D(s.process.peers.capacity_tags); }, CountKind::kGauge},
    {"capacity_tags_refused", "", "Times that a tag could not take part: raise capacity.tags_max.",
     [](const Snapshot& s) { return D(s.process.peers.capacity_crowded + s.process.peers.capacity.tags_refused); }},
    {"capacity_rounds", "", "Rounds of giving parts of limits to neighbours.",
     [](const Snapshot& s) { return D(s.process.peers.capacity.rounds); }},
    {"capacity_gifts", "", "Parts of limits given to neighbours.",
     [](const Snapshot& s) { return D(s.process.peers.capacity.gifts); }},
    {"capacity_sent", "", "Frames sent about them.",
     [](const Snapshot& s) { return D(s.process.peers.capacity.sent); }},
    {"capacity_sent_bytes", "bytes", "The size of these frames.",
     [](const Snapshot& s) { return D(s.process.peers.capacity.sent_bytes); }},
    {"capacity_heard", "", "Frames heard about them.",
     [](const Snapshot& s) { return D(s.process.peers.capacity.received); }},
    {"capacity_heard_bytes", "bytes", "The size of these frames.",
     [](const Snapshot& s) { return D(s.process.peers.capacity.received_bytes); }},
    {"capacity_junk", "", "Of them, could not be read, made no sense, or came from hosts that are not members.",
     [](const Snapshot& s) {
       const CapacityCounts& c = s.process.peers.capacity;
       return D(c.junk + c.other_version + c.strangers);
     }},
    {"capacity_other_settings", "", "Of them, from hosts with other members, rules or reserve.",
     [](const Snapshot& s) { return D(s.process.peers.capacity.other_settings); }},
    {"capacity_leased", "", "1 while enough others hear this host that it may use its parts, 0 at its reserve.",
     [](const Snapshot& s) { return D(s.process.peers.capacity.leased); }, CountKind::kGauge},
    {"capacity_lapses", "", "Times that it went down to its reserve because they did not.",
     [](const Snapshot& s) { return D(s.process.peers.capacity.lapses); }},
    {"capacity_fenced", "", "Times that others took this host for dead, and it began anew.",
     [](const Snapshot& s) { return D(s.process.peers.capacity.fenced); }},
    {"capacity_inherited", "", "Hosts that died and left their parts to this one.",
     [](const Snapshot& s) { return D(s.process.peers.capacity.inherited); }},
    {"capacity_resets", "", "Times that all hosts began anew with equal shares.",
     [](const Snapshot& s) { return D(s.process.peers.capacity.resets); }},
    {"capacity_generation", "", "The number of the beginning that holds now; 0 before the first.",
     [](const Snapshot& s) { return D(s.process.peers.capacity.generation); }, CountKind::kGauge},
    {"capacity_unsaved", "", "Times that capacity.state_file could not be written.",
     [](const Snapshot& s) { return D(s.process.peers.capacity_unsaved); }},
    {"resp_connections", "", "Clients of Redis connected now.",
     [](const Snapshot& s) { return D(s.process.resp.connections); }, CountKind::kGauge},
    {"resp_connections_accepted", "", "Clients of Redis that have connected.",
     [](const Snapshot& s) { return D(s.process.resp.accepted); }},
    {"resp_connections_rejected", "", "Closed at once because resp.max_connections were open.",
     [](const Snapshot& s) { return D(s.process.resp.rejected_full); }},
    {"resp_commands", "", "Commands of clients of Redis.",
     [](const Snapshot& s) { return D(s.process.resp.commands); }},
    {"resp_limited", "", "CL.THROTTLE refused; where rules decide, these are among throttled too.",
     [](const Snapshot& s) { return D(s.process.resp.limited); }},
    {"resp_protocol_errors", "",
     "Clients of Redis closed because what they sent was no command, or asked for too much.",
     [](const Snapshot& s) { return D(s.process.resp.protocol_errors); }},
    {"resp_tags", "", "Tags whose bucket is recorded under a limit that a client brought.",
     [](const Snapshot& s) { return D(s.process.resp.brought.tags); }, CountKind::kGauge},
    {"resp_evicted", "", "Such buckets forgotten before they were full: raise resp.memory.",
     [](const Snapshot& s) { return D(s.process.resp.brought.evicted); }},
    {"lease_connections", "", "Lease clients connected now.",
     [](const Snapshot& s) { return D(s.process.lease.connections); }, CountKind::kGauge},
    {"lease_connections_accepted", "", "Lease clients that have connected.",
     [](const Snapshot& s) { return D(s.process.lease.accepted); }},
    {"lease_connections_rejected", "", "Closed at once because lease.max_connections were open.",
     [](const Snapshot& s) { return D(s.process.lease.rejected_full); }},
    {"lease_lines", "", "Lines of lease clients answered.", [](const Snapshot& s) { return D(s.process.lease.lines); }},
    {"lease_grpc_connections", "", "Of the lease clients connected, those that speak gRPC.",
     [](const Snapshot& s) { return D(s.process.lease.grpc_connections); }, CountKind::kGauge},
    {"lease_grpc_calls", "", "Calls over gRPC.", [](const Snapshot& s) { return D(s.process.lease.grpc_calls); }},
    {"lease_grpc_refused", "", "Of them, refused because lease.grpc_max_calls waited.",
     [](const Snapshot& s) { return D(s.process.lease.grpc_refused); }},
    {"lease_grpc_invalid", "", "Of them, refused for what they asked, or because of lease.grpc_max_resources.",
     [](const Snapshot& s) { return D(s.process.lease.grpc_invalid); }},
    {"lease_parent_asks", "", "Times that the parent was asked for capacity.",
     [](const Snapshot& s) { return D(s.process.lease.parent_asks); }},
    {"lease_parent_failures", "", "Of them, without an answer that grants.",
     [](const Snapshot& s) { return D(s.process.lease.parent_failures); }},
    {"lease_master", "", "1 while this host grants leases.",
     [](const Snapshot& s) { return D(s.process.lease.master); }, CountKind::kGauge},
    {"lease_terms", "", "Times that this host became master of leases.",
     [](const Snapshot& s) { return D(s.process.lease.terms); }},
    {"lease_requests", "", "Requests for the capacity of a resource, while this host was master.",
     [](const Snapshot& s) { return D(s.process.lease.server.requests); }},
    {"lease_too_soon", "", "Of them, repeated too soon: the lease stayed what it was.",
     [](const Snapshot& s) { return D(s.process.lease.server.too_soon); }},
    {"lease_no_resource", "", "Of them, for a resource that no [[resource]] is for.",
     [](const Snapshot& s) { return D(s.process.lease.server.no_template); }},
    {"lease_full", "", "Of them, refused because of lease.max_clients.",
     [](const Snapshot& s) { return D(s.process.lease.server.full); }},
    {"lease_elsewhere", "", "Requests that were told where the master is.",
     [](const Snapshot& s) { return D(s.process.lease.server.not_master); }},
    {"lease_expired", "", "Leases that nobody refreshed.",
     [](const Snapshot& s) { return D(s.process.lease.server.expired); }},
    {"lease_released", "", "Leases given back.", [](const Snapshot& s) { return D(s.process.lease.server.released); }},
    {"lease_capped_claims", "",
     "Claims of a former lease that counted for no more than the safe capacity, because the last master did not grant "
     "it.",
     [](const Snapshot& s) { return D(s.process.lease.server.capped_claims); }},
    {"lease_shortfalls", "", "Times that more came to be leased out than there is.",
     [](const Snapshot& s) { return D(s.process.lease.server.shortfalls); }},
    {"shed_signal", "ratio", "What shed.signal measures, as a part of shed.high; 0 while it is not known.",
     [](const Snapshot& s) { return s.process.shed.signal; }, CountKind::kGauge},
    {"shed_probability", "ratio", "With which probability the rules of the lowest priority are refused now.",
     [](const Snapshot& s) { return s.shed_probability; }, CountKind::kGauge},
    {"shed_samples", "", "Values measured or reported.", [](const Snapshot& s) { return D(s.process.shed.samples); }},
    {"shed_failures", "", "Measurements that failed, so that nothing was shed.",
     [](const Snapshot& s) { return D(s.process.shed.failures); }},
    {"shed_expired", "", "Times that the last value became older than shed.expiry, so that nothing was shed.",
     [](const Snapshot& s) { return D(s.process.shed.expired); }},
    {"reloads", "", "Settings put in force by a reload.", [](const Snapshot& s) { return D(s.process.reloads); }},
    {"reload_failures", "", "Reloads refused because the settings were bad.",
     [](const Snapshot& s) { return D(s.process.reload_failures); }},
    {"last_reload_good", "", "0 while the last reload is one that was refused, otherwise 1.",
     [](const Snapshot& s) { return D(s.process.last_reload_good); }, CountKind::kGauge,
     "dthrottled_config_last_reload_success"},
    {"config_age", "seconds", "For how long these settings have been in force.",
     [](const Snapshot& s) { return Seconds(s.process.settings_age); }, CountKind::kGauge},
    {"log_suppressed", "", "Log messages held back because they came too fast.",
     [](const Snapshot& s) { return D(s.process.log_suppressed); }},
};

}    // namespace

Snapshot TakeSnapshot(Limiter& limiter, const ProcessCounts& process) {
  Snapshot s;
  s.process = process;
  s.table = limiter.table().counts();
  s.table_bytes = limiter.table().region_bytes();
  s.table_cells = limiter.table().cells();
  s.table_dropped = limiter.dropped();
  s.rules = limiter.rules().rules().size();
  s.overrides = limiter.rules().overrides().size();
  s.reshaping = limiter.reshaping();
  s.all = limiter.GrandTotals();
  s.debits = limiter.GrandDebits();
  s.merged = limiter.merge_counts();
  s.watched = limiter.watch_counts();
  const Certificate& certificate = limiter.certificate();
  s.deviated = certificate.ever();
  s.accuracy_tags = certificate.tags();
  s.accuracy_crowded = certificate.crowded();
  s.accuracy_alerts = certificate.alerts();
  for (std::size_t p = 0; p < kShedPriorities; ++p) {
    s.shed_probability = std::max(s.shed_probability, limiter.rejection_probability(p));
  }
  s.unmatched = limiter.Totals(Lane::kUnmatched).served;
  return s;
}

std::span<const Count> Counts() {
  return kCounts;
}

std::string MetricName(const Count& count) {
  if (!count.metric.empty()) return std::string(count.metric);
  std::string name = fmt::format("dthrottled_{}", count.name);
  if (!count.unit.empty() && !name.ends_with(count.unit)) name += fmt::format("_{}", count.unit);
  return count.kind == CountKind::kCounter ? name + "_total" : name;
}

bool IsWhole(const Count& count) {
  return count.unit.empty() || count.unit == "bytes" || count.unit == "seconds since 1970";
}

std::string SentencesByLine(std::string_view text) {
  std::string out(text);
  for (std::size_t i = out.find(". "); i != std::string::npos; i = out.find(". ", i)) out[i + 1] = '\n';
  return out;
}

std::string RenderCountsManual() {
  constexpr std::string_view kKinds[] = {"Counter", "Gauge", "Sum of"};
  std::string out = ".Bl -tag -width Ds\n";
  for (const Count& count : kCounts) {
    out += fmt::format(".It Ic {}\n{}\n", count.name, SentencesByLine(count.meaning));
    if (!count.unit.empty()) out += fmt::format("Unit: {}.\n", count.unit);
    out += fmt::format("{}\n.Li {} .\n", kKinds[static_cast<int>(count.kind)], MetricName(count));
  }
  return out + ".El\n";
}

}    // namespace dthrottle
