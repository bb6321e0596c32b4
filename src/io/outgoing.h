// Bytes on their way out of a stream: sent at once as far as the socket takes them, and the rest when it can.
#pragma once

#include <uv.h>

#include <string>
#include <string_view>
#include <vector>

namespace dthrottle {

class Outgoing {
 public:
  // Called when nothing waits any more, with status 0, or when the stream is broken.
  using OnSent = void (*)(uv_stream_t* stream, int status);

  // The stream must outlive it.
  Outgoing(uv_stream_t* stream, OnSent on_sent) : stream_(stream), on_sent_(on_sent) {}
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

  // Sends `bytes` behind what waits. False: the stream is broken.
  bool Send(std::string_view bytes);
  // The same, but leaves it to the loop to find out whether there is room.
  bool SendLater(std::string_view bytes);

  bool waits() const { return waits_; }
  // What waits, for another process.
  std::string Unsent() const;

 private:
  bool SendUnsent();
  void OnWritten(int status);

  uv_stream_t* const stream_;
  const OnSent on_sent_;
  std::vector<char> sending_;    // with libuv
  std::vector<char> unsent_;     // what comes behind it
  uv_write_t write_;
  bool waits_ = false;
};

}    // namespace dthrottle
