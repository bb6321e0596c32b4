#include "frontend/ask/turn.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/number.h"
#include "base/words.h"
#include "frontend/ask/reader.h"
#include "limiter/limit_of.h"
#include "query/named_tag.h"
#include "rule/rulebook.h"

namespace dthrottle {

namespace {

constexpr std::string_view kUsage = "COST TAG must follow, once for each tag";
constexpr std::string_view kVerbs = "take, peek, enter, give, refund, hold, commit, release, indicate or absent";
constexpr std::size_t kEndedPerTurn = 64;    // holds
constexpr std::string_view kTellLimit = "tell=limit", kTellAll = "tell=all", kWait = "wait=", kKeep = "keep";

// Takes "wait=MS [keep]" off a line if it stands next. False: MS is no whole number.
bool TakeWait(std::string_view& line, Duration& wait, bool& keep) {
  const auto value = TakeNamed(line, kWait);
  std::uint32_t ms = 0;
  if (value && !ParseNumber(*value, ms)) return false;
  if (value) wait = std::chrono::milliseconds(ms);
  keep = value && TakeWord(line, kKeep);
  return true;
}

// Says what a client is to do about these tags when the daemon does not answer, by their rules. One of several is
// enough to refuse, as in a question. Nothing is decided or counted.
std::string AnswerAbsent(const Limiter& limiter, std::size_t tag_bytes_max, AskTags& tags, std::string_view line) {
  const Rulebook& rules = limiter.rules();
  bool refuse = false;
  std::size_t named = 0;
  for (std::string_view word; !(word = NextWord(line)).empty(); ++named) {
    const NamedTag tag(std::string(tags.Unescape(word)), tag_bytes_max, limiter.keys().digest);
    const auto index = LimitOf(rules, tag.query());
    if (!index.has_value() || rules.limit(*index).rule >= rules.rules().size()) continue;
    const Limit& limit = rules.limit(*index);
    refuse = refuse || (limit.mode == Mode::kEnforce && rules.rules()[limit.rule].fail_closed);
  }
  if (named == 0) return "ERR absent TAG [TAG]...";
  return refuse ? "OK refuse" : "OK serve";
}

}    // namespace

AskTurn::AskTurn(Limiter& limiter, Holds* holds, LaneUse lane, Prng prng, std::size_t tag_bytes_max,
                 TakeReport take_report)
    : limiter_(limiter),
      holds_(holds),
      lane_(lane),
      prng_(prng),
      tag_bytes_max_(tag_bytes_max),
      returns_(limiter, holds, prng_.Next() >> 2, tag_bytes_max, std::move(take_report)) {}

// ---- Taking lines ----

void AskTurn::OnLine(std::string_view line, Holder& holder) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const std::string_view verb = NextWord(line);
  if (AskReturns::IsVerb(verb)) return OnReturn(verb, line, holder);
  if (verb == "absent") return OnAnswered(AnswerAbsent(limiter_, tag_bytes_max_, tags_, line));
  Line question{.kind = Kind::kQuestion, .holder = &holder};
  const bool can_wait = verb == "take" || verb == "peek";
  if (can_wait && !TakeWait(line, question.patience, question.keep)) {
    Complain("wait=MS must have a whole number of milliseconds");
    return;
  }
  question.tells = TakeWord(line, kTellLimit) ? AskTell::kLimit
                   : TakeWord(line, kTellAll) ? AskTell::kAll
                                              : AskTell::kNothing;
  if (verb == "take") {
    OnQuestion(question, Verb::kTake, line);
  } else if (verb == "peek") {
    OnQuestion(question, Verb::kPeek, line);
  } else if (verb == "enter") {
    OnQuestion(question, Verb::kEnter, line);
  } else if (verb == "hold") {
    OnHold(question, line);
  } else {
    Complain(verb.empty() ? std::string(kVerbs) : fmt::format("{}, not {}", kVerbs, Shown(verb)));
  }
}

// What has been asked before is decided before.
void AskTurn::OnReturn(std::string_view verb, std::string_view rest, Holder& holder) {
  if (const std::string wrong = returns_.Read(verb, rest, holder, tags_); !wrong.empty()) return void(Complain(wrong));
  ++counts_.settlements;
  batch_open_ = false;
  lines_.push_back({.kind = Kind::kReturn, .returned = returns_.lines() - 1});
}

