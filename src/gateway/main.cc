// dthrottle-grpc: leases over gRPC (protocol/doorman.proto), for the daemon that starts it (frontend/grpc/gateway.h).
//
//     dthrottle-grpc PROTOCOL IDLE_MS [CERTIFICATE KEY CLIENT_CA]
//     dthrottle-grpc check CERTIFICATE KEY CLIENT_CA    says whether TLS can begin with them
//
// Descriptor 3 is the socket for lines, 4 the one that connections come by. The program ends when 4 does, or by SIGTERM:
// in both cases it answers what has been asked, and tells its clients to go elsewhere.
//
// gRPC's threads read and write. A call becomes lines, the channel brings their answers, and a thread of the channel
// finishes the call.
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sysexits.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "doorman.grpc.pb.h"
#include "gateway/channel.h"
#include "gateway/door.h"
#include "gateway/messages.h"
#include "io/descriptor.h"

namespace dthrottle {

namespace {

constexpr std::string_view kProtocol = "1";    // of what is said on both sockets
constexpr int kLines = 3, kPipe = 4;

constexpr int kMessageBytesMax = 1 << 20;
constexpr int kMetadataBytesMax = 8 << 10;
constexpr int kStreamsMax = 100;                              // calls at once on one connection
constexpr std::size_t kMemoryMax = std::size_t{128} << 20;    // of gRPC, for all connections together
constexpr auto kFarewell = std::chrono::milliseconds(500);    // for answers on their way

Duration Since1970() {
  return std::chrono::system_clock::now().time_since_epoch();
}

class Service final : public doorman::Capacity::CallbackService {
 public:
  explicit Service(Channel& channel) : channel_(channel) {}

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
  // Request and response live until the reactor is finished, also if the client gives up.
  template <class Request, class Response>
  grpc::ServerUnaryReactor* Ask(grpc::CallbackServerContext* context, const Request& request, Response& response) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    const Duration asked = Since1970();
    auto lines = ToLines(request, channel_.resources_max(), asked);
    grpc::Status status;
    if (!lines) status = {grpc::StatusCode::INVALID_ARGUMENT, lines.error().message};
    auto done = [&request, &response, asked, status, reactor](const LineAnswers* answers) {
      if (answers == nullptr) return reactor->Finish(Leaving());
      if (status.ok()) FromLines(request, *answers, asked, response);
      reactor->Finish(status);
    };
    const Channel::Taken taken = channel_.Send(lines ? std::move(*lines) : CallLines(), std::move(done));
    if (taken == Channel::Taken::kGone) reactor->Finish(Leaving());
    if (taken == Channel::Taken::kTooMany) {
      reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls wait (lease.grpc_max_calls)"});
    }
    return reactor;
  }

  static grpc::Status Leaving() { return {grpc::StatusCode::UNAVAILABLE, "the server is leaving"}; }

  Channel& channel_;
};

std::unique_ptr<grpc::Server> Serve(Service& service, Door& door, int idle_ms) {
  // What strangers send must not fill the log.
  gpr_set_log_function([](gpr_log_func_args*) {});
  google::protobuf::SetLogHandler(nullptr);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  door.Open(builder);
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetResourceQuota(grpc::ResourceQuota("leases").Resize(kMemoryMax));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  if (idle_ms > 0) builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, idle_ms);
  return builder.BuildAndStart();
}

// Serves the connections that come, until the daemon or a signal ends it.
void Accept(grpc::Server& server, Door& door, int signals) {
  pollfd polled[] = {{kPipe, POLLIN, 0}, {signals, POLLIN, 0}};
  bool ended = false;
  while (!ended) {
    if (::poll(polled, 2, -1) < 0) continue;
    if (polled[1].revents != 0) break;
    const int fd = ReceiveDescriptor(kPipe, ended);
    if (fd >= 0) door.Take(server, fd);
  }
  ::close(kPipe);    // the daemon keeps the next ones for another program
}

int Main(int idle_ms, std::optional<TlsFiles> tls) {
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t orders;
  sigemptyset(&orders);
  sigaddset(&orders, SIGTERM);
  sigaddset(&orders, SIGINT);
  pthread_sigmask(SIG_BLOCK, &orders, nullptr);    // in all threads to come
  const int signals = ::signalfd(-1, &orders, SFD_CLOEXEC);

  Channel channel(kLines);
  Service service(channel);
  Door door(std::move(tls));
  const std::unique_ptr<grpc::Server> server = Serve(service, door, idle_ms);
  if (server == nullptr) {
    std::fputs("dthrottle-grpc: gRPC does not start\n", stderr);
    return EX_UNAVAILABLE;
  }
  channel.AwaitBounds();
  Accept(*server, door, signals);
  server->Shutdown(std::chrono::system_clock::now() + kFarewell);
  server->Wait();
  return EX_OK;
}

int Check(const TlsFiles& files) {
  const auto good = CheckTls(files);
  if (!good) std::fputs(good.error().message.c_str(), stdout);
  return good ? EX_OK : EX_CONFIG;
}

bool IsSocket(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}

}    // namespace

}    // namespace dthrottle

int main(int argc, char** argv) {
  using namespace dthrottle;
  if (argc == 5 && std::string_view(argv[1]) == "check") return Check({argv[2], argv[3], argv[4]});
  int idle_ms = 0;
  const std::string_view idle(argc == 3 || argc == 6 ? argv[2] : "");
  const bool read = std::from_chars(idle.data(), idle.data() + idle.size(), idle_ms).ec == std::errc();
  if (!read || argv[1] != kProtocol || !IsSocket(kLines) || !IsSocket(kPipe)) {
    std::fprintf(stderr, "dthrottle-grpc %s is started by a dthrottled that speaks version %s with it\n",
                 DTHROTTLE_VERSION, kProtocol.data());
    return EX_USAGE;
  }
  return Main(idle_ms, argc == 6 ? std::optional(TlsFiles{argv[3], argv[4], argv[5]}) : std::nullopt);
}
