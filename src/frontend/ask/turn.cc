#include "frontend/ask/turn.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "frontend/ask/reader.h"
#include "lease/name.h"

namespace dthrottle {

namespace {

constexpr std::size_t kShownBytes = 40;    // of what is wrong
constexpr std::size_t kKeptBytesMax = std::size_t{1} << 20;
constexpr std::string_view kUsage = "take or peek, and COST TAG for each tag";
constexpr std::string_view kTellLimit = "tell=limit";

// Takes the next word off a line; empty: there is none.
std::string_view NextWord(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(word.size());
  return word;
}

bool ParseCost(std::string_view word, Cost& cost) {
  const char* const end = word.data() + word.size();
  return std::from_chars(word.data(), end, cost) == std::from_chars_result{end, std::errc()};
}

// Takes the word off a line if it is the next one.
bool TakeWord(std::string_view& line, std::string_view word) {
  std::string_view rest = line;
  if (NextWord(rest) != word) return false;
  line = rest;
  return true;
}

// What somebody wrote, short and printable.
std::string Shown(std::string_view text) {
  std::string shown(text.substr(0, kShownBytes));
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return shown;
}

void AppendNumber(std::string& out, std::int64_t number) {
  const fmt::format_int digits(number);
  out.append(digits.data(), digits.size());
}

}    // namespace

AskTurn::AskTurn(Limiter& limiter, std::size_t lane, Prng prng, std::size_t tag_bytes_max)
    : limiter_(limiter), lane_(lane), prng_(prng), tag_bytes_max_(tag_bytes_max) {}

// ---- Taking lines ----

void AskTurn::OnLine(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const std::string_view verb = NextWord(line);
  if (verb != "take" && verb != "peek") {
    Complain(verb.empty() ? std::string(kUsage) : fmt::format("{}, not {}", kUsage, Shown(verb)));
    return;
  }
  const bool tells_limit = TakeWord(line, kTellLimit);
  const std::size_t words = words_.size();
  questions_.Begin(verb == "take" ? Verb::kTake : Verb::kPeek);
  if (Read(line)) {
    ++counts_.questions;
    lines_.push_back({.question = questions_.size() - 1, .tells_limit = tells_limit});
  } else {
    questions_.Drop();
    words_.resize(words);
  }
}

// Reads what stands behind the verb. False: it is wrong, and the answer says so.
bool AskTurn::Read(std::string_view line) {
  std::size_t named = 0;
  for (std::string_view word; !(word = NextWord(line)).empty(); ++named) {
    if (named == Questions::kTagsMax) return Complain(fmt::format("a question has at most {} tags", named));
    Cost cost = 0;
    if (!ParseCost(word, cost)) return Complain(fmt::format("COST must be a whole number: {}", Shown(word)));
    const std::string_view tag = NextWord(line);
    if (tag.empty()) return Complain(fmt::format("a TAG is missing behind {}", Shown(word)));
    if (questions_.Name(MakeQuery(tag, cost))) words_.push_back(tag);
  }
  return named > 0 || Complain(kUsage);
}

bool AskTurn::Complain(std::string_view what) {
  ++counts_.errors;
  const std::size_t begin = complaints_.size();
  fmt::format_to(std::back_inserter(complaints_), "ERR {}", what);
  lines_.push_back({.question = kWrong, .begin = begin, .end = complaints_.size()});
  return false;
}

void AskTurn::OnTooLong() {
  Complain(fmt::format("a line has at most {} bytes", AskReader::kLineBytesMax));
}

Query AskTurn::MakeQuery(std::string_view word, Cost cost) {
  std::string_view tag = word;
  if (word.find('\\') != word.npos) tag = unescaped_.emplace_back(lease::FromWord(word));
  if (tag.size() <= tag_bytes_max_) return {{tag, false}, cost, nullptr};
  ++over_long_tags_;
  Query query = over_long_.emplace_back(std::string(tag), tag_bytes_max_, limiter_.keys().digest).query();
  query.cost = cost;
  return query;
}

// ---- Answering ----

void AskTurn::Answer(Instant now) {
  now_ = now;
  outcomes_.assign(questions_.size(), Outcome());
  standings_.assign(questions_.queries().size(), Standing());
  limiter_.Ask(questions_, outcomes_, standings_, lane_, prng_, now);
  for (const Line& line : lines_) {
    if (line.question == kWrong) {
      out_.append(complaints_, line.begin, line.end - line.begin);
    } else if (outcomes_[line.question].verdict == Verdict::kServe) {
      AppendServed(questions_[line.question], line.tells_limit);
    } else {
      AppendRefused(questions_[line.question], outcomes_[line.question], line.tells_limit);
    }
    out_ += '\n';
    ends_.push_back(out_.size());
  }
}

void AskTurn::AppendLeft(const Standing& standing) {
  out_ += ' ';
  standing.limited() ? AppendNumber(out_, standing.bucket.WholeTokens(standing.shape, now_)) : out_.push_back('-');
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

void AskTurn::AppendServed(const Questions::Question& question, bool tells_limit) {
  const auto left = [&](std::size_t i) {
    const Standing& standing = standings_[question.first + i];
    return standing.limited() ? standing.bucket.WholeTokens(standing.shape, now_) : INT64_MAX;
  };
  out_ += "OK";
  std::size_t nearest = 0;
  for (std::size_t i = 0; i < question.tags; ++i) {
    AppendLeft(standings_[question.first + i]);
    if (left(i) < left(nearest)) nearest = i;
  }
  if (!tells_limit || left(nearest) == INT64_MAX) return;
  const Standing& standing = standings_[question.first + nearest];
  AppendRule(standing);
  out_ += ' ';
  out_ += words_[question.first + nearest];
  AppendLimit(standing);
}

void AskTurn::AppendRefused(const Questions::Question& question, const Outcome& outcome, bool tells_limit) {
  if (question.verb == Verb::kTake) ++counts_.refused;
  const Standing& standing = standings_[question.first + outcome.tag];
  if (outcome.verdict == Verdict::kShed) {
    out_ += "NO shed -";
  } else if (outcome.wait == Outcome::kNever) {
    out_ += "NO never -";
  } else {
    out_ += "NO limit ";
    AppendNumber(out_, std::chrono::ceil<std::chrono::milliseconds>(outcome.wait).count());
  }
  AppendLeft(standing);
  AppendRule(standing);
  out_ += ' ';
  out_ += words_[question.first + outcome.tag];
  if (tells_limit) AppendLimit(standing);
}

std::string_view AskTurn::Answers(std::size_t first, std::size_t n) const {
  if (n == 0) return {};
  const std::size_t begin = first == 0 ? 0 : ends_[first - 1];
  return std::string_view(out_).substr(begin, ends_[first + n - 1] - begin);
}

void AskTurn::Clear() {
  lines_.clear();
  questions_.Clear();
  words_.clear();
  unescaped_.clear();
  over_long_.clear();
  ends_.clear();
  for (std::string* text : {&complaints_, &out_}) {
    text->clear();
    if (text->capacity() > kKeptBytesMax) text->shrink_to_fit();
  }
}

}    // namespace dthrottle
