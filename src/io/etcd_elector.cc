#include "io/etcd_elector.h"

#include <tuple>
#include <utility>

#include "io/clock.h"

namespace dthrottle {

EtcdElector::EtcdElector(uv_loop_t* loop, EtcdCluster cluster, EtcdElection::Candidate candidate,
                         std::function<void()> on_change)
    : timer_(loop, [this] { Step(); }),
      etcd_(loop, std::move(cluster)),
      election_(std::move(candidate)),
      on_change_(std::move(on_change)) {}

void EtcdElector::Campaign() {
  campaigning_ = true;
  if (!asking_) Step();
}

void EtcdElector::Step() {
  if (!campaigning_) return;
  const BootInstant now = BootNow();
  if (const auto request = election_.Next(now)) return Ask(*request);
  timer_.StartOnce(election_.next_at() - now);
}

void EtcdElector::Ask(const EtcdRequest& request) {
  asking_ = true;
  const BootInstant sent = BootNow();
  etcd_.Post(request, election_.patience(), [this, sent](const FetchedReply& reply) {
    asking_ = false;
    if (!campaigning_) return;
    const BootInstant now = BootNow();
    const bool answered = reply.status != 0;
    if (!answered) election_.OnFailure(reply.body, now);
    const bool good = answered && election_.OnAnswer(reply.status, reply.body, sent, now);
    TellChanges();
    if (!good) etcd_.AskNext();
    Step();
  });
}

void EtcdElector::TellChanges() {
  const ElectionState& m = election_.state();
  const std::string trouble_now = trouble();
  if (std::tie(m.token, m.address, trouble_now) == std::tie(told_token_, told_address_, told_trouble_)) return;
  told_token_ = m.token;
  told_address_ = m.address;
  told_trouble_ = trouble_now;
  on_change_();
}

void EtcdElector::Resign(std::function<void()> done) {
  campaigning_ = false;
  timer_.Stop();
  const auto request = election_.Resign();
  if (!request) return done();
  etcd_.Post(*request, election_.patience(), [done = std::move(done)](const FetchedReply&) { done(); });
}

void EtcdElector::Close() {
  campaigning_ = false;
  etcd_.Close();
  timer_.Close();
}

}    // namespace dthrottle
