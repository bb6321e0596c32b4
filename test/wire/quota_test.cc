// Reports of protocol/rate_limit_quota.proto through lines to a lease server, and assignments back: everything of the
// service but the library and the sockets.
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "frontend/lease/lines.h"
#include "gateway/quota_messages.h"
#include "lease/server.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;
using Action = RateLimitQuotaResponse::BucketAction;

constexpr Duration kReportEvery = 5s;

RateLimitQuotaUsageReports Report(const std::map<std::string, std::string>& bucket, std::uint64_t allowed,
                                  std::uint64_t denied = 0, const std::string& domain = "edge") {
  RateLimitQuotaUsageReports reports;
  reports.set_domain(domain);
  auto& usage = *reports.add_bucket_quota_usages();
  for (const auto& [key, value] : bucket) (*usage.mutable_bucket_id()->mutable_bucket())[key] = value;
  usage.set_num_requests_allowed(allowed);
  usage.set_num_requests_denied(denied);
  return reports;
}

// A master of one resource, edge|rule=web, by a clock that the tests turn.
class Master {
 public:
  explicit Master(double capacity = 100, Duration learning = 0s) : capacity_(capacity) { Begin(1000, learning); }

  // The master dies, and another one begins: it knows nothing.
  void Begin(lease::Epoch epoch, Duration learning) {
    lease::ResourceTemplate web;
    web.identifier_glob = "edge|*";
    web.capacity = capacity_;
    web.lease_length = 15s;
    web.refresh_interval = 5s;
    web.learning_mode_duration = learning;
    server_ = std::make_unique<lease::LeaseServer>(lease::ServerOptions(), *lease::Templates::Make({web}));
    server_->BecomeMaster({.epoch = epoch, .since = BootInstant(now.time_since_epoch()) - 1ms});
  }

  RateLimitQuotaResponse Answer(QuotaBuckets& buckets, const RateLimitQuotaUsageReports& reports) {
    RateLimitQuotaResponse response;
    REQUIRE(buckets.Take(reports, now));
    while (buckets.pending()) {
      const CallLines lines = buckets.Ask();
      std::string text;
      CHECK(AnswerLeaseLines(SplitLeaseLines(lines.text), *server_, BootInstant(now.time_since_epoch()), text,
                             &calls_) == lines.count);
      CAPTURE(lines.text, text);
      LineAnswers answers;
      std::istringstream all(text);
      for (std::string line; std::getline(all, line);) answers.push_back(line);
      REQUIRE(answers.size() == lines.count);
      buckets.Answered(&answers, response);
    }
    return response;
  }

  double Leased() { return server_->Resources(BootInstant(now.time_since_epoch())).front().has; }

  Instant now = Instant(1000h);

 private:
  const double capacity_;
  std::unique_ptr<lease::LeaseServer> server_;
  GatewayCalls calls_;
};

// What Envoy does with one bucket: serves what its assignment lets it, and reports every 5 s.
class Envoy {
 public:
  explicit Envoy(int number) : name_("envoy-" + std::to_string(number)) { Connect(); }

  // Its stream has ended, and it has another one.
  void Connect() { buckets_ = std::make_unique<QuotaBuckets>(name_); }

  double RateAt(Instant now) const { return now < until_ ? rate_ : 0; }

  // Requests that came since the last report, by `demand` per second.
  double Use(double demand, Duration time, Instant now) {
    const double served = std::min(demand, RateAt(now)) * Seconds(time);
    allowed_ += served;
    denied_ += demand * Seconds(time) - served;
    return served;
  }

  void Report(Master& master) {
    const auto take = [](double& counted) {
      const double whole = std::floor(counted);
      counted -= whole;
      return static_cast<std::uint64_t>(whole);
    };
    const auto response =
        master.Answer(*buckets_, testing::Report({{"rule", "web"}}, take(allowed_), take(denied_)));
    for (const Action& action : response.bucket_action()) {
      const auto& assignment = action.quota_assignment_action();
      const auto& ttl = assignment.assignment_time_to_live();
      until_ = master.now + std::chrono::seconds(ttl.seconds()) + std::chrono::nanoseconds(ttl.nanos());
      rate_ = assignment.rate_limit_strategy().token_bucket().tokens_per_fill().value() / 60.0;
    }
  }

 private:
  const std::string name_;
  std::unique_ptr<QuotaBuckets> buckets_;
  double rate_ = 0, allowed_ = 0, denied_ = 0;
  Instant until_{};
};

const Action& Only(const RateLimitQuotaResponse& response) {
  REQUIRE(response.bucket_action_size() == 1);
  return response.bucket_action(0);
}

std::uint32_t PerMinute(const RateLimitQuotaResponse& response) {
  return Only(response).quota_assignment_action().rate_limit_strategy().token_bucket().tokens_per_fill().value();
}