Asking& AskTurn::OpenBatch() {
  if (!batch_open_ && batches_used_++ == batches_.size()) {
    batches_.push_back({Asking(limiter_, lane_, Prng(prng_.Next()), tag_bytes_max_)});
  }
  batch_open_ = true;
  return batches_[batches_used_ - 1].asking;
}

// False: the line is no question, and the answer says so.
bool AskTurn::OnQuestion(Line& line, Verb verb, std::string_view rest) {
  Asking& asking = OpenBatch();
  const std::size_t tags = asking.tags();
  asking.Begin(verb, line.patience);
  if (!Read(asking, rest)) {
    asking.Drop();
    return false;
  }
  named_ += asking.tags() - tags;
  line.batch = batches_used_ - 1;
  line.question = asking.size() - 1;
  lines_.push_back(line);
  return true;
}

// Reads costs and tags. False: they are wrong, and the answer says so.
bool AskTurn::Read(Asking& asking, std::string_view line) {
  bool named = false;
  for (std::string_view word; !(word = NextWord(line)).empty(); named = true) {
    const auto cost = ReadCost(word);
    if (!cost.has_value()) return Complain(fmt::format("COST must be a whole number: {}", Shown(word)));
    const std::string_view tag = NextWord(line);
    if (tag.empty()) return Complain(fmt::format("a TAG is missing behind {}", Shown(word)));
    if (const auto done = asking.Name(Allowed(tags_.Unescape(tag)), *cost, tag); !done) return Complain(done.error().message);
  }
  return named || Complain(kUsage);
}

std::string_view AskTurn::Allowed(std::string_view tag) {
  if (!only_allowed_limits_) return tag;
  const auto limit = ReadOwnLimit(tag);
  if (!limit.has_value() || (tag.size() <= tag_bytes_max_ && limiter_.rules().FindOwn(tag).has_value())) return tag;
  ++limits_refused_;
  return limit->tag;
}

bool AskTurn::Complain(std::string_view what) {
  ++counts_.errors;
  OnAnswered(fmt::format("ERR {}", what));
  return false;
}

void AskTurn::OnAnswered(std::string_view answer) {
  const std::size_t begin = texts_.size();
  texts_ += answer;
  lines_.push_back({.kind = Kind::kAnswered, .begin = begin, .end = texts_.size()});
}

void AskTurn::OnTooLong() {
  Complain(fmt::format("a line has at most {} bytes", AskReader::kLineBytesMax));
}

// ---- Answering ----

void AskTurn::Answer(Instant now) {
  if (holds_ != nullptr) holds_->EndSome(now, kEndedPerTurn);
  for (const Line& line : lines_) {
    if (line.kind == Kind::kAnswered) {
      answers_.text().append(texts_, line.begin, line.end - line.begin);
    } else if (line.kind == Kind::kReturn) {
      returns_.Answer(line.returned, answers_.text(), now);
    } else {
      AppendOutcome(line, now);
    }
    answers_.text() += '\n';
    answers_.End();
  }
}

// Decides the line's question, together with those of its batch.
void AskTurn::AppendOutcome(const Line& line, Instant now) {
  if (FindsNoRoom(line)) return;
  ++counts_.questions;
  auto& [asking, asked] = batches_[line.batch];
  if (!std::exchange(asked, true)) asking.Answer(now);
  AskAnswer answer(asking, line.question, now, answers_.text());
  if (asking.refusal(line.question).has_value()) {
    if (asking.verb(line.question) != Verb::kPeek) ++counts_.refused;
    return answer.AppendRefused(line.tells);
  }
  const bool waits = answer.AppendGranted();
  if (line.kind == Kind::kHold) AppendHeld(line, now);
  if (waits) AppendWaiting(line, now);
  KeepPlaces(line, now);
  answer.AppendServed(line.tells);
}

AskCounts AskTurn::counts() const {
  AskCounts counts = counts_;
  counts.given_up = returns_.given_up();
  return counts;
}

std::uint64_t AskTurn::over_long() const {
  std::uint64_t sum = returns_.over_long();
  for (const Batch& batch : batches_) sum += batch.asking.over_long();
  return sum;
}

void AskTurn::Clear() {
  lines_.clear();
  for (std::size_t i = 0; i < batches_used_; ++i) {
    batches_[i].asking.Clear();
    batches_[i].asked = false;
  }
  batches_used_ = 0;
  batch_open_ = false;
  named_ = 0;
  holding_ = 0;
  returns_.Clear();
  tags_.Clear();
  Answers::Empty(texts_);
  answers_.Clear();
}

}    // namespace dthrottle
