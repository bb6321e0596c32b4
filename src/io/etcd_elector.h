// EtcdElection with a clock, a timer and sockets: one request at a time, to the endpoint that answered last or, after a
// failure, to the next one.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/elector.h"
#include "io/etcd_election.h"
#include "io/http_client.h"

namespace dthrottle {

class EtcdElector final : public Elector {
 public:
  // Endpoints such as "http://10.0.0.1:2379", one at least. `on_change` is called when mastership or trouble are others
  // than before, though not when validity only ends or is prolonged.
  EtcdElector(uv_loop_t* loop, std::vector<std::string> endpoints, HttpClient::Tls tls,
              EtcdElection::Candidate candidate, std::function<void()> on_change);

  void Campaign() override;
  const ElectionState& state() const override { return election_.state(); }
  std::string trouble() const override;
  void Resign(std::function<void()> done) override;
  void Close() override;

 private:
  void Step();
  void Ask(const EtcdRequest& request);
  void TellChanges();

  uv_timer_t timer_;
  const std::vector<std::string> endpoints_;
  std::size_t endpoint_ = 0;    // that is asked
  HttpClient http_;
  EtcdElection election_;
  const std::function<void()> on_change_;
  std::uint64_t told_token_ = 0;
  std::string told_address_, told_trouble_;
  bool campaigning_ = false;
  bool asking_ = false;
};

}    // namespace dthrottle
