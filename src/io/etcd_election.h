// The election by etcd without sockets: what to ask the v3 JSON gateway next, and what its answers mean.
//
// The master is the host that puts a key that is not there, under a lease of TTL seconds that it keeps alive: the
// transaction compares create_revision with 0, so etcd lets one win, and the revision of that is the fencing token. The
// master stops by its own boot-time clock at
//
//   (when the last keepalive that was answered was sent) + TTL - 1 s,
//
// while etcd frees the key no earlier than TTL after that keepalive reached it. So it does not matter how long an
// answer took, whether the process was stopped meanwhile, or which clock runs a little fast: the second is for that.
// A new leader of etcd extends every lease, which only delays a takeover. A master whose time is over asks on, and is
// master again under the same token where the lease turns out to be alive: nobody else can have granted since.
//
// The others look every so often whether the key is gone. That costs etcd a read a look and no stream that could hang
// unnoticed.
//
// In the gateway's JSON 64-bit numbers are text, fields that are zero or false are left out, keys and values are
// base64.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/time.h"
#include "io/elector.h"

namespace dthrottle {

struct EtcdRequest {
  std::string path;    // below the endpoint, for POST
  std::string body;
};

class EtcdElection {
 public:
  static constexpr Duration kTtlMin = std::chrono::seconds(3);
  static constexpr Duration kMargin = std::chrono::seconds(1);

  struct Candidate {
    std::string key;        // of the election
    std::string address;    // of this host: what the others will read
    Duration ttl{};         // whole seconds, at least kTtlMin
  };

  explicit EtcdElection(Candidate candidate);

  // What to ask now; nothing if it is not time yet. REQUIRES: what was asked before has been answered or has failed.
  std::optional<EtcdRequest> Next(BootInstant now);

  // When Next has something.
  BootInstant next_at() const { return next_at_; }

  // The answer to the last request, which was sent at `sent`. False: it is no good, another endpoint may do better.
  bool OnAnswer(int status, std::string_view body, BootInstant sent, BootInstant now);

  // There is none.
  void OnFailure(std::string why, BootInstant now);

  // How long to wait for an answer, so that others can be asked before mastership runs out.
  Duration patience() const;

  // Is master no more. What tells etcd so, if it was.
  std::optional<EtcdRequest> Resign();

  const ElectionState& state() const { return state_; }
  const std::string& trouble() const { return trouble_; }

 private:
  enum class Step { kLook, kGrant, kClaim, kKeep, kCheck };
  struct Holder;
  struct Answer;

  void Do(Step step, BootInstant at);
  void OnHolder(const Holder& holder, BootInstant now);
  void OnGranted(const Answer& answer, BootInstant sent, BootInstant now);
  void OnClaimed(const Answer& answer, BootInstant now);
  void OnKept(const Answer& answer, BootInstant sent, BootInstant now);
  void OnChecked(const Holder& holder, BootInstant now);
  void Win(std::uint64_t token, BootInstant now);
  void Lose(BootInstant now);
  Duration look_interval() const;

  const Candidate candidate_;
  Step step_ = Step::kLook;
  BootInstant next_at_{};
  std::int64_t lease_ = 0;          // ours; 0: none
  Duration lease_ttl_{};            // as etcd granted it
  BootInstant lease_sent_{};        // the last answered grant or keepalive
  BootInstant master_seen_{};       // when state_.address was last confirmed
  std::uint64_t last_token_ = 0;    // of the last master that was seen
  ElectionState state_;
  std::string trouble_;
};

}    // namespace dthrottle
