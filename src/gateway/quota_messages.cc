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

// Envoy takes over a new assignment only if other fields than this one differ (envoy.md), so it is always the same.
constexpr std::int64_t kFillSeconds = 60;
constexpr double kTokensMax = 4e9;

}    // namespace

std::string ResourceOf(std::string_view domain, const BucketId& id) {
  std::vector<std::pair<std::string_view, std::string_view>> entries(id.bucket().begin(), id.bucket().end());
  std::ranges::sort(entries);
  TagMaker tag(domain);
  for (const auto& [key, value] : entries) tag.Add(key, value);
  return std::move(tag).Make(lease::kNameBytesMax);
}

// "quota CAPACITY SECONDS". None: there is no lease, and nothing is to be said.
std::optional<QuotaBuckets::Assignment> QuotaBuckets::AssignmentOf(std::string_view answer, Instant now) {
  constexpr std::string_view kQuota = "quota ";
  if (!answer.starts_with(kQuota)) return std::nullopt;
  double capacity = 0, seconds = 0;
  const char* const end = answer.data() + answer.size();
  const auto read = std::from_chars(answer.data() + kQuota.size(), end, capacity);
  if (read.ec != std::errc() || read.ptr == end) return std::nullopt;
  if (std::from_chars(read.ptr + 1, end, seconds).ec != std::errc()) return std::nullopt;
  return Assignment{capacity, now + DurationOf(seconds)};
}

void QuotaBuckets::Put(const Assignment& assignment, Instant now, Action& action) {
  auto& assigned = *action.mutable_quota_assignment_action();
  const auto ms = std::max<std::int64_t>((assignment.until - now) / std::chrono::milliseconds(1), 0);
  assigned.mutable_assignment_time_to_live()->set_seconds(ms / 1000);
  assigned.mutable_assignment_time_to_live()->set_nanos(static_cast<std::int32_t>(ms % 1000) * 1'000'000);
  auto& strategy = *assigned.mutable_rate_limit_strategy();
  const double fill = std::floor(std::min(assignment.capacity * kFillSeconds + 1e-6, kTokensMax));
  if (fill < 1) return strategy.set_blanket_rule(envoy::service::rate_limit_quota::v3::RateLimitStrategy::DENY_ALL);
  auto& bucket = *strategy.mutable_token_bucket();
  bucket.set_max_tokens(static_cast<std::uint32_t>(std::max(1.0, std::floor(assignment.capacity))));
  bucket.mutable_tokens_per_fill()->set_value(static_cast<std::uint32_t>(fill));
  bucket.mutable_fill_interval()->set_seconds(kFillSeconds);
}

QuotaBuckets::~QuotaBuckets() {
  if (all_ != nullptr) *all_ -= bytes_;
}

// Returns end() where a bound leaves no room.
QuotaBuckets::Buckets::iterator QuotaBuckets::Add(std::string resource, const BucketId& id, Instant now) {
  if (buckets_.size() == kBucketsMax || id.ByteSizeLong() > kIdBytesMax) return buckets_.end();
  const std::size_t bytes = sizeof(Buckets::value_type) + resource.size() + id.SpaceUsedLong();
  if (bytes_ + bytes > kBytesMax) return buckets_.end();
  if (all_ != nullptr && all_->fetch_add(bytes) + bytes > kBytesOfAllMax) {
    *all_ -= bytes;
    return buckets_.end();
  }
  bytes_ += bytes;
  return buckets_.emplace(std::move(resource), Bucket{.id = id, .bytes = bytes, .since = now, .used = now}).first;
}

void QuotaBuckets::Remove(Buckets::iterator at) {
  bytes_ -= at->second.bytes;
  if (all_ != nullptr) *all_ -= at->second.bytes;
  buckets_.erase(at);
}

bool QuotaBuckets::Take(const RateLimitQuotaUsageReports& reports, Instant now) {
  if (!reports.domain().empty()) domain_ = reports.domain();
  if (domain_.empty()) return false;
  now_ = now;
  for (const auto& usage : reports.bucket_quota_usages()) TakeOne(usage, now);
  TakeIdle(now);
  return true;
}

// Buckets that no report names any more are to be abandoned too.
void QuotaBuckets::TakeIdle(Instant now) {
  if (now - looked_for_idle_ < kAbandonAfter) return;
  looked_for_idle_ = now;
  for (auto at = buckets_.begin(); at != buckets_.end(); ++at) {
    if (IsIdle(at->second) && !std::exchange(at->second.pending, true)) pending_.push_back(at);
  }
}

void QuotaBuckets::TakeOne(const RateLimitQuotaUsageReports::BucketQuotaUsage& usage, Instant now) {
  std::string resource = ResourceOf(domain_, usage.bucket_id());
  auto found = buckets_.find(resource);
  const bool is_new = found == buckets_.end();
  if (is_new) found = Add(std::move(resource), usage.bucket_id(), now);
  if (found == buckets_.end()) return;
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
  std::size_t bytes = 0;
  while (!pending_.empty() && lines.count < kLinesMax && bytes < kAnswerBytesMax) {
    const auto at = pending_.front();
    bytes += at->second.bytes;
    pending_.pop_front();
    at->second.pending = false;
    asked_.push_back(at);
    if (IsIdle(at->second) || IsKnown(at->second)) continue;
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
    Bucket& bucket = at->second;
    Action action;
    const bool abandoned = IsIdle(bucket);
    if (abandoned) {
      action.mutable_abandon_action();
    } else {
      if (!IsKnown(bucket)) {
        if (answers == nullptr) continue;
        bucket.assigned = AssignmentOf((*answers)[line++], now_);
        bucket.assigned_at = now_;
      }
      if (!bucket.assigned) continue;
      Put(*bucket.assigned, now_, action);
    }
    *action.mutable_bucket_id() = bucket.id;
    *response.add_bucket_action() = std::move(action);
    if (abandoned && !bucket.pending) Remove(at);
  }
}

}    // namespace dthrottle
