// How settings are written: durations, sizes, rates, addresses. Text to value and back, without TOML.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/time.h"
#include "config/settings.h"

namespace dthrottle {

// "250ms", "5s", "1.5m", "2h", "1d".
Result<Duration> ParseDuration(std::string_view text);
std::string FormatDuration(Duration);

// "512", "64KiB", "2.8GiB", "1GB": bytes.
Result<std::uint64_t> ParseBytes(std::string_view text);
std::string FormatBytes(std::uint64_t);

// "2.8GiB" or "90%"; empty means unset.
Result<ShedBound> ParseShedBound(std::string_view text);

// "60/m": tokens a second. Units s, m, h, d.
Result<double> ParseRate(std::string_view text);

// "127.0.0.1:7311", "[::1]:7311"; empty means none. Names are not looked up.
Result<Endpoint> ParseEndpoint(std::string_view text);
std::string FormatEndpoint(const Endpoint&);
bool IsLoopback(const Endpoint&);
// Whether no two sockets can listen there: a port at one address, or at one address and at all of its family. Port 0 is
// any free one.
bool Overlap(const Endpoint& a, const Endpoint& b);

// Where other hosts listen: "tcp://HOST:PORT" or "srv://_service._proto.name", with "#NAME" behind it where the name of
// the peer's key has to be told.
struct PeerEntry {
  enum class Kind { kNumeric, kName, kService };
  Kind kind{};
  std::string host;          // or the name of the service
  std::uint16_t port = 0;    // none for a service
  std::string key_name;      // empty: not said

  // Whether it can lead off this host.
  bool is_loopback() const;
};
Result<PeerEntry> ParsePeerEntry(std::string_view text);
// One host alone, without the name of its key.
bool IsPeerAddress(std::string_view text);

// "nats://HOST:PORT" or "tls://HOST:PORT": a server of NATS.
struct NatsServer {
  bool tls = false;
  PeerEntry at;
};
Result<NatsServer> ParseNatsServer(std::string_view text);

// A name that could be looked up; one of only digits and dots is an address gone wrong.
bool IsDnsName(std::string_view name);

// "tcp://127.0.0.1:7314": a numeric address and a port.
Result<Endpoint> ParseBind(std::string_view text);
std::string FormatBind(const Endpoint&);

// "web-1 web-2" or "web-1 web-2 0.5".
Result<CapacityLink> ParseCapacityLink(std::string_view text);

// "alice KEY": an operator, and the public key that what this operator sets is signed with (Ed25519, base64).
struct OperatorKey {
  std::string name, key;
};
Result<OperatorKey> ParseOperatorKey(std::string_view text);

// "0660": permission bits in octal.
Result<std::uint32_t> ParseFileMode(std::string_view text);
std::string FormatFileMode(std::uint32_t);

// The shortest text that reads back as the same number.
std::string FormatNumber(double);

}    // namespace dthrottle
