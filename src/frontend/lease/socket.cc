#include "frontend/lease/socket.h"

#include <utility>

#include "io/clock.h"
#include "query/http_line.h"

namespace dthrottle {

struct LeaseSocket::LeaseConnection final : Connection {
  bool is_new = true;    // its first line has not been read
  using Connection::unread_;
};

LeaseSocket::LeaseSocket(uv_loop_t* loop, lease::LeaseServer& server, Duration idle_timeout,
                         std::function<void(BootInstant)> before_answers, GatewayCalls* gateway)
    : StreamServer(loop, {kReadBytes, kLeaseLineBytesMax + 1}, idle_timeout),
      server_(server),
      before_answers_(std::move(before_answers)),
      gateway_(gateway) {}

std::unique_ptr<StreamServer::Connection> LeaseSocket::MakeConnection() {
  return std::make_unique<LeaseConnection>();
}

StreamServer::Then LeaseSocket::OnBytes(Connection& connection, std::string_view bytes) {
  auto& c = static_cast<LeaseConnection&>(connection);
  const LeaseLines lines = SplitLeaseLines(bytes);
  c.unread_ = lines.rest;
  if (!lines.whole.empty() || lines.too_long) {
    if (std::exchange(c.is_new, false) && BeginsWithHttp(bytes, lines.whole.empty())) {
      ++spoke_http_;
      return Then::kEnd;
    }
  }
  if (!lines.whole.empty() || lines.too_long) segments_.push_back({&connection, lines});
  return lines.too_long ? Then::kEnd : Then::kRead;
}

void LeaseSocket::Answer() {
  const BootInstant now = BootNow();
  before_answers_(now);
  for (const auto& [connection, lines] : segments_) {
    answers_.clear();
    lines_ += AnswerLeaseLines(lines, server_, now, answers_, gateway_);
    Write(*connection, answers_);
  }
  segments_.clear();
}

}    // namespace dthrottle
