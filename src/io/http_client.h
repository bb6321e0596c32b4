// Posts to web servers from a uv loop, by libcurl, which keeps the connections and is loaded meanwhile by another thread.
// No proxy of the environment is used.
#pragma once

#include <uv.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/time.h"

namespace dthrottle {

struct LibCurl;

struct FetchedReply {
  int status = 0;      // 0: there is no reply
  std::string body;    // at most HttpClient::kBodyBytesMax; without a reply, why there is none
};

class HttpClient {
 public:
  static constexpr std::size_t kBodyBytesMax = 1024 * 1024;

  using OnReply = std::function<void(const FetchedReply&)>;
  // A piece of a body has come. REQUIRES: it does not call the client.
  using OnPiece = std::function<void()>;

  // What https goes by. Empty: the system's authorities, and no certificate of our own.
  struct Tls {
    std::string ca_file, certificate_file, key_file;
  };

  HttpClient(uv_loop_t* loop, Tls tls);
  // REQUIRES: Close() was called and the loop has run since.
  ~HttpClient();

  // Calls `on_reply` once, later, unless Close comes first. Not for the same host in great numbers.
  void Post(const std::string& url, std::string body, Duration timeout, OnReply on_reply) {
    Begin({url, std::move(body), timeout, std::move(on_reply), {}});
  }
  // The same for a reply that goes on and on: it is told of as it comes, and not kept.
  void Listen(const std::string& url, std::string body, Duration timeout, OnPiece on_piece, OnReply on_end) {
    Begin({url, std::move(body), timeout, std::move(on_end), std::move(on_piece)});
  }

  // Forgets what is under way.
  void Close();

 private:
  struct Request {
    std::string url, body;
    Duration timeout;
    OnReply on_reply;
    OnPiece on_piece;    // null: the reply is kept
  };
  struct Curl;    // keeps libcurl out of here
  struct Transfer;
  struct Socket;

  void Begin(Request request);
  void OnLoaded(const Result<const LibCurl*>& loaded);
  void OnTimer();
  void FailWaiting();
  void Use(const LibCurl& lib);
  void Collect();

  uv_loop_t* loop_;
  const Tls tls_;
  std::unique_ptr<Curl> curl_;
};

}    // namespace dthrottle
