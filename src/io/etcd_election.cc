#include "io/etcd_election.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "io/etcd_json.h"

namespace dthrottle {

namespace {

using namespace std::chrono_literals;
using namespace etcd;

// gRPC's NotFound, as the gateway says it in "code".
constexpr std::int64_t kNotFound = 5;

// How many keepalives fit into a lease.
constexpr int kKeepalivesPerTtl = 3;

constexpr Duration kLookMax = 500ms;
constexpr Duration kAnswerPatienceMax = 2s;

}    // namespace

// The holder of the key, as a range says. Without a revision: nobody.
struct EtcdElection::Holder {
  std::uint64_t revision = 0;
  std::int64_t lease = 0;
  std::string address;

  static Holder Of(const Json& range) {
    const Json& kv = First(Member(range, "kvs"));
    return {static_cast<std::uint64_t>(Number(kv, "create_revision")), Number(kv, "lease"),
            FromBase64(Text(Member(kv, "value")))};
  }
};

struct EtcdElection::Answer {
  Json json;
};

EtcdElection::EtcdElection(Candidate candidate) : candidate_(std::move(candidate)) {
  DT_CHECK(candidate_.ttl >= kTtlMin);
}

Duration EtcdElection::look_interval() const {
  return std::min(candidate_.ttl / 20, kLookMax);
}

Duration EtcdElection::patience() const {
  return std::min(candidate_.ttl / 5, kAnswerPatienceMax);
}

void EtcdElection::Do(Step step, BootInstant at) {
  step_ = step;
  next_at_ = at;
}

std::optional<EtcdRequest> EtcdElection::Next(BootInstant now) {
  if (now < next_at_) return std::nullopt;
  const std::string key = Base64(candidate_.key);
  switch (step_) {
    case Step::kLook:
    case Step::kCheck:
      return EtcdRequest{"/v3/kv/range", Json{{"key", key}}.dump()};
    case Step::kGrant:
      return EtcdRequest{
          "/v3/lease/grant",
          Json{{"TTL", std::chrono::duration_cast<std::chrono::seconds>(candidate_.ttl).count()}}.dump()};
    case Step::kClaim: {
      const Json compare = {{"key", key}, {"target", "CREATE"}, {"create_revision", "0"}};
      const Json put = {{"key", key}, {"value", Base64(candidate_.address)}, {"lease", fmt::format("{}", lease_)}};
      const Json claim = {{"compare", Json::array({compare})},
                          {"success", Json::array({Json{{"request_put", put}}})},
                          {"failure", Json::array({Json{{"request_range", Json{{"key", key}}}}})}};
      return EtcdRequest{"/v3/kv/txn", claim.dump()};
    }
    case Step::kKeep:
      return EtcdRequest{"/v3/lease/keepalive", Json{{"ID", fmt::format("{}", lease_)}}.dump()};
  }
  return std::nullopt;
}

bool EtcdElection::OnAnswer(int status, std::string_view body, BootInstant sent, BootInstant now) {
  const Json json = Json::parse(body, nullptr, false);
  if (step_ == Step::kClaim && Number(json, "code") == kNotFound) {    // the lease is gone
    lease_ = 0;
    Do(Step::kLook, now);
    return true;
  }
  if (const std::string trouble = Trouble(status, json); !trouble.empty()) {
    OnFailure(trouble, now);
    return false;
  }
  trouble_.clear();
  const Answer answer{json};
  switch (step_) {
    case Step::kLook:
      OnHolder(Holder::Of(json), now);
      break;
    case Step::kGrant:
      OnGranted(answer, sent, now);
      break;
    case Step::kClaim:
      OnClaimed(answer, now);
      break;
    case Step::kKeep:
      OnKept(answer, sent, now);
      break;
    case Step::kCheck:
      OnChecked(Holder::Of(json), now);
      break;
  }
  return true;
}

void EtcdElection::OnHolder(const Holder& holder, BootInstant now) {
  if (holder.revision == 0) {
    state_.address.clear();
    const bool lease_is_fresh = lease_ != 0 && now < lease_sent_ + lease_ttl_ / kKeepalivesPerTtl;
    return Do(lease_is_fresh ? Step::kClaim : Step::kGrant, now);
  }
  // A claim whose answer was lost.
  if (lease_ != 0 && holder.lease == lease_) return Win(holder.revision, now);
  if (holder.lease == 0) trouble_ = candidate_.key + " has no lease: somebody has put it there by hand; delete it";
  state_.address = holder.address;
  master_seen_ = now;
  last_token_ = holder.revision;
  Do(Step::kLook, now + look_interval());
}

// Somebody may have deleted the key or put another value there, which no daemon does. A key that is put keeps its
// revision of creation, and loses its lease unless that is named.
void EtcdElection::OnChecked(const Holder& holder, BootInstant now) {
  const bool ours = holder.revision == state_.token && holder.lease == lease_ && holder.address == candidate_.address;
  if (!ours) return Lose(now);
  Do(Step::kKeep, lease_sent_ + lease_ttl_ / kKeepalivesPerTtl);
}

void EtcdElection::OnGranted(const Answer& answer, BootInstant sent, BootInstant now) {
  lease_ = Number(answer.json, "ID");
  // The one that counts is etcd's, which may be longer than was asked for.
  lease_ttl_ = std::chrono::seconds(std::clamp<std::int64_t>(Number(answer.json, "TTL"), 0, 24 * 3600));
  lease_sent_ = sent;
  if (lease_ != 0 && lease_ttl_ > kMargin) return Do(Step::kClaim, now);
  lease_ = 0;
  trouble_ = "etcd grants no lease";
  Do(Step::kLook, now + look_interval());
}

void EtcdElection::OnClaimed(const Answer& answer, BootInstant now) {
  const Json& succeeded = Member(answer.json, "succeeded");
  if (succeeded.is_boolean() && succeeded.get<bool>()) {
    const std::int64_t revision = Number(Member(answer.json, "header"), "revision");
    if (revision > 0) return Win(static_cast<std::uint64_t>(revision), now);
  }
  OnHolder(Holder::Of(Member(First(Member(answer.json, "responses")), "response_range")), now);
  next_at_ = std::max(next_at_, now + look_interval());    // not at once, if it is free again already
}

void EtcdElection::OnKept(const Answer& answer, BootInstant sent, BootInstant now) {
  const Json& result = Member(answer.json, "result");
  const std::int64_t ttl = std::clamp<std::int64_t>(Number(result, "TTL"), 0, 24 * 3600);
  if (ttl == 0) return Lose(now);    // the lease is gone, and the key with it
  lease_ttl_ = std::chrono::seconds(ttl);
  lease_sent_ = sent;
  state_.valid_until = sent + lease_ttl_ - kMargin;
  Do(Step::kCheck, now);
}

void EtcdElection::Win(std::uint64_t token, BootInstant now) {
  state_ = {token, lease_sent_ + lease_ttl_ - kMargin, last_token_, candidate_.address};
  last_token_ = token;
  Do(Step::kKeep, std::max(now, lease_sent_ + lease_ttl_ / kKeepalivesPerTtl));
}

void EtcdElection::Lose(BootInstant now) {
  lease_ = 0;
  state_ = {};
  Do(Step::kLook, now);
}

void EtcdElection::OnFailure(std::string why, BootInstant now) {
  trouble_ = std::move(why);
  if (state_.token == 0 && now - master_seen_ > candidate_.ttl) state_.address.clear();
  // A check that fails costs nothing; whether the lease lives is the question.
  Do(state_.token != 0 ? Step::kKeep : Step::kLook, now + look_interval());
}

std::optional<EtcdRequest> EtcdElection::Resign() {
  state_ = {};
  if (lease_ == 0) return std::nullopt;
  const std::int64_t lease = std::exchange(lease_, 0);
  Do(Step::kLook, next_at_);
  return EtcdRequest{"/v3/lease/revoke", Json{{"ID", fmt::format("{}", lease)}}.dump()};
}

}    // namespace dthrottle
