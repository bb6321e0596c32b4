#include "frontend/http/service.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "admin/escape.h"
#include "admin/extension.h"
#include "admin/metrics.h"
#include "base/check.h"
#include "base/number.h"
#include "capacity/indicator.h"
#include "frontend/http/page.h"
#include "frontend/http/tag_fields.h"
#include "query/named_tag.h"
#include "tally/refusals.h"

namespace dthrottle {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kText = "text/plain; charset=utf-8";
constexpr std::string_view kJson = "application/json";
constexpr Duration kLiveKept = std::chrono::milliseconds(500);
constexpr std::ptrdiff_t kParametersMax = 64;    // of a target; none that is understood has more than half as many
constexpr std::uint32_t kWaitMsMax = 60'000;    // as a rule's delay
constexpr std::string_view kRepeatable[] = {"tag", "cost"};

HttpReply Reply(unsigned status, std::string_view content_type, std::string body) {
  return {status, content_type, {}, std::move(body)};
}

// A parameter that is a whole number, `absent` if it is not given.
Result<std::uint32_t> WholeNumber(const HttpTarget& target, std::string_view name, std::uint32_t absent,
                                  std::uint32_t min, std::uint32_t max) {
  const std::string* const text = target.Find(name);
  if (text == nullptr) return absent;
  std::uint32_t value = 0;
  if (!ParseNumber(*text, value) || value < min || value > max) {
    return Fail(fmt::format("{} must be a whole number from {} to {}", name, min, max));
  }
  return value;
}

}    // namespace

std::string_view HttpReason(unsigned status) {
  switch (status) {
    case 200:
      return "OK";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      DT_CHECK(!"a status without a name");
      return {};
  }
}

HttpReply HttpProblem(unsigned status, std::string_view detail) {
  const Json body = {{"type", "about:blank"}, {"title", HttpReason(status)}, {"status", status}, {"detail", detail}};
  return Reply(status, "application/problem+json", body.dump() + "\n");
}

// ---- Which request gets which answer ----

struct HttpService::Route {
  std::string_view path;
  std::span<const std::string_view> parameters;    // all that it may have
  View view = nullptr;                      // null: it decides
  Form form = HttpService::Form::kCheck;    // then
  enum class Posted : std::uint8_t { kNo, kForgives, kReports } posted = Posted::kNo;

  // Whether it is for those who may decide.
  bool decides() const { return view == nullptr || posted == Posted::kReports; }
};

namespace {

constexpr std::string_view kOfDecision[] = {"tag", "cost", "peek", "wait"}, kOfTop[] = {"n"}, kOfTag[] = {"tag"},
                           kOfReport[] = {"value", "tag"};

}    // namespace

const HttpService::Route HttpService::kRoutes[] = {
    {"/check", kOfDecision, nullptr, Form::kCheck},
    {"/auth", kOfDecision, nullptr, Form::kAuth},
    {"/", {}, &HttpService::Page},
    {"/metrics", {}, &HttpService::Metrics},
    {"/healthz", {}, &HttpService::Health},
    {"/top", kOfTop, &HttpService::Top},
    {"/peers", {}, &HttpService::Command},
    {"/rules", {}, &HttpService::Command},
    {"/stats", {}, &HttpService::Command},
    {"/live", {}, &HttpService::Live},
    {"/history", {}, &HttpService::PastPoints},
    {"/refusals", {}, &HttpService::Command},
    {"/why", kOfTag, &HttpService::CommandAboutTag},
    {"/forgive", kOfTag, &HttpService::Forgive, Form::kCheck, Route::Posted::kForgives},
    {"/indicate", kOfReport, &HttpService::Indicate, Form::kCheck, Route::Posted::kReports},
};

