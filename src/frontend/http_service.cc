#include "frontend/http_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "admin/escape.h"
#include "admin/metrics.h"
#include "frontend/page.h"

namespace dthrottle {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kText = "text/plain; charset=utf-8";
constexpr std::string_view kJson = "application/json";
constexpr std::string_view kProblem = "application/problem+json";

// Problem types that the draft RateLimit header fields register (draft-ietf-httpapi-ratelimit-headers-10, section 6).
constexpr std::string_view kReducedCapacity =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
constexpr std::string_view kQuotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded";

HttpReply Reply(unsigned status, std::string_view content_type, std::string body) {
  return {status, content_type, std::move(body), {}};
}

// RFC 9457.
HttpReply Problem(unsigned status, std::string_view title, std::string_view detail) {
  const Json body = {{"type", "about:blank"}, {"title", title}, {"status", status}, {"detail", detail}};
  return Reply(status, kProblem, body.dump() + "\n");
}

HttpReply BadRequest(std::string_view detail) {
  return Problem(400, "Bad Request", detail);
}

// Without a fraction where there is none, to the microsecond where there is.
Json Number(double x) {
  const double rounded = std::round(x * 1e6) / 1e6;
  const auto whole = static_cast<std::int64_t>(rounded);
  return static_cast<double>(whole) == rounded ? Json(whole) : Json(rounded);
}

std::int64_t WholeSeconds(Duration d) {
  return std::chrono::ceil<std::chrono::seconds>(d).count();
}

// A parameter that is a whole number, `absent` if it is not given.
Result<std::uint32_t> WholeNumber(const HttpTarget& target, std::string_view name, std::uint32_t absent,
                                  std::uint32_t min, std::uint32_t max) {
  const std::string* const text = target.Find(name);
  if (text == nullptr) return absent;
  const char* const end = text->data() + text->size();
  std::uint32_t value = 0;
  const auto [rest, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || rest != end || value < min || value > max) {
    return Fail(fmt::format("{} must be a whole number from {} to {}", name, min, max));
  }
  return value;
}

}    // namespace

// ---- Which request gets which answer ----

struct HttpService::Route {
  std::string_view path;
  HttpReply (HttpService::*answer)(const HttpRequest&, const HttpTarget&, Instant now);
  bool decides = false;
};

const HttpService::Route HttpService::kRoutes[] = {
    {"/check", &HttpService::Check, true}, {"/auth", &HttpService::Auth, true}, {"/", &HttpService::Page},
    {"/metrics", &HttpService::Metrics},   {"/healthz", &HttpService::Health},  {"/top", &HttpService::Top},
    {"/peers", &HttpService::Peers},       {"/rules", &HttpService::Rules},     {"/stats", &HttpService::Stats},
    {"/live", &HttpService::Live},
};

HttpService::HttpService(AdminHost& host, Prng prng, std::string own_name)
    : host_(host), prng_(prng), own_name_(std::move(own_name)) {}

HttpReply HttpService::Answer(const HttpRequest& request, Instant now) {
  if (request.too_large) {
    return Problem(431, "Request Header Fields Too Large", "the fields are too long, or too many");
  }
  if (request.method != "GET" && request.method != "HEAD") {
    HttpReply reply = Problem(405, "Method Not Allowed", "only GET and HEAD are understood");
    reply.fields.emplace_back("Allow", "GET, HEAD");
    return reply;
  }
  if (request.has_body) return Problem(413, "Content Too Large", "a request has no body here");
  const Result<HttpTarget> target = ParseTarget(request.target);
  if (!target) return BadRequest(target.error().message);

  const std::string_view host = target->authority.empty() ? request.host : std::string_view(target->authority);
  if (request.through_tcp && !NamesThisHost(host, own_name_)) {
    ++misdirected_;
    return Problem(421, "Misdirected Request", "the field Host has to be an address, localhost or this host's name");
  }
  const auto route =
      std::find_if(std::begin(kRoutes), std::end(kRoutes), [&](const Route& r) { return r.path == target->path; });
  if (route == std::end(kRoutes)) return Problem(404, "Not Found", "see dthrottle-protocol(7) for what there is");
  const bool from_elsewhere =
      !request.fetch_site.empty() && request.fetch_site != "same-origin" && request.fetch_site != "none";
  if (route->decides && request.through_tcp && from_elsewhere) {
    ++misdirected_;
    return BadRequest("a browser may not ask on behalf of another site");
  }
  return (this->*route->answer)(request, *target, now);
}

