#include "frontend/http.h"

#include <fmt/format.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "base/check.h"

namespace dthrottle {

namespace {

// Turns in which what has arrived is answered at once.
constexpr int kLastTurnsMax = 1000;
constexpr std::ptrdiff_t kParametersMax = 64;    // of a target; none that is understood has more than a few

std::string OwnName() {
  char name[HOST_NAME_MAX + 1] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::optional<std::string_view> Field(MHD_Connection* connection, std::string_view name) {
  const char* value = nullptr;
  std::size_t size = 0;
  if (MHD_lookup_connection_value_n(connection, MHD_HEADER_KIND, name.data(), name.size(), &value, &size) != MHD_YES) {
    return std::nullopt;
  }
  return std::string_view(value, size);
}

bool HasBody(MHD_Connection* connection) {
  return Field(connection, "Content-Length").value_or("0") != "0" || Field(connection, "Transfer-Encoding").has_value();
}

// What a request takes of its connection's memory, and what is then missing for the answer.
std::size_t RequestBytes(MHD_Connection* connection) {
  constexpr std::size_t kValueBytes = 64;    // for each field, parameter and cookie, beside its text
  constexpr auto kKinds = static_cast<MHD_ValueKind>(MHD_HEADER_KIND | MHD_GET_ARGUMENT_KIND | MHD_COOKIE_KIND);
  const int values = MHD_get_connection_values(connection, kKinds, nullptr, nullptr);
  const std::size_t text = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE)->header_size;
  const std::size_t copied = Field(connection, "Cookie").value_or("").size();
  return text + copied + static_cast<std::size_t>(values) * kValueBytes;
}

// An answer to a request that has left libmicrohttpd no memory to answer it.
void SendPast(int fd, const HttpReply& reply) {
  const std::string text = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: "
      "close\r\n\r\n{}",
      reply.status, MHD_get_reason_phrase_for(reply.status), reply.content_type, reply.body.size(), reply.body);
  ::send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);    // it fits into the socket's buffer, or is lost
}

void AddField(MHD_Response* response, std::string_view name, const char* value) {
  DT_CHECK(MHD_add_response_header(response, name.data(), value) == MHD_YES);    // names are literals
}

}    // namespace

struct HttpServer::Connection {
  HttpServer* server;
  int fd;
  bool is_tcp;
  Instant since;            // the last answer was made, or it began
  std::string target;       // of the request that is being read
  bool rejected = false;    // it has been answered, and is the last one
  std::list<Connection>::iterator place{};
};

// What libmicrohttpd calls.
struct HttpServer::Callbacks {
  static Connection& Of(MHD_Connection* connection) {
    return *static_cast<Connection*>(
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context);
  }

  static void OnConnection(void* self, MHD_Connection* mhd, void** context, MHD_ConnectionNotificationCode code) {
    auto& server = *static_cast<HttpServer*>(self);
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
      server.connections_.erase(static_cast<Connection*>(*context)->place);
      return;
    }
    const int fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    server.connections_.push_back({&server, fd, server.taking_tcp_, server.clock_(), {}, false, {}});
    Connection& c = server.connections_.back();
    c.place = std::prev(server.connections_.end());
    *context = &c;
  }

  // The target as it was sent; libmicrohttpd's own reading of it would lose which bytes were encoded.
  // It hangs over parameters that it has no memory for, so many of them are the end of the connection.
  static void* OnTarget(void*, const char* target, MHD_Connection* mhd) {
    Connection& c = Of(mhd);
    c.target = target;
    if (std::count(c.target.begin(), c.target.end(), '&') >= kParametersMax) {
      c.rejected = true;
      SendPast(c.fd, HttpService::TargetTooLong());
      ::shutdown(c.fd, SHUT_RDWR);
    }
    return nullptr;
  }

  static std::size_t KeepEncoded(void*, MHD_Connection*, char* text) { return std::strlen(text); }

  // Called once for the fields of a request, and again when it is whole; a body is not waited for.
  static MHD_Result OnRequest(void* self, MHD_Connection* mhd, const char*, const char* method, const char*,
                              const char*, std::size_t*, void** seen) {
    Connection& c = Of(mhd);
    if (c.rejected) return MHD_NO;
    if (*seen == nullptr && !HasBody(mhd)) {
      *seen = &c;
      return MHD_YES;
    }
    return static_cast<MHD_Result>(static_cast<HttpServer*>(self)->Respond(mhd, c, method));
  }
};

HttpServer::HttpServer(uv_loop_t* loop, AdminHost& host, Prng prng, const HttpLimits& limits, Instant (*clock)())
    : service_(host, prng, OwnName()), limits_(limits), clock_(clock) {
  mhd_ = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET, 0, nullptr, nullptr, &Callbacks::OnRequest, this,
                          MHD_OPTION_CONNECTION_LIMIT, limits.connections_max,             //
                          MHD_OPTION_CONNECTION_MEMORY_LIMIT, kConnectionBytes,            //
                          MHD_OPTION_CONNECTION_TIMEOUT, 0u,                               //
                          MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,                            //
                          MHD_OPTION_NOTIFY_CONNECTION, &Callbacks::OnConnection, this,    //
                          MHD_OPTION_URI_LOG_CALLBACK, &Callbacks::OnTarget, this,         //
                          MHD_OPTION_UNESCAPE_CALLBACK, &Callbacks::KeepEncoded, nullptr, MHD_OPTION_END);
  DT_CHECK(mhd_ != nullptr);
  epoll_fd_ = MHD_get_daemon_info(mhd_, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
  DT_CHECK(uv_poll_init(loop, &poll_, epoll_fd_) == 0 && uv_timer_init(loop, &next_turn_) == 0 &&
           uv_timer_init(loop, &deadline_) == 0);
  poll_.data = next_turn_.data = deadline_.data = this;
  const auto on_ready = [](uv_poll_t* h, int, int) { static_cast<HttpServer*>(h->data)->Turn(); };
  DT_CHECK(uv_poll_start(&poll_, UV_READABLE, on_ready) == 0);
}

