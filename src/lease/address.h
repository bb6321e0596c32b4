// Where a lease server is reached: one address for each way of asking, as an election and answers have them.
//
//     tcp:10.0.0.1:7315                       lines
//     tls:10.0.0.1:7318                       lines, by TLS
//     tcp:10.0.0.1:7315,grpc:10.0.0.1:7316    lines, and gRPC
//     grpc:10.0.0.1:7316
#pragma once

#include <string>
#include <string_view>

namespace dthrottle::lease {

inline constexpr std::string_view kGrpcPrefix = "grpc:", kTlsPrefix = "tls:";

// The address for HOST:PORT; empty for an empty endpoint.
inline std::string TlsAddress(std::string_view endpoint) {
  return endpoint.empty() ? std::string() : std::string(kTlsPrefix).append(endpoint);
}

// For lines; empty: there is none.
inline std::string_view LineAddress(std::string_view addresses) {
  if (addresses.starts_with(kGrpcPrefix)) return {};
  return addresses.substr(0, addresses.rfind(",grpc:"));
}

// For gRPC, HOST:PORT; empty: there is none.
inline std::string_view GrpcAddress(std::string_view addresses) {
  const std::string_view rest = addresses.substr(LineAddress(addresses).size());
  const std::size_t prefix = rest.find(kGrpcPrefix);
  return prefix > 1 ? std::string_view() : rest.substr(prefix + kGrpcPrefix.size());
}

inline std::string JoinAddresses(std::string_view line, std::string_view grpc) {
  std::string joined(line);
  if (grpc.empty()) return joined;
  if (!joined.empty()) joined += ',';
  return joined.append(kGrpcPrefix).append(grpc);
}

// Whether they name the same server, perhaps one of them by fewer ways.
inline bool SameServer(std::string_view a, std::string_view b) {
  const auto same = [](std::string_view x, std::string_view y) { return !x.empty() && x == y; };
  return same(LineAddress(a), LineAddress(b)) || same(GrpcAddress(a), GrpcAddress(b));
}

}    // namespace dthrottle::lease
