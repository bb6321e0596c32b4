// The other end of scripts/bench-envoy: what asks as Envoy does, and a server that answers without deciding anything.
//
//     envoy_bench constant                                        prints a port of loopback, and serves until it is killed
//     envoy_bench calls PORT CONNECTIONS IN_FLIGHT RATE SECONDS   RATE a second, or 0: as many as are answered
//     envoy_bench reports PORT BUCKETS SECONDS                    one after the other, each answered whole
//
// The last two print how many there were, and how many microseconds half of them took at most, and 99 of 100.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "rate_limit.grpc.pb.h"
#include "rate_limit_quota.grpc.pb.h"

namespace {

using Clock = std::chrono::steady_clock;
using namespace envoy::service::ratelimit::v3;
namespace quota = envoy::service::rate_limit_quota::v3;

constexpr unsigned kAddresses = 100'000;

class Constant final : public RateLimitService::CallbackService {
  grpc::ServerUnaryReactor* ShouldRateLimit(grpc::CallbackServerContext* context, const RateLimitRequest* request,
                                            RateLimitResponse* response) override {
    response->set_overall_code(RateLimitResponse::OK);
    for (int i = 0; i < request->descriptors_size(); ++i) response->add_statuses()->set_code(RateLimitResponse::OK);
    auto* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

// Assigns the same to every bucket of a report.
class ConstantStream final
    : public grpc::ServerBidiReactor<quota::RateLimitQuotaUsageReports, quota::RateLimitQuotaResponse> {
 public:
  ConstantStream() { StartRead(&reports_); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    response_.Clear();
    for (const auto& usage : reports_.bucket_quota_usages()) {
      auto& action = *response_.add_bucket_action();
      *action.mutable_bucket_id() = usage.bucket_id();
      auto& assignment = *action.mutable_quota_assignment_action();
      assignment.mutable_assignment_time_to_live()->set_seconds(60);
      assignment.mutable_rate_limit_strategy()->mutable_token_bucket()->set_max_tokens(100);
    }
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override { ok ? StartRead(&reports_) : Finish(grpc::Status::OK); }
  void OnDone() override { delete this; }

  quota::RateLimitQuotaUsageReports reports_;
  quota::RateLimitQuotaResponse response_;
};

class ConstantQuotas final : public quota::RateLimitQuotaService::CallbackService {
  grpc::ServerBidiReactor<quota::RateLimitQuotaUsageReports, quota::RateLimitQuotaResponse>* StreamRateLimitQuotas(
      grpc::CallbackServerContext*) override {
    return new ConstantStream;
  }
};

int Serve() {
  Constant service;
  ConstantQuotas quotas;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  builder.RegisterService(&quotas);
  const auto server = builder.BuildAndStart();
  std::printf("%d\n", port);
  std::fflush(stdout);
  server->Wait();
  return 0;
}

std::shared_ptr<grpc::Channel> Connect(const std::string& port) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);    // a connection of its own
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel("127.0.0.1:" + port, grpc::InsecureChannelCredentials(), arguments);
}

void Print(std::vector<double> us) {
  std::sort(us.begin(), us.end());
  const auto at = [&](double part) { return us.empty() ? 0 : us[static_cast<std::size_t>(part * static_cast<double>(us.size() - 1))]; };
  std::printf("%zu %.0f %.0f\n", us.size(), at(0.5), at(0.99));
}

// One call at a time, again and again, or when it is told to.
class Caller {
 public:
  Caller(RateLimitService::Stub& stub, unsigned first) : stub_(stub), address_(first) {}

  // False: a call is under way.
  bool Call(bool again, Clock::time_point end) {
    if (busy_.exchange(true)) return false;
    again_ = again;
    end_ = end;
    Begin();
    return true;
  }
  bool busy() const { return busy_; }
  const std::vector<double>& us() const { return us_; }

 private:
  void Begin() {
    context_ = std::make_unique<grpc::ClientContext>();
    request_.Clear();
    request_.set_domain("bench");
    auto& entry = *request_.add_descriptors()->add_entries();
    entry.set_key("remote_address");
    entry.set_value("10.0." + std::to_string(address_ % kAddresses));
    address_ += 7919;
    began_ = Clock::now();
    stub_.async()->ShouldRateLimit(context_.get(), &request_, &response_, [this](const grpc::Status& status) {
      const auto now = Clock::now();
      if (!status.ok()) std::fprintf(stderr, "%s\n", status.error_message().c_str()), std::exit(1);
      us_.push_back(std::chrono::duration<double, std::micro>(now - began_).count());
      again_ && now < end_ ? Begin() : void(busy_ = false);
    });
  }

  RateLimitService::Stub& stub_;
  unsigned address_;
  std::atomic<bool> busy_ = false;
  bool again_ = false;
  Clock::time_point began_, end_;
  std::unique_ptr<grpc::ClientContext> context_;
  RateLimitRequest request_;
  RateLimitResponse response_;
  std::vector<double> us_;
};

int Call(const std::string& port, int connections, int in_flight, double rate, double seconds) {
  std::vector<std::unique_ptr<RateLimitService::Stub>> stubs;
  for (int i = 0; i < connections; ++i) stubs.push_back(RateLimitService::NewStub(Connect(port)));
  std::deque<Caller> callers;
  for (int i = 0; i < in_flight; ++i) {
    callers.emplace_back(*stubs[static_cast<std::size_t>(i % connections)], static_cast<unsigned>(i) * 104'729);
  }
  const auto begin = Clock::now();
  const auto end = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  if (rate == 0) {
    for (Caller& caller : callers) caller.Call(true, end);
  }
  std::size_t next = 0;
  for (double sent = 0; rate > 0 && Clock::now() < end; ++sent) {
    std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(sent / rate)));
    while (!callers[next++ % callers.size()].Call(false, end)) continue;
  }
  std::vector<double> us;
  for (Caller& caller : callers) {
    while (caller.busy()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    us.insert(us.end(), caller.us().begin(), caller.us().end());
  }
  Print(std::move(us));
  return 0;
}

int Report(const std::string& port, int buckets, double seconds) {
  const auto stub = quota::RateLimitQuotaService::NewStub(Connect(port));
  grpc::ClientContext context;
  const auto stream = stub->StreamRateLimitQuotas(&context);
  quota::RateLimitQuotaUsageReports reports;
  reports.set_domain("bench");
  for (int i = 0; i < buckets; ++i) {
    auto& usage = *reports.add_bucket_quota_usages();
    (*usage.mutable_bucket_id()->mutable_bucket())["address"] = "10.0." + std::to_string(i);
    usage.set_num_requests_allowed(5);
  }
  std::vector<double> us;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    const auto began = Clock::now();
    stream->Write(reports);
    quota::RateLimitQuotaResponse response;
    for (int answered = 0; answered < buckets; answered += response.bucket_action_size()) {
      if (!stream->Read(&response)) return 1;
    }
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - began).count());
  }
  Print(std::move(us));
  return 0;
}

}    // namespace

int main(int argc, char** argv) {
  const std::string_view what(argc > 1 ? argv[1] : "");
  if (what == "constant" && argc == 2) return Serve();
  if (what == "calls" && argc == 7) return Call(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), std::atof(argv[5]), std::atof(argv[6]));
  if (what == "reports" && argc == 5) return Report(argv[2], std::atoi(argv[3]), std::atof(argv[4]));
  std::fputs("see the head of envoy_bench.cc\n", stderr);
  return 2;
}
