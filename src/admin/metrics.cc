#include "admin/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <vector>

#include "admin/accuracy.h"
#include "admin/counts.h"
#include "admin/cut.h"
#include "admin/escape.h"
#include "base/words.h"
#include "limiter/retention.h"
#include "rule/rulebook.h"
#include "share/ways.h"
#include "tally/tally.h"

namespace dthrottle {

namespace {

// ---- Text ----

// Exact for whole numbers; 9 digits of others.
std::string Number(double value) {
  constexpr double kExactMax = 0x1p53;
  if (std::trunc(value) == value && std::fabs(value) < kExactMax) {
    return fmt::format("{}", static_cast<std::int64_t>(value));
  }
  return fmt::format("{:.9g}", value);
}

std::string EscapeLabel(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string_view("\\n") : std::string_view(&c, 1);
  }
  return out;
}

void AddHeader(std::string& out, std::string_view metric, std::string_view type, std::string_view meaning) {
  fmt::format_to(std::back_inserter(out), "# HELP {0} {2}\n# TYPE {0} {1}\n", metric, type, meaning);
}

// Takes the series of one family.
class Sink {
 public:
  Sink(std::string& out, std::string_view metric, std::string_view labels)
      : out_(out), metric_(metric), labels_(SplitWords(labels)) {}

  // `values` are those of the labels, in their order.
  void Add(std::initializer_list<std::string_view> values, double number) {
    out_ += metric_;
    char before = '{';
    for (std::size_t i = 0; i < values.size(); ++i) {
      fmt::format_to(std::back_inserter(out_), "{}{}=\"{}\"", before, labels_[i], EscapeLabel(values.begin()[i]));
      before = ',';
    }
    fmt::format_to(std::back_inserter(out_), "}} {}\n", Number(number));
  }

