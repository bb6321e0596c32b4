#include "gateway/limit_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "base/append.h"
#include "gateway/tag.h"
#include "query/question.h"
#include "rule/own_limit.h"

namespace dthrottle {

namespace {

using Status = RateLimitResponse::DescriptorStatus;

// So that the line of a question with the most tags, and the largest costs, is one (frontend/ask/reader.h).
constexpr std::size_t kTagWordBytesMax = 480;
constexpr std::size_t kLineBytes = 120;    // of a usual question

// ---- Questions ----

// What comes back is nothing to be charged.
std::uint64_t CostOf(const RateLimitRequest& request, const RateLimitDescriptor& descriptor) {
  if (descriptor.is_negative_hits()) return 0;
  if (!descriptor.has_hits_addend()) return std::max<std::uint32_t>(request.hits_addend(), 1);
  return std::min<std::uint64_t>(descriptor.hits_addend().value(), std::numeric_limits<Cost>::max());
}

// ---- Limits ----

struct LimitUnit {
  RateLimitResponse::RateLimit::Unit unit;
  std::uint32_t seconds;
};

// By length, shortest first.
constexpr LimitUnit kUnits[] = {
    {RateLimitResponse::RateLimit::SECOND, 1},       {RateLimitResponse::RateLimit::MINUTE, 60},
    {RateLimitResponse::RateLimit::HOUR, 3600},      {RateLimitResponse::RateLimit::DAY, 86400},
    {RateLimitResponse::RateLimit::WEEK, 7 * 86400}, {RateLimitResponse::RateLimit::MONTH, 30 * 86400},
    {RateLimitResponse::RateLimit::YEAR, 365 * 86400}};

// 0: nobody knows the unit.
std::uint32_t SecondsOf(std::uint32_t unit) {
  const auto* const known = std::ranges::find(kUnits, unit, [](const LimitUnit& its) { return std::uint32_t(its.unit); });
  return known != std::end(kUnits) ? known->seconds : 0;
}

// ---- Answers ----

// One tag's words of `tell=all`.
struct Told {
  std::string_view rule;
  std::int64_t left = 0, quota = 0, window_ms = 0, next_ms = 0;
};

std::int64_t NumberOf(std::string_view word) {
  std::int64_t number = 0;
  std::from_chars(word.data(), word.data() + word.size(), number);
  return number;
}

std::int64_t WholeSeconds(std::int64_t ms) {
  return (ms + 999) / 1000;
}

// A bucket has no window. What comes nearest to its rate is a whole number of requests in the shortest unit that has one,
// or the limit that its descriptor brought, if it is that one.
void PutLimit(const Told& told, const LimitQuestion::Limit& brought, RateLimitResponse::RateLimit& limit) {
  constexpr std::size_t kUpToDays = 4;
  const double window_ms = static_cast<double>(std::max<std::int64_t>(told.window_ms, 1));
  const double inexact = std::max(1e-3, 1 / window_ms);    // the window is whole milliseconds
  const double per_second = static_cast<double>(told.quota) * 1000 / window_ms;
  const auto is_near = [&](double requests, double whole) { return std::abs(requests - whole) <= requests * inexact; };
  double requests = per_second * SecondsOf(brought.unit);
  if (brought.requests > 0 && is_near(requests, brought.requests)) {
    limit.set_unit(static_cast<RateLimitResponse::RateLimit::Unit>(brought.unit));
  } else {
    for (const auto& [unit, seconds] : std::span(kUnits).first<kUpToDays>()) {
      requests = per_second * seconds;
      limit.set_unit(unit);
      if (requests >= 1 - inexact && is_near(requests, std::round(requests))) break;
    }
  }
  limit.set_requests_per_unit(static_cast<std::uint32_t>(std::clamp(std::round(requests), 1.0, 4e9)));
  if (told.rule != "-") limit.set_name(told.rule.data(), told.rule.size());
}

// The fields that state a limit, as HTTP has them (protocol/http.md).
void AddHeaders(const Told& nearest, std::optional<std::int64_t> wait_ms, HttpHeaders style,
                RateLimitResponse& response) {
  if (style == HttpHeaders::kOff) return;
  const auto add = [&response](const char* key, const auto&... parts) {
    auto& header = *response.add_response_headers_to_add();
    header.set_key(key);
    Append(*header.mutable_value(), parts...);
  };
  const std::int64_t next = WholeSeconds(nearest.next_ms);
  if (style != HttpHeaders::kDraft03) {
    add("ratelimit-policy", "\"", nearest.rule, "\";q=", nearest.quota, ";w=", WholeSeconds(nearest.window_ms));
    add("ratelimit", "\"", nearest.rule, "\";r=", nearest.left, ";t=", next);
  }
  if (style != HttpHeaders::kDraft10) {
    add("x-ratelimit-limit", nearest.quota);
    add("x-ratelimit-remaining", nearest.left);
    add("x-ratelimit-reset", next);
  }
  if (wait_ms.has_value()) add("retry-after", std::max<std::int64_t>(1, WholeSeconds(*wait_ms)));
}

// The words of an answer in front of those of `tell=all`, and these.
struct LimitAnswer {
  std::vector<std::string_view> words;
  std::vector<std::optional<Told>> tags;    // none: nothing limits it, or nothing is known
  std::size_t told_tags = 0;