TEST_CASE("quotas: the first report of a bucket gets an equal part, as a token bucket that Envoy 1.40 can use") {
  Master master(90.5);
  QuotaBuckets buckets("a");
  const auto response = master.Answer(buckets, Report({{"rule", "web"}}, 1));
  const auto& assignment = Only(response).quota_assignment_action();
  CHECK(Only(response).bucket_id().bucket().at("rule") == "web");
  CHECK(assignment.assignment_time_to_live().seconds() == 15);
  const auto& bucket = assignment.rate_limit_strategy().token_bucket();
  CHECK(bucket.max_tokens() == 90);    // of one second
  CHECK(bucket.tokens_per_fill().value() == 5430);
  CHECK(bucket.fill_interval().seconds() == 60);
}

TEST_CASE("quotas: what is wanted less than there is leaves the rest to all in equal parts") {
  Master master;
  QuotaBuckets a("a"), b("b");
  const auto report = [&](std::uint64_t of_a, std::uint64_t of_b) {
    const auto to_a = PerMinute(master.Answer(a, Report({{"rule", "web"}}, of_a)));
    const auto to_b = PerMinute(master.Answer(b, Report({{"rule", "web"}}, of_b)));
    master.now += kReportEvery;
    return std::pair(to_a, to_b);
  };
  report(1, 1);
  report(50, 150);
  report(50, 150);
  CHECK(report(50, 150) == std::pair(60u * 40, 60u * 60));    // 10/s and 30/s, and 30/s more for each
  report(50, 1000);
  report(50, 1000);
  CHECK(report(50, 1000) == std::pair(60u * 10, 60u * 90));
}

TEST_CASE("quotas: an equal assignment comes with every report, for its new time to live") {
  Master master;
  QuotaBuckets buckets("a");
  master.Answer(buckets, Report({{"rule", "web"}}, 1));
  for (int i = 0; i < 5; ++i) {
    master.now += kReportEvery;
    const auto response = master.Answer(buckets, Report({{"rule", "web"}}, 10));
    CHECK(PerMinute(response) == 6000);
    CHECK(Only(response).quota_assignment_action().assignment_time_to_live().seconds() == 15);
  }
}

TEST_CASE("quotas: a report that comes too soon for a rate is answered by the lease that there is") {
  Master master;
  QuotaBuckets buckets("a");
  master.Answer(buckets, Report({{"rule", "web"}}, 1));
  master.now += 400ms;
  REQUIRE(buckets.Take(Report({{"rule", "web"}}, 999), master.now));
  REQUIRE(buckets.pending());
  CHECK(buckets.Ask().count == 0);
  RateLimitQuotaResponse known;
  buckets.Answered(nullptr, known);
  CHECK(PerMinute(known) == 6000);
  const auto& left = Only(known).quota_assignment_action().assignment_time_to_live();
  CHECK(left.seconds() == 14);
  CHECK(left.nanos() == 600'000'000);
  // Its requests are not forgotten.
  master.now += 100ms;
  REQUIRE(buckets.Take(Report({{"rule", "web"}}, 0), master.now));
  CHECK(buckets.Ask().text == "quota a edge|rule=web 2000\n");
}

TEST_CASE("quotas: a bucket without requests keeps its part for a minute and is abandoned then, and its lease ends") {
  Master master;
  QuotaBuckets buckets("a");
  master.Answer(buckets, Report({{"rule", "web"}}, 1));
  const Instant used = master.now;
  while (master.now - used < QuotaBuckets::kAbandonAfter) {
    master.now += kReportEvery;
    const auto response = master.Answer(buckets, Report({{"rule", "web"}}, 0));
    CHECK(Only(response).has_abandon_action() == (master.now - used >= QuotaBuckets::kAbandonAfter));
  }
  CHECK(buckets.size() == 0);
  CHECK(master.Leased() == 100);    // Envoy may not have heard of it yet
  master.now += 15s;
  QuotaBuckets other("b");
  CHECK(PerMinute(master.Answer(other, Report({{"rule", "web"}}, 1))) == 6000);
}

TEST_CASE("quotas: a bucket that is reported no more is abandoned as others are") {
  Master master;
  QuotaBuckets buckets("a");
  master.Answer(buckets, Report({{"rule", "silent"}}, 1));
  int abandoned = 0;
  for (int i = 0; i < 24; ++i) {
    master.now += kReportEvery;
    const auto response = master.Answer(buckets, Report({{"rule", "web"}}, 1));
    for (const Action& action : response.bucket_action()) {
      if (!action.has_abandon_action()) continue;
      CHECK(action.bucket_id().bucket().at("rule") == "silent");
      ++abandoned;
    }
  }
  CHECK(abandoned == 1);
  CHECK(buckets.size() == 1);
}

// Buckets of ids of 8,000 bytes, each another one.
std::size_t Fill(QuotaBuckets& buckets, std::size_t reports) {
  for (std::size_t i = 0; i < reports; ++i) {
    RateLimitQuotaUsageReports some;
    for (int k = 0; k < 500; ++k) {
      const std::string value = std::to_string(i) + "-" + std::to_string(k) + std::string(7980, 'x');
      *some.add_bucket_quota_usages() = Report({{"k", value}}, 1).bucket_quota_usages(0);
    }
    some.set_domain("edge");
    CHECK(buckets.Take(some, Instant(1000h)));
  }
  return buckets.size();
}