HttpReply HttpService::TargetTooLong() {
  return Problem(414, "URI Too Long", "the target has too many parameters");
}

// ---- Deciding ----

// A verdict, and how things stand after it where there is a limit.
struct HttpService::Decision {
  Verdict verdict;
  bool limited = false;    // the rest is known
  std::string policy;
  double burst = 0;
  std::uint64_t remaining = 0;    // whole tokens
  Duration window{};              // from empty to full
  Duration until_next{};          // until there is another token; zero if full
  Duration until_full{};
  std::optional<Duration> retry;    // until the same would be served; none: it costs more than the burst

  bool allowed() const { return verdict == Verdict::kServe; }
};

Result<HttpService::Decision> HttpService::Decide(const HttpRequest& request, const HttpTarget& target, Instant now) {
  for (const auto& [name, value] : target.parameters) {
    if (name != "tag" && name != "cost") return Fail("the parameters are tag and cost");
  }
  const std::string* const encoded = target.Find("tag");
  if ((encoded != nullptr) == request.tag.has_value()) {
    return Fail("a tag has to be given, either as the parameter tag or in the field Dthrottle-Tag");
  }
  const auto cost = WholeNumber(target, "cost", 1, 0, kHttpCostMax);
  if (!cost) return tl::unexpected(cost.error());

  Limiter& limiter = host_.limiter();
  const NamedTag tag(encoded != nullptr ? *encoded : std::string(*request.tag), host_.settings().query.max_tag_bytes,
                     limiter.keys().digest);
  Query query = tag.query();
  query.cost = *cost;
  if (query.over_long != nullptr) ++over_long_;
  Decision decision{};
  limiter.Answer({&query, 1}, {&decision.verdict, 1}, 0, prng_, now);

  const Inspection seen = limiter.Inspect(query, now);
  if (!seen.limit.has_value()) return decision;
  const Limit& limit = limiter.rules().limit(*seen.limit);
  if (limit.mode == Mode::kOff) return decision;
  const auto& rules = limiter.rules().rules();
  const Shape& shape = seen.shape;
  decision.limited = true;
  decision.policy = limit.rule < rules.size() ? rules[limit.rule].name : "override";
  decision.burst = shape.burst();
  decision.remaining = static_cast<std::uint64_t>(std::max(0.0, seen.bucket.Level(shape, now)));
  decision.window = ToDuration(shape.depth);
  decision.until_full = seen.bucket.UntilFull(now);
  const auto next = static_cast<Cost>(decision.remaining + 1);
  decision.until_next = next <= decision.burst ? seen.bucket.ServesAt(shape, next, now) - now : decision.until_full;
  if (decision.allowed()) {
    decision.retry = Duration::zero();
  } else if (query.cost <= decision.burst) {
    decision.retry = seen.bucket.ServesAt(shape, query.cost, now) - now;
  }
  return decision;
}

// A bucket is not a window. As quota and window the fields state burst and the time in which an empty bucket fills, and
// as what remains the whole tokens of now and the time until there is one more. Names of rules need no quoting.
void HttpService::AddLimitFields(HttpReply& reply, const Decision& d) const {
  if (!d.limited) return;
  const auto quota = static_cast<std::int64_t>(d.burst);
  const auto window = WholeSeconds(d.window), next = WholeSeconds(d.until_next);
  const HttpHeaders style = host_.settings().admin.http_headers;
  if (style == HttpHeaders::kDraft10 || style == HttpHeaders::kBoth) {
    reply.fields.emplace_back("RateLimit-Policy", fmt::format("\"{}\";q={};w={}", d.policy, quota, window));
    reply.fields.emplace_back("RateLimit", fmt::format("\"{}\";r={};t={}", d.policy, d.remaining, next));
  }
  if (style == HttpHeaders::kDraft03 || style == HttpHeaders::kBoth) {
    reply.fields.emplace_back("X-RateLimit-Limit", fmt::format("{}", quota));
    reply.fields.emplace_back("X-RateLimit-Remaining", fmt::format("{}", d.remaining));
    reply.fields.emplace_back("X-RateLimit-Reset", fmt::format("{}", next));
  }
  if (!d.allowed() && d.retry.has_value()) {
    reply.fields.emplace_back("Retry-After", fmt::format("{}", std::max<std::int64_t>(1, WholeSeconds(*d.retry))));
  }
}

