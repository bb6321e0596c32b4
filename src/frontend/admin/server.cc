#include "frontend/admin/server.h"

#include <algorithm>
#include <string>
#include <utility>

#include "io/clock.h"

namespace dthrottle {

namespace {

constexpr Duration kIdleMin = std::chrono::seconds(5);

}    // namespace

// A command that answers later finds the connection by `here`, which ends with it.
struct AdminServer::AdminConnection final : Connection {
  Instant idle_since = Now();    // max: a command runs
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
  c.idle_since = Now();
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
  c.idle_since = Instant::max();
  return Then::kWait;
}

bool AdminServer::EndIdle(const std::function<bool(int fd)>& may_go) {
  const Instant now = Now();
  const AdminConnection* longest = nullptr;
  EndIf([&](Connection& connection) {
    const auto& c = static_cast<AdminConnection&>(connection);
    const bool is_idle = c.idle_since <= now - kIdleMin && may_go(c.fd());
    if (is_idle && (longest == nullptr || c.idle_since < longest->idle_since)) longest = &c;
    return false;
  });
  EndIf([&](const Connection& connection) { return &connection == longest; });
  return longest != nullptr;
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
          (*here)->idle_since = Now();
          Write(**here, text);
          GoOn(**here);
        },
        Now());
  }
}

}    // namespace dthrottle
