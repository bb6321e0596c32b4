// Serves the admin socket: lines in, answers out. A command of a connection runs in a turn of the loop, and the next
// one once it is answered, so the query path never waits for a pile of them.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <vector>

#include "admin/admin.h"
#include "io/stream_server.h"

namespace dthrottle {

class AdminServer final : public StreamServer {
 public:
  // `host` must outlive it.
  AdminServer(uv_loop_t* loop, AdminHost& host);

  // Ends the connection that has been idle longest, of those that `may_go`, by their descriptors. False: none has been
  // idle for 5 s.
  bool EndIdle(const std::function<bool(int fd)>& may_go);

 private:
  static constexpr std::size_t kReadBytes = 4096;
  struct AdminConnection;

  std::unique_ptr<Connection> MakeConnection() override;
  Then OnBytes(Connection& connection, std::string_view bytes) override;
  void Answer() override;

  AdminHost& host_;

  struct Asked {
    AdminConnection* connection;
    std::string_view line;    // in the arena, without its LF
    bool too_long;
  };
  std::vector<Asked> asked_;    // of the turn
};

}    // namespace dthrottle