namespace {

template <class Decision>
Json Numbers(const Decision& d) {
  Json body = {{"allowed", d.allowed()}};
  if (!d.limited) return body;
  body["limit"] = Number(d.burst);
  body["remaining"] = d.remaining;
  body["retry_after"] = d.retry.has_value() ? Number(Seconds(*d.retry)) : Json();
  body["reset_after"] = Number(Seconds(d.until_full));
  return body;
}

template <class Decision>
HttpReply Refusal(const Decision& d) {
  if (d.verdict == Verdict::kShed) {
    Json body = {{"type", kReducedCapacity}, {"title", "The host sheds load"}, {"status", 503}};
    body.update(Numbers(d));
    return Reply(503, kProblem, body.dump() + "\n");
  }
  Json body = {{"type", kQuotaExceeded},
               {"title", d.retry.has_value() ? "The tag has spent its quota" : "The cost is more than the quota"},
               {"status", 429},
               {"violated-policies", Json::array({d.policy})}};
  body.update(Numbers(d));
  return Reply(429, kProblem, body.dump() + "\n");
}

}    // namespace

HttpReply HttpService::Check(const HttpRequest& request, const HttpTarget& target, Instant now) {
  const auto decision = Decide(request, target, now);
  if (!decision) return BadRequest(decision.error().message);
  HttpReply reply = decision->allowed() ? Reply(200, kJson, Numbers(*decision).dump() + "\n") : Refusal(*decision);
  AddLimitFields(reply, *decision);
  return reply;
}

// Without a body: nginx does not read it, and then has to end the connection.
HttpReply HttpService::Auth(const HttpRequest& request, const HttpTarget& target, Instant now) {
  const auto decision = Decide(request, target, now);
  if (!decision) return BadRequest(decision.error().message);
  HttpReply reply = Reply(decision->allowed() ? 204 : 403, {}, {});
  AddLimitFields(reply, *decision);
  return reply;
}

// ---- Looking inside ----

// What a command of the admin socket says, as JSON.
std::string HttpService::Ask(std::string_view command, Instant now) {
  std::string answer;
  RunCommand(
      fmt::format("json {}", command), host_, [&](std::string text) { answer = std::move(text); }, now);
  answer.resize(answer.find_last_not_of('\n') + 1);
  return answer;
}

HttpReply HttpService::Page(const HttpRequest&, const HttpTarget&, Instant) {
  HttpReply reply = Reply(200, "text/html; charset=utf-8", std::string(kPage));
  reply.fields.emplace_back("Content-Security-Policy", kPagePolicy);
  reply.fields.emplace_back("Referrer-Policy", "no-referrer");
  return reply;
}

HttpReply HttpService::Metrics(const HttpRequest&, const HttpTarget&, Instant now) {
  return Reply(200, kMetricsContentType, RenderMetrics(host_, now));
}

HttpReply HttpService::Health(const HttpRequest&, const HttpTarget&, Instant) {
  return stopping_ ? Reply(503, kText, "stopping\n") : Reply(200, kText, "ok\n");
}

HttpReply HttpService::Top(const HttpRequest&, const HttpTarget& target, Instant now) {
  const auto n = WholeNumber(target, "n", 10, 1, TopTags::kEntries);
  if (!n) return BadRequest(n.error().message);
  return Reply(200, kJson, Ask(fmt::format("top {}", *n), now) + "\n");
}

HttpReply HttpService::Peers(const HttpRequest&, const HttpTarget&, Instant now) {
  return Reply(200, kJson, Ask("peers", now) + "\n");
}

HttpReply HttpService::Rules(const HttpRequest&, const HttpTarget&, Instant now) {
  return Reply(200, kJson, Ask("rules", now) + "\n");
}

HttpReply HttpService::Stats(const HttpRequest&, const HttpTarget&, Instant now) {
  return Reply(200, kJson, Ask("stats", now) + "\n");
}

// All that the page shows, in one answer. A command that there is not says {"error":...} in its place.
HttpReply HttpService::Live(const HttpRequest&, const HttpTarget&, Instant now) {
  std::string body;
  for (const std::string_view command : {"stats", "rules", "top", "peers", "shed", "capacity", "leases"}) {
    body += fmt::format("{}\"{}\":{}", body.empty() ? '{' : ',', command, Ask(command, now));
  }
  return Reply(200, kJson, body + "}\n");
}

}    // namespace dthrottle
