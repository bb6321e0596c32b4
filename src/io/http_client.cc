#include "io/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"

namespace dthrottle {

// libcurl says which sockets to watch and when to wake it, and is told what has happened.
struct HttpClient::Curl {
  CURLM* multi;
  curl_slist* headers;
  uv_timer_t timer;
  std::set<Transfer*> transfers;
  std::set<Socket*> sockets;
};

struct HttpClient::Transfer {
  CURL* easy;
  std::string body;
  FetchedReply reply;
  OnReply on_reply;
};

struct HttpClient::Socket {
  uv_poll_t poll;
  HttpClient* client;
  curl_socket_t fd;
};

HttpClient::HttpClient(uv_loop_t* loop, Tls tls) : loop_(loop), tls_(std::move(tls)), curl_(new Curl) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  DT_CHECK(ready == CURLE_OK);
  curl_->multi = curl_multi_init();
  curl_->headers = curl_slist_append(curl_slist_append(nullptr, "Content-Type: application/json"), "Expect:");
  DT_CHECK(curl_->multi != nullptr && curl_->headers != nullptr && uv_timer_init(loop, &curl_->timer) == 0);
  curl_->timer.data = this;

  const auto on_timer_wanted = [](CURLM*, long timeout_ms, void* self) {
    HttpClient& client = *static_cast<HttpClient*>(self);
    if (timeout_ms < 0) return uv_timer_stop(&client.curl_->timer);
    const auto on_timer = [](uv_timer_t* timer) {
      HttpClient& c = *static_cast<HttpClient*>(timer->data);
      int running;
      curl_multi_socket_action(c.curl_->multi, CURL_SOCKET_TIMEOUT, 0, &running);
      c.Collect();
    };
    return uv_timer_start(&client.curl_->timer, on_timer, static_cast<std::uint64_t>(timeout_ms), 0);
  };
  const auto on_socket_wanted = [](CURL*, curl_socket_t fd, int what, void* self, void* known) {
    HttpClient& client = *static_cast<HttpClient*>(self);
    auto* socket = static_cast<Socket*>(known);
    if (what == CURL_POLL_REMOVE) {
      if (socket == nullptr) return 0;
      client.curl_->sockets.erase(socket);
      curl_multi_assign(client.curl_->multi, fd, nullptr);
      uv_close(reinterpret_cast<uv_handle_t*>(&socket->poll),
               [](uv_handle_t* handle) { delete static_cast<Socket*>(handle->data); });
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
      curl_multi_assign(client.curl_->multi, fd, socket);
    }
    const auto on_ready = [](uv_poll_t* poll, int status, int events) {
      Socket& s = *static_cast<Socket*>(poll->data);
      HttpClient& c = *s.client;    // the socket may be gone after the next line
      const int flags = (status < 0 ? CURL_CSELECT_ERR : 0) | ((events & UV_READABLE) != 0 ? CURL_CSELECT_IN : 0) |
                        ((events & UV_WRITABLE) != 0 ? CURL_CSELECT_OUT : 0);
      int running;
      curl_multi_socket_action(c.curl_->multi, s.fd, flags, &running);
      c.Collect();
    };
    const int events = ((what & CURL_POLL_IN) != 0 ? UV_READABLE : 0) | ((what & CURL_POLL_OUT) != 0 ? UV_WRITABLE : 0);
    return uv_poll_start(&socket->poll, events, on_ready);
  };
  curl_multi_setopt(curl_->multi, CURLMOPT_TIMERFUNCTION, +on_timer_wanted);
  curl_multi_setopt(curl_->multi, CURLMOPT_TIMERDATA, this);
  curl_multi_setopt(curl_->multi, CURLMOPT_SOCKETFUNCTION, +on_socket_wanted);
  curl_multi_setopt(curl_->multi, CURLMOPT_SOCKETDATA, this);
}

HttpClient::~HttpClient() {
  DT_CHECK(curl_->multi == nullptr);
}

void HttpClient::Post(const std::string& url, std::string body, Duration timeout, OnReply on_reply) {
  auto* transfer = new Transfer{curl_easy_init(), std::move(body), {}, std::move(on_reply)};
  CURL* const easy = transfer->easy;
  DT_CHECK(easy != nullptr);
  const auto on_body = [](char* data, std::size_t one, std::size_t bytes, void* to) -> std::size_t {
    auto& reply = static_cast<Transfer*>(to)->reply;
    if (reply.body.size() + one * bytes > kBodyBytesMax) return 0;    // which ends the transfer
    reply.body.append(data, one * bytes);
    return one * bytes;
  };
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  curl_easy_setopt(easy, CURLOPT_PROXY, "");
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, std::max<long>(ms, 1));
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, curl_->headers);
  curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, static_cast<long>(transfer->body.size()));
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, transfer->body.c_str());
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, +on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfer);
  curl_easy_setopt(easy, CURLOPT_PRIVATE, transfer);
  if (!tls_.ca_file.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, tls_.ca_file.c_str());
  if (!tls_.certificate_file.empty()) curl_easy_setopt(easy, CURLOPT_SSLCERT, tls_.certificate_file.c_str());
  if (!tls_.key_file.empty()) curl_easy_setopt(easy, CURLOPT_SSLKEY, tls_.key_file.c_str());
  curl_->transfers.insert(transfer);
  DT_CHECK(curl_multi_add_handle(curl_->multi, easy) == CURLM_OK);
}

// Hands out what has ended.
void HttpClient::Collect() {
  int left;
  while (curl_->multi != nullptr) {
    const CURLMsg* const message = curl_multi_info_read(curl_->multi, &left);
    if (message == nullptr) return;
    if (message->msg != CURLMSG_DONE) continue;
    CURL* const easy = message->easy_handle;
    const CURLcode result = message->data.result;
    Transfer* found = nullptr;
    long status = 0;
    curl_easy_getinfo(easy, CURLINFO_PRIVATE, &found);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    const std::unique_ptr<Transfer> transfer(found);
    if (result == CURLE_OK) {
      transfer->reply.status = static_cast<int>(status);
    } else {
      transfer->reply = {0, curl_easy_strerror(result)};
    }
    curl_multi_remove_handle(curl_->multi, easy);
    curl_easy_cleanup(easy);
    curl_->transfers.erase(found);
    transfer->on_reply(transfer->reply);
  }
}

void HttpClient::Close() {
  if (curl_->multi == nullptr) return;
  for (Transfer* transfer : std::exchange(curl_->transfers, {})) {
    curl_multi_remove_handle(curl_->multi, transfer->easy);
    curl_easy_cleanup(transfer->easy);
    delete transfer;
  }
  curl_multi_cleanup(std::exchange(curl_->multi, nullptr));    // closes kept connections, which have polls
  for (Socket* socket : std::exchange(curl_->sockets, {})) {
    uv_close(reinterpret_cast<uv_handle_t*>(&socket->poll),
             [](uv_handle_t* handle) { delete static_cast<Socket*>(handle->data); });
  }
  curl_slist_free_all(curl_->headers);
  uv_close(reinterpret_cast<uv_handle_t*>(&curl_->timer), nullptr);
}

}    // namespace dthrottle
