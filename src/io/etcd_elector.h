// EtcdElection with a clock, a timer and sockets: one request at a time.
#pragma once

#include <uv.h>

#include <functional>
#include <string>

#include "io/elector.h"
#include "io/etcd_client.h"
#include "io/etcd_election.h"
#include "io/timer.h"

namespace dthrottle {

class EtcdElector final : public Elector {
 public:
  // `on_change` is called when mastership or trouble are others than before, though not when validity only ends or is
  // prolonged.
  EtcdElector(uv_loop_t* loop, EtcdCluster cluster, EtcdElection::Candidate candidate, std::function<void()> on_change);

  void Campaign() override;
  const ElectionState& state() const override { return election_.state(); }
  std::string trouble() const override { return etcd_.Of(election_.trouble()); }
  void Resign(std::function<void()> done) override;
  void Close() override;

 private:
  void Step();
  void Ask(const EtcdRequest& request);
  void TellChanges();

  Timer timer_;
  EtcdClient etcd_;
  EtcdElection election_;
  const std::function<void()> on_change_;
  std::uint64_t told_token_ = 0;
  std::string told_address_, told_trouble_;
  bool campaigning_ = false;
  bool asking_ = false;
};

}    // namespace dthrottle
