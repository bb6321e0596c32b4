#include "feature/set_limits/feature.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "admin/escape.h"
#include "base/check.h"
#include "config/values.h"
#include "io/clock.h"
#include "io/files.h"
#include "io/keys.h"
#include "io/signals.h"
#include "rule/rulebook.h"

namespace dthrottle {

namespace {

constexpr std::size_t kTokenBytesMin = 16;
constexpr Duration kWriteEvery = std::chrono::hours(24);    // so that the file says when this host was there
constexpr Duration kLookEvery = std::chrono::seconds(10);    // at the wall clock, which may be set

std::uint64_t FreshSeed() {
  std::uint64_t seed = 0;
  FillRandom(std::as_writable_bytes(std::span(&seed, 1)));
  return seed;
}

std::string SpanText(Duration span) {
  return FormatDuration(std::chrono::floor<std::chrono::seconds>(span));
}

Extension::Json ErrorOf(std::string_view why) {
  return {{"error", why}};
}

Result<LimitOf> ReadOf(std::string_view word) {
  if (word == Name(LimitOf::kTag)) return LimitOf::kTag;
  if (word == Name(LimitOf::kRule)) return LimitOf::kRule;
  return Fail("a limit is set of a tag or of a rule");
}

std::string_view Complaint(SetLimits::Outcome outcome) {
  switch (outcome) {
    case SetLimits::Outcome::kTaken:
    case SetLimits::Outcome::kKnown:
      return "";
    case SetLimits::Outcome::kOlder:
      return "a newer limit is known here: see limit list, and the clock of the host where this one was signed";
    case SetLimits::Outcome::kOver:
      return "it has ended long ago";
    case SetLimits::Outcome::kAhead:
      return "its date lies more than 5 minutes ahead of this host's clock";
    case SetLimits::Outcome::kCrowded:
      return "1000 limits are set already: clear one";
  }
  return "";
}

}    // namespace

SetLimitsFeature::SetLimitsFeature(const FeatureHost& host) : host_(host), spreading_(set_, {}, Prng(FreshSeed())) {}

// ---- Start and settings ----

void SetLimitsFeature::Prepare() {
  const Settings& settings = host_.admin.settings();
  std::vector<std::string> problems;
  TakeKeys(problems);
  for (const std::string& problem : problems) host_.log.Warning("{}", problem);
  file_ = settings.operators.limits_file;
  if (file_.empty() && !settings.table.file.empty()) file_ = settings.table.file + ".limits";
  if (file_.empty()) return;
  if (const auto usable = CheckStateFile(file_, SetLimits::IsFile); !usable) {
    throw StartFailure{ExitCode(usable.error().code), "operator.limits_file: " + usable.error().message};
  }
  const auto text = ReadRegularFile(file_, SetLimits::kFileBytesMax);
  if (!text || text->empty()) return;
  for (const std::string& left_out : set_.TakeFile(*text, spreading_.keys(), WallClock())) {
    host_.log.Warning("{}: {}", file_, left_out);
  }
}

// Reads keys and the token. What is bad is told, and then nobody has it.
void SetLimitsFeature::TakeKeys(std::vector<std::string>& problems) {
  const auto& settings = host_.admin.settings().operators;
  OperatorKeys keys;
  for (const std::string& text : settings.keys) {
    if (const auto key = ParseOperatorKey(text)) keys.emplace(key->key, key->name);
  }
  own_key_.reset();
  token_.clear();
  const auto read = [&](const char* name, const std::string& path) -> std::optional<std::string> {
    if (path.empty()) return std::nullopt;
    auto text = ReadSecret(path);
    if (text) return std::move(*text);
    problems.push_back(fmt::format("operator.{}: warning: {}", name, text.error().message));
    return std::nullopt;
  };
  if (auto text = read("http_key_file", settings.http_key_file)) {
    auto secret = ParseOperatorSecret(*text);
    sodium_memzero(text->data(), text->size());
    if (secret && keys.contains(secret->key)) {
      own_key_ = std::move(*secret);
    } else {
      problems.push_back(fmt::format("operator.http_key_file: warning: {}: {}", settings.http_key_file,
                                     secret ? "its public key is not in operator.keys" : secret.error().message));
    }
  }
  if (auto text = read("http_token_file", settings.http_token_file)) {
    token_ = text->substr(0, text->find('\n'));
    if (token_.size() < kTokenBytesMin) {
      token_.clear();
      problems.push_back(fmt::format("operator.http_token_file: warning: {}: a token has at least {} characters",
                                     settings.http_token_file, kTokenBytesMin));
    }
  }
  const std::lock_guard lock(mutex_);
  spreading_.SetKeys(std::move(keys));
}

void SetLimitsFeature::Start() {
  DT_CHECK(uv_timer_init(host_.loop, &timer_) == 0);
  timer_.data = this;
  started_ = true;
  if (!set_.entries().empty()) Write([] {});
  SetTimer();
}

void SetLimitsFeature::Reload(std::vector<std::string>& problems) {
  const std::size_t before = set_.entries().size();
  TakeKeys(problems);
  if (set_.entries().size() != before) PutInForce([] {});
}

void SetLimitsFeature::Close() {
  if (std::exchange(started_, false)) uv_close(reinterpret_cast<uv_handle_t*>(&timer_), nullptr);
}

Amendment SetLimitsFeature::Amends() const {
  const std::lock_guard lock(mutex_);
  std::vector<SetLimit> set = set_.InForce(WallClock());
  if (set.empty()) return {};
  return [set = std::move(set), bytes_max = std::size_t{host_.admin.settings().query.max_tag_bytes}](
             std::vector<Rule>& rules, std::vector<Override>& overrides) { Amend(set, bytes_max, rules, overrides); };
}

// ---- The peer thread's ----

std::string_view SetLimitsFeature::stem() const {
  return kLimitFramePrefix.substr(0, 3);
}

void SetLimitsFeature::OnFrame(LinkId link, const Route& route, std::string_view frame, Transport& wire, Instant now) {
  const std::lock_guard lock(mutex_);
  spreading_.OnFrame(link, route, frame, wire, WallClock(), now);
  if (spreading_.any_news()) host_.tasks.Post([this] { OnNews(); });
}

Instant SetLimitsFeature::Tick(std::span<const LinkId> peers, Transport& wire, Instant now) {
  const std::lock_guard lock(mutex_);
  return spreading_.Tick(peers, wire, now);
}

// ---- A limit that is set ----

// With keys an operator has to have signed it; without, the owner of the admin socket may set it, for this host.
Result<SignedLimit> SetLimitsFeature::Authorized(const SetLimit& limit, bool with_own_key) const {
  if (with_own_key && own_key_) return Sign(limit, *own_key_);
  const std::lock_guard lock(mutex_);
  if (spreading_.keys().empty()) return SignedLimit{limit, {}, {}};
  return Fail(with_own_key ? "operator.keys are set, and operator.http_key_file has none of them to sign with"
                           : "operator.keys are set: sign it with one of them (dthrottlectl limit --key FILE)");
}

Result<void> SetLimitsFeature::Accept(SignedLimit limit) {
  const std::lock_guard lock(mutex_);
  if (!limit.local() && !spreading_.keys().contains(limit.key)) return Fail("no operator has that key: operator.keys");
  if (!limit.local() && !IsGenuine(limit)) return Fail("the signature is not that of the key");
  const std::string_view complaint = Complaint(spreading_.Set(std::move(limit), WallClock()));
  if (!complaint.empty()) return Fail(std::string(complaint));
  return {};
}

// What other hosts have brought, or what has been set here.
void SetLimitsFeature::OnNews() {
  std::vector<SignedLimit> news;
  {
    const std::lock_guard lock(mutex_);
    news = spreading_.TakeNews();
  }
  if (news.empty() || !started_) return;
  for (const SignedLimit& limit : news) {
    host_.admin.Audit(fmt::format("limit: {} has set {}", By(limit), TextOf(limit.limit)));
  }
  PutInForce([] {});
}

void SetLimitsFeature::PutInForce(std::function<void()> done) {
  SetTimer();
  host_.amend([this, done = std::move(done)]() mutable { Write(std::move(done)); });
}

// Limits end by the wall clock.
void SetLimitsFeature::OnTimer() {
  const Duration wall = WallClock();
  {
    const std::lock_guard lock(mutex_);
    set_.Forget(wall);
  }
  if (wall >= ends_at_) {
    PutInForce([] {});
  } else {
    if (wall >= written_at_ + kWriteEvery && !set_.entries().empty()) Write([] {});
    SetTimer();
  }
}

void SetLimitsFeature::SetTimer() {
  if (!started_) return;
  const Duration wall = WallClock();
  {
    const std::lock_guard lock(mutex_);
    ends_at_ = set_.NextEnd(wall);
  }
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(std::min(kLookEvery, ends_at_ - wall)).count();
  uv_timer_start(
      &timer_, [](uv_timer_t* t) { static_cast<SetLimitsFeature*>(t->data)->OnTimer(); },
      static_cast<std::uint64_t>(std::max<std::int64_t>(wait, 1)), 0);
}

// ---- The file ----

// A text that the thread pool writes, and who waits for that.
struct SetLimitsFeature::Writing {
  SetLimitsFeature* feature;
  uv_work_t request;
  std::string path, text;
  std::vector<std::function<void()>> waiting;
  std::string trouble;
};

void SetLimitsFeature::Write(std::function<void()> done) {
  if (file_.empty() || !started_) return done();
  unwritten_.push_back(std::move(done));
  if (std::exchange(writing_, true)) return;
  auto work = std::make_unique<Writing>();
  work->feature = this, work->path = file_, work->waiting = std::exchange(unwritten_, {});
  {
    const std::lock_guard lock(mutex_);
    work->text = set_.File(WallClock());
  }
  work->request.data = work.get();
  const auto write = [](uv_work_t* request) {
    auto& w = *static_cast<Writing*>(request->data);
    if (const auto written = ReplaceFile(w.path, w.text); !written) w.trouble = written.error().message;
  };
  const auto written = [](uv_work_t* request, int) {
    const std::unique_ptr<Writing> w(static_cast<Writing*>(request->data));
    w->feature->OnWritten(w->trouble);
    for (const auto& waiting : w->waiting) waiting();
  };
  const SignalsBlocked blocked;    // the pool's threads may begin here
  DT_CHECK(uv_queue_work(host_.loop, &work->request, write, written) == 0);
  work.release();    // `written` has it
}

void SetLimitsFeature::OnWritten(const std::string& trouble) {
  writing_ = false;
  written_at_ = WallClock();
  if (!trouble.empty() && unsaved_++ == 0) host_.log.Warning("limits that are set are not kept: {}", trouble);
  if (!unwritten_.empty()) Write([] {});
}

void SetLimitsFeature::Count(ProcessCounts& counts) const {
  const std::lock_guard lock(mutex_);
  counts.set_limits = spreading_.counts();
  counts.set_limits.in_force = set_.InForce(WallClock()).size();
  counts.set_limits.known = set_.entries().size();
  counts.set_limits.unsaved = unsaved_;
}

// ---- The command ----

Extension::Command SetLimitsFeature::command() const {
  return {"limit", "VERB ...", "limits that operators set while daemons run: list, set, clear or put"};
}

bool SetLimitsFeature::Changes(std::string_view argument) const {
  return !argument.empty() && argument != "list";
}

void SetLimitsFeature::Run(std::string_view argument, std::function<void(Json)> reply, Instant) {
  if (argument.empty() || argument == "list") return reply(List());
  const auto set = [&](const Result<SignedLimit>& limit) {
    if (!limit) return reply(ErrorOf(limit.error().message));
    if (const auto accepted = Accept(*limit); !accepted) return reply(ErrorOf(accepted.error().message));
    {
      const std::lock_guard lock(mutex_);
      spreading_.TakeNews();
    }
    PutInForce([this, limit = *limit, reply] { reply(Describe(limit)); });
  };
  const std::string_view verb = TakeLimitWord(argument);
  if (verb == "put") return set(ParseSigned(argument));
  if (verb != "set" && verb != "clear") return reply(ErrorOf("limit list, limit set, limit clear or limit put"));
  const auto of = ReadOf(TakeLimitWord(argument));
  if (!of) return reply(ErrorOf(of.error().message));
  std::string_view burst, rate, time;
  if (verb == "set") burst = TakeLimitWord(argument), rate = TakeLimitWord(argument), time = TakeLimitWord(argument);
  if (verb == "set" && (burst.empty() || rate.empty() || time.empty())) {
    return reply(ErrorOf("limit set tag|rule BURST RATE TIME NAME, with \"-\" for TIME if it has none"));
  }
  const auto name = UnescapeTag(argument);
  if (!name) return reply(ErrorOf(name.error().message));
  const auto asked = LimitAsked(*of, *name, burst, rate, time == "-" ? "" : time, WallClock());
  if (!asked) return reply(ErrorOf(asked.error().message));
  set(Authorized(*asked, false));
}

std::string SetLimitsFeature::By(const SignedLimit& limit) const {
  if (limit.local()) return "this host's operator";
  const std::lock_guard lock(mutex_);
  const auto name = spreading_.keys().find(limit.key);
  return name != spreading_.keys().end() ? name->second : limit.key;
}

Extension::Json SetLimitsFeature::Describe(const SignedLimit& signed_limit) const {
  const SetLimit& limit = signed_limit.limit;
  const Duration wall = WallClock();
  Json answer = {{"of", Name(limit.of)}, {"name", EscapeTag(limit.name)}};
  answer["burst"] = limit.clears ? Json() : Json(limit.burst);
  answer["rate"] = limit.clears ? Json() : Json(limit.rate);
  answer["by"] = By(signed_limit);
  answer["set"] = SpanText(std::max(wall - limit.stamp, Duration())) + " ago";
  answer["ends"] = limit.clears || limit.until == Duration() ? "when it is cleared"
                                                             : "in " + SpanText(std::max(limit.until - wall, Duration()));
  if (limit.clears) answer["ends"] = "cleared";
  answer["hosts"] = signed_limit.local() ? "this one" : "all";
  const Rulebook& rules = host_.admin.limiter().rules();
  const auto rule = limit.of == LimitOf::kRule ? rules.Named(limit.name) : std::nullopt;
  if (limit.of == LimitOf::kRule && !rule) {
    answer["note"] = "no rule here has that name";
  } else if (const auto index = rule ? rule : rules.Find(limit.name); index && rules.limit(*index).divided) {
    answer["note"] = "hosts divide this limit: each has its part of the old rate until all have the new one";
  } else {
    answer["note"] = nullptr;
  }
  return answer;
}

Extension::Json SetLimitsFeature::List() const {
  const Duration wall = WallClock();
  std::vector<SignedLimit> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, limit] : set_.entries()) {
      if (IsInForce(limit.limit, wall)) all.push_back(limit);
    }
  }
  Json rows = Json::array();
  for (const SignedLimit& limit : all) rows.push_back(Describe(limit));
  return rows;
}

