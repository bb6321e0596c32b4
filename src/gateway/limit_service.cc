#include "gateway/limit_messages.h"
#include "gateway/services.h"
#include "gateway/unary.h"
#include "rate_limit.grpc.pb.h"

namespace dthrottle {

namespace {

using envoy::service::ratelimit::v3::RateLimitService;

class LimitService final : public RateLimitService::CallbackService {
 public:
  explicit LimitService(Channel& channel) : channel_(channel) {}

  grpc::ServerUnaryReactor* ShouldRateLimit(grpc::CallbackServerContext* context, const RateLimitRequest* request,
                                            RateLimitResponse* response) override {
    auto question = ToQuestion(*request);
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
};

}    // namespace

std::unique_ptr<grpc::Service> MakeLimitService(Channel& channel) {
  return std::make_unique<LimitService>(channel);
}

}    // namespace dthrottle
