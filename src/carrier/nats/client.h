// A connection to servers of NATS, as the daemon sees it: a module of its own has libnats, and is loaded where the settings
// want it (module.cc), so that nothing else depends on it.
//
// No call blocks. Frames go through two bounded queues, between which and the server threads of the module work: what
// libnats waits for (names, handshakes, a server that does not read) keeps nobody else waiting. Nothing that the module
// calls is of the limiter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace dthrottle {

struct NatsOptions {
  std::vector<std::string> servers;     // "nats://127.0.0.1:4222", or all "tls://..."
  std::string name;                     // of the connection, for people who look at the server
  // What this host proves itself by, besides a certificate; each may be empty.
  std::string user, password;
  std::string nkey, seed;     // public key, and the seed of both
  std::string jwt_file;       // with a user's JWT and its seed
  bool tls = false;
  std::string ca_file, certificate_file, key_file;    // PEM
  std::size_t send_bytes = 8u << 20;        // waiting to be sent
  std::size_t receive_bytes = 64u << 20;    // waiting to be taken
  std::function<void()> wake;               // something can be taken, or the status is another. Any thread
};

struct NatsStatus {
  bool connected = false;
  std::string server;     // that it is connected to, or was
  std::string trouble;    // the latest error since the latest connection came up; empty: none
  std::size_t frame_bytes_max = 0;    // that the server takes
  std::uint64_t connects = 0;    // times that a connection came up
  std::uint64_t errors = 0;      // that the server or libnats told of: permissions, slow consumers, refused connections
  std::uint64_t dropped = 0;     // frames that came and found no room
  std::uint64_t unsent = 0;      // frames that Send took and that did not go out
};

class NatsClient {
 public:
  struct Message {
    std::string subject, body;
  };

  // Ends the connection; what was sent has 200 ms to go out.
  virtual ~NatsClient() = default;

  // False: not connected, or as much waits already as may. At most once: nobody is told what does not arrive.
  virtual bool Send(const std::string& subject, std::shared_ptr<const std::string> body) = 0;
  // False: nothing is there.
  virtual bool Take(Message& message) = 0;
  virtual bool empty() = 0;    // nothing is there to take
  virtual NatsStatus Status() = 0;
  // Subscribes to that subject too, as soon as it is connected, and after every connection anew.
  virtual void Hear(std::string subject) = 0;
};

// What the module exports under kNatsSymbol. Both sides are built together: the version must be this program's.
struct NatsModule {
  const char* version;
  std::unique_ptr<NatsClient> (*make)(NatsOptions options);
};
inline constexpr const char* kNatsFile = "dthrottle-nats.so";
inline constexpr const char* kNatsSymbol = "dthrottle_nats_module";

}    // namespace dthrottle
