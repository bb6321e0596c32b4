#include "admin/metrics.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "admin/counts.h"
#include "config/keys.h"
#include "limiter/shedder.h"
#include "rule/rulebook.h"
#include "share/ways.h"
#include "tally/tally.h"
#include "test/support/host.h"
#include "test/support/quiet_daemon.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::Host;

constexpr Instant kNow = FromNanoseconds(5'000'000'000);

class FakeDaemon final : public testing::QuietDaemon {
 public:
  explicit FakeDaemon(const std::string& toml) : host(toml) {}

  Limiter& limiter() override { return *host.limiter; }
  ProcessCounts Counts() const override { return counts; }
  std::vector<PeerStatus> Peers() const override { return peers; }

  std::string Metrics() { return RenderMetrics(*this); }

  // The lines of one metric, without its HELP and TYPE.
  std::string Series(const std::string& metric) {
    std::istringstream text(Metrics());
    std::string found;
    for (std::string line; std::getline(text, line);) {
      if (line.starts_with(metric + " ") || line.starts_with(metric + "{")) found += line + "\n";
    }
    return found;
  }

  Host host;
  ProcessCounts counts;
  std::vector<PeerStatus> peers;
};

PeerStatus Peer(std::string address) {
  PeerStatus peer;
  peer.address = std::move(address);
  peer.state = PeerState::kUp;
  return peer;
}

bool Skip(std::string_view& text, std::string_view what) {
  if (!text.starts_with(what)) return false;
  text.remove_prefix(what.size());
  return true;
}

std::string TakeName(std::string_view& text) {
  const auto end = std::find_if(text.begin(), text.end(), [](unsigned char c) { return !std::isalnum(c) && c != '_'; });
  const std::string name(text.begin(), end);
  text.remove_prefix(name.size());
  return name;
}

// name="text", in which a backslash is before each backslash, quote and n for a newline, and nowhere else.
bool TakeLabel(std::string_view& text) {
  if (TakeName(text).empty() || !Skip(text, "=\"")) return false;
  while (!text.empty() && text[0] != '"') {
    if (text.starts_with("\\\\") || text.starts_with("\\\"") || text.starts_with("\\n"))
      text.remove_prefix(1);
    else if (text[0] == '\\')
      return false;
    else if (text[0] == '\n')
      return false;
    if (text.empty()) return false;
    text.remove_prefix(1);
  }
  return Skip(text, "\"");
}

// Every series with its value. Checks the form of each line, and that each metric has its HELP and TYPE once and its
// samples behind them.
std::map<std::string, double> Parse(const std::string& text) {
  std::map<std::string, double> series;
  std::set<std::string> described;
  std::string metric, type;
  std::istringstream lines(text);
  REQUIRE(text.ends_with('\n'));
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    std::string_view rest = line;
    if (line.starts_with("# HELP")) {
      REQUIRE(Skip(rest, "# HELP "));
      metric = TakeName(rest);
      CHECK(!metric.empty());
      CHECK(described.insert(metric).second);
      CHECK((rest.size() > 2 && std::isupper(rest[1]) + std::isdigit(rest[1]) > 0 && rest.ends_with('.')));
      CHECK(rest.find('\\') == std::string_view::npos);
      REQUIRE(std::getline(lines, line));
      rest = line;
      REQUIRE((Skip(rest, "# TYPE ") && Skip(rest, metric + " ")));
      type = rest;
      CHECK((type == "counter" || type == "gauge" || type == "histogram"));
      CHECK((type == "counter") == metric.ends_with("_total"));
      continue;
    }
    const std::string name = TakeName(rest);
    if (Skip(rest, "{")) {
      do REQUIRE(TakeLabel(rest));
      while (Skip(rest, ","));
      REQUIRE(Skip(rest, "}"));
    }
    const std::string which = line.substr(0, line.size() - rest.size());
    REQUIRE((!name.empty() && Skip(rest, " ") && rest.find(' ') == std::string_view::npos));
    if (type == "histogram") {
      CHECK((name == metric + "_bucket" || name == metric + "_sum" || name == metric + "_count"));
    } else {
      CHECK(name == metric);
    }
    CHECK(series.emplace(which, std::stod(std::string(rest))).second);
  }
  return series;
}

