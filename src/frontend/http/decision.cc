// Decisions over HTTP: a run of questions decided together, and how each of them is told.
#include <fmt/compile.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "admin/escape.h"
#include "base/append.h"
#include "frontend/http/service.h"

namespace dthrottle {

namespace {

// Problem types that the draft RateLimit header fields register (draft-ietf-httpapi-ratelimit-headers-10, section 6).
constexpr std::string_view kReducedCapacity =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
constexpr std::string_view kQuotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded";

constexpr std::string_view kShed = "shed";
constexpr std::size_t kDecisionBytes = 120;    // of fields or body, as a rule

// Without a fraction where there is none, to the microsecond where there is.
void AppendNumber(std::string& out, double x) {
  const double rounded = std::round(x * 1e6) / 1e6;
  const auto whole = static_cast<std::int64_t>(rounded);
  if (static_cast<double>(whole) == rounded) return Append(out, whole);
  char digits[32];    // the shortest that reads back the same has at most 24
  out.append(digits, fmt::format_to(digits, FMT_COMPILE("{}"), rounded));
}

}    // namespace

// A verdict, and how things stand after it where there is a limit: of the tag that refuses, or else of the one that has
// least left.
struct HttpService::Decision {
  std::optional<Asking::Refusal> refusal;
  std::vector<Asking::Tag> tags{};
  const Asking::Tag* nearest = nullptr;    // null: nothing limits any of them; else the rest is known
  std::string_view policy{};
  Duration until_next{};    // until there is another token; zero if full
  Duration wait{};          // before the application goes on
  Instant now{};

  bool allowed() const { return !refusal.has_value(); }
  const Shape& shape() const { return nearest->standing.shape; }
  Duration until_full() const { return nearest->standing.UntilFull(now); }

