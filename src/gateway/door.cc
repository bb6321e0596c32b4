#include "gateway/door.h"

#include <fcntl.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server_posix.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <utility>

namespace dthrottle {

namespace {

constexpr unsigned kLookSeconds = 2;                 // between two looks at the files
constexpr int kHandshakeMillisecondsMax = 10'000;    // then the connection is closed

std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const TlsFiles& files) {
  using namespace grpc::experimental;
  TlsServerCredentialsOptions options(std::make_shared<FileWatcherCertificateProvider>(
      files.key, files.certificate, files.client_ca, kLookSeconds));
  options.watch_identity_key_cert_pairs();
  if (!files.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return TlsServerCredentials(options);
}

}    // namespace

void Door::Open(grpc::ServerBuilder& builder) {
  if (!tls_) return;
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMillisecondsMax);
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, CredentialsOf(*tls_));
}

void Door::Take(grpc::Server& server, int fd) {
  const int now = 1;    // an answer behind a small frame does not wait for its acknowledgement
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &now, sizeof now);
  if (acceptor_ == nullptr) return grpc::AddInsecureChannelFromFd(&server, fd);
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = -1;
  connection.fd = fd;
  acceptor_->HandleNewConnection(&connection);
}

}    // namespace dthrottle