TEST_CASE("a small daemon as metrics, to the letter") {
  FakeDaemon daemon(
      "[[rule]]\nname=\"login\"\nmatch=\"login:*\"\nburst=3\nrate=0.5\n[[override]]\ntag=\"vip\"\nburst=1\nrate=1\n");
  for (int i = 0; i < 5; ++i) daemon.host.Serves("login:x", kNow);
  daemon.host.Serves("nobody", kNow);
  daemon.host.Serves("vip", kNow);
  daemon.counts.uptime = 1500ms;
  daemon.counts.accepted = 12'345'678'901'234;
  PeerStatus up = Peer("tcp://192.0.2.1:7314"), new_one = Peer("tcp://192.0.2.2:7314");
  up.name = "b", up.version = "0.1.0", up.last_heard = 250ms, up.age = 30us;
  up.reports = 7, up.entries = 70, up.missed = 2, up.lost = 1;
  new_one.state = PeerState::kConnecting, new_one.last_heard = Duration(-1);
  daemon.peers = {new_one, up};

  const std::string text = daemon.Metrics();
  CHECK(
      text.starts_with("# HELP dthrottled_uptime_seconds Since the daemon started.\n"
                       "# TYPE dthrottled_uptime_seconds gauge\n"
                       "dthrottled_uptime_seconds 1.5\n"));
  CHECK(daemon.Series("dthrottled_connections_accepted_total") ==
        "dthrottled_connections_accepted_total 12345678901234\n");
  CHECK(daemon.Series("dthrottled_build_info") == "dthrottled_build_info{version=\"" DTHROTTLE_VERSION "\"} 1\n");
  CHECK(daemon.Series("dthrottled_queries_total") ==
        "dthrottled_queries_total{rule=\"login\",verdict=\"served\"} 3\n"
        "dthrottled_queries_total{rule=\"login\",verdict=\"throttled\"} 2\n"
        "dthrottled_queries_total{rule=\"login\",verdict=\"shed\"} 0\n"
        "dthrottled_queries_total{rule=\"login\",verdict=\"shadowed\"} 0\n"
        "dthrottled_queries_total{rule=\"\",verdict=\"served\"} 1\n"
        "dthrottled_queries_total{rule=\"\",verdict=\"throttled\"} 0\n"
        "dthrottled_queries_total{rule=\"\",verdict=\"shed\"} 0\n"
        "dthrottled_queries_total{rule=\"\",verdict=\"shadowed\"} 0\n"
        "dthrottled_queries_total{rule=\"\",verdict=\"unmatched\"} 1\n");
  CHECK(daemon.Series("dthrottled_peer_info") ==
        "dthrottled_peer_info{peer=\"tcp://192.0.2.1:7314\",name=\"b\",version=\"0.1.0\"} 1\n"
        "dthrottled_peer_info{peer=\"tcp://192.0.2.2:7314\",name=\"\",version=\"\"} 1\n");
  CHECK(daemon.Series("dthrottled_peer_up") ==
        "dthrottled_peer_up{peer=\"tcp://192.0.2.1:7314\"} 1\ndthrottled_peer_up{peer=\"tcp://192.0.2.2:7314\"} 0\n");
  CHECK(daemon.Series("dthrottled_peer_heard_ago_seconds") ==
        "dthrottled_peer_heard_ago_seconds{peer=\"tcp://192.0.2.1:7314\"} 0.25\n");
  CHECK(daemon.Series("dthrottled_peer_age_seconds") ==
        "dthrottled_peer_age_seconds{peer=\"tcp://192.0.2.1:7314\"} 3e-05\n");
  for (const auto& [metric, value] :
       std::map<std::string, int>{{"reports", 7}, {"entries", 70}, {"missed", 2}, {"lost", 1}}) {
    CHECK(daemon.Series(fmt::format("dthrottled_peer_{}_total", metric)) ==
          fmt::format("dthrottled_peer_{0}_total{{peer=\"tcp://192.0.2.1:7314\"}} {1}\n"
                      "dthrottled_peer_{0}_total{{peer=\"tcp://192.0.2.2:7314\"}} 0\n",
                      metric, value));
  }
}