  bool shed() const { return !allowed() && refusal->why == kShed; }
  // Until the same would be served; none: nobody knows, because the host sheds load or all places are taken, or it
  // costs more than the burst.
  std::optional<Duration> retry() const { return allowed() ? std::optional(Duration::zero()) : refusal->wait; }
};

void HttpService::DecideRun(std::span<const Asked> run, Instant now) {
  asking_.Clear();
  for (const Asked& asked : run) {
    asking_.Begin(asked.question.verb, asked.question.patience);
    for (const auto& [tag, cost] : asked.question.tags) (void)asking_.Name(tag, cost);
  }
  asking_.Answer(now);
  for (std::size_t i = 0; i < run.size(); ++i) {
    const Decision decision = Describe(i, now);
    HttpReply& reply = replies_.emplace_back(Render(decision, run[i].form));
    if (decision.wait == Duration::zero() || asking_.verb(i) != Verb::kTake) continue;
    reply.wait = decision.wait;
    reply.paid.Add(++waits_, asking_.payments(i), now + decision.wait);
  }
}

HttpService::Decision HttpService::Describe(std::size_t question, Instant now) const {
  Decision d{.refusal = asking_.refusal(question), .now = now};
  d.tags.reserve(asking_.tags(question));
  for (std::size_t i = 0; i < asking_.tags(question); ++i) d.tags.push_back(asking_.tag(question, i));
  if (const auto nearest = asking_.nearest(question)) d.nearest = &d.tags[*nearest];
  if (!d.allowed()) d.nearest = &d.tags[d.refusal->tag];
  if (d.allowed()) d.wait = asking_.wait(question);
  if (d.nearest != nullptr && !d.nearest->left.has_value()) d.nearest = nullptr;    // a hot host asked no bucket
  if (d.nearest == nullptr) return d;
  d.policy = d.nearest->rule == "-" ? "override" : d.nearest->rule;
  d.until_next = d.nearest->UntilNext(now);
  return d;
}

namespace {

void AppendNumberOrNull(std::string& body, std::optional<Duration> d) {
  d.has_value() ? AppendNumber(body, Seconds(*d)) : Append(body, "null");
}

void AppendTag(std::string& body, const Asking::Tag& tag, Instant now) {
  Append(body, "{\"tag\":", nlohmann::json(EscapeTag(tag.written)).dump());
  if (tag.left.has_value()) {
    Append(body, ",\"rule\":\"", tag.rule, "\",\"limit\":");
    AppendNumber(body, tag.standing.shape.burst());
    Append(body, ",\"remaining\":", *tag.left, ",\"reset_after\":");
    AppendNumber(body, Seconds(tag.standing.UntilFull(now)));
  }
  body += '}';
}

// Says which tag of several refused, and how each stands.
template <class Decision>
void AppendTags(std::string& body, const Decision& d) {
  if (!d.allowed()) Append(body, ",\"refused_by\":", nlohmann::json(EscapeTag(d.tags[d.refusal->tag].written)).dump());
  body += ",\"tags\":[";
  for (const Asking::Tag& tag : d.tags) {
    if (&tag != d.tags.data()) body += ',';
    AppendTag(body, tag, d.now);
  }
  body += ']';
}

std::string_view TitleOf(const Asking::Refusal& refusal) {
  if (refusal.why == "busy") return "All places of the tag are taken";
  return refusal.wait.has_value() ? "The tag has spent its quota" : "The cost is more than the quota";
}

template <class Decision>
void AppendNumbers(std::string& body, const Decision& d) {
  Append(body, "\"allowed\":", d.allowed() ? "true" : "false");
  if (d.nearest != nullptr) {
    body += ",\"limit\":";
    AppendNumber(body, d.shape().burst());
    Append(body, ",\"remaining\":", *d.nearest->left, ",\"retry_after\":");
    AppendNumberOrNull(body, d.retry());
    body += ",\"reset_after\":";
    AppendNumber(body, Seconds(d.until_full()));
  }
  if (d.wait > Duration::zero()) {
    body += ",\"delay\":";
    AppendNumber(body, Seconds(d.wait));
  }
  if (d.tags.size() > 1) AppendTags(body, d);
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
  } else if (d.shed()) {
    reply.status = 503;
    Append(reply.body, R"({"type":")", kReducedCapacity, R"(","title":"The host sheds load","status":503,)");
  } else {
    reply.status = 429;
    Append(reply.body, R"({"type":")", kQuotaExceeded, R"(","title":")", TitleOf(*d.refusal),
           R"(","status":429,"violated-policies":[")", d.policy, R"("],)");
  }
  AppendNumbers(reply.body, d);
  return reply;
}

// A bucket is not a window. As quota and window the fields state burst and the time in which an empty bucket fills, and
// as what remains the whole tokens of now and the time until there is one more.
void HttpService::AddLimitFields(std::string& fields, const Decision& d) const {
  if (d.nearest == nullptr) return;
  const auto quota = static_cast<std::int64_t>(d.shape().burst()), remaining = *d.nearest->left;
  const auto window = WholeSeconds(ToDuration(d.shape().depth)), next = WholeSeconds(d.until_next);
  const HttpHeaders style = host_.settings().admin.http_headers;
  if (style == HttpHeaders::kDraft10 || style == HttpHeaders::kBoth) {
    Append(fields, "RateLimit-Policy: \"", d.policy, "\";q=", quota, ";w=", window, "\r\n");
    Append(fields, "RateLimit: \"", d.policy, "\";r=", remaining, ";t=", next, "\r\n");
  }
  if (style == HttpHeaders::kDraft03 || style == HttpHeaders::kBoth) {
    Append(fields, "X-RateLimit-Limit: ", quota, "\r\nX-RateLimit-Remaining: ", remaining,
           "\r\nX-RateLimit-Reset: ", next, "\r\n");
  }
  // A hot host may serve the next request: chance decides.
  if (const auto retry = d.retry(); !d.allowed() && (retry.has_value() || d.shed())) {
    const Duration wait = retry.value_or(Duration::zero());
    Append(fields, "Retry-After: ", std::max<std::int64_t>(1, WholeSeconds(wait)), "\r\n");
  }
}

}    // namespace dthrottle
