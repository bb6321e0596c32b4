#include "gateway/quota_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "gateway/tag.h"
#include "lease/name.h"

namespace dthrottle {

namespace {

using Action = RateLimitQuotaResponse::BucketAction;

constexpr Duration kShortest = std::chrono::milliseconds(500);    // between two reports that make a rate
// Envoy takes over a new assignment only if other fields than this one differ (envoy.md), so it is always the same.
constexpr std::int64_t kFillSeconds = 60;
constexpr double kTokensMax = 4e9;

// "quota CAPACITY SECONDS". False: there is no lease, and nothing is to be said.
bool PutAssignment(std::string_view answer, Action& action) {
  constexpr std::string_view kQuota = "quota ";
  if (!answer.starts_with(kQuota)) return false;
  double capacity = 0, seconds = 0;
  const char* const end = answer.data() + answer.size();
  const auto read = std::from_chars(answer.data() + kQuota.size(), end, capacity);
  if (read.ec != std::errc() || read.ptr == end) return false;
  if (std::from_chars(read.ptr + 1, end, seconds).ec != std::errc()) return false;
  auto& assignment = *action.mutable_quota_assignment_action();
  const auto ms = static_cast<std::int64_t>(seconds * 1000);
  assignment.mutable_assignment_time_to_live()->set_seconds(ms / 1000);
  assignment.mutable_assignment_time_to_live()->set_nanos(static_cast<std::int32_t>(ms % 1000) * 1'000'000);
  auto& strategy = *assignment.mutable_rate_limit_strategy();
  const double fill = std::floor(std::min(capacity * kFillSeconds + 1e-6, kTokensMax));
  if (fill < 1) {
    strategy.set_blanket_rule(envoy::service::rate_limit_quota::v3::RateLimitStrategy::DENY_ALL);
    return true;
  }
  auto& bucket = *strategy.mutable_token_bucket();
  bucket.set_max_tokens(static_cast<std::uint32_t>(std::max(1.0, std::floor(capacity))));
  bucket.mutable_tokens_per_fill()->set_value(static_cast<std::uint32_t>(fill));
  bucket.mutable_fill_interval()->set_seconds(kFillSeconds);
  return true;
}

}    // namespace

std::string ResourceOf(std::string_view domain, const BucketId& id) {
  std::vector<std::pair<std::string_view, std::string_view>> entries(id.bucket().begin(), id.bucket().end());
  std::sort(entries.begin(), entries.end());
  TagMaker tag(domain);
  for (const auto& [key, value] : entries) tag.Add(key, value);
  return std::move(tag).Make(lease::kNameBytesMax);
}

bool QuotaBuckets::Take(const RateLimitQuotaUsageReports& reports, Instant now) {
  if (!reports.domain().empty()) domain_ = reports.domain();
  if (domain_.empty()) return false;
  now_ = now;
  for (const auto& usage : reports.bucket_quota_usages()) TakeOne(usage, now);
  return true;
}

void QuotaBuckets::TakeOne(const RateLimitQuotaUsageReports::BucketQuotaUsage& usage, Instant now) {
  std::string resource = ResourceOf(domain_, usage.bucket_id());
  auto found = buckets_.find(resource);
  const bool is_new = found == buckets_.end();
  if (is_new && buckets_.size() == kBucketsMax) return;
  if (is_new) found = buckets_.emplace(std::move(resource), Bucket{usage.bucket_id(), now, 0, now, -1, false}).first;
  Bucket& bucket = found->second;
  const std::uint64_t requests = usage.num_requests_allowed() + usage.num_requests_denied();
  bucket.requests += requests;
  if (requests > 0) bucket.used = now;
  if (!is_new && now - bucket.since >= kShortest) {
    bucket.wants = static_cast<double>(std::exchange(bucket.requests, 0)) / Seconds(now - bucket.since);
    bucket.since = now;
  }
  if (!std::exchange(bucket.pending, true)) pending_.push_back(found);
}

CallLines QuotaBuckets::Ask() {
  CallLines lines;
  while (!pending_.empty() && lines.count < kLinesMax) {
    const auto at = pending_.front();
    pending_.pop_front();
    at->second.pending = false;
    asked_.push_back(at);
    if (now_ - at->second.used >= kAbandonAfter) continue;
    const double wants = at->second.wants;
    fmt::format_to(std::back_inserter(lines.text), "quota {} {} ", client_, at->first);
    wants < 0 ? void(lines.text += "-\n") : void(fmt::format_to(std::back_inserter(lines.text), "{}\n", wants));
    ++lines.count;
  }
  return lines;
}

void QuotaBuckets::Answered(const LineAnswers* answers, RateLimitQuotaResponse& response) {
  std::size_t line = 0;
  for (const auto at : std::exchange(asked_, {})) {
    const bool abandoned = now_ - at->second.used >= kAbandonAfter;
    Action action;
    if (abandoned) {
      action.mutable_abandon_action();
    } else if (answers == nullptr || !PutAssignment((*answers)[line++], action)) {
      continue;
    }
    *action.mutable_bucket_id() = at->second.id;
    *response.add_bucket_action() = std::move(action);
    if (abandoned && !at->second.pending) buckets_.erase(at);
  }
}

}    // namespace dthrottle
