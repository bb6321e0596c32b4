// Messages of gRPC clients, lease clients and Envoy: whatever they are, each line of a call may be sent and is answered,
// and the answers make a whole response.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

#include "frontend/lease/lines.h"
#include "gateway/limit_messages.h"
#include "gateway/messages.h"
#include "gateway/quota_messages.h"
#include "test/support/ask.h"

using namespace dthrottle;

namespace {

constexpr BootInstant kNow = BootInstant(std::chrono::hours(1000));
constexpr Duration kWall = std::chrono::seconds(1'700'000'000);

std::unique_ptr<lease::LeaseServer> MakeServer(bool master) {
  lease::ResourceTemplate how;
  how.identifier_glob = "*";
  how.capacity = 100;
  lease::ServerOptions options;
  options.min_request_interval = Duration::zero();
  options.clients_max = 20;
  auto server = std::make_unique<lease::LeaseServer>(options, std::move(*lease::Templates::Make({how})));
  if (master) server->BecomeMaster({.epoch = 1000, .since = kNow - std::chrono::hours(1), .former = 900});
  return server;
}

template <class Request, class Response>
void Call(const std::string& bytes, lease::LeaseServer& server) {
  Request request;
  if (!request.ParsePartialFromString(bytes) || !request.IsInitialized()) return;
  const auto lines = ToLines(request, 10, kWall);
  if (!lines) return;
  if (static_cast<std::size_t>(std::count(lines->text.begin(), lines->text.end(), '\n')) != lines->count) std::abort();
  GatewayCalls gateway;
  std::string text;
  const LeaseLines split = SplitLeaseLines(lines->text);
  if (split.too_long || !split.rest.empty()) std::abort();
  if (AnswerLeaseLines(split, server, kNow, text, &gateway) != lines->count) std::abort();
  LineAnswers answers;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) {
    // What a line cannot be has been refused before.
    for (const char* complaint : {"error get", "error server", "error CLIENT", "error RESOURCE", "error NODE",
                                  "error WANTS", "error HAS", "error SECONDS"}) {
      if (line.starts_with(complaint)) std::abort();
    }
    answers.push_back(line);
  }
  Response response;
  FromLines(request, answers, kWall, response);
  if (!response.IsInitialized()) std::abort();
}

// A question that the daemon could not read would be answered with an error, and serve.
void AskLimit(const std::string& bytes, bool limits) {
  RateLimitRequest request;
  if (!request.ParseFromString(bytes)) return;
  const auto question = ToQuestion(request, limits);
  if (!question) return;
  testing::AskHost host("[[rule]]\nname = \"all\"\nburst = 5\nrate = 1.0\nmax_own_limit = 1000\n");
  host.turn.TakeOnlyAllowedLimits();
  std::string answer = host.Send(question->line);
  if (!answer.ends_with('\n') || std::count(answer.begin(), answer.end(), '\n') != 1) std::abort();
  answer.pop_back();
  RateLimitResponse response;
  if (!FromAnswer(*question, answer, HttpHeaders::kBoth, response)) std::abort();
  if (response.overall_code() == RateLimitResponse::UNKNOWN) std::abort();
  if (response.statuses_size() != request.descriptors_size()) std::abort();
}

void Report(const std::string& bytes, lease::LeaseServer& server) {
  RateLimitQuotaUsageReports reports;
  QuotaBuckets buckets("fuzz");
  if (!reports.ParseFromString(bytes)) return;
  for (const Instant now : {Instant(), Instant(std::chrono::seconds(5)), Instant(std::chrono::hours(1))}) {
    if (!buckets.Take(reports, now)) return;
    while (buckets.pending()) {
      const CallLines lines = buckets.Ask();
      GatewayCalls calls;
      std::string text;
      if (AnswerLeaseLines(SplitLeaseLines(lines.text), server, kNow, text, &calls) != lines.count) std::abort();
      LineAnswers answers;
      std::istringstream all(text);
      for (std::string line; std::getline(all, line);) {
        if (line.starts_with("error quota") || line.starts_with("error RESOURCE")) std::abort();
        answers.push_back(line);
      }
      RateLimitQuotaResponse response;
      buckets.Answered(&answers, response);
      if (response.bucket_action_size() > reports.bucket_quota_usages_size()) std::abort();
    }
  }
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto made = MakeServer(data[0] % 2 == 0);
  lease::LeaseServer& server = *made;
  Call<doorman::GetCapacityRequest, doorman::GetCapacityResponse>(bytes, server);
  Call<doorman::GetServerCapacityRequest, doorman::GetServerCapacityResponse>(bytes, server);
  Call<doorman::ReleaseCapacityRequest, doorman::ReleaseCapacityResponse>(bytes, server);
  for (const bool limits : {false, true}) AskLimit(bytes, limits);
  Report(bytes, server);
  return 0;
}
