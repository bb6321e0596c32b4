#include <google/protobuf/arena.h>
#include <grpcpp/support/message_allocator.h>

#include "gateway/limit_messages.h"
#include "gateway/services.h"
#include "gateway/unary.h"
#include "rate_limit.grpc.pb.h"

namespace dthrottle {

namespace {

using envoy::service::ratelimit::v3::RateLimitService;

// The messages of a call, in memory of their own: one allocation in place of one for each field.
class Messages final : public grpc::MessageHolder<RateLimitRequest, RateLimitResponse> {
 public:
  Messages() : arena_(bytes_, sizeof bytes_) {
    set_request(google::protobuf::Arena::CreateMessage<RateLimitRequest>(&arena_));
    set_response(google::protobuf::Arena::CreateMessage<RateLimitResponse>(&arena_));
  }
  void Release() override { delete this; }
  void FreeRequest() override {}

 private:
  alignas(8) char bytes_[1984];    // so many are enough for a few descriptors
  google::protobuf::Arena arena_;
};

class MessagesMaker final : public grpc::MessageAllocator<RateLimitRequest, RateLimitResponse> {
  grpc::MessageHolder<RateLimitRequest, RateLimitResponse>* AllocateMessages() override { return new Messages; }
};

class LimitService final : public RateLimitService::CallbackService {
 public:
  explicit LimitService(Channel& channel) : channel_(channel) { SetMessageAllocatorFor_ShouldRateLimit(&messages_); }

  grpc::ServerUnaryReactor* ShouldRateLimit(grpc::CallbackServerContext* context, const RateLimitRequest* request,
                                            RateLimitResponse* response) override {
    auto question = ToQuestion(*request, channel_.further(1) != 0);
    if (!question) return Pass(channel_, context, tl::unexpected(question.error()), Nothing);
    CallLines line = {std::move(question->line), 1};
    return Pass(channel_, context, std::move(line),
                [this, question = std::move(*question), response](const LineAnswers& answers) {
                  const auto headers = static_cast<HttpHeaders>(channel_.further());
                  const auto good = FromAnswer(question, answers.front(), headers, *response);
                  return good ? grpc::Status() : grpc::Status(grpc::StatusCode::INTERNAL, good.error().message);
                });
  }

 private:
  static grpc::Status Nothing(const LineAnswers&) { return {}; }

  Channel& channel_;
  MessagesMaker messages_;
};

}    // namespace

std::unique_ptr<grpc::Service> MakeLimitService(Channel& channel) {
  return std::make_unique<LimitService>(channel);
}

}    // namespace dthrottle
