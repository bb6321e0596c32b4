#include "frontend/http/server.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "base/append.h"
#include "io/clock.h"
#include "io/process.h"

namespace dthrottle {

namespace {

constexpr std::size_t kKeptBytesMax = 256 * 1024;

}    // namespace

struct HttpServer::HttpConnection final : Connection {
  HttpReader reader;
  using Connection::unread_;
};

HttpServer::HttpServer(uv_loop_t* loop, AdminHost& host, Prng prng, Duration timeout)
    : StreamServer(loop, {kReadBytes, kReadBytes + kHttpHeadBytesMax}, timeout, AliveBy::kAnswers),
      service_(host, prng, NameOfMachine()) {}

std::unique_ptr<StreamServer::Connection> HttpServer::MakeConnection() {
  return std::make_unique<HttpConnection>();
}

// One request that looks inside is answered a turn, because its reply may be long: a client that asks for a thousand at
// once and does not read gets no more of them made than the socket takes.
StreamServer::Then HttpServer::OnBytes(Connection& connection, std::string_view bytes) {
  auto& c = static_cast<HttpConnection&>(connection);
  HttpRequest request;
  request.through_tcp = c.is_tcp();
  const std::size_t before = asked_.size();
  Then then = Then::kRead;
  while (then == Then::kRead && !bytes.empty()) {
    const auto step = c.reader.Next(bytes, request);
    if (!step) {
      service_.Add(step.error());
      asked_.push_back({false, true, true});
      then = Then::kEnd;
      break;
    }
    bytes.remove_prefix(step->bytes);
    if (!step->whole) break;
    const bool is_short = service_.Add(request);
    const bool last = !request.keep_alive || request.has_body || stopping_;
    asked_.push_back({request.method == "HEAD", last, request.is_1_1});
    if (last) {
      then = Then::kEnd;
    } else if ((!is_short || asked_.size() - before == kRequestsPerTurn) && !bytes.empty()) {
      then = Then::kAgain;
    }
  }
  c.unread_ = then == Then::kEnd ? std::string_view() : bytes;
  if (asked_.size() > before) segments_.push_back({&connection, asked_.size() - before});
  return then;
}

void HttpServer::Answer() {
  TellDate();
  const auto replies = service_.Answer(Now());
  requests_ += replies.size();
  std::size_t next = 0;
  for (const Segment& segment : segments_) {
    out_.clear();
    for (std::size_t i = 0; i < segment.requests; ++i, ++next) AppendReply(replies[next], asked_[next]);
    Write(*segment.connection, out_);
  }
  segments_.clear();
  asked_.clear();
  if (out_.capacity() > kKeptBytesMax) out_ = {};
}

void HttpServer::TellDate() {
  const auto second = std::chrono::duration_cast<std::chrono::seconds>(WallClock()).count();
  if (std::exchange(date_second_, second) == second) return;
  date_ = fmt::format("Date: {:%a, %d %b %Y %H:%M:%S} GMT\r\n", fmt::gmtime(static_cast<std::time_t>(second)));
}

void HttpServer::AppendReply(const HttpReply& reply, const Asked& to) {
  Append(out_, "HTTP/1.1 ", reply.status, " ", HttpReason(reply.status), "\r\n", date_);
  if (!reply.content_type.empty()) Append(out_, "Content-Type: ", reply.content_type, "\r\n");
  Append(out_, "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n", reply.fields);
  if (reply.status != 204) Append(out_, "Content-Length: ", reply.body.size(), "\r\n");
  if (to.last) {
    Append(out_, "Connection: close\r\n");
  } else if (!to.is_1_1) {
    Append(out_, "Connection: keep-alive\r\n");
  }
  Append(out_, "\r\n");
  if (!to.head) Append(out_, reply.body);
}

void HttpServer::Stop() {
  stopping_ = true;
  service_.Stop();
}

HttpCounts HttpServer::Counts() const {
  HttpCounts counts;
  counts.timed_out = this->counts().idle_closed.Read();
  counts.requests = requests_;
  counts.misdirected = service_.misdirected();
  counts.over_long = service_.over_long();
  return counts;
}

}    // namespace dthrottle
