// dthrottle-grpc: what is served over gRPC, for the daemon that starts it (frontend/gateway.h): leases
// (protocol/doorman.proto), or what Envoy asks (protocol/rate_limit.proto, protocol/rate_limit_quota.proto).
//
//     dthrottle-grpc PROTOCOL leases|envoy IDLE_MS [CERTIFICATE KEY CLIENT_CA]
//     dthrottle-grpc check CERTIFICATE KEY CLIENT_CA    says whether TLS can begin with them
//
// Descriptor 3 is the socket that connections come by, 4 and 5 those for lines, one for each service. The program ends
// when 3 does, or by SIGTERM: in both cases it answers what has been asked, and tells its clients to go elsewhere.
//
// gRPC's threads read and write. A call becomes lines, the channel brings their answers, and the thread that has them
// finishes the call: nearly always one of gRPC's.
#include <absl/synchronization/mutex.h>
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

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gateway/channel.h"
#include "gateway/door.h"
#include "gateway/services.h"
#include "io/descriptor.h"

namespace dthrottle {

namespace {

constexpr int kMetadataBytesMax = 8 << 10;
constexpr std::size_t kMemoryMax = std::size_t{128} << 20;    // of gRPC, for all connections together
// A connection with calls on which nothing comes for so long gets a ping, and ends where that is not answered. Without it
// a stream whose path has gone silent would be open for hours, and keep the name of its Envoy.
constexpr int kAskAfterMs = 5'000, kAnswerMs = 5'000;
constexpr auto kFarewell = std::chrono::milliseconds(500);    // for answers on their way

// A service, whose lines have a connection of their own.
struct Offer {
  const char* name;    // for its health
  std::unique_ptr<grpc::Service> (*make)(Channel& channel);
};

// Services that are served together, and their bounds.
struct Kind {
  std::string_view name;
  int message_bytes_max;
  int streams_max;    // calls at once on one connection
  std::vector<Offer> offers;
};
const Kind kKinds[] = {
    {"leases", 1 << 20, 100, {{"doorman.Capacity", MakeLeaseService}}},
    {"envoy",
     4 << 20,
     1000,
     {{"envoy.service.ratelimit.v3.RateLimitService", MakeLimitService},
      {"envoy.service.rate_limit_quota.v3.RateLimitQuotaService", MakeQuotaService}}},
};

// An offer that is served.
struct Served {
  Served(const Offer& offer, int lines) : name(offer.name), channel(lines), service(offer.make(channel)) {}

  const char* name;
  Channel channel;
  std::unique_ptr<grpc::Service> service;
};

std::unique_ptr<grpc::Server> Serve(const Kind& kind, const std::deque<Served>& all, Door& door, int idle_ms) {
  // What strangers send must not fill the log.
  gpr_set_log_function([](gpr_log_func_args*) {});
  google::protobuf::SetLogHandler(nullptr);
  // Debian's library looks for cycles of locks, as one does while developing: 5 % of a call.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  door.Open(builder);
  for (const Served& served : all) builder.RegisterService(served.service.get());
  builder.SetMaxReceiveMessageSize(kind.message_bytes_max);
  builder.SetResourceQuota(grpc::ResourceQuota(std::string(kind.name)).Resize(kMemoryMax));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kind.streams_max);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kAskAfterMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kAnswerMs);
  if (idle_ms > 0) builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, idle_ms);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  for (const Served& served : all) {
    if (server != nullptr) server->GetHealthCheckService()->SetServingStatus(served.name, true);
  }
  return server;
}

// Serves the connections that come, until the daemon or a signal ends it.
void Accept(grpc::Server& server, Door& door, int signals) {
  pollfd polled[] = {{kGatewayPipe, POLLIN, 0}, {signals, POLLIN, 0}};
  bool ended = false;
  while (!ended) {
    if (::poll(polled, 2, -1) < 0) continue;
    if (polled[1].revents != 0) break;
    const int fd = ReceiveDescriptor(kGatewayPipe, ended);
    if (fd >= 0) door.Take(server, fd);
  }
  ::close(kGatewayPipe);    // the daemon keeps the next ones for another program
}

int Main(const Kind& kind, int idle_ms, std::optional<TlsFiles> tls) {
  if (tls.has_value()) {
    if (const auto good = MakeTlsContext(*tls); !good) {
      std::fprintf(stderr, "dthrottle-grpc: %s\n", good.error().message.c_str());
      return EX_CONFIG;
    }
  }
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t orders;
  sigemptyset(&orders);
  sigaddset(&orders, SIGTERM);
  sigaddset(&orders, SIGINT);
  pthread_sigmask(SIG_BLOCK, &orders, nullptr);    // in all threads to come
  const int signals = ::signalfd(-1, &orders, SFD_CLOEXEC);

  std::deque<Served> all;
  for (const Offer& offer : kind.offers) all.emplace_back(offer, kGatewayLines + static_cast<int>(all.size()));
  Door door(std::move(tls));
  const std::unique_ptr<grpc::Server> server = Serve(kind, all, door, idle_ms);
  if (server == nullptr) {
    std::fputs("dthrottle-grpc: gRPC does not start\n", stderr);
    return EX_UNAVAILABLE;
  }
  for (Served& served : all) served.channel.AwaitBounds();
  Accept(*server, door, signals);
  server->Shutdown(std::chrono::system_clock::now() + kFarewell);
  server->Wait();
  return EX_OK;
}

int Check(const TlsFiles& files) {
  const auto good = MakeTlsContext(files);
  if (!good) std::fputs(good.error().message.c_str(), stdout);
  return good ? EX_OK : EX_CONFIG;
}

}    // namespace

}    // namespace dthrottle

int main(int argc, char** argv) {
  using namespace dthrottle;
  if (argc == 5 && std::string_view(argv[1]) == "check") return Check({argv[2], argv[3], argv[4]});
  int idle_ms = 0;
  const bool encrypts = argc == 7;
  const std::string_view name(argc == 4 || encrypts ? argv[2] : ""), idle(argc == 4 || encrypts ? argv[3] : "");
  const auto* const kind = std::ranges::find(kKinds, name, &Kind::name);
  const bool read = std::from_chars(idle.data(), idle.data() + idle.size(), idle_ms).ec == std::errc();
  if (kind == std::end(kKinds) || !read || argv[1] != std::to_string(kGatewayProtocol) || !IsSocket(kGatewayPipe) ||
      !IsSocket(kGatewayLines)) {
    std::fprintf(stderr, "dthrottle-grpc %s is started by a dthrottled that speaks version %u with it\n",
                 DTHROTTLE_VERSION, kGatewayProtocol);
    return EX_USAGE;
  }
  return Main(*kind, idle_ms, encrypts ? std::optional(TlsFiles{argv[4], argv[5], argv[6]}) : std::nullopt);
}