 private:
  std::string& out_;
  std::string_view metric_;
  std::vector<std::string_view> labels_;
};

// ---- Families ----

// What a scrape looks at.
struct Scrape {
  const Snapshot& counts;
  const Limiter& limiter;
  const std::vector<PeerStatus>& peers;    // other hosts, each address once; all text in them is printable ASCII
};

template <class Add>
void EachNamedRule(const Scrape& s, Add add) {
  const auto& rules = s.limiter.rules().rules();
  for (std::size_t i = 0; i < rules.size(); ++i) add(rules[i].name, i);
}

// Rules by name, then what has none: overrides that no rule fits.
template <class Add>
void EachRule(const Scrape& s, Add add) {
  EachNamedRule(s, add);
  add(std::string_view(), Lane::kNoRule);
}

const Debits& DebitsOf(const Scrape& s) {
  return s.limiter.ways().Get<Debits>();
}

RuleTotals TotalsOf(const Scrape& s, std::size_t rule) {
  return s.limiter.tally().Totals(rule);
}

Retention::Totals ForgottenOf(const Scrape& s, std::size_t rule) {
  return s.limiter.retention().totals(s.limiter.tally().CounterNamed(rule));
}

const Deviation& DeviationOf(const Scrape& s, std::size_t rule) {
  return DebitsOf(s).certificate().rule(s.limiter.tally().CounterNamed(rule)).ever;
}

// Rules that hosts share, by debits.
template <class Add>
void EachSharedRule(const Scrape& s, Add add) {
  const Rulebook& book = s.limiter.rules();
  for (std::size_t i = 0; i < book.rules().size(); ++i) {
    if (book.limit(static_cast<LimitIndex>(i)).shared) add(book.rules()[i].name, DebitsOf(s).accuracy(i), i);
  }
}

// The series of a family with one label: a value for each.
template <auto kValue>
void ByPeer(const Scrape& s, Sink& sink) {
  for (const PeerStatus& p : s.peers) sink.Add({p.address}, static_cast<double>(std::invoke(kValue, p)));
}

template <auto kValue>
void ByPeerHeard(const Scrape& s, Sink& sink) {
  for (const PeerStatus& p : s.peers) {
    if (p.last_heard >= Duration::zero()) sink.Add({p.address}, Seconds(std::invoke(kValue, p)));
  }
}

template <auto kValue>
void ByRule(const Scrape& s, Sink& sink) {
  EachRule(s, [&](std::string_view rule, std::size_t i) { sink.Add({rule}, static_cast<double>(kValue(s, i))); });
}

template <auto kValue>
void BySharedRule(const Scrape& s, Sink& sink) {
  EachSharedRule(s, [&](std::string_view rule, const RuleAccuracy& seen, std::size_t) {
    sink.Add({rule}, std::invoke(kValue, seen));
  });
}

using enum CountKind;

struct Family {
  std::string_view metric;
  CountKind kind;
  std::string_view labels;    // with blanks between
  std::string_view meaning;
  void (*add)(const Scrape&, Sink&);
};

constexpr Family kFamilies[] = {
    {"dthrottled_build_info", kGauge, "version", "1, with the daemon's version.",
     [](const Scrape&, Sink& sink) { sink.Add({DTHROTTLE_VERSION}, 1); }},
    {"dthrottled_queries_total", kCounter, "rule verdict",
     "Queries answered: served (OK, a hit), throttled (NO), shed (NO because the host runs hot), shadowed (OK where "
     "enforcing would have said NO), and unmatched (OK because no rule fits). The rule is empty where there is none.",
     [](const Scrape& s, Sink& sink) {
       EachRule(s, [&](std::string_view rule, std::size_t i) {
         const RuleTotals totals = TotalsOf(s, i);
         sink.Add({rule, "served"}, double(totals.served));
         sink.Add({rule, "throttled"}, double(totals.throttled));
         sink.Add({rule, "shed"}, double(totals.shed));
         sink.Add({rule, "shadowed"}, double(totals.shadowed));
       });
       sink.Add({"", "unmatched"}, double(s.counts.unmatched));
     }},
    {"dthrottled_near_limit_total", kCounter, "rule", "Queries served that left less than a fifth of the burst.",
     ByRule<[](const Scrape& s, std::size_t i) { return TotalsOf(s, i).near_limit; }>},
    {"dthrottled_penalized_total", kCounter, "rule", "Of the throttled, refused because the tag was penalized.",
     ByRule<[](const Scrape& s, std::size_t i) { return TotalsOf(s, i).penalized; }>},
    {"dthrottled_over_quota_total", kCounter, "rule", "Of the throttled, refused because the tag's quota was spent.",
     ByRule<[](const Scrape& s, std::size_t i) { return TotalsOf(s, i).over_quota; }>},
    {"dthrottled_table_evicted_total", kCounter, "rule",
     "Buckets forgotten before they were full: each gave its client a part of a burst.",
     ByRule<[](const Scrape& s, std::size_t i) { return ForgottenOf(s, i).evicted; }>},
    {"dthrottled_table_evicted_refusing_total", kCounter, "rule",
     "Of them, had refused queries: somebody asks many tags many times each to wash them out.",
     ByRule<[](const Scrape& s, std::size_t i) { return ForgottenOf(s, i).refusing; }>},
    {"dthrottled_table_retention_seconds", kGauge, "rule",
     "How long the table remembers a bucket that never refused: the rule's tags over its evictions a second. No series "
     "while nothing of the rule is evicted.",
     [](const Scrape& s, Sink& sink) {
       EachNamedRule(s, [&](std::string_view rule, std::size_t i) {
         const auto retention = s.limiter.retention().of(s.limiter.tally().counter(i));
         if (retention) sink.Add({rule}, Seconds(*retention));
       });
     }},
    {"dthrottled_rule_refill_seconds", kGauge, "rule",
     "How long an empty bucket of the rule takes to fill: burst / rate.",
     [](const Scrape& s, Sink& sink) {
       EachNamedRule(s, [&](std::string_view rule, std::size_t i) {
         sink.Add({rule}, Seconds(ToDuration(s.limiter.rules().limit(static_cast<LimitIndex>(i)).shape.depth)));
       });
     }},
    {"dthrottled_debited_total", kCounter, "rule", "Hits of other hosts charged to buckets of this one.",
     ByRule<[](const Scrape& s, std::size_t i) { return DebitsOf(s).totals(i).hits; }>},
    {"dthrottled_overadmitted_tokens_total", kCounter, "rule",
     "Debt that such hits made: what was served beyond the limit because hosts did not know of each other yet. Each "
     "host counts all that it hears of, so compare hosts, do not add them up.",
     ByRule<[](const Scrape& s, std::size_t i) { return DebitsOf(s).totals(i).overadmitted; }>},
    {"dthrottled_accuracy_bound_tokens", kGauge, "rule",
     "The most that all hosts together may serve of a tag above burst + rate x time, by theory, as late as peers are "
     "now. Only of rules with share debit or forecast.",
     [](const Scrape& s, Sink& sink) {
       const std::vector<PeerAge> ages = AgesOf(s.peers);
       EachSharedRule(s, [&](std::string_view rule, const RuleAccuracy&, std::size_t i) {
         sink.Add({rule}, BoundOf(s.limiter, static_cast<LimitIndex>(i), ages).value_or(0));
       });
     }},
    {"dthrottled_accuracy_over_ratio", kGauge, "rule",
     "What hosts served beyond one bucket in the last minute or so, as a part of what it would have served.",
     BySharedRule<[](const RuleAccuracy& seen) { return seen.over_percent() / 100; }>},
    {"dthrottled_accuracy_under_ratio", kGauge, "rule",
     "What hosts refused in the last minute or so though one bucket would have served it, as a part of the same.",
     BySharedRule<[](const RuleAccuracy& seen) { return seen.under_percent() / 100; }>},
    {"dthrottled_accuracy_over_tokens_total", kCounter, "rule",
     "What hosts served beyond one bucket. Each host counts what it has heard of all, so compare hosts, do not add "
     "them up.",
     ByRule<[](const Scrape& s, std::size_t i) { return DeviationOf(s, i).over; }>},
    {"dthrottled_accuracy_under_tokens_total", kCounter, "rule",
     "What hosts refused though one bucket would have served it.",
     ByRule<[](const Scrape& s, std::size_t i) { return DeviationOf(s, i).under; }>},
    {"dthrottled_accuracy_debt_tokens", kGauge, "rule", "How far the tag that owes most is below zero.",
     BySharedRule<&RuleAccuracy::debt>},
    {"dthrottled_peer_info", kGauge, "peer name version",
     "1 for each peer, by address, with its name and version, which are empty until it has answered.",
     [](const Scrape& s, Sink& sink) {
       for (const PeerStatus& p : s.peers) sink.Add({p.address, p.name, p.version}, 1);
     }},
    {"dthrottled_peer_up", kGauge, "peer", "1 if the peer was heard within three of its periods, otherwise 0.",
     ByPeer<[](const PeerStatus& p) { return p.state == PeerState::kUp; }>},
    {"dthrottled_peer_heard_ago_seconds", kGauge, "peer", "Since the peer was last heard; no series until it was.",
     ByPeerHeard<&PeerStatus::last_heard>},
    {"dthrottled_peer_age_seconds", kGauge, "peer",
     "How old the peer's newest hits were when they came: the delay of the network and its queues.",
     ByPeerHeard<&PeerStatus::age>},
    {"dthrottled_peer_reports_total", kCounter, "peer", "Frames of reports taken from the peer.",
     ByPeer<&PeerStatus::reports>},
    {"dthrottled_peer_entries_total", kCounter, "peer", "Tags with hits in these frames.",
     ByPeer<&PeerStatus::entries>},
    {"dthrottled_peer_missed_total", kCounter, "peer", "Frames of the peer that did not come when it was their turn.",
     ByPeer<&PeerStatus::missed>},
    {"dthrottled_peer_lost_total", kCounter, "peer", "Of them, are gone for good.", ByPeer<&PeerStatus::lost>},
    {"dthrottled_peer_lost_hits_total", kCounter, "peer",
     "Hits that the peer took out of its buckets to report and this host never heard of, as the peer says itself.",
     ByPeer<&PeerStatus::lost_hits>},
    {"dthrottled_peer_cut_total", kCounter, "peer ceiling",
     "How much of the peer's news was not taken when it came because it was above a ceiling: frames, entries, hits, "
     "new_tags or penalties, as [peers] sets them; or limits, frames about limits that operators set. What is above frames, "
     "entries and hits is asked for again, and counts again if that is too soon.",
     [](const Scrape& s, Sink& sink) {
       for (const PeerStatus& p : s.peers) {
         for (const auto& [ceiling, cut] : CutOf(s.limiter, p)) sink.Add({p.address, ceiling}, double(cut));
       }
     }},
    {"dthrottled_peer_hits_disbelieved_total", kCounter, "peer",
     "Hits of the peer that were not charged because no host can have served so many of a tag under this host's limit.",
     [](const Scrape& s, Sink& sink) {
       for (const PeerStatus& p : s.peers) sink.Add({p.address}, double(MergedOf(s.limiter, p).hits_disbelieved));
     }},
};

struct HistogramFamily {
  std::string_view metric;
  std::string_view meaning;
  const HistogramTotals& (*value)(const Snapshot&);
};

constexpr HistogramFamily kHistograms[] = {
    {"dthrottled_query_duration_seconds",
     "The daemon's own time for a query: from the first read of the turn of the loop that it came in to the last write "
     "of that turn's answers, so never less than it took. What waited in sockets before is not in it.",
     [](const Snapshot& s) -> const HistogramTotals& { return s.process.answered_in; }},
    {"dthrottled_loop_lag_seconds",
     "How late a timer of 100 ms fires, on the loops of all query threads: how long whatever arrives may have to wait "
     "for its turn. A lag of 1 ms is nothing.",
     [](const Snapshot& s) -> const HistogramTotals& { return s.process.loop_lag; }},
};

void AddHistogram(std::string& out, std::string_view metric, const HistogramTotals& totals) {
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < totals.counts.size(); ++i) {
    below += totals.counts[i];
    const std::string bound =
        i < kHistogramBounds.size() ? fmt::format("{:g}", Seconds(kHistogramBounds[i])) : std::string("+Inf");
    fmt::format_to(std::back_inserter(out), "{}_bucket{{le=\"{}\"}} {}\n", metric, bound, below);
  }
  fmt::format_to(std::back_inserter(out), "{0}_sum {1}\n{0}_count {2}\n", metric, Number(Seconds(totals.sum)), below);
}

