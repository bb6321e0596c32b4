// The value of one key of etcd as it is now: read when a watch says that it has changed, and every two seconds. One
// read at a time.
//
// A watch says nothing as long as nothing changes, so it may hang unnoticed: the reads prove that etcd is there, and
// what they say is what counts. What a watch says is only that there is a reason to read.
#pragma once

#include <uv.h>

#include <functional>
#include <optional>
#include <string>

#include "base/time.h"
#include "io/etcd_client.h"
#include "io/timer.h"

namespace dthrottle {

class EtcdValue {
 public:
  // What fits into a reply.
  static constexpr std::size_t kBytesMax = 40 * 1024;

  // Gets the value when it has been read for the first time, and when it is another one. nullopt: there is no such key.
  using OnValue = std::function<void(const std::optional<std::string>& value)>;

  EtcdValue(uv_loop_t* loop, EtcdCluster cluster, std::string key, OnValue on_value);

  void Start() { ReadSoon(); }
  // When etcd last said what the value is; none: never.
  std::optional<BootInstant> heard() const { return heard_; }
  // Why the last read failed, with the member; empty: it did not.
  const std::string& trouble() const { return trouble_; }
  void Close();

 private:
  void ReadSoon();
  void Read();
  void OnReply(const FetchedReply& reply);
  void Watch();

  Timer timer_;
  EtcdClient etcd_;
  const std::string key_;
  const OnValue on_value_;
  std::optional<BootInstant> heard_;
  std::optional<std::int64_t> revision_;    // of the value that was told; 0: there was none
  std::string trouble_;
  bool reading_ = false, again_ = false;    // read once more after that
  bool watching_ = false;
  std::optional<BootInstant> watched_at_;    // when the latest watch began
};

}    // namespace dthrottle
