#include "frontend/grpc_leases.h"

#include <fcntl.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "doorman.grpc.pb.h"
#include "frontend/grpc_messages.h"
#include "io/clock.h"
#include "io/signals.h"

namespace dthrottle {

namespace {

constexpr int kMessageBytesMax = 1 << 20;
constexpr int kMetadataBytesMax = 8 << 10;
constexpr int kStreamsMax = 100;                              // calls at once on one connection
constexpr std::size_t kMemoryMax = std::size_t{128} << 20;    // of gRPC, for all connections together
constexpr Duration kBudget = std::chrono::milliseconds(1);    // of a turn of the loop, or one call
constexpr auto kFarewell = std::chrono::milliseconds(500);    // for answers on their way

// A call in a gRPC thread's hands, to be answered on the loop.
struct Call {
  std::function<grpc::Status()> answer;
  grpc::ServerUnaryReactor* reactor;
};

class Server;

class Service final : public doorman::Capacity::CallbackService {
 public:
  explicit Service(Server& server) : server_(server) {}

  grpc::ServerUnaryReactor* Discovery(grpc::CallbackServerContext* context, const doorman::DiscoveryRequest* request,
                                      doorman::DiscoveryResponse* answer) override {
    return Hand(context, *request, *answer);
  }
  grpc::ServerUnaryReactor* GetCapacity(grpc::CallbackServerContext* context,
                                        const doorman::GetCapacityRequest* request,
                                        doorman::GetCapacityResponse* answer) override {
    return Hand(context, *request, *answer);
  }
  grpc::ServerUnaryReactor* GetServerCapacity(grpc::CallbackServerContext* context,
                                              const doorman::GetServerCapacityRequest* request,
                                              doorman::GetServerCapacityResponse* answer) override {
    return Hand(context, *request, *answer);
  }
  grpc::ServerUnaryReactor* ReleaseCapacity(grpc::CallbackServerContext* context,
                                            const doorman::ReleaseCapacityRequest* request,
                                            doorman::ReleaseCapacityResponse* answer) override {
    return Hand(context, *request, *answer);
  }

 private:
  template <class Request, class Response>
  grpc::ServerUnaryReactor* Hand(grpc::CallbackServerContext* context, const Request& request, Response& answer);

  Server& server_;
};

class Server final : public GrpcLeases {
 public:
  Server(uv_loop_t* loop, lease::LeaseServer& leases, const Options& options,
         std::function<void(BootInstant)> before_answers)
      : loop_(loop), leases_(leases), options_(options), before_answers_(std::move(before_answers)), service_(*this) {
    DT_CHECK(uv_async_init(loop_, &wake_, [](uv_async_t* h) { static_cast<Server*>(h->data)->OnWake(); }) == 0);
    wake_.data = this;
    Start();
  }

  ~Server() override { DT_CHECK(server_ == nullptr && polls_.empty()); }

  void Take(int fd) override {
    ++counts_.accepted;
    WatchEnd(fd);
    const SignalsBlocked blocked;    // gRPC may begin a thread for it
    grpc::AddInsecureChannelFromFd(server_.get(), fd);
  }

  std::size_t connections() const override { return polls_.size(); }

  Counts counts() const override {
    Counts counts = counts_;
    counts.calls = calls_.load(std::memory_order_relaxed);
    counts.refused = refused_.load(std::memory_order_relaxed);
    return counts;
  }

  void Drain(std::function<void()> done) override;
  void Close() override;

  // On a thread of gRPC.
  void Hand(Call call);

  template <class Request, class Response>
  grpc::Status AnswerNow(const Request& request, Response& answer) {
    if (const auto good = Answer(request, options_.resources_max, leases_, {now_, WallClock()}, answer); !good) {
      ++counts_.invalid;
      return {grpc::StatusCode::INVALID_ARGUMENT, good.error().message};
    }
    return grpc::Status::OK;
  }

 private:
  struct Poll {
    uv_poll_t poll;
    int fd;
    Server* server;
  };

  void Start();
  void WatchEnd(int fd);
  void EndPoll(Poll* poll);
  void OnWake();
  void AnswerAll(Duration budget);
  void EndServer();

  uv_loop_t* loop_;
  lease::LeaseServer& leases_;
  const Options options_;
  const std::function<void(BootInstant)> before_answers_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  uv_async_t wake_;
  BootInstant now_{};    // of the calls that are answered
  std::set<Poll*> polls_;
  Counts counts_;

  std::mutex mutex_;
  std::vector<Call> waiting_;           // guarded by it
  bool ending_ = false;                 // guarded by it
  std::vector<Call> answering_;         // taken from waiting_
  std::size_t answered_ = 0;            // of those
  std::atomic<std::size_t> open_{0};    // calls in both
  std::atomic<std::uint64_t> calls_{0}, refused_{0};

