// How a client's connection becomes one of gRPC's: as it is, or by TLS (section [grpc] of the settings).
//
// The daemon accepts connections. With TLS they go through an acceptor of gRPC's, which looks every few seconds whether
// the files are new.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"

namespace dthrottle {

struct TlsFiles {
  std::string certificate, key;    // paths of PEM files
  std::string client_ca;           // authorities of which one signed a client's certificate; empty: clients need none
};

// Whether TLS can begin with them, or which file is why it cannot.
Result<void> CheckTls(const TlsFiles& files);

class Door {
 public:
  // Without files connections are taken as they are.
  explicit Door(std::optional<TlsFiles> tls) : tls_(std::move(tls)) {}

  // Once, before the server is built.
  void Open(grpc::ServerBuilder& builder);

  // Gives the server a connected socket, which is gRPC's from then on.
  void Take(grpc::Server& server, int fd);

 private:
  std::optional<TlsFiles> tls_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;    // with TLS
};

}    // namespace dthrottle