namespace {

// Whether an Origin, which browsers that know no Sec-Fetch-Site send too, is not the host that was asked.
bool IsForeign(std::optional<std::string_view> origin, std::string_view host) {
  constexpr std::string_view kScheme = "http://";
  return origin.has_value() && !(origin->starts_with(kScheme) && origin->substr(kScheme.size()) == host);
}

// Whether another site has made a browser send the request.
bool IsFromElsewhere(const HttpRequest& request, std::string_view host) {
  const bool elsewhere =
      !request.fetch_site.empty() && request.fetch_site != "same-origin" && request.fetch_site != "none";
  return elsewhere || IsForeign(request.origin, host);
}

constexpr std::string_view kFromElsewhere = "a browser may not ask on behalf of another site";

// Whether a target has only parameters of these names, and each of kRepeatable once unless it `repeats`.
Result<void> CheckParameters(const HttpTarget& target, std::span<const std::string_view> names, bool repeats) {
  for (const auto& [name, value] : target.parameters) {
    if (std::ranges::find(names, name) != names.end()) continue;
    const std::string shown = EscapeTag(name.substr(0, 64));
    if (names.empty()) return Fail(fmt::format("{} is not known, and there are no parameters here", shown));
    return Fail(fmt::format("{} is not known; the parameters are {}", shown, fmt::join(names, ", ")));
  }
  for (const std::string_view name : kRepeatable) {
    if (!repeats && target.All(name).size() > 1) return Fail(fmt::format("{} is given twice", name));
  }
  return {};
}

}    // namespace

HttpService::HttpService(AdminHost& host, Prng prng, std::string own_name)
    : host_(host),
      own_name_(std::move(own_name)),
      asking_(host.limiter(), {0, "http"}, prng, host.settings().query.max_tag_bytes) {}

HttpReplies HttpService::Add(const HttpRequest& request) {
  const Asked& asked = asked_.emplace_back(Understand(request));
  return asked.view != nullptr                              ? HttpReplies::kLong
         : asked.question.patience == Duration::zero() ? HttpReplies::kShort
                                                       : HttpReplies::kMayWait;
}

void HttpService::GiveUp(Waits& paid, Instant now) {
  for (const WaitId id : paid.ids()) {
    paid.Give(id, now, [&](const Payment& its) { host_.limiter().GiveUp(its, now); });
  }
}

void HttpService::Add(const HttpFault& fault) {
  asked_.emplace_back().reply = HttpProblem(fault.status, fault.detail);
}

HttpService::Asked HttpService::Refused(unsigned status, std::string_view detail) {
  Asked asked;
  asked.reply = HttpProblem(status, detail);
  return asked;
}

HttpService::Asked HttpService::OnlyPosted() {
  Asked refused = Refused(405, "only POST is understood here");
  refused.reply->fields = "Allow: POST\r\n";
  return refused;
}

// An extension judges what is posted to it. A browser may not bring it for another site.
HttpService::Asked HttpService::Posted(const HttpRequest& request, HttpTarget target, Extension& extension,
                                       std::string_view host) {
  if (request.method != "POST") return OnlyPosted();
  if (request.through_tcp && IsFromElsewhere(request, host)) {
    ++misdirected_;
    return Refused(400, kFromElsewhere);
  }
  if (const auto good = CheckParameters(target, extension.parameters(), false); !good) {
    return Refused(400, good.error().message);
  }
  Asked asked;
  asked.extension = &extension;
  asked.authorization = FieldValues("authorization", request.fields);
  asked.target = std::move(target);
  return asked;
}

HttpService::Asked HttpService::Understand(const HttpRequest& request) {
  const auto refuse = Refused;
  if (request.has_body) return refuse(413, "a request has no body here");
  if (std::ranges::count(request.target, '&') >= kParametersMax) {
    return refuse(414, "the target has too many parameters");
  }
  Result<HttpTarget> target = ParseTarget(request.target, kRepeatable);
  if (!target) return refuse(400, target.error().message);

  const std::string_view host = target->authority.empty() ? request.host : target->authority;
  if (request.through_tcp && request.is_1_1 && host.empty()) return refuse(400, "the field Host is missing");
  if (request.through_tcp && !NamesThisHost(host, own_name_, host_.settings().admin.http_hosts)) {
    ++misdirected_;
    return refuse(421, "the field Host has to be an address, localhost or this host's name");
  }
  for (Extension* const extension : host_.extensions()) {
    if (target->path.substr(1) == extension->command().name) return Posted(request, std::move(*target), *extension, host);
  }
  const auto* const route = std::ranges::find(kRoutes, target->path, &Route::path);
  if (route == std::end(kRoutes)) return refuse(404, "see dthrottle-protocol(7) for what there is");
  if (auto refused = WhyNot(*route, request, host)) return *std::move(refused);
  const bool decides = route->view == nullptr;
  const Result<void> good = CheckParameters(*target, route->parameters, decides);
  if (!good) return refuse(400, good.error().message);
  Asked asked;
  if (decides) {
    Result<Question> question = UnderstandQuestion(request, *target);
    if (!question) return refuse(400, question.error().message);
    asked.form = route->form;
    asked.question = std::move(*question);
    return asked;
  }
  asked.view = route->view;
  asked.target = std::move(*target);
  return asked;
}

