// The value of one key of etcd as it is now, read every two seconds: one request at a time, to the member that answered
// last or, after a failure, to the next one. A read is cheap for etcd, and unlike a stream it cannot hang unnoticed.
#pragma once

#include <uv.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "io/http_client.h"

namespace dthrottle {

class EtcdValue {
 public:
  // What fits into a reply.
  static constexpr std::size_t kBytesMax = 40 * 1024;

  // Gets the value when it has been read for the first time, and when it is another one. nullopt: there is no such key.
  using OnValue = std::function<void(const std::optional<std::string>& value)>;

  // Endpoints such as "http://10.0.0.1:2379", one at least.
  EtcdValue(uv_loop_t* loop, std::vector<std::string> endpoints, HttpClient::Tls tls, std::string key, OnValue on_value);

  void Start();
  // When etcd last said what the value is; none: never.
  std::optional<BootInstant> heard() const { return heard_; }
  // Why the last read failed, with the endpoint; empty: it did not.
  const std::string& trouble() const { return trouble_; }
  void Close();

 private:
  void Read();
  void OnReply(const FetchedReply& reply);

  uv_timer_t timer_;
  const std::vector<std::string> endpoints_;
  std::size_t endpoint_ = 0;    // that is asked
  HttpClient http_;
  const std::string key_;
  const OnValue on_value_;
  std::optional<BootInstant> heard_;
  std::optional<std::int64_t> revision_;    // of the value that was told; 0: there was none
  std::string trouble_;
  bool reading_ = false;
};

}    // namespace dthrottle
