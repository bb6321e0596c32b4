// Calls of protocol/doorman.proto through the lines of the lease protocol to a lease server, and back: everything of
// dthrottle-grpc but the library and the sockets.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "frontend/lease/lines.h"
#include "gateway/messages.h"
#include "lease/server.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;

constexpr Duration kWall = 1'700'000'000s + 700ms;    // since 1970

class Host {
 public:
  Host() : server_(Options(), Templates()) {
    server_.BecomeMaster({.epoch = 1000, .since = now_ - 1h, .former = 900});
    server_.SetMasterAddress("tcp:10.0.0.1:7315,grpc:10.0.0.1:7316");
  }

  template <class Response, class Request>
  Response Call(const Request& request) {
    const auto lines = ToLines(request, 500, kWall);
    REQUIRE(lines.has_value());
    std::string text;
    CHECK(AnswerLeaseLines(SplitLeaseLines(lines->text), server_, now_, text, &gateway_) == lines->count);
    CHECK(text.find("error get, release") == text.npos);
    LineAnswers answers;
    std::istringstream all(text);
    for (std::string line; std::getline(all, line);) answers.push_back(line);
    Response response;
    FromLines(request, answers, kWall, response);
    REQUIRE(response.IsInitialized());
    return response;
  }

  lease::LeaseServer& server() { return server_; }

 private:
  static lease::ServerOptions Options() {
    lease::ServerOptions options;
    options.min_request_interval = {};
    return options;
  }
  static lease::Templates Templates() {
    lease::ResourceTemplate fair, each;
    fair.identifier_glob = "disk*";
    fair.capacity = 100;
    each.identifier_glob = "tape";
    each.capacity = 7;
    each.algorithm = lease::Algorithm::kStatic;
    each.lease_length = 30s;
    each.refresh_interval = 500ms;
    return *lease::Templates::Make({fair, each});
  }

  const BootInstant now_ = BootInstant(1000h);
  lease::LeaseServer server_;
  GatewayCalls gateway_;
};

doorman::GetCapacityRequest Get(const std::string& client, const std::vector<std::string>& resources, double wants) {
  doorman::GetCapacityRequest request;
  request.set_client_id(client);
  for (const std::string& name : resources) {
    auto& one = *request.add_resource();
    one.set_resource_id(name);
    one.set_priority(0);
    one.set_wants(wants);
  }
  return request;
}