// None: it may be asked for in this way.
std::optional<HttpService::Asked> HttpService::WhyNot(const Route& route, const HttpRequest& request,
                                                      std::string_view host) {
  const bool posted = route.posted != Route::Posted::kNo;
  const bool looks = route.view != nullptr && !posted;
  if (looks && request.method != "GET" && request.method != "HEAD") {
    Asked refused = Refused(405, "only GET and HEAD are understood here");
    refused.reply->fields = "Allow: GET, HEAD\r\n";
    return refused;
  }
  if (posted && request.method != "POST") return OnlyPosted();
  if (route.posted == Route::Posted::kForgives && !host_.settings().admin.http_forgives) {
    return Refused(404, "set admin.http_forgives");
  }
  if (looks || !request.through_tcp) return std::nullopt;
  if (route.decides() && !host_.settings().admin.http_decides) {
    return Refused(404, "decisions over TCP are off; use admin.http_unix, or set admin.http_decides");
  }
  if (!IsFromElsewhere(request, host)) return std::nullopt;
  ++misdirected_;
  return Refused(400, kFromElsewhere);
}

// Tags and costs go together in order; one cost is that of each tag.
Result<HttpService::Question> HttpService::UnderstandQuestion(const HttpRequest& request,
                                                              const HttpTarget& target) const {
  Question question;
  const auto wait_ms = WholeNumber(target, "wait", 0, 0, kWaitMsMax);
  if (!wait_ms) return Fail(wait_ms.error().message);
  question.patience = std::chrono::milliseconds(*wait_ms);
  if (const std::string* const peek = target.Find("peek")) {
    if (*peek != "0" && *peek != "1") return Fail("peek must be 0 or 1");
    if (*peek == "1") question.verb = Verb::kPeek;
  }
  std::vector<std::string_view> tags = target.All("tag");
  if (tags.empty() != request.tag.has_value()) {
    return Fail("a tag has to be given, either as the parameter tag or in the field Dthrottle-Tag");
  }
  if (request.tag.has_value()) tags = {*request.tag};
  if (tags.size() > Questions::kTagsMax)
    return Fail(fmt::format("a question has at most {} tags", Questions::kTagsMax));
  const TagFields fields{host_.settings().admin.http_fields, host_.settings().admin.http_trusted_hops};
  std::vector<std::string_view> costs = target.All("cost");
  if (costs.empty()) costs = {"1"};
  if (costs.size() != 1 && costs.size() != tags.size()) return Fail("there must be one cost, or one for each tag");
  for (std::size_t i = 0; i < tags.size(); ++i) {
    const std::optional<Cost> cost = ReadCost(costs[costs.size() == 1 ? 0 : i]);
    if (!cost) return Fail(fmt::format("cost must be a whole number from 0 to {}", std::numeric_limits<Cost>::max()));
    std::string tag = request.tag.has_value() ? std::string(tags[i]) : FillTag(tags[i], request.fields, fields);
    question.tags.emplace_back(std::move(tag), *cost);
  }
  return question;
}

