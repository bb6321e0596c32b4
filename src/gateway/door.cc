#include "gateway/door.h"

#include <fcntl.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_posix.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "tls/watch.h"

namespace dthrottle {

namespace {

constexpr int kHandshakeMillisecondsMax = 10'000;    // then the connection is closed

void Set(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What the files are for gRPC, which asks before each handshake, one at a time.
class Certificates {
 public:
  explicit Certificates(TlsFiles files) : watch_(std::move(files)) {}

  // `self` is one of these. Files that do not fit are passed over, and said so once.
  static grpc_ssl_certificate_config_reload_status Fetch(void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<Certificates*>(self)->Next(config);
  }

 private:
  grpc_ssl_certificate_config_reload_status Next(grpc_ssl_server_certificate_config** config) {
    using std::chrono::milliseconds;
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const bool changed = watch_.Changed(static_cast<std::uint64_t>(std::chrono::floor<milliseconds>(now).count()));
    if (loaded_ && !changed) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const TlsFiles& files = watch_.files();
    if (const auto good = MakeTlsContext(files); !good) {
      std::fprintf(stderr, "dthrottle-grpc: %s; the certificate stays what it was\n", good.error().message.c_str());
      return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    const std::string key = TextOf(files.key), certificate = TextOf(files.certificate);
    // gRPC insists on authorities. Where clients need no certificate it looks at none of them.
    const std::string client_ca = files.client_ca.empty() ? certificate : TextOf(files.client_ca);
    grpc_ssl_pem_key_cert_pair pair{key.c_str(), certificate.c_str()};
    *config = grpc_ssl_server_certificate_config_create(client_ca.c_str(), &pair, 1);
    loaded_ = true;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  TlsFilesWatch watch_;
  bool loaded_ = false;
};

// gRPC's own classes of credentials either keep the files of their beginning or take new ones unseen.
class Credentials final : public grpc::ServerCredentials {
 public:
  explicit Credentials(const TlsFiles& files) : certificates_(files) {
    const auto request = files.client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                 : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(request, Certificates::Fetch, &certificates_));
  }
  ~Credentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  Certificates certificates_;
  grpc_server_credentials* credentials_;
};

}    // namespace

void Door::Open(grpc::ServerBuilder& builder) {
  if (!tls_) return;
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMillisecondsMax);
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, std::make_shared<Credentials>(*tls_));
}

void Door::Take(grpc::Server& server, int fd) {
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);    // an answer behind a small frame does not wait for its acknowledgement
  // A connection whose other end is gone without a word ends after 90 s, though there is no call on it.
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60);    // seconds, and so is the next
  Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  Set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  if (acceptor_ == nullptr) return grpc::AddInsecureChannelFromFd(&server, fd);
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = -1;
  connection.fd = fd;
  acceptor_->HandleNewConnection(&connection);
}

}    // namespace dthrottle
