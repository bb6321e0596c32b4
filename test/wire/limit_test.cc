// Calls of protocol/rate_limit.proto through questions to a limiter, and back: everything of the service but the library
// and the sockets.
#include <catch2/catch.hpp>

#include <string>
#include <utility>
#include <vector>

#include "gateway/limit_messages.h"
#include "rule/own_limit.h"
#include "test/support/ask.h"

namespace dthrottle::testing {
namespace {

using Entries = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kRules = R"(
[[rule]]
name = "posts"
match = "edge|method=POST|*"
burst = 3
rate = "3/m"
[[rule]]
name = "addresses"
match = "edge|remote_address=*"
burst = 5
rate = 5
[[rule]]
name = "watched"
match = "edge|watched=*"
burst = 1
rate = 0.001
mode = "shadow"
[[rule]]
name = "plans"
match = "edge|plan=*"
burst = 2
rate = "2/m"
max_own_limit = 1000
)";

RateLimitDescriptor& Add(RateLimitRequest& request, const Entries& entries) {
  RateLimitDescriptor& descriptor = *request.add_descriptors();
  for (const auto& [key, value] : entries) {
    auto& entry = *descriptor.add_entries();
    entry.set_key(key);
    entry.set_value(value);
  }
  return descriptor;
}

RateLimitRequest Request(const std::vector<Entries>& descriptors, const std::string& domain = "edge") {
  RateLimitRequest request;
  request.set_domain(domain);
  for (const Entries& entries : descriptors) Add(request, entries);
  return request;
}

struct Service {
  Service() { host.turn.TakeOnlyAllowedLimits(); }

  RateLimitResponse Call(const RateLimitRequest& request, HttpHeaders headers = HttpHeaders::kDraft10) {
    const auto question = ToQuestion(request, limits);
    REQUIRE(question.has_value());
    std::string answer = host.Send(question->line);
    REQUIRE(answer.ends_with('\n'));
    answer.pop_back();
    CAPTURE(question->line, answer);
    RateLimitResponse response;
    REQUIRE(FromAnswer(*question, answer, headers, response).has_value());
    CHECK(response.statuses_size() == request.descriptors_size());
    return response;
  }