TEST_CASE("each metric is described once, and no series comes twice") {
  FakeDaemon daemon("[[rule]]\nname=\"a\"\nmatch=\"a*\"\nburst=1\nrate=1\n[[rule]]\nname=\"b\"\nburst=1\nrate=1\n");
  // A host that is listed and also what a name leads to, and this host itself.
  PeerStatus self = Peer("tcp://192.0.2.9:1");
  self.state = PeerState::kSelf;
  daemon.peers = {Peer("tcp://192.0.2.1:1"), Peer("tcp://192.0.2.2:1"), Peer("tcp://192.0.2.1:1"), self};
  const auto series = Parse(daemon.Metrics());
  CHECK(series.size() > 100);
  CHECK(series.count("dthrottled_peer_up{peer=\"tcp://192.0.2.1:1\"}") == 1);
  CHECK(series.count("dthrottled_peer_up{peer=\"tcp://192.0.2.9:1\"}") == 0);
}

TEST_CASE("every count of stats is a metric, or the sum of the series that it names") {
  FakeDaemon daemon(
      "[[rule]]\nname=\"a\"\nmatch=\"a*\"\nburst=5\nrate=1\n"
      "[[rule]]\nname=\"sh\"\nmatch=\"sh*\"\nburst=2\nrate=1\nmode=\"shadow\"\n"
      "[[rule]]\nname=\"hot\"\nmatch=\"hot*\"\nburst=2\nrate=1\nshed=true\n"
      "[[rule]]\nname=\"pen\"\nmatch=\"pen*\"\nburst=2\nrate=1\npenalty={ after = 2 }\n"
      "[[rule]]\nname=\"quo\"\nmatch=\"quo*\"\nburst=5\nrate=1\nquota=3\n"
      "[[override]]\ntag=\"x\"\nburst=1\nrate=1\n");
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> counted(Quotas::RegionBytes(Quotas::kSlotsMin) / sizeof(Line));
  daemon.limiter().ways().KeepQuotas(std::make_unique<Quotas>(
      std::as_writable_bytes(std::span(counted)), std::array<std::byte, 16>(), 1,
      [&](const Tag& tag) { return daemon.limiter().table().Hash(tag); },
      [](const QuotaCalendar&) { return QuotaPeriods{1, 2, 3, kNow + 1h}; }, kNow));
  daemon.limiter().shedder().Shed(daemon.limiter().rules().shed_priorities(), ShedCurve(1, 2), 2);
  for (const char* tag : {"a1", "sh1", "hot1", "pen1", "quo1", "x", "other"}) {
    for (int i = 0; i < 9; ++i) daemon.host.Serves(tag, kNow);
  }
  daemon.limiter().ways().Get<Debits>().ShareWith(1, 1s);
  Entries entries;
  entries.Add({"a2"}, 12, 0);
  daemon.limiter().ways().Get<Debits>().Debit(entries, 0, 1, kNow - 1s, kNow, kNow);
  daemon.limiter().ways().Get<Debits>().Certify(kNow);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(daemon.host.Serves("a2", kNow + 1500ms));
  for (int i = 1; i < 9; ++i) daemon.limiter().ways().Get<Debits>().Certify(kNow + i * 1s);    // until reports cannot say more of it

  // More tags than the table has room for, all of which were refused.
  for (int i = 0; i < 30'000; ++i) {
    for (int k = 0; k < 7; ++k) daemon.host.Serves(fmt::format("a-{}", i), kNow);
  }

  const auto series = Parse(daemon.Metrics());
  const Snapshot snapshot = TakeSnapshot(daemon.limiter(), daemon.counts);
  for (const Count& count : Counts()) {
    const std::string metric = MetricName(count);
    INFO(metric);
    if (count.kind != CountKind::kSum) {
      REQUIRE(series.count(metric) == 1);
      CHECK(series.at(metric) == Approx(count.value(snapshot)));
      continue;
    }
    const std::size_t brace = std::min(metric.find('{'), metric.size());
    const std::string name = metric.substr(0, brace) + "{";
    const std::string label = brace < metric.size() ? metric.substr(brace + 1) : "}";
    double sum = 0;
    for (const auto& [text, value] : series) {
      if (text.starts_with(name) && text.ends_with(label)) sum += value;
    }
    CHECK(sum == Approx(count.value(snapshot)));
    CHECK(sum > 0);    // or the test shows nothing
  }
}

