// A client's connection by TLS, and the plain one to the daemon that it becomes: bytes go both ways as they are.
#pragma once

#include <openssl/ssl.h>
#include <uv.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>

namespace dthrottle {

class Relay {
 public:
  // Begins with TLS on a client's connected socket, which becomes this object's. `connect` is called once TLS has let
  // the client in, and returns our end of a connection to the daemon, or -1. `ended` is called once, from the loop: the
  // sockets are closed, and this object may be destroyed.
  Relay(uv_loop_t* loop, SSL_CTX* context, int client, std::function<int()> connect, std::function<void(Relay*)> ended);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // False: there was no room for it, and `ended` is not called.
  bool open() const { return open_ > 0; }
  // TLS has let the client in.
  bool let_in() const { return daemon_.fd >= 0; }

  // What has arrived is answered, and nothing more is read; then it ends.
  void Leave();

  // Ends it now.
  void End();

 private:
  static constexpr std::size_t kBytes = 16 * 1024;    // of a record of TLS at most
  static constexpr int kRounds = 8;                   // of reads before other connections have their turn

  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  // A socket on the loop.
  struct Side {
    uv_poll_t poll;
    int fd = -1;
  };
  // Bytes of one direction that are read and not yet written.
  struct Flow {
    std::array<char, kBytes> bytes;
    std::size_t begin = 0, end = 0;
    bool ended = false;    // nothing more is read

    bool empty() const { return begin == end; }
  };
  enum class Step { kOn, kWait, kEnd };

  bool Open(Side& side, int fd);
  void Close(Side& side);
  void Watch(Side& side, int events);
  void Turn();
  Step Accept();
  Step FromClient();
  Step ToClient();
  Step Blocked(int result);

  uv_loop_t* const loop_;
  const std::function<int()> connect_;
  std::function<void(Relay*)> ended_;
  std::unique_ptr<SSL, FreeSsl> tls_;
  Side client_, daemon_;
  Flow in_, out_;          // to the daemon, and to the client
  int wants_ = 0;          // what TLS waits for on the client's socket
  bool told_ = false;      // the daemon, that nothing more comes
  int open_ = 0;           // sides with a handle
  bool ending_ = false;
};

}    // namespace dthrottle
