// The golden cases of cases.jsonl, computed independently from the papers alone: one line of JSON each.
//
// Kinds that other parts of the project answer are listed by name, so that none is forgotten.
#include <catch2/catch.hpp>

#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "bucket/bucket.h"
#include "capacity/divide.h"
#include "capacity/fairness.h"
#include "lease/server.h"
#include "lease/share.h"
#include "plan/analysis.h"
#include "shed/curve.h"
#include "test/paper/graphs.h"

namespace dthrottle::plan {
namespace {

using Json = nlohmann::json;
using Values = std::vector<double>;

// Kinds with the number of their cases. "sdp" runs in design_test.cc, which needs csdp.
const std::map<std::string, int> kHere{{"dst_step", 11},    {"dst_case4", 6},        {"dst_overthrottle", 4},
                                       {"dst_phi", 11},     {"dst_phi_unstable", 1}, {"dst_alg", 11},
                                       {"gdrl_sync", 8},    {"gdrl_mrt", 4},         {"gdrl_pairwise", 4},
                                       {"jfi", 4},          {"dthrottle_trace", 11}, {"dthrottle_bound", 6},
                                       {"logistic", 14},    {"doorman_alloc", 14},   {"doorman_store", 8},
                                       {"doorman_lease", 7}};
const std::map<std::string, int> kElsewhere{{"dst_sdp", 6}};

std::vector<Json> Cases() {
  std::ifstream file(DTHROTTLE_SOURCE "/test/paper/cases.jsonl");
  std::vector<Json> cases;
  for (std::string line; std::getline(file, line);) cases.push_back(Json::parse(line));
  return cases;
}

void ForEach(const std::string& kind, const std::function<void(const Json& in, const Json& out, double tolerance)>& f) {
  int count = 0;
  for (const Json& json : Cases()) {
    if (json["kind"] != kind) continue;
    CAPTURE(json["id"].get<std::string>());
    f(json["input"], json["expect"], std::max(json["tol"].get<double>(), 1e-12));
    ++count;
  }
  CHECK(count == kHere.at(kind));
}

Graph GraphOf(const Json& in) {
  std::vector<WeightedLink> links;
  for (std::size_t e = 0; e < in["edges"].size(); ++e) {
    links.push_back(
        {in["edges"][e][0], in["edges"][e][1], in.contains("weights") ? in["weights"][e].get<double>() : 1});
  }
  return *Graph::Make(in["n"], links);
}

TEST_CASE("golden cases: every kind runs here or is somebody else's") {
  std::map<std::string, int> found, expected = kHere;
  expected.insert(kElsewhere.begin(), kElsewhere.end());
  for (const Json& json : Cases()) ++found[json["kind"]];
  CHECK(found == expected);
  CHECK(Cases().size() == 130);
}

TEST_CASE("golden cases: DST eq (3), cases I to III of Table 1") {
  const Indicator* const indicators[] = {&ThrottledAmount(), &ThrottledRatio(), &LogRatio()};
  ForEach("dst_step", [&](const Json& in, const Json& out, double tolerance) {
    const Indicator& indicator = *indicators[in["case"].get<int>() - 1];
    const Graph graph = GraphOf(in);
    const Values r = in["r"];
    Values x = in["x0"];
    CHECK(Near(Indicate(indicator, r, x), Values(out["p0"]), tolerance));
    for (int k = 1; k <= 5; ++k) {
      Round(graph, indicator, r, in["gamma"], x);
      if (k == 1) CHECK(Near(x, Values(out["x1"]), tolerance));
    }
    CHECK(Near(x, Values(out["x5"]), tolerance));
    CHECK(Near(Sum(x), out["sum"], tolerance));
  });
}

TEST_CASE("golden cases: DST eq (48) and its constraints, case IV") {
  ForEach("dst_case4", [](const Json& in, const Json& out, double tolerance) {
    const Graph graph = GraphOf(in);
    const Values r = in["r"];
    Values x = in["x0"];
    for (int k = 1; k <= 60; ++k) {
      AllowedAmountRound(graph, r, in["gamma"], x);
      const std::string name = "x" + std::to_string(k);
      if (out.contains(name)) CHECK(Near(x, Values(out[name]), tolerance));
    }
    CHECK(Near(Sum(x), out["sum"], tolerance));
  });
}

TEST_CASE("golden cases: DST section 6, over-throttling %") {
  ForEach("dst_overthrottle", [](const Json& in, const Json& out, double tolerance) {
    OverThrottling all;
    for (std::size_t k = 0; k < in["x"].size(); ++k) {
      OverThrottling cycle;
      cycle.Add(Values(in["x"][k]), Values(in["r"][k]));
      all.Add(Values(in["x"][k]), Values(in["r"][k]));
      CHECK(Near(cycle.accepted(), out["a_total"][k], tolerance));
      CHECK(Near(cycle.ideal(), out["a_ideal"][k], tolerance));
    }
    CHECK(Near(all.percent(), out["pct"], tolerance));
  });
}

TEST_CASE("golden cases: DST eq (15), (20), (23), (24), (25), (27), (31)") {
  ForEach("dst_phi", [](const Json& in, const Json& out, double tolerance) {
    const Spectrum spectrum = Decompose(GraphOf(in));
    const double gamma = in["gamma"];
    CHECK(Near(Lambda2(spectrum), out["lambda2"], tolerance));
    CHECK(Near(LambdaN(spectrum), out["lambda_n"], tolerance));
    CHECK(Near(FastestCycle(spectrum), out["gamma_opt"], tolerance));
    CHECK(Near(ConvergenceFactor(spectrum, gamma), out["phi_cr"], tolerance));
    CHECK(Near(Dispersion(spectrum, gamma, 1), out["phi_ss_CovI"], tolerance));
    CHECK(Near(Dispersion(spectrum, gamma, gamma), out["phi_ss_eq24_sigma1"], tolerance));
    CHECK(Near(Dispersion(spectrum, gamma, Values(in["var_diag"])), out["phi_ss_CovDiag"], tolerance));
    CHECK(Near(SmallCycleDispersion(spectrum, 1), out["eq25_sigma1"], tolerance));
    CHECK(Near(SteadiestCycle(spectrum), out["gamma_nonsteady_CovI"], tolerance));
    CHECK(Near(Centrality(spectrum, gamma), Values(out["centrality"]), tolerance));
  });
}

TEST_CASE("golden cases: DST Lemma 2, a gamma that is too large") {
  ForEach("dst_phi_unstable", [](const Json& in, const Json&, double) {
    const Spectrum spectrum = Decompose(GraphOf(in));
    CHECK(std::isinf(Dispersion(spectrum, in["gamma"], 1)));
    CHECK_FALSE(Stable(in["gamma"], LambdaN(spectrum)));
  });
}

TEST_CASE("golden cases: DST Algorithms 1 and 2") {
  ForEach("dst_alg", [](const Json& in, const Json& out, double tolerance) {
    const Values requests = in["requests"];
    const ClientLimits level = DivideByLevel(requests, in["limit"]);
    CHECK(Near(DivideByRatio(requests, in["limit"]).limits, Values(out["alg1"]), tolerance));
    CHECK(Near(level.limits, Values(out["alg2"]), tolerance));
    CHECK((out["level"].is_null() ? std::isinf(level.level) : Near(level.level, out["level"], tolerance)));
  });
}

TEST_CASE("golden cases: GDRL eq (7), (15), (16), spare bandwidth") {
  ForEach("gdrl_sync", [](const Json& in, const Json& out, double tolerance) {
    const Graph graph = GraphOf(in);
    const Values demands = in["lam"];
    const double capacity = in["C"], n = graph.size();
    Values shares(graph.size(), capacity / n), jfi;
    CHECK(Near(SpareBandwidthGainMax(graph), out["eta_bound_9"], tolerance));
    for (int t = 0; t <= 60; ++t) {
      if (t > 0) Round(graph, ThrottledAmount(), demands, in["eta"], shares);
      if (t == 0 || t == 1 || t == 10 || t == 60)
        jfi.push_back(JainIndex(Indicate(ThrottledAmount(), demands, shares)));
      const std::string name = "C" + std::to_string(t);
      if (out.contains(name)) CHECK(Near(shares, Values(out[name]), tolerance));
    }
    CHECK(Near(jfi, Values(out["jfi_0_1_10_60"]), tolerance));
    CHECK(Near((Sum(demands) - capacity) / n, out["q_star"], tolerance));
    CHECK(Near(Sum(shares), capacity, tolerance));
  });
}

TEST_CASE("golden cases: GDRL eq (7) and (9), M/M/1 mean response time") {
  ForEach("gdrl_mrt", [](const Json& in, const Json& out, double tolerance) {
    const Graph graph = GraphOf(in);
    const Values demands = in["lam"];
    const double capacity = in["C"], n = graph.size();
    Values shares(graph.size(), capacity / n);
    std::vector<Load> loads;
    for (std::size_t i = 0; i < demands.size(); ++i) loads.push_back({demands[i], shares[i]});
    const double bound = GainMax(graph, ResponseTime(), loads);
    CHECK(Near(bound, out["bound_9"], tolerance));
    std::vector<Values> seen;
    for (int t = 1; t <= 200; ++t) {
      Round(graph, ResponseTime(), demands, 0.9 * bound, shares);
      if (t == 1 || t == 10 || t == 200) seen.push_back(shares);
    }
    for (std::size_t i = 0; i < 3; ++i) CHECK(Near(seen[i], Values(out["C_1_10_200"][i]), tolerance));
    CHECK(Near(n / (capacity - Sum(demands)), out["q_star"], tolerance));
  });
}

TEST_CASE("golden cases: GDRL Appendix, exchanges over one link at a time") {
  ForEach("gdrl_pairwise", [](const Json& in, const Json& out, double tolerance) {
    const Graph graph = GraphOf(in);
    const Values demands = in["lam"];
    Values shares(graph.size(), in["C"].get<double>() / graph.size());
    for (const std::size_t e : in["edge_sequence"]) {
      const WeightedLink& link = graph.links()[e];
      const double transfer = Transfer(demands[link.a] - shares[link.a], demands[link.b] - shares[link.b], in["eta"]);
      shares[link.a] += transfer;
      shares[link.b] -= transfer;
    }
    CHECK(Near(shares, Values(out["C"]), tolerance));
    CHECK(Near(JainIndex(Indicate(ThrottledAmount(), demands, shares)), out["jfi"], tolerance));
  });
}

TEST_CASE("golden cases: GDRL eq (16), Jain's index") {
  ForEach("jfi", [](const Json& in, const Json& out, double tolerance) {
    CHECK(Near(JainIndex(Values(in["q"])), out["jfi"], tolerance));
  });
}

// "47/10" or "5": seconds.
Instant At(const std::string& fraction) {
  const std::size_t bar = fraction.find('/');
  const std::int64_t over = bar == std::string::npos ? 1 : std::stoll(fraction.substr(bar + 1));
  return FromNanoseconds(std::stoll(fraction) * 1'000'000'000 / over);
}

// The README's hosts in small: a bucket each, which reports the hits that it served. Debits count from when they
// arrive.
TEST_CASE("golden cases: DThrottle README, buckets that debit what peers report") {
  ForEach("dthrottle_trace", [](const Json& in, const Json& out, double tolerance) {
    struct Host {
      Bucket bucket;
      Waste waste;
      std::uint64_t unreported = 0;
    };
    enum class What { kDebit, kCut, kRequests };    // in this order at one instant
    struct Event {
      Instant at;
      What what;
      std::size_t index;    // of the report or of the requests
    };
    const Shape shape = Shape::From(in["burst"], in["rate"]);
    std::vector<Host> hosts(in["nodes"]);
    std::vector<Event> events;
    for (std::size_t i = 0; i < in["events"].size(); ++i)
      events.push_back({At(in["events"][i][0]), What::kRequests, i});
    for (std::size_t i = 0; i < in["report_times"].size(); ++i) {
      const Instant at = At(in["report_times"][i]);
      events.push_back({at, What::kCut, i});
      events.push_back({at + At(in["processing_delay"]).time_since_epoch(), What::kDebit, i});
    }
    std::stable_sort(events.begin(), events.end(),
                     [](const Event& a, const Event& b) { return std::tie(a.at, a.what) < std::tie(b.at, b.what); });
    std::map<std::size_t, std::vector<std::uint64_t>> reports;
    for (const Event& event : events) {
      if (event.what == What::kRequests) {
        const Json& request = in["events"][event.index];
        Host& host = hosts[request[1]];
        int served = 0;
        for (int i = 0; i < request[2]; ++i) served += host.bucket.Take(shape, 1, event.at);
        host.unreported += static_cast<std::uint64_t>(served);
        CHECK(Json{request[1], served, request[2].get<int>() - served} == out["admitted_denied"][event.index]);
      } else if (event.what == What::kCut) {
        for (Host& host : hosts) reports[event.index].push_back(std::exchange(host.unreported, 0));
      } else {
        for (std::size_t from = 0; from < hosts.size(); ++from) {
          for (std::size_t to = 0; to < hosts.size(); ++to) {
            if (from == to || reports[event.index][from] == 0) continue;
            hosts[to].bucket.Debit(shape, reports[event.index][from], event.at, Ticks{1} << 61, event.at,
                                   hosts[to].waste, 0);
          }
        }
      }
    }
    Values levels;
    const Instant end = FromNanoseconds(std::llround(out["buckets_at"].get<double>() * 1e9));
    for (const Host& host : hosts) levels.push_back(host.bucket.Level(shape, end));
    CHECK(Near(levels, Values(out["buckets"]), tolerance));
  });
}

// Everybody asks every host for all that there is, from full buckets on, until the first reports have arrived.
TEST_CASE(
    "golden cases: DThrottle README, how much hosts can exceed a limit together, and for how long they then refuse") {
  ForEach("dthrottle_bound", [](const Json& in, const Json& out, double tolerance) {
    const double n = in["nodes"], burst = in["burst"], rate = in["rate"], loss = in["loss"];
    const Shape shape = Shape::From(burst, rate);
    const auto seconds = [](double s) { return FromNanoseconds(std::llround(s * 1e9)); };
    const double period = in["period"], heard = period + in["delay"].get<double>();
    Bucket bucket, reports;
    Waste waste;
    // What a bucket serves that is asked all the time until then.
    const auto serve = [&](Bucket& from, double until) {
      std::uint64_t served = 0;
      for (double at = 0; at < until; at += 1 / rate) {
        while (from.Take(shape, 1, seconds(at))) ++served;
      }
      while (from.Take(shape, 1, seconds(until))) ++served;
      return served;
    };
    const std::uint64_t served = serve(bucket, heard), reported = serve(reports, period);
    // Hits are whole, so up to one for each host is missing.
    const double excess = (n - 1) * static_cast<double>(served);
    CHECK(excess <= out["max_excess"].get<double>() + 1e-6);
    CHECK(excess > out["max_excess"].get<double>() - n);
    const auto others = static_cast<std::uint64_t>((n - 1) * static_cast<double>(reported));
    reports.Debit(shape, others, seconds(period), Ticks{1} << 62, seconds(period), waste, 0);
    const double refuses = -reports.Level(shape, seconds(period)) / rate;
    CHECK(refuses <= out["blackout_after_saturated_period_s"].get<double>() + 1e-6);
    CHECK(refuses > out["blackout_after_saturated_period_s"].get<double>() - n / rate);
    // A host that serves x hears of (1 - loss) (n - 1) x, and both together are the rate.
    CHECK(Near(n / (1 + (1 - loss) * (n - 1)) - 1, out["long_run_error_lost_deltas"], tolerance));
  });
}

TEST_CASE("golden cases: graceful degradation, the logistic function between its bounds") {
  ForEach("logistic", [](const Json& in, const Json& out, double) {
    const ShedCurve curve(in["start"], in["full"]);
    const double p = curve.RejectionProbability(in["x"]);
    CHECK(Near(p, out["p"], 1e-12));
    const double rescaled = p == 0 || p == 1 ? p : (p - 0.01) / 0.98;
    CHECK(std::abs(rescaled - out["p_rescaled"].get<double>()) < 1e-12);
  });
}

// ---- Doorman ----

TEST_CASE("golden cases: Doorman Static, ProportionalShare, FairShare") {
  ForEach("doorman_alloc", [](const Json& in, const Json& out, double tolerance) {
    std::vector<lease::Demand> demands;
    for (const auto& [name, client] : in["clients"].items()) demands.push_back({client[0], client[1]});
    for (const auto& [name, algorithm] : {std::pair("fair", lease::Algorithm::kFairShare),
                                          {"proportional", lease::Algorithm::kProportionalShare},
                                          {"static", lease::Algorithm::kStatic}}) {
      Values expected;
      for (const auto& [client, wants] : in["clients"].items()) expected.push_back(out[name][client]);
      CHECK(Near(lease::Divide(algorithm, in["capacity"], demands), expected, tolerance));
    }
  });
}

TEST_CASE("golden cases: Doorman, a grant leaves to others what they have leased") {
  using namespace std::chrono_literals;
  ForEach("doorman_store", [](const Json& in, const Json& out, double tolerance) {
    const lease::ResourceTemplate how{
        .identifier_glob = "*",
        .capacity = in["capacity"],
        .algorithm = in["algorithm"] == "fair" ? lease::Algorithm::kFairShare : lease::Algorithm::kProportionalShare};
    lease::LeaseServer server({}, *lease::Templates::Make({how}));
    server.BecomeMaster({});
    BootInstant now(100s);    // learning mode is over
    Values gets;
    for (const Json& request : in["requests"]) {
      const lease::ResourceRequest asked{.resource = "r", .wants = request[1]};
      gets.push_back(server.GetCapacity(request[0].get<std::string>(), {&asked, 1}, now += 2s)->front().lease.capacity);
    }
    for (std::size_t i = 0; i < gets.size(); ++i) {
      CHECK(std::abs(gets[i] - out["gets"][i].get<double>()) < std::max(tolerance, 1e-9));
    }
    CHECK(Near(server.Resources(now).front().has, out["sum_has"], tolerance));
  });
}

TEST_CASE("golden cases: Doorman, a lease ends with the server's own, and levels halve the refresh interval") {
  ForEach("doorman_lease", [](const Json& in, const Json& out, double) {
    using std::chrono::seconds;
    CHECK(in["decay"] == 0.5);
    const lease::ResourceTemplate how{.identifier_glob = "*",
                                      .lease_length = seconds(in["lease_length"].get<int>()),
                                      .refresh_interval = seconds(in["base_refresh"].get<int>())};
    std::optional<BootInstant> parent;
    if (!in["parent_expiry"].is_null()) parent = BootInstant(seconds(in["parent_expiry"].get<int>()));
    const lease::Lease made = lease::MakeLease(how, in["level"], 1, parent, BootInstant(seconds(in["now"].get<int>())));
    CHECK(made.expiry == BootInstant(seconds(out["expiry"].get<int>())));
    CHECK(made.refresh_interval == seconds(out["refresh"].get<int>()));
  });
}

}    // namespace
}    // namespace dthrottle::plan