TEST_CASE("quotas: ids take no more memory than 32 MiB of one Envoy and 128 MiB of all") {
  QuotaBuckets single("a");
  CHECK(single.Take(Report({{"k", std::string(8200, 'x')}}, 1), Instant(1000h)));
  CHECK(single.size() == 0);
  const std::size_t most = Fill(single, 10);
  CHECK(most > 3500);
  CHECK(most < 4200);
  std::atomic<std::size_t> all = 0;
  {
    std::deque<QuotaBuckets> four;
    for (int i = 0; i < 4; ++i) CHECK(Fill(four.emplace_back("b", &all), 10) > 3500);
    CHECK(all > std::size_t{127} << 20);
    CHECK(all <= std::size_t{128} << 20);
    QuotaBuckets fifth("c", &all);
    CHECK(Fill(fifth, 1) < 100);
  }
  CHECK(all == 0);
}

TEST_CASE("quotas: a bucket of which nothing is left is denied") {
  Master master;
  QuotaBuckets a("a"), b("b");
  master.Answer(a, Report({{"rule", "web"}}, 1));
  const auto response = master.Answer(b, Report({{"rule", "web"}}, 1));
  const auto& strategy = Only(response).quota_assignment_action().rate_limit_strategy();
  CHECK(strategy.has_blanket_rule());
  CHECK(strategy.blanket_rule() == envoy::service::rate_limit_quota::v3::RateLimitStrategy::DENY_ALL);
}

TEST_CASE("quotas: nothing is said where there is no lease, and while a new master learns") {
  Master learning(100, 15s);
  QuotaBuckets buckets("a");
  CHECK(learning.Answer(buckets, Report({{"rule", "web"}}, 1)).bucket_action().empty());
  learning.now += 16s;
  CHECK(PerMinute(learning.Answer(buckets, Report({{"rule", "web"}}, 1))) == 6000);
  CHECK(Master().Answer(buckets, Report({{"rule", "web"}}, 1, 0, "unknown")).bucket_action_size() == 0);
  RateLimitQuotaUsageReports nothing;
  CHECK_FALSE(QuotaBuckets("b").Take(nothing, Instant()));
}

TEST_CASE("quotas: a bucket is the same in whatever order its keys come, and a long one has a name of its own") {
  const auto id = [](const std::map<std::string, std::string>& bucket) {
    return Report(bucket, 0).bucket_quota_usages(0).bucket_id();
  };
  CHECK(ResourceOf("edge", id({{"b", "1|c=2"}, {"a", "x y"}})) == "edge|a=x%20y|b=1%7Cc=2");
  const std::string one = ResourceOf("edge", id({{"path", std::string(1000, 'a')}}));
  CHECK(one.size() == 255);
  CHECK(one != ResourceOf("edge", id({{"path", std::string(1001, 'a')}})));
}

TEST_CASE("quotas: a report of more buckets than a call has lines is asked in parts") {
  Master master;
  QuotaBuckets buckets("a");
  RateLimitQuotaUsageReports reports;
  for (int i = 0; i < 450; ++i) {
    *reports.add_bucket_quota_usages() = Report({{"rule", std::to_string(i)}}, 1).bucket_quota_usages(0);
  }
  reports.set_domain("edge");
  CHECK(master.Answer(buckets, reports).bucket_action_size() == 450);
}

// 16 Envoys report every 5 s, each at its own moment, and want by Zipf together twice what there is.
TEST_CASE("quotas: 16 Envoys are never assigned more than there is, and serve what there is within 3 %") {
  constexpr double kCapacity = 1000;
  constexpr Duration kStep = 100ms;
  const double total = 2 * kCapacity;
  double harmonic = 0;
  for (int i = 1; i <= 16; ++i) harmonic += 1.0 / i;
  Master master(kCapacity);
  std::vector<std::unique_ptr<Envoy>> envoys;
  for (int i = 0; i < 16; ++i) envoys.push_back(std::make_unique<Envoy>(i));
  const auto run = [&](int steps, bool reports) {
    double served = 0;
    for (int step = 0; step < steps; ++step, master.now += kStep) {
      double assigned = 0;
      for (int i = 0; i < 16; ++i) {
        Envoy& envoy = *envoys[static_cast<std::size_t>(i)];
        if (reports && (step + 3 * i) % (kReportEvery / kStep) == 0) envoy.Report(master);
        served += envoy.Use(total / (i + 1) / harmonic, kStep, master.now);
        assigned += envoy.RateAt(master.now);
      }
      REQUIRE(assigned <= kCapacity + 1e-6);
    }
    return served / (steps * Seconds(kStep) * kCapacity);
  };
  run(300, true);    // the first half a minute
  CHECK(run(600, true) >= 0.97);
  // The master dies and another one learns, as long as assignments last. Every Envoy has a new stream.
  run(20, false);
  master.Begin(2000, 15s);
  for (const auto& envoy : envoys) envoy->Connect();
  run(300, true);
  CHECK(run(600, true) >= 0.97);
}

}    // namespace
}    // namespace dthrottle::testing