TEST_CASE("what a label says is escaped, and is text whatever a peer calls itself") {
  FakeDaemon daemon("");
  std::vector<Rule> rules(1);
  rules[0].name = "a\"b\\c\nd\xc3\xa9";
  daemon.host.Start(std::make_shared<Rulebook>(std::move(rules), std::vector<Override>()), kNow);
  PeerStatus peer = Peer("tcp://[::1]:7314");
  peer.name = "n\"\xff\n", peer.version = "\\";
  daemon.peers = {peer};
  Parse(daemon.Metrics());
  CHECK(daemon.Series("dthrottled_near_limit_total")
            .starts_with("dthrottled_near_limit_total{rule=\"a\\\"b\\\\c\\nd\xc3\xa9\"} 0\n"));
  CHECK(daemon.Series("dthrottled_peer_info") ==
        "dthrottled_peer_info{peer=\"tcp://[::1]:7314\",name=\"n\\\"\\\\xff\\\\x0a\",version=\"\\\\\\\\\"} 1\n");
}

TEST_CASE("no tag gets into a metric, and tags do not make the answer longer") {
  FakeDaemon daemon("[[rule]]\nname=\"r\"\nburst=1\nrate=1\n[[override]]\ntag=\"needle-0\"\nburst=1\nrate=1\n");
  daemon.host.Serves("first", kNow);
  const std::size_t before = daemon.Metrics().size();
  for (int i = 0; i < 2000; ++i) daemon.host.Serves(fmt::format("needle-{}", i), kNow);
  const std::string text = daemon.Metrics();
  CHECK(text.find("needle") == std::string::npos);
  CHECK(text.size() <= before + 64);    // digits
}

// Bytes of the text if each number had 20 digits.
std::size_t AtItsWidest(const std::string& text) {
  std::size_t bytes = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t before_number = line.rfind(' ') + 1;
    bytes += (line.starts_with('#') ? line.size() : before_number + 20) + 1;
  }
  return bytes;
}

