// How a client's connection becomes one of gRPC's: as it is, or by TLS (section [tls] of the settings).
//
// The daemon accepts connections. With TLS they go through an acceptor of gRPC's. New files are in force for the next
// handshake; those that do not fit change nothing.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <optional>
#include <utility>

#include "tls/context.h"

namespace dthrottle {

class Door {
 public:
  // Without files connections are taken as they are.
  explicit Door(std::optional<TlsFiles> tls) : tls_(std::move(tls)) {}

  // Once, before the server is built.
  void Open(grpc::ServerBuilder& builder);

  // Gives the server, which this object must outlive, a connected socket, which is gRPC's from then on.
  void Take(grpc::Server& server, int fd);

 private:
  std::optional<TlsFiles> tls_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;    // with TLS
};

}    // namespace dthrottle