std::string_view TypeOf(CountKind kind) {
  return kind == kGauge ? "gauge" : "counter";
}

// What labels are made of: no two peers with one address, which would be one series twice, and no bytes that are not
// UTF-8, for which the whole scrape would be refused.
std::vector<PeerStatus> OtherHosts(std::vector<PeerStatus> peers) {
  std::erase_if(peers, [](const PeerStatus& p) { return p.state == PeerState::kSelf; });
  const auto by_address = [](const PeerStatus& a, const PeerStatus& b) { return a.address < b.address; };
  std::stable_sort(peers.begin(), peers.end(), by_address);
  const auto same = [](const PeerStatus& a, const PeerStatus& b) { return a.address == b.address; };
  peers.erase(std::unique(peers.begin(), peers.end(), same), peers.end());
  for (PeerStatus& peer : peers) {
    for (std::string* text : {&peer.address, &peer.name, &peer.version}) *text = EscapeTag(*text);
  }
  return peers;
}

}    // namespace

std::string RenderMetrics(AdminHost& host) {
  const Snapshot snapshot = TakeSnapshot(host.limiter(), host.Counts());
  const std::vector<PeerStatus> peers = OtherHosts(host.Peers());
  const Scrape scrape{snapshot, host.limiter(), peers};
  std::string out;
  out.reserve(kMetricsBytes);
  for (const Count& count : Counts()) {
    if (count.kind == kSum) continue;
    const std::string metric = MetricName(count);
    AddHeader(out, metric, TypeOf(count.kind), count.meaning);
    fmt::format_to(std::back_inserter(out), "{} {}\n", metric, Number(count.value(snapshot)));
  }
  for (const Family& family : kFamilies) {
    AddHeader(out, family.metric, TypeOf(family.kind), family.meaning);
    Sink sink(out, family.metric, family.labels);
    family.add(scrape, sink);
  }
  for (const HistogramFamily& family : kHistograms) {
    AddHeader(out, family.metric, "histogram", family.meaning);
    AddHistogram(out, family.metric, family.value(snapshot));
  }
  return out;
}

std::string RenderMetricsManual() {
  std::string out = fmt::format(
      "No label has a tag in it, so an answer has at most {} KiB, and {} KiB more for each rule and {} KiB for each "
      "peer.\n.Bl -tag -width Ds\n",
      kMetricsBytes / 1024, kMetricsBytesPerRule / 1024, kMetricsBytesPerPeer / 1024);
  for (const Family& family : kFamilies) {
    out += fmt::format(".It Li {}\n{}\nLabels:\n.Em {} .", family.metric, SentencesByLine(family.meaning),
                       fmt::join(SplitWords(family.labels), " , "));
    out += fmt::format("\n{}.\n", family.kind == kGauge ? "Gauge" : "Counter");
  }
  for (const HistogramFamily& family : kHistograms) {
    out += fmt::format(".It Li {}\n{}\nHistogram.\n", family.metric, SentencesByLine(family.meaning));
  }
  return out + ".El\n";
}

}    // namespace dthrottle
