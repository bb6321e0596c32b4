#include "frontend/http/server.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "base/append.h"
#include "base/state.h"
#include "io/clock.h"
#include "io/process.h"

namespace dthrottle {

namespace {

constexpr std::size_t kKeptBytesMax = 256 * 1024;

}    // namespace

struct HttpServer::HttpConnection final : Connection {
  explicit HttpConnection(HttpServer& its) : server(its) {}
  ~HttpConnection() override {
    if (held.empty()) return;
    server.held_.erase({held.front().until, this});
    const Instant now = Now();
    for (Held& its : held) server.service_.GiveUp(its.paid, now);
  }

  // A reply that waits, and those behind it up to the next one that does.
  struct Held {
    Instant until;
    std::string replies;
    Waits paid;    // until then: what its question has taken

    static void Fields(auto& state, auto& self) { state(self.until, self.replies, self.paid); }
  };

  // What goes over of replies that are held.
  struct State {
    std::deque<Held> held;
    bool ends;

    static void Fields(auto& state, auto& self) { state(self.held, self.ends); }
  };
  static constexpr std::uint32_t kStateVersion = 3;

  std::string state() const override { return held.empty() ? "" : WriteState(kStateVersion, State{held, ends}); }
  bool Restore(std::string_view rest, std::string_view bytes) override {
    State state;
    if (!bytes.empty() && (!ReadState(bytes, kStateVersion, state) || state.held.empty())) return false;
    unread_ = rest;
    if (bytes.empty()) return true;
    held = std::move(state.held);
    ends = state.ends;
    server.Delay(*this);
    return true;
  }
  bool waits_for_long() const override { return !held.empty(); }

  HttpServer& server;
  HttpReader reader;
  std::deque<Held> held;    // by their instants; empty: no reply waits
  bool ends = false;        // with the next reply
  using Connection::unread_;
};

HttpServer::HttpServer(uv_loop_t* loop, AdminHost& host, Prng prng, Duration timeout)
    : StreamServer(loop, {kReadBytes, kReadBytes + kHttpHeadBytesMax}, timeout, AliveBy::kAnswers),
      service_(host, prng, NameOfMachine()),
      hold_timer_(loop, [this] { LetGoDue(Now()); }) {}

void HttpServer::Close() {
  StreamServer::Close();
  hold_timer_.Close();
}

std::unique_ptr<StreamServer::Connection> HttpServer::MakeConnection() {
  return std::make_unique<HttpConnection>(*this);
}

// One request that looks inside is answered a turn, because its reply may be long: a client that asks for a thousand at
// once and does not read gets no more of them made than the socket takes.
StreamServer::Then HttpServer::OnBytes(Connection& connection, std::string_view bytes) {
  auto& c = static_cast<HttpConnection&>(connection);
  c.unread_ = c.ends ? std::string_view() : bytes;
  if (c.ends) return Then::kRead;    // only to see its end
  if (!c.held.empty()) return Then::kKeep;
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
    const HttpReplies reply = service_.Add(request);
    const bool last = !request.keep_alive || request.has_body || stopping_;
    asked_.push_back({request.method == "HEAD", last, request.is_1_1});
    if (last && reply == HttpReplies::kMayWait) {
      c.ends = true;
      break;
    } else if (last) {
      then = Then::kEnd;
    } else if ((reply == HttpReplies::kLong || asked_.size() - before == kRequestsPerTurn) && !bytes.empty()) {
      then = Then::kAgain;
    }
  }
  c.unread_ = then == Then::kEnd || c.ends ? std::string_view() : bytes;
  if (asked_.size() > before) segments_.push_back({&c, asked_.size() - before});
  return then;
}

void HttpServer::Answer() {
  TellDate();
  const auto replies = service_.Answer(Now());
  requests_ += replies.size();
  std::size_t next = 0;
  for (const Segment& segment : segments_) {
    AnswerSegment(*segment.connection, replies.subspan(next, segment.requests),
                  std::span(asked_).subspan(next, segment.requests));
    next += segment.requests;
  }
  segments_.clear();
  asked_.clear();
  if (out_.capacity() > kKeptBytesMax) out_ = {};
}

// A reply that is to wait holds those behind it.
void HttpServer::AnswerSegment(HttpConnection& c, std::span<HttpReply> replies, std::span<const Asked> to) {
  const Instant now = Now();
  out_.clear();
  for (std::size_t i = 0; i < replies.size(); ++i) {
    if (replies[i].wait > Duration::zero() && !stopping_) {
      const Instant before = c.held.empty() ? now : c.held.back().until;
      c.held.push_back({std::max(before, now + replies[i].wait), {}, std::move(replies[i].paid)});
    }
    AppendReply(replies[i], to[i], c.held.empty() ? out_ : c.held.back().replies);
  }
  Write(c, out_);
  if (!c.held.empty()) return Delay(c);
  if (c.ends) Finish(c);
}

// ---- Replies that wait ----

void HttpServer::Delay(HttpConnection& c) {
  held_.emplace(c.held.front().until, &c);
  StartHoldTimer();
}

// Sends what waits until `now` at most, and goes on with the connection if that is all.
void HttpServer::LetGo(HttpConnection& c, Instant now) {
  held_.erase({c.held.front().until, &c});
  std::string due;
  for (; !c.held.empty() && c.held.front().until <= now; c.held.pop_front()) due += c.held.front().replies;
  Write(c, due);
  if (!c.held.empty()) return void(held_.emplace(c.held.front().until, &c));
  c.ends ? Finish(c) : GoOn(c);
}

void HttpServer::LetGoDue(Instant now) {
  while (!held_.empty() && held_.begin()->first <= now) LetGo(*held_.begin()->second, now);
  StartHoldTimer();
}

void HttpServer::StartHoldTimer() {
  held_.empty() ? hold_timer_.Stop() : hold_timer_.StartAt(held_.begin()->first);
}

void HttpServer::TellDate() {
  const auto second = std::chrono::duration_cast<std::chrono::seconds>(WallClock()).count();
  if (std::exchange(date_second_, second) == second) return;
  date_ = fmt::format("Date: {:%a, %d %b %Y %H:%M:%S} GMT\r\n", fmt::gmtime(static_cast<std::time_t>(second)));
}

void HttpServer::AppendReply(const HttpReply& reply, const Asked& to, std::string& out) const {
  Append(out, "HTTP/1.1 ", reply.status, " ", HttpReason(reply.status), "\r\n", date_);
  if (!reply.content_type.empty()) Append(out, "Content-Type: ", reply.content_type, "\r\n");
  Append(out, "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n", reply.fields);
  if (reply.status != 204) Append(out, "Content-Length: ", reply.body.size(), "\r\n");
  if (to.last) {
    Append(out, "Connection: close\r\n");
  } else if (!to.is_1_1) {
    Append(out, "Connection: keep-alive\r\n");
  }
  Append(out, "\r\n");
  if (!to.head) Append(out, reply.body);
}

void HttpServer::Stop() {
  stopping_ = true;
  while (!held_.empty()) LetGo(*held_.begin()->second, Instant::max());
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