  AskHost host{kRules};
  bool limits = true;    // that descriptors bring along
};

std::string HeadersOf(const RateLimitResponse& response) {
  std::string all;
  for (const auto& header : response.response_headers_to_add()) all += header.key() + ": " + header.value() + "\n";
  return all;
}

const Entries kPost = {{"method", "POST"}, {"remote_address", "10.0.0.1"}}, kAddress = {{"remote_address", "10.0.0.1"}};

TEST_CASE("rate limit service: each descriptor is a tag, and its status says how it is limited") {
  Service service;
  const auto response = service.Call(Request({kPost, kAddress, {{"other", "x"}}}));
  CHECK(response.overall_code() == RateLimitResponse::OK);
  const auto &post = response.statuses(0), &address = response.statuses(1), &other = response.statuses(2);
  CHECK(post.code() == RateLimitResponse::OK);
  CHECK(post.current_limit().requests_per_unit() == 3);
  CHECK(post.current_limit().unit() == RateLimitResponse::RateLimit::MINUTE);
  CHECK(post.current_limit().name() == "posts");
  CHECK(post.limit_remaining() == 2);
  CHECK(post.duration_until_reset().seconds() == 20);
  CHECK(address.current_limit().requests_per_unit() == 5);
  CHECK(address.current_limit().unit() == RateLimitResponse::RateLimit::SECOND);
  CHECK(other.code() == RateLimitResponse::OK);
  CHECK_FALSE(other.has_current_limit());
  CHECK(HeadersOf(response) == "ratelimit-policy: \"posts\";q=3;w=60\nratelimit: \"posts\";r=2;t=20\n");
}

TEST_CASE("rate limit service: a request that one descriptor refuses takes nothing from the others") {
  Service service;
  for (int i = 0; i < 3; ++i) {
    CHECK(service.Call(Request({kPost, kAddress})).overall_code() == RateLimitResponse::OK);
  }
  for (int i = 0; i < 3; ++i) {
    const auto refused = service.Call(Request({kPost, kAddress}), HttpHeaders::kBoth);
    CHECK(refused.overall_code() == RateLimitResponse::OVER_LIMIT);
    CHECK(refused.statuses(0).code() == RateLimitResponse::OVER_LIMIT);
    CHECK(refused.statuses(0).duration_until_reset().seconds() == 20);
    CHECK(refused.statuses(1).code() == RateLimitResponse::OK);
    CHECK(refused.statuses(1).limit_remaining() == 2);
    CHECK(HeadersOf(refused) ==
          "ratelimit-policy: \"posts\";q=3;w=60\nratelimit: \"posts\";r=0;t=20\nx-ratelimit-limit: 3\n"
          "x-ratelimit-remaining: 0\nx-ratelimit-reset: 20\nretry-after: 20\n");
    CHECK(HeadersOf(service.Call(Request({kPost}), HttpHeaders::kOff)).empty());
  }
  CHECK(service.Call(Request({kAddress})).overall_code() == RateLimitResponse::OK);
}

TEST_CASE("rate limit service: hits are what a descriptor costs, those of the request unless it has its own") {
  Service service;
  auto request = Request({kAddress, {{"remote_address", "10.0.0.2"}}});
  request.set_hits_addend(2);
  request.mutable_descriptors(1)->mutable_hits_addend()->set_value(4);
  auto response = service.Call(request);
  CHECK(response.statuses(0).limit_remaining() == 3);
  CHECK(response.statuses(1).limit_remaining() == 1);
  request.mutable_descriptors(1)->mutable_hits_addend()->set_value(0);    // looks
  response = service.Call(request);
  CHECK(response.statuses(0).limit_remaining() == 1);
  CHECK(response.statuses(1).limit_remaining() == 1);
  request.mutable_descriptors(1)->mutable_hits_addend()->set_value(~std::uint64_t{});
  response = service.Call(request);
  CHECK(response.statuses(1).code() == RateLimitResponse::OVER_LIMIT);
  CHECK_FALSE(response.statuses(1).has_duration_until_reset());    // it never passes
  CHECK(response.statuses(0).limit_remaining() == 1);
  request.mutable_descriptors(1)->set_is_negative_hits(true);
  request.set_hits_addend(1);
  CHECK(service.Call(request).overall_code() == RateLimitResponse::OK);
}

TEST_CASE("rate limit service: a descriptor that is there twice pays twice") {
  Service service;
  const auto response = service.Call(Request({kAddress, kAddress}));
  CHECK(response.statuses(0).limit_remaining() == 3);
  CHECK(response.statuses(1).limit_remaining() == 3);
}

TEST_CASE("rate limit service: a rule in shadow mode refuses nothing") {
  Service service;
  for (int i = 0; i < 3; ++i) {
    const auto response = service.Call(Request({{{"watched", "x"}}}));
    CHECK(response.overall_code() == RateLimitResponse::OK);
    CHECK(response.statuses(0).current_limit().name() == "watched");
  }
}

TEST_CASE("rate limit service: a domain that no rule knows is served without a limit") {
  const auto response = Service().Call(Request({kAddress}, "elsewhere"));
  CHECK(response.overall_code() == RateLimitResponse::OK);
  CHECK_FALSE(response.statuses(0).has_current_limit());
  CHECK(HeadersOf(response).empty());
}

TEST_CASE("rate limit service: what is no question is told so") {
  CHECK_FALSE(ToQuestion(Request({kAddress}, "")).has_value());
  CHECK_FALSE(ToQuestion(Request({})).has_value());
  CHECK_FALSE(ToQuestion(Request(std::vector<Entries>(17, kAddress))).has_value());
  RateLimitResponse response;
  const auto question = ToQuestion(Request({kAddress}));
  for (const char* answer : {"", "OK", "OK 1", "ERR what", "NO limit 1 2 rule tag"}) {
    CAPTURE(answer);
    CHECK_FALSE(FromAnswer(*question, answer, HttpHeaders::kBoth, response).has_value());
  }
}

TEST_CASE("rate limit service: no value can be taken for another part of a tag") {
  const auto tag = [](const Entries& entries) {
    RateLimitRequest request;
    return TagOf("edge", Add(request, entries));
  };
  CHECK(tag({{"path", "/a b"}, {"user", "x=y"}}) == "edge|path=/a%20b|user=x=y");
  CHECK(tag({{"path", "/|user=bob"}}) == "edge|path=/%7Cuser=bob");
  CHECK(tag({{"a=b", "%\n\\"}}) == "edge|a%3Db=%25%0A%5C");
  CHECK(tag({{"k", "é"}}) == "edge|k=é");
}

TEST_CASE("rate limit service: the longest values that may be have buckets of their own, and lines that may be") {
  Service service;
  std::vector<Entries> longest;
  for (char c = 'a'; c < 'a' + 16; ++c) {
    longest.push_back({{"remote_address", std::string(30'000, ' ') + c + std::string(30'000, '|')}});
  }
  auto request = Request(longest);
  for (auto& descriptor : *request.mutable_descriptors()) descriptor.mutable_hits_addend()->set_value(5);
  CHECK(ToQuestion(request)->line.size() <= AskReader::kLineBytesMax);
  for (auto& descriptor : *request.mutable_descriptors()) descriptor.mutable_limit()->set_requests_per_unit(4'294'967'295);
  CHECK(ToQuestion(request, true)->line.size() <= AskReader::kLineBytesMax);
  for (auto& descriptor : *request.mutable_descriptors()) descriptor.clear_limit();
  CHECK(service.Call(request).overall_code() == RateLimitResponse::OK);
  CHECK(service.Call(request).overall_code() == RateLimitResponse::OVER_LIMIT);
  longest.pop_back();
  longest.push_back({{"remote_address", std::string(30'000, ' ') + "z" + std::string(30'000, '|')}});
  CHECK(service.Call(Request({longest.back()})).statuses(0).limit_remaining() == 4);
}

const Entries kPlan = {{"plan", "gold"}};

RateLimitRequest Bringing(std::uint32_t requests, std::uint32_t unit, const Entries& entries = kPlan) {
  RateLimitRequest request = Request({entries});
  request.mutable_descriptors(0)->mutable_limit()->set_requests_per_unit(requests);
  request.mutable_descriptors(0)->mutable_limit()->set_unit(unit);
  return request;
}

std::string LimitOf(const RateLimitResponse& response, int i = 0) {
  const auto& status = response.statuses(i);
  const auto& limit = status.current_limit();
  return std::to_string(limit.requests_per_unit()) + " " + RateLimitResponse::RateLimit::Unit_Name(limit.unit()) + " " +
         limit.name() + ", left " + std::to_string(status.limit_remaining());
}

TEST_CASE("rate limit service: a limit that a descriptor brings along takes the place of the rule's") {
  Service service;
  const auto response = service.Call(Bringing(120, RateLimitResponse::RateLimit::MINUTE));
  CHECK(LimitOf(response) == "120 MINUTE plans, left 119");
  CHECK(HeadersOf(response) == "ratelimit-policy: \"plans\";q=120;w=60\nratelimit: \"plans\";r=119;t=1\n");
  CHECK(LimitOf(service.Call(Bringing(1, RateLimitResponse::RateLimit::SECOND))) == "1 SECOND plans, left 0");
  CHECK(LimitOf(service.Call(Bringing(9, RateLimitResponse::RateLimit::HOUR))) == "9 HOUR plans, left 8");
  CHECK(LimitOf(service.Call(Bringing(24, RateLimitResponse::RateLimit::DAY))) == "24 DAY plans, left 23");
  CHECK(LimitOf(service.Call(Bringing(1000, RateLimitResponse::RateLimit::WEEK))) == "1000 WEEK plans, left 999");
  CHECK(LimitOf(service.Call(Bringing(7, RateLimitResponse::RateLimit::MONTH))) == "7 MONTH plans, left 6");
  auto year = Bringing(3, RateLimitResponse::RateLimit::YEAR);
  CHECK(LimitOf(service.Call(year)) == "3 YEAR plans, left 2");
  CHECK(service.Call(year).overall_code() == RateLimitResponse::OK);
  CHECK(service.Call(year).overall_code() == RateLimitResponse::OK);
  const auto refused = service.Call(year);
  CHECK(refused.overall_code() == RateLimitResponse::OVER_LIMIT);
  CHECK(LimitOf(refused) == "3 YEAR plans, left 0");
  CHECK(refused.statuses(0).duration_until_reset().seconds() == 365 * 86400 / 3);
  CHECK(LimitOf(service.Call(Request({kPlan}))) == "2 MINUTE plans, left 1");    // none of this is its bucket
  CHECK(service.host.turn.limits_refused() == 0);
}

TEST_CASE("rate limit service: where no rule allows the limit that a descriptor brings along, the rule decides") {
  Service service;
  CHECK(LimitOf(service.Call(Bringing(1001, RateLimitResponse::RateLimit::HOUR))) == "2 MINUTE plans, left 1");
  CHECK(LimitOf(service.Call(Bringing(0, RateLimitResponse::RateLimit::HOUR))) == "2 MINUTE plans, left 0");
  CHECK(service.Call(Bringing(5, 0)).overall_code() == RateLimitResponse::OVER_LIMIT);
  CHECK(service.Call(Bringing(5, 8)).overall_code() == RateLimitResponse::OVER_LIMIT);
  CHECK(service.host.turn.limits_refused() == 4);
  CHECK(LimitOf(service.Call(Bringing(9, RateLimitResponse::RateLimit::SECOND, kAddress))) == "5 SECOND addresses, left 4");
  CHECK(service.host.turn.limits_refused() == 5);
}

TEST_CASE("rate limit service: descriptors that bring limits are not told apart where no rule lets them") {
  Service service;
  service.limits = false;
  CHECK(LimitOf(service.Call(Bringing(9, RateLimitResponse::RateLimit::HOUR))) == "2 MINUTE plans, left 1");
  CHECK(LimitOf(service.Call(Bringing(8, RateLimitResponse::RateLimit::HOUR))) == "2 MINUTE plans, left 0");
  CHECK(service.host.turn.limits_refused() == 0);
}

TEST_CASE("rate limit service: two descriptors that only a refused limit tells apart are decided, with bare statuses") {
  Service service;
  auto request = Bringing(1001, RateLimitResponse::RateLimit::HOUR);
  Add(request, kPlan);
  const auto served = service.Call(request);
  CHECK(served.overall_code() == RateLimitResponse::OK);
  CHECK_FALSE(served.statuses(0).has_current_limit());
  const auto refused = service.Call(request);
  CHECK(refused.overall_code() == RateLimitResponse::OVER_LIMIT);
  CHECK(refused.statuses(0).code() == RateLimitResponse::OVER_LIMIT);
  CHECK(HeadersOf(refused).empty());
}

TEST_CASE("rate limit service: no entry is taken for a limit") {
  const auto tag = [](const Entries& entries) {
    RateLimitRequest request;
    return TagOf("edge", Add(request, entries), true);
  };
  for (const Entries& entries : {Entries{{"plan", "|9/s"}}, Entries{{"", "9/s"}}, Entries{{"9/s", ""}}, Entries{{"|9/s", ""}},
                                 Entries{{std::string(900, '9'), "9|9/s"}}}) {
    CAPTURE(tag(entries));
    CHECK_FALSE(ReadOwnLimit(tag(entries)).has_value());
  }
}

}    // namespace
}    // namespace dthrottle::testing
