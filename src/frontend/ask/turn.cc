#include "frontend/ask/turn.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "frontend/ask/reader.h"
#include "frontend/ask/words.h"

namespace dthrottle {

namespace {

constexpr std::size_t kKeptBytesMax = std::size_t{1} << 20;
constexpr std::string_view kUsage = "COST TAG must follow, once for each tag";
constexpr std::string_view kVerbs = "take, peek, enter, give, hold, commit, release or indicate";
constexpr std::string_view kTellLimit = "tell=limit", kTellAll = "tell=all", kWait = "wait=";

// Takes "wait=MS" off a line if it is the next word. False: MS is no whole number.
bool TakeWait(std::string_view& line, Duration& wait) {
  std::string_view rest = line;
  std::string_view word = NextWord(rest);
  if (!word.starts_with(kWait)) return true;
  word.remove_prefix(kWait.size());
  std::uint32_t ms = 0;
  if (!ParseNumber(word, ms)) return false;
  wait = std::chrono::milliseconds(ms);
  line = rest;
  return true;
}

}    // namespace

AskTurn::AskTurn(Limiter& limiter, Holds* holds, LaneUse lane, Prng prng, std::size_t tag_bytes_max,
                 TakeReport take_report)
    : limiter_(limiter),
      holds_(holds),
      lane_(lane),
      prng_(prng),
      tags_(tag_bytes_max),
      returns_(limiter, holds, std::move(take_report)) {}

// ---- Taking lines ----

void AskTurn::OnLine(std::string_view line, Holder& holder) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const std::string_view verb = NextWord(line);
  if (AskReturns::IsVerb(verb)) return OnReturn(verb, line, holder);
  Line question{.kind = Kind::kQuestion, .holder = &holder};
  const bool can_wait = verb == "take" || verb == "peek";
  if (can_wait && !TakeWait(line, question.patience)) {
    Complain("wait=MS must have a whole number of milliseconds");
    return;
  }
  question.tells = TakeWord(line, kTellLimit) ? Tell::kLimit : TakeWord(line, kTellAll) ? Tell::kAll : Tell::kNothing;
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

AskTurn::Batch& AskTurn::OpenBatch() {
  if (!batch_open_ && batches_used_++ == batches_.size()) batches_.emplace_back();
  batch_open_ = true;
  return batches_[batches_used_ - 1];
}

// False: the line is no question, and the answer says so.
bool AskTurn::OnQuestion(Line& line, Verb verb, std::string_view rest) {
  Batch& batch = OpenBatch();
  const std::size_t words = batch.words.size();
  batch.questions.Begin(verb, line.patience);
  if (Read(batch, rest) && (line.kind != Kind::kHold || FitsHold(batch))) {
    ++counts_.questions;
    named_ += batch.words.size() - words;
    line.batch = batches_used_ - 1;
    line.question = batch.questions.size() - 1;
    lines_.push_back(line);
    return true;
  }
  batch.questions.Drop();
  batch.words.resize(words);
  return false;
}

// Reads costs and tags. False: they are wrong, and the answer says so.
bool AskTurn::Read(Batch& batch, std::string_view line) {
  std::size_t named = 0;
  for (std::string_view word; !(word = NextWord(line)).empty(); ++named) {
    if (named == Questions::kTagsMax) return Complain(fmt::format("a question has at most {} tags", named));
    Cost cost = 0;
    if (!ParseNumber(word, cost)) return Complain(fmt::format("COST must be a whole number: {}", Shown(word)));
    const std::string_view tag = NextWord(line);
    if (tag.empty()) return Complain(fmt::format("a TAG is missing behind {}", Shown(word)));
    if (batch.questions.Name(tags_.Read(tag, cost, limiter_.keys().digest))) batch.words.push_back(tag);
  }
  return named > 0 || Complain(kUsage);
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
  now_ = now;
  if (holds_ != nullptr) holds_->Expire(now);
  for (const Line& line : lines_) {
    if (line.kind == Kind::kAnswered) {
      out_.append(texts_, line.begin, line.end - line.begin);
    } else if (line.kind == Kind::kReturn) {
      returns_.Answer(line.returned, out_, now);
    } else {
      AppendOutcome(line);
    }
    out_ += '\n';
    ends_.push_back(out_.size());
  }
}

// Decides the line's question, together with those of its batch.
void AskTurn::AppendOutcome(const Line& line) {
  Batch& batch = batches_[line.batch];
  if (!std::exchange(batch.asked, true)) {
    outcomes_.assign(batch.questions.size(), Outcome());
    standings_.assign(batch.questions.queries().size(), Standing());
    limiter_.Ask(batch.questions, outcomes_, standings_, lane_, prng_, now_);
  }
  const Outcome& outcome = outcomes_[line.question];
  if (outcome.verdict != Verdict::kServe) return AppendRefused(line);
  if (outcome.wait == Duration::zero()) {
    out_ += "OK";
  } else {
    out_ += "WAIT ";
    AppendNumber(out_, std::chrono::ceil<std::chrono::milliseconds>(outcome.wait).count());
  }
  line.kind == Kind::kHold ? AppendHeld(line) : Enter(line);
  AppendServed(line);
}

// Where there is a number of places too, what there is less of.
std::optional<std::int64_t> AskTurn::LeftOf(const Standing& standing) const {
  std::optional<std::int64_t> left;
  if (standing.limited()) left = standing.bucket.WholeTokens(standing.shape, now_);
  if (standing.free.has_value()) left = std::min(left.value_or(INT64_MAX), std::int64_t{*standing.free});
  return left;
}

void AskTurn::AppendLeft(const Standing& standing) {
  out_ += ' ';
  const auto left = LeftOf(standing);
  left.has_value() ? AppendNumber(out_, *left) : out_.push_back('-');
}

void AskTurn::AppendRule(const Standing& standing) {
  const auto& rules = limiter_.rules().rules();
  const std::size_t rule = limiter_.rules().limit(*standing.limit).rule;
  out_ += ' ';
  out_ += rule < rules.size() ? std::string_view(rules[rule].name) : "-";    // an override where no rule fits
}

void AskTurn::AppendLimit(const Standing& standing) {
  if (!standing.limited()) {
    out_ += " - - -";
    return;
  }
  const auto append_ms = [&](Duration d) {
    out_ += ' ';
    AppendNumber(out_, std::chrono::ceil<std::chrono::milliseconds>(d).count());
  };
  const Bucket& bucket = standing.bucket;
  const auto quota = static_cast<std::int64_t>(standing.shape.burst());
  const std::int64_t next = bucket.WholeTokens(standing.shape, now_) + 1;
  out_ += ' ';
  AppendNumber(out_, quota);
  append_ms(ToDuration(standing.shape.depth));
  append_ms(next <= quota ? bucket.ServesAt(standing.shape, static_cast<Cost>(next), now_) - now_
                          : bucket.UntilFull(now_));
}

void AskTurn::AppendAll(const Questions::Question& question) {
  for (const Standing& standing : std::span(standings_).subspan(question.first, question.tags)) {
    if (LeftOf(standing).has_value()) {
      AppendRule(standing);
      AppendLeft(standing);
    } else {
      out_ += " - -";
    }
    AppendLimit(standing);
  }
}

void AskTurn::AppendServed(const Line& line) {
  const Batch& batch = batches_[line.batch];
  const Questions::Question& question = batch.questions[line.question];
  const auto left = [&](std::size_t i) { return LeftOf(standings_[question.first + i]).value_or(INT64_MAX); };
  std::size_t nearest = 0;
  for (std::size_t i = 0; i < question.tags; ++i) {
    AppendLeft(standings_[question.first + i]);
    if (left(i) < left(nearest)) nearest = i;
  }
  if (line.tells == Tell::kAll) return AppendAll(question);
  if (line.tells == Tell::kNothing || left(nearest) == INT64_MAX) return;
  const Standing& standing = standings_[question.first + nearest];
  AppendRule(standing);
  out_ += ' ';
  out_ += batch.words[question.first + nearest];
  AppendLimit(standing);
}

void AskTurn::AppendRefused(const Line& line) {
  const Batch& batch = batches_[line.batch];
  const Questions::Question& question = batch.questions[line.question];
  const Outcome& outcome = outcomes_[line.question];
  if (question.verb != Verb::kPeek) ++counts_.refused;
  const Standing& standing = standings_[question.first + outcome.tag];
  if (outcome.verdict == Verdict::kShed) {
    out_ += "NO shed -";
  } else if (outcome.busy) {
    out_ += "NO busy -";
  } else if (outcome.wait == Outcome::kNever) {
    out_ += "NO never -";
  } else {
    out_ += "NO limit ";
    AppendNumber(out_, std::chrono::ceil<std::chrono::milliseconds>(outcome.wait).count());
  }
  AppendLeft(standing);
  AppendRule(standing);
  out_ += ' ';
  out_ += batch.words[question.first + outcome.tag];
  if (line.tells == Tell::kLimit) AppendLimit(standing);
  if (line.tells == Tell::kAll) AppendAll(question);
}

std::string_view AskTurn::Answers(std::size_t first, std::size_t n) const {
  if (n == 0) return {};
  const std::size_t begin = first == 0 ? 0 : ends_[first - 1];
  return std::string_view(out_).substr(begin, ends_[first + n - 1] - begin);
}

void AskTurn::Clear() {
  lines_.clear();
  for (Batch& batch : std::span(batches_).first(batches_used_)) {
    batch.questions.Clear();
    batch.words.clear();
    batch.asked = false;
  }
  batches_used_ = 0;
  batch_open_ = false;
  named_ = 0;
  holding_ = 0;
  returns_.Clear();
  tags_.Clear();
  ends_.clear();
  for (std::string* text : {&texts_, &out_}) {
    text->clear();
    if (text->capacity() > kKeptBytesMax) text->shrink_to_fit();
  }
}

}    // namespace dthrottle