  std::thread ender_;
  std::atomic<bool> ended_{false};
  std::function<void()> on_drained_;
};

template <class Request, class Response>
grpc::ServerUnaryReactor* Service::Hand(grpc::CallbackServerContext* context, const Request& request,
                                        Response& answer) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  // Both live until the reactor is finished, also if the client gives up.
  server_.Hand({[this, &request, &answer] { return server_.AnswerNow(request, answer); }, reactor});
  return reactor;
}

void Server::Start() {
  // What strangers send must not fill the log.
  gpr_set_log_function([](gpr_log_func_args*) {});
  grpc::ServerBuilder builder;
  builder.RegisterService(&service_);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetResourceQuota(grpc::ResourceQuota("leases").Resize(kMemoryMax));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  const auto idle_ms = std::chrono::duration_cast<std::chrono::milliseconds>(options_.idle_timeout).count();
  if (idle_ms > 0) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                               static_cast<int>(std::min<std::int64_t>(idle_ms, INT_MAX)));
  }
  const SignalsBlocked blocked;    // for its threads
  server_ = builder.BuildAndStart();
  DT_CHECK(server_ != nullptr);
}

// gRPC does not say when a connection is over. A second descriptor of the socket does: either side's end of it is a
// hang-up there, as gRPC shuts down what it closes.
void Server::WatchEnd(int fd) {
  const int other = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (other < 0) return;    // it is not counted; there are no descriptors for many more
  auto* const poll = new Poll{{}, other, this};
  if (uv_poll_init(loop_, &poll->poll, other) != 0) {
    ::close(other);
    delete poll;
    return;
  }
  poll->poll.data = poll;
  polls_.insert(poll);
  const auto on_end = [](uv_poll_t* h, int, int) {
    auto* const ended = static_cast<Poll*>(h->data);
    ended->server->EndPoll(ended);
  };
  if (uv_poll_start(&poll->poll, UV_DISCONNECT, on_end) != 0) EndPoll(poll);
}

void Server::EndPoll(Poll* poll) {
  polls_.erase(poll);
  uv_poll_stop(&poll->poll);
  ::close(poll->fd);
  uv_close(reinterpret_cast<uv_handle_t*>(&poll->poll), [](uv_handle_t* h) { delete static_cast<Poll*>(h->data); });
}

void Server::Hand(Call call) {
  calls_.fetch_add(1, std::memory_order_relaxed);
  grpc::Status refusal;
  {
    const std::lock_guard lock(mutex_);
    if (ending_) {
      refusal = {grpc::StatusCode::UNAVAILABLE, "the server is leaving"};
    } else if (open_.load(std::memory_order_relaxed) >= options_.calls_max) {
      refused_.fetch_add(1, std::memory_order_relaxed);
      refusal = {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls wait (lease.grpc_max_calls)"};
    } else {
      const bool first = waiting_.empty();
      waiting_.push_back(std::move(call));
      open_.fetch_add(1, std::memory_order_relaxed);
      if (first) uv_async_send(&wake_);
      return;
    }
  }
  call.reactor->Finish(refusal);
}

void Server::OnWake() {
  if (ended_.load(std::memory_order_acquire) && ender_.joinable()) {
    ender_.join();
    server_.reset();
    return std::exchange(on_drained_, nullptr)();
  }
  AnswerAll(kBudget);
}

// At least one, however long it takes.
void Server::AnswerAll(Duration budget) {
  const Instant end = Now() + budget;
  now_ = BootNow();
  before_answers_(now_);
  do {
    if (answered_ == answering_.size()) {
      answering_.clear();
      answered_ = 0;
      const std::lock_guard lock(mutex_);
      answering_.swap(waiting_);
      if (answering_.empty()) return;
    }
    const Call& call = answering_[answered_++];
    call.reactor->Finish(call.answer());
    open_.fetch_sub(1, std::memory_order_relaxed);
  } while (Now() < end);
  uv_async_send(&wake_);
}

void Server::Drain(std::function<void()> done) {
  on_drained_ = std::move(done);
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  AnswerAll(std::chrono::hours(1));
  const SignalsBlocked blocked;
  ender_ = std::thread([this] {
    EndServer();
    ended_.store(true, std::memory_order_release);
    uv_async_send(&wake_);
  });
}

void Server::EndServer() {
  server_->Shutdown(std::chrono::system_clock::now() + kFarewell);
  server_->Wait();
}

void Server::Close() {
  if (server_ != nullptr) {    // it was not drained
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    AnswerAll(std::chrono::hours(1));
    if (ender_.joinable()) {
      ender_.join();
    } else {
      EndServer();
    }
    server_.reset();
  }
  while (!polls_.empty()) EndPoll(*polls_.begin());
  uv_close(reinterpret_cast<uv_handle_t*>(&wake_), nullptr);
}

}    // namespace

}    // namespace dthrottle

// As GrpcLeasesMaker.
extern "C" dthrottle::GrpcLeases* dthrottle_make_grpc_leases(
    const char* version, uv_loop_t* loop, dthrottle::lease::LeaseServer& server,
    const dthrottle::GrpcLeases::Options& options, std::function<void(dthrottle::BootInstant)> before_answers) {
  if (std::string_view(version) != DTHROTTLE_VERSION) return nullptr;
  return new dthrottle::Server(loop, server, options, std::move(before_answers));
}
