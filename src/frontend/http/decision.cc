// Decisions over HTTP: a run of questions decided together, and how each of them is told.
#include <fmt/compile.h>

#include <algorithm>
#include <cmath>

#include "base/append.h"
#include "frontend/http/service.h"
#include "query/named_tag.h"
#include "rule/rulebook.h"
#include "share/inspection.h"

namespace dthrottle {

namespace {

// Problem types that the draft RateLimit header fields register (draft-ietf-httpapi-ratelimit-headers-10, section 6).
constexpr std::string_view kReducedCapacity =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
constexpr std::string_view kQuotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded";

constexpr std::size_t kDecisionBytes = 120;    // of fields or body, as a rule

std::int64_t WholeSeconds(Duration d) {
  return std::chrono::ceil<std::chrono::seconds>(d).count();
}

// Without a fraction where there is none, to the microsecond where there is.
void AppendNumber(std::string& out, double x) {
  const double rounded = std::round(x * 1e6) / 1e6;
  const auto whole = static_cast<std::int64_t>(rounded);
  if (static_cast<double>(whole) == rounded) return Append(out, whole);
  char digits[32];    // the shortest that reads back the same has at most 24
  out.append(digits, fmt::format_to(digits, FMT_COMPILE("{}"), rounded));
}

}    // namespace

// A verdict, and how things stand after it where there is a limit.
struct HttpService::Decision {
  Verdict verdict = Verdict::kServe;
  bool limited = false;    // the rest is known
  std::string_view policy;
  double burst = 0;
  std::uint64_t remaining = 0;    // whole tokens
  Duration window{};              // from empty to full
  Duration until_next{};          // until there is another token; zero if full
  Duration until_full{};
  std::optional<Duration> retry;    // until the same would be served; none: it costs more than the burst

  bool allowed() const { return verdict == Verdict::kServe; }
};

void HttpService::DecideRun(std::span<const Asked> run, Instant now) {
  Limiter& limiter = host_.limiter();
  const std::size_t tag_bytes_max = host_.settings().query.max_tag_bytes;
  queries_.clear();
  over_long_tags_.clear();
  for (const Asked& asked : run) {
    Query& query = queries_.emplace_back(Query{{asked.tag, false}, asked.cost, nullptr});
    if (asked.tag.size() <= tag_bytes_max) continue;
    ++over_long_;
    over_long_tags_.push_back(std::make_unique<NamedTag>(asked.tag, tag_bytes_max, limiter.keys().digest));
    query = over_long_tags_.back()->query();
    query.cost = asked.cost;
  }
  verdicts_.assign(run.size(), Verdict::kServe);
  standings_.assign(run.size(), Standing());
  limiter.Answer(queries_, verdicts_, {0, "http"}, prng_, now, standings_);
  for (std::size_t i = 0; i < run.size(); ++i) {
    replies_.push_back(Render(Describe(queries_[i], verdicts_[i], standings_[i], now), run[i].form));
  }
}

// The limiter tells how the bucket stood right after each decision, but not for queries that were shed; those see it as
// it stands now.
HttpService::Decision HttpService::Describe(const Query& query, Verdict verdict, Standing& standing, Instant now) {
  Limiter& limiter = host_.limiter();
  Decision d;
  d.verdict = verdict;
  if (!standing.limit.has_value()) return d;
  const Limit& limit = limiter.rules().limit(*standing.limit);
  if (limit.mode == Mode::kOff) return d;
  if (!standing.limited()) {
    const Inspection seen = limiter.Inspect(query, now);
    standing.shape = seen.shape, standing.bucket = seen.bucket;
  }
  const Shape& shape = standing.shape;
  const Bucket& bucket = standing.bucket;
  const auto& rules = limiter.rules().rules();
  d.limited = true;
  d.policy = limit.rule < rules.size() ? std::string_view(rules[limit.rule].name) : "override";
  d.burst = shape.burst();
  d.remaining = static_cast<std::uint64_t>(std::max(0.0, bucket.Level(shape, now)));
  d.window = ToDuration(shape.depth);
  d.until_full = bucket.UntilFull(now);
  const auto next = static_cast<Cost>(d.remaining + 1);
  d.until_next = next <= d.burst ? bucket.ServesAt(shape, next, now) - now : d.until_full;
  if (d.allowed()) {
    d.retry = Duration::zero();
  } else if (query.cost <= d.burst) {
    d.retry = bucket.ServesAt(shape, query.cost, now) - now;
  }
  return d;
}

namespace {

template <class Decision>
void AppendNumbers(std::string& body, const Decision& d) {
  Append(body, "\"allowed\":", d.allowed() ? "true" : "false");
  if (d.limited) {
    body += ",\"limit\":";
    AppendNumber(body, d.burst);
    Append(body, ",\"remaining\":", d.remaining, ",\"retry_after\":");
    if (d.retry.has_value()) {
      AppendNumber(body, Seconds(*d.retry));
    } else {
      body += "null";
    }
    body += ",\"reset_after\":";
    AppendNumber(body, Seconds(d.until_full));
  }
  body += "}\n";
}

}    // namespace

// The answers of /auth have no body: nginx does not read it, and then has to end the connection. Names of rules need no
// quoting.
HttpReply HttpService::Render(const Decision& d, Form form) const {
  HttpReply reply;
  reply.fields.reserve(kDecisionBytes);
  AddLimitFields(reply.fields, d);
  if (form == Form::kAuth) {
    reply.status = d.allowed() ? 204 : 403;
    return reply;
  }
  reply.body.reserve(kDecisionBytes);
  reply.content_type = d.allowed() ? "application/json" : "application/problem+json";
  if (d.allowed()) {
    reply.body += '{';
  } else if (d.verdict == Verdict::kShed) {
    reply.status = 503;
    Append(reply.body, R"({"type":")", kReducedCapacity, R"(","title":"The host sheds load","status":503,)");
  } else {
    reply.status = 429;
    Append(reply.body, R"({"type":")", kQuotaExceeded, R"(","title":")",
           d.retry.has_value() ? "The tag has spent its quota" : "The cost is more than the quota",
           R"(","status":429,"violated-policies":[")", d.policy, R"("],)");
  }
  AppendNumbers(reply.body, d);
  return reply;
}

// A bucket is not a window. As quota and window the fields state burst and the time in which an empty bucket fills, and
// as what remains the whole tokens of now and the time until there is one more.
void HttpService::AddLimitFields(std::string& fields, const Decision& d) const {
  if (!d.limited) return;
  const auto quota = static_cast<std::int64_t>(d.burst);
  const auto window = WholeSeconds(d.window), next = WholeSeconds(d.until_next);
  const HttpHeaders style = host_.settings().admin.http_headers;
  if (style == HttpHeaders::kDraft10 || style == HttpHeaders::kBoth) {
    Append(fields, "RateLimit-Policy: \"", d.policy, "\";q=", quota, ";w=", window, "\r\n");
    Append(fields, "RateLimit: \"", d.policy, "\";r=", d.remaining, ";t=", next, "\r\n");
  }
  if (style == HttpHeaders::kDraft03 || style == HttpHeaders::kBoth) {
    Append(fields, "X-RateLimit-Limit: ", quota, "\r\nX-RateLimit-Remaining: ", d.remaining,
           "\r\nX-RateLimit-Reset: ", next, "\r\n");
  }
  if (!d.allowed() && d.retry.has_value()) {
    Append(fields, "Retry-After: ", std::max<std::int64_t>(1, WholeSeconds(*d.retry)), "\r\n");
  }
}

}    // namespace dthrottle
