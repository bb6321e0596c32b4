// The buckets of one Envoy as lease clients: reports of protocol/rate_limit_quota.proto become lines of protocol/lease.md
// "The gateway", and the answers assignments (protocol/envoy.md). No gRPC, no sockets, no clock.
//
// Envoy reports what each bucket has served and denied, all of them every few seconds. What a bucket wants is the rate of
// both since the report before, by the clock of this host. A lease becomes a token bucket that lasts as long. Leases are
// never released: Envoy keeps an assignment to its end, whatever happens to its stream. A bucket beyond the bounds below
// is not kept, and not answered.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/time.h"
#include "gateway/call_lines.h"
#include "rate_limit_quota.pb.h"

namespace dthrottle {

using envoy::service::rate_limit_quota::v3::BucketId;
using envoy::service::rate_limit_quota::v3::RateLimitQuotaResponse;
using envoy::service::rate_limit_quota::v3::RateLimitQuotaUsageReports;

// The resource of a bucket: DOMAIN|KEY=VALUE|KEY=VALUE, by its keys' order, written as the tags of limit_messages.h are.
std::string ResourceOf(std::string_view domain, const BucketId& id);

class QuotaBuckets {
 public:
  static constexpr std::size_t kBucketsMax = 65'536;
  static constexpr std::size_t kIdBytesMax = 8 << 10;                     // of a bucket's id, as Envoy sends it
  static constexpr std::size_t kBytesMax = std::size_t{32} << 20;         // of memory, for the buckets of this Envoy
  static constexpr std::size_t kBytesOfAllMax = std::size_t{128} << 20;    // and for those of all
  static constexpr std::size_t kAnswerBytesMax = std::size_t{1} << 20;    // of memory, for the buckets of one answer
  static constexpr std::size_t kLinesMax = 200;                       // of one call
  static constexpr Duration kAbandonAfter = std::chrono::minutes(1);    // without a request
  static constexpr Duration kShortest = std::chrono::milliseconds(500);    // between two reports that make a rate

  // `client` is a name that no other Envoy has at the same time, as a word of a line. `all` counts the bytes of all
  // Envoys; null: there is only this one.
  explicit QuotaBuckets(std::string client, std::atomic<std::size_t>* all = nullptr)
      : client_(std::move(client)), all_(all) {}
  ~QuotaBuckets();
  QuotaBuckets(const QuotaBuckets&) = delete;
  QuotaBuckets& operator=(const QuotaBuckets&) = delete;

  // Takes a report. False: it names no domain, nor did any before.
  bool Take(const RateLimitQuotaUsageReports& reports, Instant now);

  // Whether there is something to be asked, or to be said without asking.
  bool pending() const { return !pending_.empty(); }

  // The lines for the next buckets, in order; Answered() is to be called before the next time.
  CallLines Ask();
  // Adds what Envoy is told of them. `answers` are those of the lines; null: there are none, and Envoy keeps what it has.
  void Answered(const LineAnswers* answers, RateLimitQuotaResponse& response);

  std::size_t size() const { return buckets_.size(); }

 private:
  struct Assignment {
    double capacity = 0;    // per second
    Instant until{};
  };
  struct Bucket {
    BucketId id;
    std::size_t bytes = 0;        // of memory
    Instant since{};              // the requests below came since then
    std::uint64_t requests = 0;
    Instant used{};               // when it last had a request
    double wants = -1;            // requests/s; below 0: nobody knows yet
    bool pending = false;
    std::optional<Assignment> assigned = {};
    Instant assigned_at{};
  };
  using Buckets = std::map<std::string, Bucket, std::less<>>;    // by resource

  Buckets::iterator Add(std::string resource, const BucketId& id, Instant now);
  void Remove(Buckets::iterator at);
  void TakeIdle(Instant now);
  void TakeOne(const RateLimitQuotaUsageReports::BucketQuotaUsage& usage, Instant now);
  bool IsIdle(const Bucket& bucket) const { return now_ - bucket.used >= kAbandonAfter; }
  bool IsKnown(const Bucket& bucket) const { return bucket.assigned && now_ - bucket.assigned_at < kShortest; }
  static std::optional<Assignment> AssignmentOf(std::string_view answer, Instant now);
  static void Put(const Assignment& assignment, Instant now, RateLimitQuotaResponse::BucketAction& action);

  const std::string client_;
  std::string domain_;
  Instant now_{};    // of the last report
  Instant looked_for_idle_{};
  std::size_t bytes_ = 0;    // of memory, in buckets_
  std::atomic<std::size_t>* const all_;
  Buckets buckets_;
  std::deque<Buckets::iterator> pending_;    // not asked about yet
  std::deque<Buckets::iterator> asked_;      // by the lines under way
};

}    // namespace dthrottle
