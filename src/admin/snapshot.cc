#include "admin/snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "limiter/inspect.h"
#include "limiter/shedder.h"
#include "rule/rulebook.h"
#include "share/ways.h"
#include "tally/tally.h"

namespace dthrottle {

namespace {

double AsNumber(Duration d) {
  return Seconds(d);
}
double AsNumber(auto number) {
  return static_cast<double>(number);
}

// The count at `path` in a snapshot.
#define AT(path) [](const Snapshot& s) -> double { return AsNumber(s.path); }

using enum CountKind;

constexpr Count kCounts[] = {
    {"uptime", "seconds", "Since the daemon started.", AT(process.uptime), kGauge},
    {"cpu", "seconds", "CPU time of the process, all threads.", AT(process.cpu), kCounter, "process_cpu_seconds_total"},
    {"resident_memory", "bytes", "Memory that the process holds now, with as much of the table as has been touched.",
     AT(process.resident_bytes), kGauge, "process_resident_memory_bytes"},
    {"start_time", "seconds since 1970", "When the daemon started.",
     [](const Snapshot& s) { return std::floor(Seconds(s.process.started)); }, kGauge, "process_start_time_seconds"},
    {"queries", "", "Queries answered.",
     [](const Snapshot& s) {
       return double(s.all.served + s.all.throttled + s.all.shed + s.all.shadowed + s.unmatched);
     },
     kSum, "dthrottled_queries_total"},
    {"served", "", "Answered OK within a limit: hits.", AT(all.served), kSum,
     "dthrottled_queries_total{verdict=\"served\"}"},
    {"throttled", "", "Answered NO by a limit.", AT(all.throttled), kSum,
     "dthrottled_queries_total{verdict=\"throttled\"}"},
    {"shed", "", "Answered NO because the host runs hot, at no cost for the tag.", AT(all.shed), kSum,
     "dthrottled_queries_total{verdict=\"shed\"}"},
    {"shadowed", "", "Answered OK by a rule in shadow mode; enforced, it would have said NO.", AT(all.shadowed), kSum,
     "dthrottled_queries_total{verdict=\"shadowed\"}"},
    {"near_limit", "", "Of the served, left less than a fifth of the burst.", AT(all.near_limit), kSum,
     "dthrottled_near_limit_total"},
    {"penalized", "", "Of the throttled, refused because the tag was penalized.", AT(all.penalized), kSum,
     "dthrottled_penalized_total"},
    {"over_quota", "", "Of the throttled, refused because the tag's quota was spent.", AT(all.over_quota), kSum,
     "dthrottled_over_quota_total"},
    {"unmatched", "", "Answered OK because no rule fits the tag.", AT(unmatched), kSum,
     "dthrottled_queries_total{verdict=\"unmatched\"}"},
    {"over_long_tags", "", "Queries whose tag was longer than query.max_tag_bytes and went by its digest.",
     AT(process.over_long)},
    {"rules", "", "Rules in force.", AT(rules), kGauge},
    {"overrides", "", "Overrides in force.", AT(overrides), kGauge},
    {"table_memory", "bytes", "The size of the table, all of it taken at start.", AT(table_bytes), kGauge},
    {"table_tags", "", "Tags whose bucket is recorded.", AT(table.tags), kGauge},
    {"table_fill", "ratio", "Used cells of the table; it may stay near 1, where full buckets make room for new ones.",
     [](const Snapshot& s) { return double(s.table.cells_used) / double(s.table_cells); }, kGauge},
    {"table_reclaimed", "", "Full buckets forgotten to make room, which changes no answer.", AT(table.reclaimed)},
    {"table_evicted", "",
     "Buckets forgotten before they were full, which forgave what had been spent: raise table.memory.",
     AT(table.evicted), kSum, "dthrottled_table_evicted_total"},
    {"table_evicted_refusing", "",
     "Of them, had refused queries: somebody asks many tags many times each to wash them out.",
     AT(table.evicted_refusing), kSum, "dthrottled_table_evicted_refusing_total"},
    {"table_moved", "", "Buckets moved within the table to make room.", AT(table.moved)},
    {"table_dropped", "", "Entries of the file that were torn or impossible when the daemon started.",
     AT(table.dropped)},
    {"table_reshaping", "",
     "1 while buckets are being rewritten for other rules, or a large table is looked through after the start.",
     AT(reshaping), kGauge},
    {"connections", "", "Applications connected now.", AT(process.connections), kGauge},
    {"connections_accepted", "", "Applications that have connected.", AT(process.accepted)},
    {"connections_rejected", "", "Closed at once because query.max_connections were open.", AT(process.rejected_full)},
    {"accept_failures", "", "Connections that the system could not give us, mostly for want of file descriptors.",
     AT(process.accept_failures)},
    {"connections_crowded", "",
     "Closed at once because one address, or one local user, had its part of a socket's places.", AT(process.crowded)},
    {"connections_http", "", "Closed because they sent an HTTP request to a socket for lines.", AT(process.spoke_http)},
    {"connections_strangers", "", "Connections to peers.bind closed at once for want of places.",
     AT(process.strangers)},
    {"connections_idle_closed", "", "Closed after query.idle_timeout.", AT(process.idle_closed)},
    {"connections_stalled", "", "Times that an application was not read from because it did not read its answers.",
     AT(process.stalled)},
    {"http_connections", "", "HTTP connections open now.", AT(process.http.connections), kGauge},
    {"http_connections_accepted", "", "HTTP connections that have been opened.", AT(process.http.accepted)},
    {"http_connections_rejected", "", "Closed at once because admin.http_connections were open.",
     AT(process.http.rejected_full)},
    {"http_connections_timed_out", "", "Closed because no request was finished within admin.http_timeout.",
     AT(process.http.timed_out)},
    {"http_requests", "", "HTTP requests answered.", AT(process.http.requests)},
    {"http_misdirected", "", "Of them, turned down for naming another host or coming from another site.",
     AT(process.http.misdirected)},
    {"peers", "", "Other hosts that limits are shared with, as far as their addresses are known.",
     AT(process.peers.configured), kGauge},
    {"peers_up", "", "Of them, heard within three of their periods.", AT(process.peers.up), kGauge},
    {"reports_sent", "", "Frames of reports published.", AT(process.peers.exchange.published)},
    {"reports_sent_bytes", "bytes", "The size of these frames.", AT(process.peers.exchange.published_bytes)},
    {"reports_sent_entries", "", "Tags with hits in these frames.", AT(process.peers.exchange.published_entries)},
    {"reports_urgent", "", "Of these frames, sent before the period was over.",
     AT(process.peers.exchange.urgent_frames)},
    {"reports_urgent_entries", "", "Tags in them.", AT(process.peers.exchange.urgent_entries)},
    {"watched_tags", "", "Tags now whose hits are reported early, or foretold.", AT(watched.tags), kGauge},
    {"watches_crowded", "", "Times that a tag could not be watched for want of room: raise peers.watched_tags.",
     AT(watched.crowded)},
    {"unheard_held", "", "Queries refused because peers had not heard of a rule's max_unheard; of \"throttled\".",
     AT(watched.held)},
    {"reports_heard", "", "Frames of reports taken from other hosts.", AT(process.peers.exchange.received)},
    {"reports_heard_bytes", "bytes", "The size of these frames.", AT(process.peers.exchange.received_bytes)},
    {"reports_heard_entries", "", "Tags with hits in these frames.", AT(process.peers.exchange.received_entries)},
    {"reports_missed", "", "Frames that did not come when it was their turn.", AT(process.peers.exchange.missed)},
    {"reports_repaired", "", "Of them, came after all.", AT(process.peers.exchange.repaired)},
    {"reports_lost", "", "Of them, are gone for good: raise peers.history.", AT(process.peers.exchange.lost)},
    {"reports_lost_hits", "",
     "Hits that other hosts took out of their buckets to report and this one never heard of, as they say themselves: "
     "of frames that are lost, or of a life that was killed before it had published them.",
     AT(process.peers.exchange.lost_hits)},
    {"reports_duplicate", "", "Frames dropped because they had come before.", AT(process.peers.exchange.duplicates)},
    {"reports_repeated", "", "Frames sent again because a host had missed them.", AT(process.peers.exchange.repeated)},
    {"reports_overflow", "", "Frames dropped because merging was too far behind; they are asked for again.",
     AT(process.peers.exchange.overflow)},
    {"history_bytes", "bytes", "Frames kept to be sent again; at most peers.history.",
     AT(process.peers.exchange.ring_bytes), kGauge},
    {"snapshots_given", "", "Copies of the table given to hosts that came up.",
     AT(process.peers.exchange.snapshots_given)},
    {"snapshots_taken", "", "Copies of another host's table taken.", AT(process.peers.exchange.snapshots_taken)},
    {"owners", "", "Hosts that own tags, by the list in force; 0 in a mesh.", AT(process.peers.exchange.owners),
     kGauge},
    {"owners_list", "", "The number of that list, one more with each change.",
     AT(process.peers.exchange.owners_number), kGauge},
    {"owners_differ", "", "1 while peers.owners of this host names others than the list in force.",
     AT(process.peers.exchange.owners_differ), kGauge},
    {"owners_registered", "", "1 while etcd has this host among those that are to own tags.",
     AT(process.peers.owner_registered), kGauge},
    {"owners_etcd_failures", "", "Answers of etcd about the list of owners that did not come or were no good.",
     AT(process.peers.owners_etcd_failures)},
    {"owners_changes", "", "Lists that have come into force since the start.",
     AT(process.peers.exchange.owners_changes)},
    {"owners_conflicts", "", "Lists that took the place of another with the same number: two owners proposed at once.",
     AT(process.peers.exchange.owners_conflicts)},
    {"owners_awaited", "", "Owners by the list before that have yet to hand tags over to this host.",
     AT(process.peers.exchange.owners_awaited), kGauge},
    {"owners_giving", "", "Owners that this host has yet to hand tags over to.",
     AT(process.peers.exchange.owners_giving), kGauge},
    {"owners_closing", "", "Owners that have yet to say what they counted of this host by the list before.",
     AT(process.peers.exchange.owners_closing), kGauge},
    {"owners_missed", "",
     "Owners by the list before that did not hand their tags over: the lowest level that any host knew counts instead.",
     AT(process.peers.exchange.owners_missed)},
    {"owners_dropped", "",
     "Frames of reports given up, because the owner that may have counted them is gone, or its table: on an owner "
     "those that hosts kept for it.",
     AT(process.peers.exchange.owners_dropped)},
    {"owners_lost_hits", "",
     "Hits that this host had taken out of its buckets to tell owners when it was killed, and that no owner had said to "
     "have counted: some of them may have been.",
     AT(process.peers.exchange.owners_lost_hits)},
    {"reports_other_owners", "", "Frames not counted because they were cut by another list; their hosts cut them anew.",
     AT(process.peers.exchange.other_owners)},
    {"owners_callers", "", "Hosts that call this owner of tags.", AT(process.peers.exchange.callers), kGauge},
    {"owners_tags", "", "Tags that this host owns and that hosts have used in the last 10 s.",
     AT(process.peers.owning.tags), kGauge},
    {"owners_told", "", "Levels that this owner has told to one host each.", AT(process.peers.owning.told)},
    {"owners_pushed", "", "Times that all users of a tag were told, because they foretold it wrongly.",
     AT(process.peers.owning.pushes)},
    {"owners_near", "", "Levels told to every host, because the tag was near its limit.",
     AT(process.peers.owning.near.told)},
    {"owners_near_cut", "", "Of these, not told because there were too many.", AT(process.peers.owning.near.cut)},
    {"owners_crowded", "", "Tags in reports that this owner had no room for: their hosts do not hear of each other.",
     AT(process.peers.owning.crowded)},
    {"levels_sent", "", "Frames of levels sent to hosts, by this owner.", AT(process.peers.exchange.levels_sent)},
    {"levels_sent_bytes", "bytes", "The size of these frames.", AT(process.peers.exchange.levels_bytes)},
    {"levels_heard", "", "Frames of levels that owners sent to this host.", AT(process.peers.exchange.levels_heard)},
    {"merged_entries", "", "Tags of other hosts' reports and snapshots that were looked up.", AT(merged.entries)},
    {"merged_unmatched", "", "Of them, under no rule of this host, or under one that it does not share.",
     AT(merged.unmatched)},
    {"merged_unrecorded", "",
     "Of them, not recorded: what peers say takes no room from tags of this host, nor from a peer that has no more. "
     "Raise table.memory.",
     AT(merged.unrecorded)},
    {"merged_forgotten", "",
     "Tags that only peers spoke of, forgotten for others that peers spoke of, so that each has its part of the room. "
     "Raise table.memory.",
     AT(table.hearsay_forgotten)},
    {"new_tags_cut", "", "Of them, dropped because a peer named more new tags than peers.max_new_tags.",
     AT(merged.new_tags_cut)},
    {"penalties_cut", "",
     "Penalties of other hosts that were dropped, and refusals that count for half of one, because one told of more than a "
     "thousandth of peers.max_new_tags.",
     AT(merged.penalties_cut)},
    {"merged_expired", "", "Hits of other hosts dropped because they were older than the horizon.", AT(merged.expired)},
    {"demands_disbelieved", "",
     "Announcements of other hosts that count for less demand than they say, because hits do not bear it out.",
     AT(merged.disbelieved)},
    {"hits_disbelieved", "",
     "Hits of other hosts that were not charged because no host can have served so many of a tag under the limit that "
     "this one has.",
     AT(merged.hits_disbelieved)},
    {"debts_disbelieved", "",
     "Buckets in copies of another host's table that are further in debt than one host can make them; the rest of the "
     "debt was not taken over.",
     AT(merged.debts_disbelieved)},
    {"debited", "", "Hits of other hosts charged to buckets of this one.", AT(debits.hits), kSum,
     "dthrottled_debited_total"},
    {"overadmitted", "tokens",
     "Debt that such hits made: what was served beyond limits because hosts did not know of each other yet. Each host "
     "counts all that it hears of.",
     AT(debits.overadmitted), kSum, "dthrottled_overadmitted_tokens_total"},
    {"accuracy_over", "tokens",
     "Served by all hosts beyond what one bucket would have served, as far as reports have revealed it.",
     AT(deviated.over), kSum, "dthrottled_accuracy_over_tokens_total"},
    {"accuracy_under", "tokens",
     "Refused by all hosts though one bucket would have served it, if others refuse as much as this one.",
     AT(deviated.under), kSum, "dthrottled_accuracy_under_tokens_total"},
    {"accuracy_tags", "", "Tags now for which this is looked at.", AT(accuracy_tags), kGauge},
    {"accuracy_crowded", "",
     "Times that there was no room for a tag; then all debt that peers' hits made counts as over-admitted.",
     AT(accuracy_crowded)},
    {"accuracy_alerts", "", "Times that more was over-admitted under a rule than its tolerance.", AT(accuracy_alerts)},
    {"tokens_returned", "", "Tokens that came back from holds of peers.", AT(merged.returned)},
    {"returns_disbelieved", "",
     "Tokens that peers give back and that they were not charged for here, or too long ago to know.",
     AT(merged.returns_disbelieved)},
    {"unreported_forgotten", "",
     "Hits forgotten with their bucket before a report could carry them: raise table.memory.", AT(table.unreported)},
    {"peer_junk", "", "Frames that could not be read, or made no sense.",
     [](const Snapshot& s) { return double(s.process.peers.exchange.junk + s.process.peers.thread.malformed); }},
    {"peer_endless", "", "Connections of other hosts cut because they brought much without ever completing a message.",
     AT(process.peers.thread.endless)},
    {"peer_unsent", "", "Frames that were dropped because nobody took them.", AT(process.peers.thread.unsent)},
    {"nats_connects", "", "Times that a server of NATS was connected to.", AT(process.peers.thread.nats_connects)},
    {"nats_errors", "",
     "Errors of the connection to NATS: permissions, slow consumers, attempts that failed. The latest is among the peers.",
     AT(process.peers.thread.nats_errors)},
    {"nats_dropped", "", "Frames that came by NATS and found no room here; they are asked for again.",
     AT(process.peers.thread.nats_dropped)},
    {"peer_other_version", "", "Frames of another major version of the protocol.",
     AT(process.peers.exchange.other_version)},
    {"peer_strangers", "", "Requests of hosts that are not configured, or under a name that is not theirs.",
     AT(process.peers.exchange.strangers)},
    {"peer_forged", "", "Frames of a peer in another's name, dropped.", AT(process.peers.exchange.forged)},
    {"peer_implausible", "",
     "Times that a peer said what cannot be: a life that its welcome did not state, an instant far off its clock, a "
     "position of another that it had not published.",
     AT(process.peers.exchange.implausible)},
    {"peer_subscribers", "", "Connections that reports go to, now.", AT(process.peers.exchange.subscribers), kGauge},
    {"reports_cut", "",
     "Frames not taken because a peer was above peers.max_frames, max_entries or max_hits; they are asked for again.",
     AT(process.peers.exchange.cut)},
    {"peer_excess", "", "Requests of other hosts turned down because they came too fast.",
     AT(process.peers.exchange.excess)},
    {"peer_keys_denied", "", "Connections refused because their key is not authorized.",
     AT(process.peers.thread.denied)},
    {"peer_lookups_failed", "", "Lookups of peers' names that failed; the last good answer holds.",
     AT(process.peers.thread.lookups_failed)},
    {"capacity_tags", "", "Tags that take part in dividing limits with share = \"capacity\".",
     AT(process.peers.capacity_tags), kGauge},
    {"capacity_tags_refused", "", "Times that a tag could not take part: raise capacity.tags_max.",
     [](const Snapshot& s) {
       return double(s.process.peers.capacity_crowded + s.process.peers.capacity.tags_refused);
     }},
    {"capacity_rounds", "", "Rounds of giving parts of limits to neighbours.", AT(process.peers.capacity.rounds)},
    {"capacity_gifts", "", "Parts of limits given to neighbours.", AT(process.peers.capacity.gifts)},
    {"capacity_sent", "", "Frames sent about them.", AT(process.peers.capacity.sent)},
    {"capacity_sent_bytes", "bytes", "The size of these frames.", AT(process.peers.capacity.sent_bytes)},
    {"capacity_heard", "", "Frames heard about them.", AT(process.peers.capacity.received)},
    {"capacity_heard_bytes", "bytes", "The size of these frames.", AT(process.peers.capacity.received_bytes)},
    {"capacity_junk", "", "Of them, could not be read, made no sense, or came from hosts that are not members.",
     [](const Snapshot& s) {
       const CapacityCounts& c = s.process.peers.capacity;
       return double(c.junk + c.other_version + c.strangers);
     }},
    {"capacity_other_settings", "", "Of them, from hosts with other members, rules or reserve.",
     AT(process.peers.capacity.other_settings)},
    {"capacity_leased", "", "1 while enough others hear this host that it may use its parts, 0 at its reserve.",
     AT(process.peers.capacity.leased), kGauge},
    {"capacity_lapses", "", "Times that it went down to its reserve because they did not.",
     AT(process.peers.capacity.lapses)},
    {"capacity_overdrawn", "",
     "Times that members said they have more than the whole of a tag: one of them lies, and this host uses its equal "
     "share.",
     AT(process.peers.capacity.overdrawn)},
    {"capacity_fenced", "", "Times that others took this host for dead, and it began anew.",
     AT(process.peers.capacity.fenced)},
    {"capacity_inherited", "", "Hosts that died and left their parts to this one.",
     AT(process.peers.capacity.inherited)},
    {"capacity_resets", "", "Times that all hosts began anew with equal shares.", AT(process.peers.capacity.resets)},
    {"capacity_generation", "", "The number of the beginning that holds now; 0 before the first.",
     AT(process.peers.capacity.generation), kGauge},
    {"capacity_unsaved", "", "Times that capacity.state_file could not be written.", AT(process.peers.thread.unsaved)},
    {"resp_connections", "", "Clients of Redis connected now.", AT(process.resp.connections), kGauge},
    {"resp_connections_accepted", "", "Clients of Redis that have connected.", AT(process.resp.accepted)},
    {"resp_connections_rejected", "", "Closed at once because resp.max_connections were open.",
     AT(process.resp.rejected_full)},
    {"resp_commands", "", "Commands of clients of Redis.", AT(process.resp.commands)},
    {"resp_limited", "", "CL.THROTTLE refused; where rules decide, these are among throttled too.",
     AT(process.resp.limited)},
    {"resp_protocol_errors", "",
     "Clients of Redis closed because what they sent was no command, or asked for too much.",
     AT(process.resp.protocol_errors)},
    {"resp_tags", "", "Tags whose bucket is recorded under a limit that a client brought.",
     AT(process.resp.brought.tags), kGauge},
    {"resp_evicted", "", "Such buckets forgotten before they were full: raise resp.memory.",
     AT(process.resp.brought.evicted)},
    {"ask_connections", "", "Connections for questions about several tags, open now.", AT(process.ask.connections),
     kGauge},
    {"ask_connections_accepted", "", "Such connections that were made.", AT(process.ask.accepted)},
    {"ask_connections_rejected", "", "Closed at once because ask.max_connections were open.",
     AT(process.ask.rejected_full)},
    {"ask_questions", "", "Questions answered, each about one tag or several.", AT(process.ask.questions)},
    {"ask_refused", "", "Of them, refused; each is among throttled or shed too.", AT(process.ask.refused)},
    {"ask_waits", "", "Of them, served and told to wait, under rules with delay.", AT(process.ask.waits)},
    {"ask_waits_given_up", "", "Of them, those that gave up before they went on, and gave back what they had taken.",
     AT(process.ask.given_up)},
    {"ask_errors", "", "Lines that were neither a question nor a settlement.", AT(process.ask.errors)},
    {"own_limits", "", "Limits that tags name themselves, under rules with max_own_limit, and that are in use.",
     AT(own_limits), kGauge},
    {"own_limits_crowded", "",
     "Times that such a limit found no room among 3,072, since these rules are in force: the rule decided.",
     AT(own_limits_crowded), kGauge},
    {"among_divided", "", "Tags that are divided now among those charged with them, under rules with among.",
     AT(among.divided), kGauge},
    {"among_cut", "", "Queries refused because their tag had its part of such a tag; among throttled too.",
     AT(among.cut)},
    {"among_crowded", "",
     "Times that a tag was served first come, because more than 512 were divided, or one among more than 4,096.",
     AT(among.crowded)},
    {"among_disbelieved", "",
     "Tokens that peers said such a tag had of a divided one, beyond what their hits of that bear out.",
     AT(among.disbelieved)},
    {"places", "", "Places that are taken now, under rules with in_flight.", AT(places.taken), kGauge},
    {"places_tags", "", "Tags of which places are taken now.", AT(places.tags), kGauge},
    {"places_entered", "", "Places that were taken.", AT(places.entered)},
    {"places_busy", "", "Questions and queries refused because all places of a tag were taken; among throttled too.",
     AT(places.busy)},
    {"places_crowded", "",
     "Of them, refused because places of too many tags were taken: 65536 or so here, 14336 or so over all hosts.",
     AT(places.crowded)},
    {"places_taken_back", "",
     "Places of connections that were closed because this host no longer has so many of a tag, under share = "
     "\"capacity\": nobody heard it, hosts divided anew, or in_flight was lowered.",
     AT(places.taken_back)},
    {"places_heard", "", "Tags and peers that have taken places of them, as peers say.", AT(places.heard), kGauge},
    {"penalties", "", "Tags that are penalized, or were so lately.", AT(penalties.tags), kGauge},
    {"penalties_begun", "", "Penalties that began on this host.", AT(penalties.begun)},
    {"penalties_heard", "", "Penalties that other hosts told of.", AT(penalties.heard)},
    {"penalties_lifted", "", "Penalties that were forgiven, here or elsewhere.", AT(penalties.lifted)},
    {"penalties_crowded", "", "Penalties that were not kept because too many were in force.", AT(penalties.crowded)},
    {"penalty_refusals_heard", "", "Refusals by other hosts that count towards penalties here.",
     AT(penalties.refusals_heard)},
    {"penalty_refusals_untold", "",
     "Refusals that count towards penalties here alone, because too many tags were refused at once.",
     AT(penalties.refusals_untold)},
    {"sites", "", "Other sites, of sites.others.", AT(process.sites.others), kGauge},
    {"sites_heard", "", "Of them, are heard now.", AT(process.sites.heard), kGauge},
    {"sites_partly", "", "Other sites that are heard, but not by all owners.", AT(process.sites.partly), kGauge},
    {"sites_tags", "", "Tags of this host that its site uses, and other sites are told of.",
     AT(process.sites.sharing.tags), kGauge},
    {"sites_told", "", "Entries told to other sites.", AT(process.sites.sharing.told)},
    {"sites_told_early", "", "Of them, before a period was over.", AT(process.sites.sharing.told_early)},
    {"sites_heard_entries", "", "Entries of other sites about tags that this host owns, and about quotas.",
     AT(process.sites.sharing.heard)},
    {"sites_passed", "", "Entries of other sites about tags of other owners.", AT(process.sites.sharing.passed)},
    {"sites_oversized", "", "Reports of sites with more hosts than is believed.", AT(process.sites.sharing.oversized)},
    {"sites_assumed", "", "Tokens that sites were taken to have served while they were not heard (cut_off).",
     AT(process.sites.sharing.assumed)},
    {"sites_untold_hits", "", "Hits that the life before had told no other site when it was killed.",
     AT(process.sites.sharing.untold)},
    {"sites_crowded", "", "Hits that no other site hears of, because more than 1048576 tags are in use.",
     AT(process.sites.sharing.crowded)},
    {"sites_missed", "", "Frames of other sites that a later one came before.", AT(process.sites.missed)},
    {"sites_repaired", "", "Of them, came after all.", AT(process.sites.repaired)},
    {"sites_lost", "", "Of them, are gone for good.", AT(process.sites.lost)},
    {"sites_lost_hits", "", "Hits that other sites told and this host never heard of.", AT(process.sites.lost_hits)},
    {"sites_sent_bytes", "", "Reports to other sites, each counted once.", AT(process.sites.sent_bytes)},
    {"sites_received_bytes", "", "Reports of other sites.", AT(process.sites.received_bytes)},
    {"set_limits", "", "Limits that operators have set and that hold now.", AT(process.set_limits.in_force), kGauge},
    {"set_limits_known", "", "The same with those that have ended or were cleared and are remembered.",
     AT(process.set_limits.known), kGauge},
    {"set_limits_taken", "", "Limits that peers have brought and that were new here.", AT(process.set_limits.taken)},
    {"set_limits_sent", "", "Limits passed on, counted for each frame.", AT(process.set_limits.sent)},
    {"set_limits_junk", "", "Frames about limits that could not be read, and limits in them.",
     AT(process.set_limits.junk)},
    {"set_limits_forged", "", "Limits whose signature is not that of their key.", AT(process.set_limits.forged)},
    {"set_limits_strange", "", "Limits under a key that is not in operator.keys here.",
     AT(process.set_limits.strange)},
    {"set_limits_ahead", "", "Limits dated more than 5 minutes ahead of this host's clock; they come again.",
     AT(process.set_limits.ahead)},
    {"set_limits_crowded", "", "Limits for which there was no room among a thousand.", AT(process.set_limits.crowded)},
    {"set_limits_excess", "", "Frames and limits that came too fast; they come again.", AT(process.set_limits.excess)},
    {"set_rules_unusable", "", "Whether rules that an operator has set for all hosts cannot be used here.",
     AT(process.set_limits.rules_unusable), kGauge},
    {"set_limits_unsaved", "", "Times that the file of set limits could not be written.",
     AT(process.set_limits.unsaved)},
    {"candidate_comparing", "", "1 while rules are tried beside those in force, 0 otherwise.",
     [](const Snapshot& s) -> double { return s.process.candidate.comparing; }, kGauge},
    {"candidate_here", "", "1 while this host alone has the rules of a candidate in force, 0 otherwise.",
     [](const Snapshot& s) -> double { return s.process.candidate.here; }, kGauge},
    {"candidate_queries", "", "Queries that are compared with what a candidate would do, since it began.",
     AT(process.candidate.queries), kGauge},
    {"candidate_newly_refused", "", "Of them, served though the candidate would have refused.",
     AT(process.candidate.newly_refused), kGauge},
    {"candidate_newly_served", "", "Of them, refused though the candidate would have served.",
     AT(process.candidate.newly_served), kGauge},
    {"quota_tags", "", "Tags of which a quota is counted.", AT(quotas.tags), kGauge},
    {"quota_heard", "", "What other hosts said of such tags and counts.", AT(quotas.heard)},
    {"quota_other_period", "",
     "What they said of a period that is over here, or begins later than in a minute: clocks or settings differ.",
     AT(quotas.other_period)},
    {"quota_forgotten", "", "Tags forgotten before their period had ended, for want of room: raise quota.memory.",
     AT(quotas.forgotten)},
    {"quota_crowded", "", "What other hosts said and there was no room for: raise quota.memory.", AT(quotas.crowded)},
    {"quota_disbelieved", "", "Times that two hosts said of one count what had come back of it, so that neither counts, or that a host said "
     "what all have counted and does not own the tag.",
     AT(quotas.disbelieved)},
    {"holds", "", "Holds that are open now.", AT(process.holds.open), kGauge},
    {"holds_max", "", "How many may be: hold.max_holds.", AT(process.holds.max), kGauge},
    {"holds_taken", "", "Holds that were taken.", AT(process.holds.taken)},
    {"holds_committed", "", "Holds settled by a commit.", AT(process.holds.committed)},
    {"holds_released", "", "Holds given back, by a release or because their connection ended.",
     AT(process.holds.released)},
    {"holds_expired", "", "Holds given back because their time had ended.", AT(process.holds.expired)},
    {"holds_repeated", "", "Settlements of holds that were settled already, to no effect.",
     AT(process.holds.repeated)},
    {"holds_unknown", "", "Settlements of holds that are forgotten, or have never been.", AT(process.holds.unknown)},
    {"holds_full", "", "Holds not taken because hold.max_holds were open.", AT(process.holds.full)},
    {"holds_returned", "", "Tokens that came back from holds.", AT(process.holds.returned)},
    {"holds_exceeded", "", "Tokens charged because holds had cost more than was held.", AT(process.holds.exceeded)},
    {"spop_connections", "", "Connections of HAProxy, open now.", AT(process.spop.connections), kGauge},
    {"spop_connections_accepted", "", "Such connections that were made.", AT(process.spop.accepted)},
    {"spop_connections_rejected", "", "Closed at once because spop.max_connections were open.",
     AT(process.spop.rejected_full)},
    {"spop_questions", "", "Messages of HAProxy answered, each a question about one tag or several.",
     AT(process.spop.questions)},
    {"spop_refused", "", "Of them, refused; each is among throttled or shed too.", AT(process.spop.refused)},
    {"spop_errors", "", "Messages that were no question; HAProxy is told nothing of them.", AT(process.spop.errors)},
    {"spop_protocol_errors", "", "Connections of HAProxy closed because what they sent was no frame that fits.",
     AT(process.spop.protocol_errors)},
    {"page_connections", "", "Workers that have a page, now.", AT(process.page.connections), kGauge},
    {"page_connections_accepted", "", "Workers that were given a page.", AT(process.page.accepted)},
    {"page_connections_rejected", "", "Workers turned away because page.max_connections had one.",
     AT(process.page.rejected_full)},
    {"page_failed", "", "Pages that could not be made, for want of memory or descriptors.", AT(process.page.failed)},
    {"page_notes", "", "Tags that workers told of after asking, to have them in their pages.", AT(process.page.notes)},
    {"page_strange", "", "Messages of workers that were no tag, or a tag longer than query.max_tag_bytes.",
     AT(process.page.strange)},
    {"page_entries", "", "Tags that pages say something of, now.", AT(process.page.entries), kGauge},
    {"page_served", "", "Queries that workers served by their pages, without asking; each is among served too.",
     AT(process.page.served)},
    {"page_refused", "", "Queries that workers refused by their pages, without asking; each is among throttled too.",
     AT(process.page.refused)},
    {"page_clamped", "", "Such queries that a worker claimed beyond 10 million a second; they are not counted.",
     AT(process.page.clamped)},
    {"envoy_connections", "", "Connections of Envoy, open now.", AT(process.envoy.connections), kGauge},
    {"envoy_connections_accepted", "", "Such connections that were made.", AT(process.envoy.accepted)},
    {"envoy_connections_rejected", "", "Closed at once because envoy.max_connections were open.",
     AT(process.envoy.rejected_full)},
    {"envoy_calls", "", "Calls of Envoy, each a question about one tag or several.", AT(process.envoy.calls)},
    {"envoy_refused", "", "Of them, over a limit; each is among throttled or shed too.", AT(process.envoy.refused)},
    {"envoy_reports", "", "Reports of Envoy's quotas; a long one counts once for each 200 buckets.",
     AT(process.envoy.reports)},
    {"envoy_calls_refused", "", "Calls and reports not answered because envoy.max_calls waited.",
     AT(process.envoy.calls_refused)},
    {"envoy_calls_invalid", "", "Calls that failed because they are no question.", AT(process.envoy.calls_invalid)},
    {"envoy_limits_refused", "", "Limits that descriptors of Envoy brought and no rule allows; the rule decided.",
     AT(process.envoy.limits_refused)},
    {"envoy_restarts", "", "Times that the dthrottle-grpc of Envoy ended by itself and another one was started.",
     AT(process.envoy.restarts)},
    {"lease_connections", "", "Lease clients connected now.", AT(process.lease.connections), kGauge},
    {"lease_connections_accepted", "", "Lease clients that have connected.", AT(process.lease.accepted)},
    {"lease_connections_rejected", "", "Closed at once because lease.max_connections were open.",
     AT(process.lease.rejected_full)},
    {"lease_lines", "", "Lines of lease clients answered.", AT(process.lease.lines)},
    {"lease_grpc_connections", "", "Of the lease clients connected, those that speak gRPC.",
     AT(process.lease.grpc_connections), kGauge},
    {"lease_grpc_calls", "", "Calls over gRPC.", AT(process.lease.grpc_calls)},
    {"lease_grpc_refused", "", "Of them, refused because lease.grpc_max_calls waited.", AT(process.lease.grpc_refused)},
    {"lease_grpc_invalid", "", "Of them, refused for what they asked, or because of lease.grpc_max_resources.",
     AT(process.lease.grpc_invalid)},
    {"lease_grpc_restarts", "", "Times that dthrottle-grpc ended by itself and another one was started.",
     AT(process.lease.grpc_restarts)},
    {"lease_tls_connections", "", "Of the lease clients connected, those of lease.tls.",
     AT(process.lease.tls_connections), kGauge},
    {"lease_tls_handshakes", "", "Connections of lease.tls whose client TLS has let in.",
     AT(process.lease.tls_handshakes)},
    {"lease_tls_restarts", "", "Times that dthrottle-tls ended by itself and another one was started.",
     AT(process.lease.tls_restarts)},
    {"lease_parent_asks", "", "Times that the parent was asked for capacity.", AT(process.lease.parent_asks)},
    {"lease_parent_failures", "", "Of them, without an answer that grants.", AT(process.lease.parent_failures)},
    {"lease_master", "", "1 while this host grants leases.", AT(process.lease.master), kGauge},
    {"lease_terms", "", "Times that this host became master of leases.", AT(process.lease.terms)},
    {"lease_requests", "", "Requests for the capacity of a resource, while this host was master.",
     AT(process.lease.server.requests)},
    {"lease_too_soon", "", "Of them, repeated too soon: the lease stayed what it was.",
     AT(process.lease.server.too_soon)},
    {"lease_no_resource", "", "Of them, for a resource that no [[resource]] is for.",
     AT(process.lease.server.no_template)},
    {"lease_honoured", "", "Of them, for such a resource and honoured all the same (lease.unknown).",
     AT(process.lease.server.honoured)},
    {"lease_full", "", "Of them, refused because of lease.max_clients.", AT(process.lease.server.full)},
    {"lease_elsewhere", "", "Requests that were told where the master is.", AT(process.lease.server.not_master)},
    {"lease_expired", "", "Leases that nobody refreshed.", AT(process.lease.server.expired)},
    {"lease_released", "", "Leases given back.", AT(process.lease.server.released)},
    {"lease_capped_claims", "",
     "Claims of a former lease that counted for no more than the safe capacity, because the last master did not grant "
     "it.",
     AT(process.lease.server.capped_claims)},
    {"lease_shortfalls", "", "Times that more came to be leased out than there is.",
     AT(process.lease.server.shortfalls)},
    {"shed_signal", "ratio", "What shed.signal measures, as a part of shed.high; 0 while it is not known.",
     AT(process.shed.signal), kGauge},
    {"shed_probability", "ratio", "With which probability the rules of the lowest priority are refused now.",
     AT(shed_probability), kGauge},
    {"shed_samples", "", "Values measured or reported.", AT(process.shed.samples)},
    {"shed_failures", "", "Measurements that failed, so that nothing was shed.", AT(process.shed.failures)},
    {"shed_expired", "", "Times that the last value became older than shed.expiry, so that nothing was shed.",
     AT(process.shed.expired)},
    {"reloads", "", "Settings put in force by a reload.", AT(process.reloads)},
    {"reload_failures", "", "Reloads refused because the settings were bad.", AT(process.reload_failures)},
    {"last_reload_good", "", "0 while the last reload is one that was refused, otherwise 1.",
     AT(process.last_reload_good), kGauge, "dthrottled_config_last_reload_success"},
    {"config_age", "seconds", "For how long these settings have been in force.", AT(process.settings_age), kGauge},
    {"log_suppressed", "", "Log messages that came too fast, or had no room in the log.", AT(process.log_suppressed)},
};

#undef AT

}    // namespace

Snapshot TakeSnapshot(Limiter& limiter, const ProcessCounts& process) {
  Snapshot s;
  s.process = process;
  s.table = limiter.table().counts();
  s.table_bytes = limiter.table().region_bytes();
  s.table_cells = limiter.table().cells();
  s.rules = limiter.rules().rules().size();
  s.overrides = limiter.rules().overrides().size();
  s.reshaping = limiter.reshaping();
  s.all = limiter.tally().GrandTotals();
  s.debits = limiter.ways().Get<Debits>().grand_totals();
  s.merged = limiter.ways().Get<Debits>().peers().counts();
  s.watched = limiter.ways().Status().watched;
  const LimiterCounts counts = CountsOf(limiter);
  s.places = counts.in_flight;
  s.among = counts.among;
  s.own_limits = counts.own_limits, s.own_limits_crowded = counts.own_limits_crowded;
  s.penalties = counts.penalties;
  s.quotas = counts.quotas;
  const Certificate& certificate = limiter.ways().Get<Debits>().certificate();
  s.deviated = certificate.ever();
  s.accuracy_tags = certificate.tags();
  s.accuracy_crowded = certificate.crowded();
  s.accuracy_alerts = certificate.alerts();
  for (std::size_t p = 0; p < kShedPriorities; ++p) {
    s.shed_probability = std::max(s.shed_probability, limiter.shedder().probability(p));
  }
  s.unmatched = limiter.tally().Totals(Lane::kUnmatched).served;
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
