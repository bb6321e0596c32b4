#include "frontend/admin/server.h"

#include <algorithm>
#include <utility>

#include "io/clock.h"

namespace dthrottle {

// A command that answers later finds the connection by `here`, which ends with it.
struct AdminServer::AdminConnection final : Connection {
  std::shared_ptr<AdminConnection*> here = std::make_shared<AdminConnection*>(this);
  using Connection::unread_;
};

AdminServer::AdminServer(uv_loop_t* loop, AdminHost& host)
    : StreamServer(loop, {kReadBytes, kCommandBytesMax + kReadBytes}, Duration::zero()), host_(host) {}

std::unique_ptr<StreamServer::Connection> AdminServer::MakeConnection() {
  return std::make_unique<AdminConnection>();
}

StreamServer::Then AdminServer::OnBytes(Connection& connection, std::string_view bytes) {
  auto& c = static_cast<AdminConnection&>(connection);
  const std::size_t end = std::min(bytes.find('\n'), bytes.size());
  if (end > kCommandBytesMax) {    // nobody knows where the next command begins
    asked_.push_back({&c, {}, true});
    return Then::kEnd;
  }
  if (end == bytes.size()) {
    c.unread_ = bytes;
    return Then::kRead;
  }
  asked_.push_back({&c, bytes.substr(0, end), false});
  c.unread_ = bytes.substr(end + 1);
  return Then::kWait;
}

void AdminServer::Answer() {
  for (const auto& [connection, line, too_long] : std::exchange(asked_, {})) {
    if (too_long) {
      Write(*connection, CommandTooLong());
      continue;
    }
    RunAudited(
        line, connection->Peer(), host_,
        [this, weak = std::weak_ptr(connection->here)](const std::string& text) {
          const auto here = weak.lock();
          if (here == nullptr) return;
          Write(**here, text);
          GoOn(**here);
        },
        Now());
  }
}

}    // namespace dthrottle
