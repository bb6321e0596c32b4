#include <grpcpp/support/message_allocator.h>

#include <charconv>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gateway/limit_messages.h"
#include "gateway/services.h"
#include "gateway/unary.h"
#include "rate_limit.grpc.pb.h"

namespace dthrottle {

namespace {

using envoy::service::ratelimit::v3::RateLimitService;

// A call's messages. A later call uses them again, with the memory of their fields.
class Messages final : public grpc::MessageHolder<RateLimitRequest, RateLimitResponse> {
 public:
  explicit Messages(class MessagesMaker& maker) : maker_(maker) {
    set_request(&request_);
    set_response(&response_);
  }
  void Release() override;
  void FreeRequest() override {}

  LimitQuestion question;

 private:
  static constexpr std::size_t kUsualBytes = 512;    // of a request; one that is larger does not keep its memory

  MessagesMaker& maker_;
  RateLimitRequest request_;
  RateLimitResponse response_;
};

class MessagesMaker final : public grpc::MessageAllocator<RateLimitRequest, RateLimitResponse> {
 public:
  Messages* AllocateMessages() override {
    const std::lock_guard lock(mutex_);
    if (unused_.empty()) return new Messages(*this);
    Messages* const last = unused_.back().release();
    unused_.pop_back();
    return last;
  }
  void TakeBack(std::unique_ptr<Messages> messages) {
    const std::lock_guard lock(mutex_);
    if (unused_.size() < kUnusedMax) unused_.push_back(std::move(messages));
  }

 private:
  static constexpr std::size_t kUnusedMax = 256;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Messages>> unused_;
};

void Messages::Release() {
  std::unique_ptr<Messages> self(this);
  if (request_.ByteSizeLong() > kUsualBytes) return;
  request_.Clear();
  response_.Clear();
  maker_.TakeBack(std::move(self));
}

// gRPC names a connection that it was handed "fd:NUMBER".
int ConnectionOf(const grpc::CallbackServerContext& context) {
  constexpr std::string_view kDescriptor = "fd:";
  const std::string peer = context.peer();
  int fd = -1;
  if (peer.starts_with(kDescriptor)) std::from_chars(peer.data() + kDescriptor.size(), peer.data() + peer.size(), fd);
  return fd;
}

class LimitService final : public RateLimitService::CallbackService {
 public:
  explicit LimitService(Channel& channel) : channel_(channel) { SetMessageAllocatorFor_ShouldRateLimit(&maker_); }

  grpc::ServerUnaryReactor* ShouldRateLimit(grpc::CallbackServerContext* context, const RateLimitRequest* request,
                                            RateLimitResponse*) override {
    auto& messages = *static_cast<Messages*>(context->GetRpcAllocatorState());
    auto question = ToQuestion(*request, channel_.further(1) != 0);
    if (!question) return Pass(channel_, context, tl::unexpected(question.error()), Nothing);
    CallLines line = {std::move(question->line), 1, ConnectionOf(*context)};
    messages.question = std::move(*question);
    return Pass(channel_, context, std::move(line), [this, &messages](const LineAnswers& answers) {
      const auto headers = static_cast<HttpHeaders>(channel_.further());
      const auto good = FromAnswer(messages.question, answers.front(), headers, *messages.response());
      return good ? grpc::Status() : grpc::Status(grpc::StatusCode::INTERNAL, good.error().message);
    });
  }

 private:
  static grpc::Status Nothing(const LineAnswers&) { return {}; }

  Channel& channel_;
  MessagesMaker maker_;
};

}    // namespace

std::unique_ptr<grpc::Service> MakeLimitService(Channel& channel) {
  return std::make_unique<LimitService>(channel);
}

}    // namespace dthrottle