  LimitAnswer(std::string_view line, std::size_t named) {
    words.reserve(6 + 5 * named);
    tags.reserve(named);
    while (!line.empty()) {
      words.push_back(line.substr(0, line.find(' ')));
      line.remove_prefix(std::min(words.back().size() + 1, line.size()));
    }
    const std::size_t first = !words.empty() && words[0] == "OK" ? 1 : 6, each = first == 1 ? 6 : 5;
    if (words.size() < first + each || (words.size() - first) % each != 0) return;
    told_tags = (words.size() - first) / each;
    if (told_tags > named) return;
    const auto told = words.end() - static_cast<std::ptrdiff_t>(5 * told_tags);
    for (auto w = told; w != words.end(); w += 5) {
      tags.emplace_back();
      if (w[2] != "-") tags.back() = {w[0], NumberOf(w[1]), NumberOf(w[2]), NumberOf(w[3]), NumberOf(w[4])};
    }
    words.erase(told, words.end());
    // Tags that differ only by limits that were refused are one tag, and nothing says which.
    if (told_tags < named) tags.assign(named, std::nullopt);
  }

  bool served() const { return words.size() == 1 + told_tags && words[0] == "OK"; }
  bool refused() const { return words.size() == 6 && words[0] == "NO"; }
};

}    // namespace

std::string TagOf(std::string_view domain, const RateLimitDescriptor& descriptor, bool limits) {
  TagMaker tag(domain);
  for (const auto& entry : descriptor.entries()) tag.Add(entry.key(), entry.value());
  if (!limits || !descriptor.has_limit()) return std::move(tag).Make(kTagWordBytesMax);
  const auto& limit = descriptor.limit();
  std::string name = std::move(tag).Make(kTagWordBytesMax - OwnLimit::kBytesMax);
  AppendOwnLimit(name, limit.requests_per_unit(), SecondsOf(limit.unit()));
  return name;
}

Result<LimitQuestion> ToQuestion(const RateLimitRequest& request, bool limits) {
  if (request.domain().empty()) return Fail("domain must not be empty");
  if (request.descriptors().empty()) return Fail("there must be a descriptor");
  if (static_cast<std::size_t>(request.descriptors_size()) > Questions::kTagsMax) {
    return Fail(fmt::format("there may be at most {} descriptors", Questions::kTagsMax));
  }
  LimitQuestion question;
  question.line.reserve(kLineBytes);
  question.line = "take tell=all";
  for (const RateLimitDescriptor& descriptor : request.descriptors()) {
    std::string tag = TagOf(request.domain(), descriptor, limits);
    Append(question.line, " ", CostOf(request, descriptor), " ", tag);
    auto& tags = question.tags;
    const auto named = std::ranges::find(tags, tag);
    question.tag_of.push_back(static_cast<std::size_t>(named - tags.begin()));
    if (named != tags.end()) continue;
    tags.push_back(std::move(tag));
    question.limits.emplace_back();
    if (limits && SecondsOf(descriptor.limit().unit()) != 0) {
      question.limits.back() = {descriptor.limit().requests_per_unit(), descriptor.limit().unit()};
    }
  }
  question.line += '\n';
  return question;
}

Result<void> FromAnswer(const LimitQuestion& question, std::string_view line, HttpHeaders headers,
                        RateLimitResponse& response) {
  const LimitAnswer answer(line, question.tags.size());
  const bool whole = answer.tags.size() == question.tags.size() && (answer.served() || answer.refused());
  if (!whole) return Fail(std::string(line));
  std::optional<std::int64_t> wait_ms;
  if (answer.refused() && answer.words[1] == "limit") wait_ms = NumberOf(answer.words[2]);
  response.set_overall_code(answer.served() ? RateLimitResponse::OK : RateLimitResponse::OVER_LIMIT);
  const std::optional<Told>* nearest = nullptr;
  for (const std::size_t i : question.tag_of) {
    const std::optional<Told>& told = answer.tags[i];
    const bool refuses = answer.refused() && question.tags[i] == answer.words[5];
    Status& status = *response.add_statuses();
    status.set_code(refuses ? RateLimitResponse::OVER_LIMIT : RateLimitResponse::OK);
    if (refuses && wait_ms.has_value()) {
      status.mutable_duration_until_reset()->set_seconds(std::max<std::int64_t>(1, WholeSeconds(*wait_ms)));
    }
    if (!told.has_value()) continue;
    PutLimit(*told, question.limits[i], *status.mutable_current_limit());
    status.set_limit_remaining(static_cast<std::uint32_t>(std::min<std::int64_t>(told->left, 4'000'000'000)));
    if (!refuses) status.mutable_duration_until_reset()->set_seconds(WholeSeconds(told->next_ms));
    const bool nearer = answer.served() ? nearest == nullptr || told->left < (*nearest)->left : refuses;
    if (nearer) nearest = &told;
  }
  if (nearest != nullptr) AddHeaders(**nearest, wait_ms, headers, response);
  return {};
}

}    // namespace dthrottle