TEST_CASE("an answer is bounded by rules and peers") {
  // The longest that there is: numbers of 20 digits, names of 64 bytes, addresses with the name that leads to them.
  const auto toml = [](std::size_t rules) {
    std::string text;
    for (std::size_t i = 0; i < rules; ++i)
      text += fmt::format("[[rule]]\nname=\"{:x>64}\"\nmatch=\"{}:*\"\nburst=1\nrate=1\n", i, i);
    return text;
  };
  const std::vector<std::pair<std::size_t, std::size_t>> sizes = {{0, 0}, {1, 1}, {100, 0}, {0, 100}};
  for (const auto& [rules, peers] : sizes) {
    CAPTURE(rules, peers);
    FakeDaemon daemon(toml(rules));
    for (std::size_t i = 0; i < peers; ++i) {
      PeerStatus peer = Peer(fmt::format("tcp://[2001:db8::{}]:65535 (tcp://{:n>253}:65535)", i, i));
      peer.name.assign(64, 'n'), peer.version.assign(64, 'v');
      peer.last_heard = peer.age = Duration(123'456'789'123'456'789);
      peer.reports = peer.entries = peer.missed = peer.lost = ~std::uint64_t{0};
      daemon.peers.push_back(peer);
    }
    daemon.counts.answered_in.counts.fill(1'000'000'000'000'000);
    const std::size_t bound = kMetricsBytes + rules * kMetricsBytesPerRule + peers * kMetricsBytesPerPeer;
    const std::size_t size = AtItsWidest(daemon.Metrics());
    CAPTURE(bound);
    CHECK(size <= bound);
    if (rules + peers == 0) CHECK(size > bound - 4096);
  }
}

TEST_CASE("a histogram counts a duration in the first bucket that holds it") {
  Histogram histogram;
  histogram.Add(1us);
  histogram.Add(1us + 1ns, 3);
  histogram.Add(-5s);
  histogram.Add(10s);
  histogram.Add(11s);
  const HistogramTotals totals = histogram.Read();
  CHECK(totals.counts.front() == 2);
  CHECK(totals.counts[1] == 3);
  CHECK(totals.counts[kHistogramBounds.size() - 1] == 1);
  CHECK(totals.counts.back() == 1);
  CHECK(totals.sum == 21s + 4us + 3ns);
  for (std::size_t i = 1; i < kHistogramBounds.size(); ++i) CHECK(kHistogramBounds[i - 1] < kHistogramBounds[i]);
}

TEST_CASE("buckets of a metric are cumulative, and the last one is the count") {
  FakeDaemon daemon("");
  Histogram histogram;
  histogram.Add(15us, 2);
  histogram.Add(3ms, 5);
  histogram.Add(60s);
  daemon.counts.answered_in = histogram.Read();
  daemon.counts.answered_in += histogram.Read();
  const std::string buckets = daemon.Series("dthrottled_query_duration_seconds_bucket");
  const auto has = [&](const char* line) { return buckets.find(line) != std::string::npos; };
  CHECK(buckets.starts_with("dthrottled_query_duration_seconds_bucket{le=\"1e-06\"} 0\n"));
  CHECK(has("{le=\"1e-05\"} 0\n"));
  CHECK(has("{le=\"2e-05\"} 4\n"));
  CHECK(has("{le=\"0.002\"} 4\n"));
  CHECK(has("{le=\"0.005\"} 14\n"));
  CHECK(has("{le=\"10\"} 14\n"));
  CHECK(buckets.ends_with("{le=\"+Inf\"} 16\n"));
  CHECK(daemon.Series("dthrottled_query_duration_seconds_count") == "dthrottled_query_duration_seconds_count 16\n");
  CHECK(daemon.Series("dthrottled_query_duration_seconds_sum") == "dthrottled_query_duration_seconds_sum 120.03006\n");
}

TEST_CASE("a query that leaves less than a fifth of the burst is near the limit") {
  Host host("[[rule]]\nname=\"r\"\nburst=10\nrate=1\n");
  for (int i = 0; i < 8; ++i) host.Serves("x", kNow);
  CHECK(host.limiter->tally().Totals(0).near_limit == 0);    // 2 of 10 left is a fifth
  host.Serves("x", kNow);
  CHECK(host.limiter->tally().Totals(0).near_limit == 1);
  for (int i = 0; i < 5; ++i) host.Serves("x", kNow);    // one served, the rest throttled
  CHECK(host.limiter->tally().Totals(0).near_limit == 2);
  host.Serves("x", kNow + 5s);
  CHECK(host.limiter->tally().Totals(0).near_limit == 2);
  CHECK(host.limiter->tally().GrandTotals().near_limit == 2);
}

TEST_CASE("hits of peers are over-admitted as far as they make debt") {
  const std::string login = "[[rule]]\nname=\"login\"\nmatch=\"login:*\"\nburst=10\nrate=1\n";
  Host host(login + "[[rule]]\nname=\"rest\"\nburst=100\nrate=1\n");
  Limiter& limiter = *host.limiter;
  limiter.ways().Get<Debits>().ShareWith(1, 1s);
  const auto hear = [&](std::string_view tag, std::uint64_t hits) {
    Entries entries;
    entries.Add({tag}, hits, 0);
    limiter.ways().Get<Debits>().Debit(entries, 0, 1, kNow, kNow, kNow);
  };
  for (int i = 0; i < 10; ++i) CHECK(host.Serves("login:x", kNow));
  hear("login:x", 4);
  CHECK(limiter.ways().Get<Debits>().totals(0).hits == 4);
  CHECK(limiter.ways().Get<Debits>().totals(0).overadmitted == Approx(4));
  hear("login:x", 2);    // on top of the debt that is there
  CHECK(limiter.ways().Get<Debits>().totals(0).overadmitted == Approx(6));
  hear("login:y", 10);    // all that a fresh bucket has, and no more
  CHECK(limiter.ways().Get<Debits>().totals(0).hits == 16);
  CHECK(limiter.ways().Get<Debits>().totals(0).overadmitted == Approx(6));
  hear("login:z", 10);
  hear("login:z", 3);
  CHECK(limiter.ways().Get<Debits>().totals(0).overadmitted == Approx(9));
  hear("web", 50);
  CHECK(limiter.ways().Get<Debits>().totals(1).hits == 50);
  CHECK(limiter.ways().Get<Debits>().totals(1).overadmitted == 0);

  // A rule keeps what it has counted as long as its name is there; another one in its place begins at 0.
  limiter.Adopt(testing::Rules(login + "[[rule]]\nname=\"other\"\nburst=100\nrate=1\n"));
  CHECK(limiter.ways().Get<Debits>().totals(0).hits == 29);
  CHECK(limiter.ways().Get<Debits>().totals(1).hits == 0);
  CHECK(limiter.ways().Get<Debits>().grand_totals().hits == 79);
  CHECK(limiter.ways().Get<Debits>().grand_totals().overadmitted == Approx(9));
}

}    // namespace
}    // namespace dthrottle
