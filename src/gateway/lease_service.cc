#include <chrono>

#include "doorman.grpc.pb.h"
#include "gateway/messages.h"
#include "gateway/services.h"
#include "gateway/unary.h"

namespace dthrottle {

namespace {

Duration Since1970() {
  return std::chrono::system_clock::now().time_since_epoch();
}

class LeaseService final : public doorman::Capacity::CallbackService {
 public:
  explicit LeaseService(Channel& channel) : channel_(channel) {}

  grpc::ServerUnaryReactor* Discovery(grpc::CallbackServerContext* context, const doorman::DiscoveryRequest* request,
                                      doorman::DiscoveryResponse* response) override {
    return Ask(context, *request, *response);
  }
  grpc::ServerUnaryReactor* GetCapacity(grpc::CallbackServerContext* context,
                                        const doorman::GetCapacityRequest* request,
                                        doorman::GetCapacityResponse* response) override {
    return Ask(context, *request, *response);
  }
  grpc::ServerUnaryReactor* GetServerCapacity(grpc::CallbackServerContext* context,
                                              const doorman::GetServerCapacityRequest* request,
                                              doorman::GetServerCapacityResponse* response) override {
    return Ask(context, *request, *response);
  }
  grpc::ServerUnaryReactor* ReleaseCapacity(grpc::CallbackServerContext* context,
                                            const doorman::ReleaseCapacityRequest* request,
                                            doorman::ReleaseCapacityResponse* response) override {
    return Ask(context, *request, *response);
  }

 private:
  template <class Request, class Response>
  grpc::ServerUnaryReactor* Ask(grpc::CallbackServerContext* context, const Request& request, Response& response) {
    const Duration asked = Since1970();
    return Pass(channel_, context, ToLines(request, channel_.further(), asked),
                [&request, &response, asked](const LineAnswers& answers) {
                  FromLines(request, answers, asked, response);
                  return grpc::Status();
                });
  }

  Channel& channel_;
};

}    // namespace

std::unique_ptr<grpc::Service> MakeLeaseService(Channel& channel) {
  return std::make_unique<LeaseService>(channel);
}

}    // namespace dthrottle