TEST_CASE("gateway: a call for several resources has the leases in their order, without those that there are not") {
  Host host;
  const auto response = host.Call<doorman::GetCapacityResponse>(Get("a", {"tape", "drum", "disk two"}, 80));
  REQUIRE(response.response_size() == 2);
  CHECK(response.response(0).resource_id() == "tape");
  CHECK(response.response(0).gets().capacity() == 7);
  CHECK(response.response(0).gets().refresh_interval() == 1);    // half a second would be none
  CHECK(response.response(1).resource_id() == "disk two");
  CHECK(response.response(1).gets().capacity() == 80);
  CHECK(response.response(1).gets().expiry_time() == 1'700'000'060);    // rounded down
  CHECK(response.response(1).gets().token() == 1000);
  CHECK_FALSE(response.has_mastership());
}

TEST_CASE("gateway: numbers come as they are") {
  Host host;
  for (const double wants : {0.1 + 0.2, 1e-300, 1e15, 33.333333333333336}) {
    CAPTURE(wants);
    const auto response = host.Call<doorman::GetCapacityResponse>(Get("a", {"disk"}, wants));
    CHECK(response.response(0).gets().capacity() == std::min(wants, 100.0));
  }
}

TEST_CASE("gateway: a lease that a client sends back is believed until it ends") {
  Host host;
  host.server().BecomeMaster({.epoch = 2000, .since = BootInstant(1000h), .former = 1000});    // it learns
  auto request = Get("a", {"disk"}, 80);
  auto& has = *request.mutable_resource(0)->mutable_has();
  has.set_capacity(40);
  has.set_token(1000);
  has.set_refresh_interval(16);
  has.set_expiry_time(1'700'000'010);
  const auto first = host.Call<doorman::GetCapacityResponse>(request).response(0);
  CHECK(first.gets().capacity() == 40);
  CHECK(first.learning_seconds() == 60);
  request.set_client_id("b");
  has.set_expiry_time(1'700'000'000);
  CHECK(host.Call<doorman::GetCapacityResponse>(request).response(0).gets().capacity() == 0);
}

TEST_CASE("gateway: a server is told how its resource is divided") {
  Host host;
  doorman::GetServerCapacityRequest request;
  request.set_server_id("leaf 1");
  for (const char* name : {"tape", "disk"}) {
    auto& one = *request.add_resource();
    one.set_resource_id(name);
    auto& band = *one.add_wants();
    band.set_priority(3);
    band.set_num_clients(2);
    band.set_wants(60);
  }
  const auto response = host.Call<doorman::GetServerCapacityResponse>(request);
  REQUIRE(response.response_size() == 2);
  CHECK(response.response(0).gets().capacity() == 7);
  CHECK(response.response(0).algorithm().kind() == doorman::Algorithm::STATIC);
  CHECK(response.response(0).algorithm().lease_length() == 30);
  CHECK(response.response(1).share() == 60);
  CHECK(response.response(1).algorithm().kind() == doorman::Algorithm::FAIR_SHARE);
  CHECK(response.response(1).algorithm().refresh_interval() == 16);
}

TEST_CASE("gateway: a host that is not master names the master in every answer, and grants nothing in it") {
  Host host;
  host.server().Resign({});
  host.server().SetMasterAddress("tcp:10.0.0.2:7315,grpc:10.0.0.2:7316");
  const auto names_it = [](const auto& response) { return response.mastership().master_address() == "10.0.0.2:7316"; };
  CHECK(names_it(host.Call<doorman::GetCapacityResponse>(Get("a", {"disk"}, 1))));
  CHECK(names_it(host.Call<doorman::GetCapacityResponse>(Get("a", {}, 1))));
  doorman::ReleaseCapacityRequest release;
  release.set_client_id("a");
  CHECK(names_it(host.Call<doorman::ReleaseCapacityResponse>(release)));
  const auto discovered = host.Call<doorman::DiscoveryResponse>(doorman::DiscoveryRequest());
  CHECK((names_it(discovered) && !discovered.is_master()));
}

TEST_CASE("gateway: a call that finds another master halfway grants nothing") {
  const auto request = Get("a", {"disk", "tape"}, 1);
  doorman::GetCapacityResponse response;
  FromLines(request, {"lease 1 60.000 16.000 100 1000", "elsewhere -"}, kWall, response);
  CHECK(response.response_size() == 0);
  CHECK((response.has_mastership() && !response.mastership().has_master_address()));
}

TEST_CASE("gateway: the longest call that may be is lines that may be") {
  doorman::GetServerCapacityRequest request;
  request.set_server_id(std::string(255, ' '));
  auto& one = *request.add_resource();
  one.set_resource_id(std::string(255, ' '));
  one.set_outstanding(1.2345678901234567e-10);
  auto& has = *one.mutable_has();
  has.set_capacity(1.2345678901234567e-10);
  has.set_expiry_time(1'700'100'000);
  has.set_refresh_interval(1);
  has.set_token(~std::uint64_t{});
  for (int i = 0; i < 64; ++i) {
    auto& band = *one.add_wants();
    band.set_priority(std::numeric_limits<std::int64_t>::min());
    band.set_num_clients(lease::kClientsMax);
    band.set_wants(1.2345678901234567e-10);
  }
  const auto lines = ToLines(request, 1, kWall);
  REQUIRE(lines.has_value());
  CHECK(lines->text.find('\n') <= kLeaseLineBytesMax);
  Host().Call<doorman::GetServerCapacityResponse>(request);
}

TEST_CASE("gateway: a band of more clients than a server takes is refused, and named") {
  doorman::GetServerCapacityRequest request;
  request.set_server_id("leaf");
  auto& one = *request.add_resource();
  one.set_resource_id("disk");
  auto& band = *one.add_wants();
  band.set_priority(0);
  band.set_wants(1);
  for (const std::int64_t clients : {std::int64_t{-1}, std::int64_t{1'000'000'001}}) {
    band.set_num_clients(clients);
    const auto lines = ToLines(request, 1, kWall);
    REQUIRE_FALSE(lines.has_value());
    CHECK(lines.error().message == "num_clients must be a number from 0 to 1000000000");
  }
  band.set_num_clients(1'000'000'000);
  CHECK(Host().Call<doorman::GetServerCapacityResponse>(request).response_size() == 1);
}

}    // namespace
}    // namespace dthrottle::testing