void SetLimitsFeature::Why(std::string_view tag, LimitIndex index, const std::function<void(std::string)>& say) const {
  const Rulebook& rules = host_.admin.limiter().rules();
  const bool is_override = rules.is_override(index);
  const Limit& limit = rules.limit(index);
  if (!is_override && limit.rule >= rules.rules().size()) return;
  const LimitOf of = is_override ? LimitOf::kTag : LimitOf::kRule;
  std::optional<SignedLimit> set;
  {
    const std::lock_guard lock(mutex_);
    const SignedLimit* const found = set_.Find(of, is_override ? tag : rules.rules()[limit.rule].name);
    if (found != nullptr) set = *found;
  }
  const Duration wall = WallClock();
  if (!set || !IsInForce(set->limit, wall)) return;
  say(fmt::format("{} has set the limit of the {} {} ago, {}.", By(*set), Name(of),
                  SpanText(std::max(wall - set->limit.stamp, Duration())),
                  set->limit.until == Duration()
                      ? std::string("until it is cleared")
                      : fmt::format("for another {}", SpanText(set->limit.until - wall))));
}

// ---- HTTP ----

Extension::Answer SetLimitsFeature::Post(const Posted& posted) {
  constexpr std::string_view kBearer = "Bearer ";
  if (token_.empty()) return {404, "set operator.http_token_file"};
  std::string_view shown = posted.authorization;
  if (!shown.starts_with(kBearer)) return {401, "the field Authorization has to show the token"};
  shown.remove_prefix(kBearer.size());
  if (shown.size() != token_.size() || sodium_memcmp(shown.data(), token_.data(), token_.size()) != 0) {
    return {401, "that is not the token of operator.http_token_file"};
  }
  const std::string *const tag = posted.parameter("tag"), *const rule = posted.parameter("rule");
  if ((tag == nullptr) == (rule == nullptr)) return {400, "one of the parameters tag and rule has to be given"};
  const auto given = [&](std::string_view name) {
    const std::string* const text = posted.parameter(name);
    return text != nullptr ? std::string_view(*text) : std::string_view();
  };
  const bool clears = given("clear") == "1";
  if (!clears && (given("burst").empty() || given("rate").empty())) {
    return {400, "the parameters burst and rate have to be given, or clear=1"};
  }
  const LimitOf of = rule != nullptr ? LimitOf::kRule : LimitOf::kTag;
  const std::string& name = rule != nullptr ? *rule : *tag;
  const auto asked = clears ? LimitAsked(of, name, "", "", "", WallClock())
                            : LimitAsked(of, name, given("burst"), given("rate"), given("for"), WallClock());
  if (!asked) return {400, asked.error().message};
  const auto authorized = Authorized(*asked, true);
  if (!authorized) return {409, authorized.error().message};
  if (const auto accepted = Accept(*authorized); !accepted) return {409, accepted.error().message};
  host_.tasks.Post([this] { OnNews(); });
  return {202, Describe(*authorized)};
}

}    // namespace dthrottle
