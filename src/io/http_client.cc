#include "io/http_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/libcurl.h"
#include "io/thread_pool.h"
#include "io/timer.h"

namespace dthrottle {

// libcurl says which sockets to watch and when to wake it, and is told what has happened.
struct HttpClient::Curl {
  Curl(uv_loop_t* loop, std::function<void()> on_timer) : timer(loop, std::move(on_timer)) {}

  const LibCurl* lib = nullptr;    // until it is loaded
  CURLM* multi = nullptr;
  curl_slist* headers = nullptr;
  Timer timer;
  std::string failure;             // why it is not
  std::vector<Request> waiting;    // until one of both
  bool closed = false;
  std::set<Transfer*> transfers;
  std::set<Socket*> sockets;
};

struct HttpClient::Transfer {
  CURL* easy;
  Request request;
  FetchedReply reply;
};

struct HttpClient::Socket {
  uv_poll_t poll;
  HttpClient* client;
  curl_socket_t fd;

  void Close() {
    uv_close(reinterpret_cast<uv_handle_t*>(&poll), [](uv_handle_t* h) { delete static_cast<Socket*>(h->data); });
  }
};

HttpClient::HttpClient(uv_loop_t* loop, Tls tls)
    : loop_(loop), tls_(std::move(tls)), curl_(new Curl(loop, [this] { OnTimer(); })) {
  // A thread loads the library, as others wait for this loop.
  using Loaded = Result<const LibCurl*>;
  const auto load = [](Loaded& its) {
    YieldToQueries();
    its = LoadLibCurl();
  };
  InThreadPool(loop, Loaded(nullptr), load, [this](Loaded& its) { OnLoaded(its); });
}

void HttpClient::OnLoaded(const Result<const LibCurl*>& loaded) {
  if (curl_->closed) return;
  if (!loaded) {
    curl_->failure = loaded.error().message;
    return FailWaiting();
  }
  Use(**loaded);
  for (Request& request : std::exchange(curl_->waiting, {})) Begin(std::move(request));
}

void HttpClient::OnTimer() {
  if (curl_->lib == nullptr) return FailWaiting();
  int running;
  curl_->lib->multi_socket_action(curl_->multi, CURL_SOCKET_TIMEOUT, 0, &running);
  Collect();
}

void HttpClient::FailWaiting() {
  for (const Request& request : std::exchange(curl_->waiting, {})) request.on_reply({0, curl_->failure});
}

void HttpClient::Use(const LibCurl& lib) {
  curl_->lib = &lib;
  curl_->multi = lib.multi_init();
  curl_->headers = lib.slist_append(lib.slist_append(nullptr, "Content-Type: application/json"), "Expect:");
  DT_CHECK(curl_->multi != nullptr && curl_->headers != nullptr);

  const auto on_timer_wanted = [](CURLM*, long timeout_ms, void* self) {
    Timer& timer = static_cast<HttpClient*>(self)->curl_->timer;
    timeout_ms < 0 ? timer.Stop() : timer.StartOnce(std::chrono::milliseconds(timeout_ms));
    return 0;
  };
  const auto on_socket_wanted = [](CURL*, curl_socket_t fd, int what, void* self, void* known) {
    HttpClient& client = *static_cast<HttpClient*>(self);
    auto* socket = static_cast<Socket*>(known);
    if (what == CURL_POLL_REMOVE) {
      if (socket == nullptr) return 0;
      client.curl_->sockets.erase(socket);
      client.curl_->lib->multi_assign(client.curl_->multi, fd, nullptr);
      socket->Close();
      return 0;
    }
    if (socket == nullptr) {
      socket = new Socket{{}, &client, fd};
      if (uv_poll_init_socket(client.loop_, &socket->poll, fd) != 0) {
        delete socket;
        return -1;
      }
      socket->poll.data = socket;
      client.curl_->sockets.insert(socket);
      client.curl_->lib->multi_assign(client.curl_->multi, fd, socket);
    }
    const auto on_ready = [](uv_poll_t* poll, int status, int events) {
      Socket& s = *static_cast<Socket*>(poll->data);
      HttpClient& c = *s.client;    // the socket may be gone after the next line
      const int flags = (status < 0 ? CURL_CSELECT_ERR : 0) | ((events & UV_READABLE) != 0 ? CURL_CSELECT_IN : 0) |
                        ((events & UV_WRITABLE) != 0 ? CURL_CSELECT_OUT : 0);
      int running;
      c.curl_->lib->multi_socket_action(c.curl_->multi, s.fd, flags, &running);
      c.Collect();
    };
    const int events = ((what & CURL_POLL_IN) != 0 ? UV_READABLE : 0) | ((what & CURL_POLL_OUT) != 0 ? UV_WRITABLE : 0);
    return uv_poll_start(&socket->poll, events, on_ready);
  };
  lib.multi_setopt(curl_->multi, CURLMOPT_TIMERFUNCTION, +on_timer_wanted);
  lib.multi_setopt(curl_->multi, CURLMOPT_TIMERDATA, this);
  lib.multi_setopt(curl_->multi, CURLMOPT_SOCKETFUNCTION, +on_socket_wanted);
  lib.multi_setopt(curl_->multi, CURLMOPT_SOCKETDATA, this);
}

HttpClient::~HttpClient() {
  DT_CHECK(curl_->closed);
}

void HttpClient::Begin(Request request) {
  if (curl_->lib == nullptr) {
    curl_->waiting.push_back(std::move(request));
    if (!curl_->failure.empty()) curl_->timer.StartOnce(Duration::zero());
    return;
  }
  const LibCurl& lib = *curl_->lib;
  auto* transfer = new Transfer{lib.easy_init(), std::move(request), {}};
  const Request& its = transfer->request;
  CURL* const easy = transfer->easy;
  DT_CHECK(easy != nullptr);
  const auto on_body = [](char* data, std::size_t one, std::size_t bytes, void* to) -> std::size_t {
    auto& told = *static_cast<Transfer*>(to);
    if (told.request.on_piece) {
      told.request.on_piece();
      return one * bytes;
    }
    FetchedReply& reply = told.reply;
    if (reply.body.size() + one * bytes > kBodyBytesMax) return 0;    // which ends the transfer
    reply.body.append(data, one * bytes);
    return one * bytes;
  };
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(its.timeout).count();
  lib.easy_setopt(easy, CURLOPT_URL, its.url.c_str());
  lib.easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  lib.easy_setopt(easy, CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  lib.easy_setopt(easy, CURLOPT_PROXY, "");
  lib.easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  // A transfer whose time is up leaves the thread that looks its name up; the loop would wait for it otherwise.
  lib.easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
  lib.easy_setopt(easy, CURLOPT_TIMEOUT_MS, std::max<long>(ms, 1));
  lib.easy_setopt(easy, CURLOPT_HTTPHEADER, curl_->headers);
  lib.easy_setopt(easy, CURLOPT_POSTFIELDSIZE, static_cast<long>(its.body.size()));
  lib.easy_setopt(easy, CURLOPT_POSTFIELDS, its.body.c_str());
  lib.easy_setopt(easy, CURLOPT_WRITEFUNCTION, +on_body);
  lib.easy_setopt(easy, CURLOPT_WRITEDATA, transfer);
  lib.easy_setopt(easy, CURLOPT_PRIVATE, transfer);
  if (!tls_.ca_file.empty()) lib.easy_setopt(easy, CURLOPT_CAINFO, tls_.ca_file.c_str());
  if (!tls_.certificate_file.empty()) lib.easy_setopt(easy, CURLOPT_SSLCERT, tls_.certificate_file.c_str());
  if (!tls_.key_file.empty()) lib.easy_setopt(easy, CURLOPT_SSLKEY, tls_.key_file.c_str());
  curl_->transfers.insert(transfer);
  DT_CHECK(lib.multi_add_handle(curl_->multi, easy) == CURLM_OK);
}

// Hands out what has ended.
void HttpClient::Collect() {
  const LibCurl& lib = *curl_->lib;
  int left;
  while (curl_->multi != nullptr) {
    const CURLMsg* const message = lib.multi_info_read(curl_->multi, &left);
    if (message == nullptr) return;
    if (message->msg != CURLMSG_DONE) continue;
    CURL* const easy = message->easy_handle;
    const CURLcode result = message->data.result;
    Transfer* found = nullptr;
    long status = 0;
    lib.easy_getinfo(easy, CURLINFO_PRIVATE, &found);
    lib.easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    const std::unique_ptr<Transfer> transfer(found);
    if (result == CURLE_OK) {
      transfer->reply.status = static_cast<int>(status);
    } else if (result == CURLE_WRITE_ERROR) {    // of on_body
      transfer->reply = {0, fmt::format("the answer has more than {} bytes", kBodyBytesMax)};
    } else {
      transfer->reply = {0, lib.easy_strerror(result)};
    }
    lib.multi_remove_handle(curl_->multi, easy);
    lib.easy_cleanup(easy);
    curl_->transfers.erase(found);
    transfer->request.on_reply(transfer->reply);
  }
}

void HttpClient::Close() {
  if (std::exchange(curl_->closed, true)) return;
  curl_->waiting.clear();
  curl_->timer.Close();
  if (curl_->lib == nullptr) return;
  const LibCurl& lib = *curl_->lib;
  for (Transfer* transfer : std::exchange(curl_->transfers, {})) {
    lib.multi_remove_handle(curl_->multi, transfer->easy);
    lib.easy_cleanup(transfer->easy);
    delete transfer;
  }
  lib.multi_cleanup(std::exchange(curl_->multi, nullptr));    // closes kept connections, which have polls
  for (Socket* socket : std::exchange(curl_->sockets, {})) socket->Close();
  lib.slist_free_all(curl_->headers);
}

}    // namespace dthrottle