HttpServer::~HttpServer() {
  DT_CHECK(mhd_ == nullptr);
}

void HttpServer::Take(int fd, bool is_tcp) {
  if (connections_.size() >= limits_.connections_max) {
    ++counts_.rejected_full;
    ::close(fd);
    return;
  }
  sockaddr_storage from{};    // libmicrohttpd asks for an address, and uses its family
  from.ss_family = is_tcp ? AF_INET : AF_UNIX;
  taking_tcp_ = is_tcp;
  if (MHD_add_connection(mhd_, fd, reinterpret_cast<const sockaddr*>(&from), sizeof(sockaddr_in)) != MHD_YES) {
    ++counts_.rejected_full;    // for want of memory; it has closed the socket
    return;
  }
  ++counts_.accepted;
  if (!uv_is_active(reinterpret_cast<uv_handle_t*>(&deadline_))) AwaitDeadline();
  Turn();
}

void HttpServer::Turn() {
  MHD_run(mhd_);
  MHD_UNSIGNED_LONG_LONG wait_ms;
  if (MHD_get_timeout(mhd_, &wait_ms) != MHD_YES) return;
  const auto on_time = [](uv_timer_t* h) { static_cast<HttpServer*>(h->data)->Turn(); };
  uv_timer_start(&next_turn_, on_time, wait_ms, 0);
}

int HttpServer::Respond(MHD_Connection* to, Connection& c, const char* method) {
  Touch(c);
  ++counts_.requests;
  // libmicrohttpd is told of an end only once, and forgets it if a request came with it; this tells it again.
  char next;
  if (::recv(c.fd, &next, 1, MSG_PEEK | MSG_DONTWAIT) == 0) ::shutdown(c.fd, SHUT_RD);
  HttpRequest request;
  request.method = method;
  request.target = c.target;
  request.host = Field(to, "Host").value_or("");
  request.fetch_site = Field(to, "Sec-Fetch-Site").value_or("");
  request.tag = Field(to, "Dthrottle-Tag");
  request.has_body = HasBody(to);
  request.too_large = RequestBytes(to) > kRequestBytesMax;
  request.through_tcp = c.is_tcp;
  const HttpReply reply = service_.Answer(request, clock_());
  if (request.too_large) {
    SendPast(c.fd, reply);
    return MHD_NO;    // the end of the connection
  }

  MHD_Response* const response =
      MHD_create_response_from_buffer(reply.body.size(), const_cast<char*>(reply.body.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  if (!reply.content_type.empty()) AddField(response, "Content-Type", reply.content_type.data());
  AddField(response, "Cache-Control", "no-store");
  AddField(response, "X-Content-Type-Options", "nosniff");
  for (const auto& [name, value] : reply.fields) AddField(response, name, value.c_str());
  if (stopping_ || request.has_body) AddField(response, "Connection", "close");
  const auto queued = MHD_queue_response(to, reply.status, response);
  MHD_destroy_response(response);    // what is queued keeps it
  return queued;
}

// ---- Deadlines ----

void HttpServer::Touch(Connection& c) {
  c.since = clock_();
  connections_.splice(connections_.end(), connections_, c.place);
}

void HttpServer::OnDeadline() {
  const Instant now = clock_();
  for (Connection& c : connections_) {
    if (c.since + limits_.timeout > now) break;
    ++counts_.timed_out;
    c.since = now;                  // should it still be there
    ::shutdown(c.fd, SHUT_RDWR);    // libmicrohttpd sees its end and closes it
  }
  AwaitDeadline();
}

void HttpServer::AwaitDeadline() {
  if (connections_.empty()) return;
  const Duration wait = connections_.front().since + limits_.timeout - clock_();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(std::max(wait, Duration::zero())).count();
  const auto on_time = [](uv_timer_t* h) { static_cast<HttpServer*>(h->data)->OnDeadline(); };
  uv_timer_start(&deadline_, on_time, static_cast<std::uint64_t>(std::max<std::int64_t>(ms, 1)), 0);
}

// ---- The end ----

void HttpServer::Stop() {
  stopping_ = true;
  service_.Stop();
}

void HttpServer::Settle() {
  MHD_UNSIGNED_LONG_LONG wait_ms;
  for (int i = 0; i < kLastTurnsMax; ++i) {
    pollfd ready{epoll_fd_, POLLIN, 0};
    const bool pending = MHD_get_timeout(mhd_, &wait_ms) == MHD_YES && wait_ms == 0;
    if (!pending && ::poll(&ready, 1, 0) <= 0) break;
    MHD_run(mhd_);
  }
}

void HttpServer::Close() {
  stopping_ = true;
  Settle();
  uv_poll_stop(&poll_);
  for (auto* handle : {reinterpret_cast<uv_handle_t*>(&poll_), reinterpret_cast<uv_handle_t*>(&next_turn_),
                       reinterpret_cast<uv_handle_t*>(&deadline_)}) {
    uv_close(handle, nullptr);
  }
  MHD_stop_daemon(mhd_);
  mhd_ = nullptr;
}

HttpCounts HttpServer::Counts() const {
  HttpCounts counts = counts_;
  counts.connections = connections_.size();
  counts.misdirected = service_.misdirected();
  counts.over_long = service_.over_long();
  return counts;
}

}    // namespace dthrottle