// A view divides the batch: it shows what the decisions before it have left.
std::span<HttpReply> HttpService::Answer(Instant now) {
  replies_.clear();
  for (std::size_t i = 0; i < asked_.size();) {
    Asked& asked = asked_[i];
    if (asked.decides()) {
      std::size_t n = 1;
      while (i + n < asked_.size() && asked_[i + n].decides()) ++n;
      DecideRun(std::span(asked_).subspan(i, n), now);
      i += n;
      continue;
    }
    if (asked.extension != nullptr && !asked.reply) asked.reply = Post(asked);
    replies_.push_back(asked.reply.has_value() ? std::move(*asked.reply) : (this->*asked.view)(asked.target, now));
    ++i;
  }
  asked_.clear();
  return replies_;
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

HttpReply HttpService::Page(const HttpTarget&, Instant) {
  HttpReply reply = Reply(200, "text/html; charset=utf-8", std::string(kPage));
  reply.fields = fmt::format("Content-Security-Policy: {}\r\nReferrer-Policy: no-referrer\r\n", kPagePolicy);
  return reply;
}

HttpReply HttpService::Metrics(const HttpTarget&, Instant) {
  return Reply(200, kMetricsContentType, RenderMetrics(host_));
}

HttpReply HttpService::Health(const HttpTarget&, Instant) {
  return stopping_ ? Reply(503, kText, "stopping\n") : Reply(200, kText, "ok\n");
}

HttpReply HttpService::Top(const HttpTarget& target, Instant now) {
  const auto n = WholeNumber(target, "n", 10, 1, TopTags::kEntries);
  if (!n) return HttpProblem(400, n.error().message);
  return Reply(200, kJson, Ask(fmt::format("top {}", *n), now) + "\n");
}

// The answer to the command that the path names.
HttpReply HttpService::Command(const HttpTarget& target, Instant now) {
  return Reply(200, kJson, Ask(target.path.substr(1), now) + "\n");
}

// All that the page shows, in one answer, which ten browsers share: making one takes as long as hundreds of decisions.
// A command that there is not says {"error":...} in its place.
HttpReply HttpService::Live(const HttpTarget&, Instant now) {
  if (live_.empty() || now - live_at_ >= kLiveKept) {
    live_ = fmt::format("{{\"host\":{},\"forgives\":{}", Json(own_name_).dump(),
                        host_.settings().admin.http_forgives);
    for (const std::string_view command :
         {"stats", "rules", "top", "peers", "shed", "capacity", "leases", "refusals"}) {
      live_ += fmt::format(",\"{}\":{}", command, Ask(command, now));
    }
    live_ += "}\n";
    live_at_ = now;
  }
  return Reply(200, kJson, live_);
}

HttpReply HttpService::PastPoints(const HttpTarget&, Instant now) {
  return Reply(200, kJson, history_.Render(now));
}

HttpReply HttpService::CommandAboutTag(const HttpTarget& target, Instant now) {
  const std::string* const tag = target.Find("tag");
  if (tag == nullptr) return HttpProblem(400, "the parameter tag is missing");
  return Reply(200, kJson, Ask(fmt::format("{} {}", target.path.substr(1), EscapeTag(*tag)), now) + "\n");
}

HttpReply HttpService::Post(const Asked& asked) {
  const auto answer = asked.extension->Post(
      {asked.authorization, [&](std::string_view name) { return asked.target.Find(name); }});
  if (answer.body.is_string()) {
    HttpReply problem = HttpProblem(answer.status, answer.body.get<std::string>());
    if (answer.status == 401) problem.fields = "WWW-Authenticate: Bearer\r\n";
    return problem;
  }
  host_.Audit(fmt::format("HTTP: {} {}", asked.target.path.substr(1), answer.body.dump()));
  return Reply(answer.status, kJson, answer.body.dump() + "\n");
}

HttpReply HttpService::Forgive(const HttpTarget& target, Instant now) {
  const std::string* const tag = target.Find("tag");
  if (tag != nullptr) {
    host_.AuditOfAnyone(fmt::format("HTTP: forgive {}", EscapeTag(Shortened(*tag, Refusals::kTagBytes))));
  }
  live_.clear();
  return CommandAboutTag(target, now);
}

HttpReply HttpService::Indicate(const HttpTarget& target, Instant) {
  const std::string *const tag = target.Find("tag"), *const value = target.Find("value");
  if (tag == nullptr || value == nullptr) return HttpProblem(400, "the parameters value and tag have to be given");
  const std::optional<double> report = ReadReport(*value);
  if (!report) return HttpProblem(400, "value must be a number above 0");
  const NamedTag named(*tag, host_.settings().query.max_tag_bytes, host_.limiter().keys().digest);
  const Result<void> taken = host_.Indicate(named.query().tag, *report);
  return taken ? Reply(204, {}, {}) : HttpProblem(400, taken.error().message);
}

void HttpService::Tick(Instant now) {
  if (history_.Due(now)) history_.Take(TakeSnapshot(host_.limiter(), host_.Counts()), host_.limiter(), now);
}

}    // namespace dthrottle
