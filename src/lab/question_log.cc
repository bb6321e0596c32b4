#include "lab/question_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/number.h"
#include "base/words.h"
#include "config/values.h"
#include "lease/name.h"

namespace dthrottle::lab {
namespace {

using Does = LoggedQuestion::Does;

constexpr std::string_view kWait = "wait=", kKeep = "keep", kLasts = "lasts=";
constexpr std::string_view kVerbs = "take, peek, enter, hold, commit, release, give or refund";
constexpr std::size_t kDateEnds = 27;    // "[10/Oct/2000:13:55:36 -0700"
constexpr std::uint32_t kMillisecondsMax = 31 * 86'400'000u;    // more than settings let anything last

// No address has a slash.
bool IsQuestion(std::string_view line) {
  return line.size() > 3 && line[0] == '[' && line[3] == '/';
}

Result<Duration> Milliseconds(std::string_view what, std::string_view word) {
  std::uint32_t ms = 0;
  if (ParseNumber(word, ms) && ms <= kMillisecondsMax) return std::chrono::milliseconds(ms);
  return Fail(fmt::format("{}{}: must be milliseconds from 0 to {}", what, Shown(word), kMillisecondsMax));
}

// A place is taken for a moment at least.
Result<Duration> ReadLasts(std::string_view word) {
  const auto lasts = ParseDuration(word);
  if (lasts && *lasts <= std::chrono::milliseconds(kMillisecondsMax)) return std::max(*lasts, Duration(1));
  return Fail(fmt::format("{}{}: must be a duration such as 350ms or 0.350s", kLasts, Shown(word)));
}

// `tell=` changes the answer and not the question.
void PassOverTell(std::string_view& words) {
  if (!TakeWord(words, "tell=limit")) TakeWord(words, "tell=all");
}

Result<Cost> ReadTokens(std::string_view word) {
  Cost cost = 0;
  if (ParseNumber(word, cost)) return cost;
  return Fail(fmt::format("cost {}: must be a whole number of tokens from 0 to {}", Shown(word),
                          std::numeric_limits<Cost>::max()));
}

}    // namespace

Result<LoggedQuestion> QuestionReader::Read(std::string_view line) {
  named_ = 0;
  return IsQuestion(line) ? ReadQuestion(line) : ReadAccess(line);
}

// A tag that is named already pays the sum of both costs. REQUIRES: there is room for one more.
void QuestionReader::Add(std::size_t name, Cost cost) {
  for (LoggedQuestion::Tag& tag : std::span(tags_).first(named_)) {
    if (tag.name != names_[name]) continue;
    tag.cost = Questions::Sum(tag.cost, cost);
    return;
  }
  tags_[named_++] = {names_[name], cost};
}

// ---- Access logs ----

Result<LoggedQuestion> QuestionReader::ReadAccess(std::string_view line) {
  const auto parsed = ParseLogLine(line, dates_);
  if (!parsed) return tl::unexpected(parsed.error());
  Cost cost = 1;
  for (std::size_t i = 0; i < template_.tags.size(); ++i) {
    names_[i].clear();
    template_.tags[i].Expand(*parsed, names_[i]);
    if (i < template_.costs.size()) {
      cost_.clear();
      template_.costs[i].Expand(*parsed, cost_);
      const auto read = ReadTokens(cost_ == "-" ? "0" : cost_);
      if (!read) return tl::unexpected(read.error());
      cost = *read;
    }
    Add(i, cost);
  }
  LoggedQuestion question{.time_s = parsed->time_s, .patience = template_.patience};
  question.tags = std::span(tags_).first(named_);
  return question;
}

// ---- Logs of questions ----

Result<LoggedQuestion> QuestionReader::ReadQuestion(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const std::size_t close = line.find(']');
  const auto time_s = dates_.Read(line.substr(1, std::min(close, kDateEnds) - 1));
  if (!time_s) return tl::unexpected(time_s.error());
  if (close != kDateEnds) return Fail("no ] behind the date");
  LoggedQuestion question{.time_s = *time_s};
  std::string_view words = line.substr(close + 1);
  const std::string_view request = NextWord(words), verb = NextWord(words);
  if (request.size() > kRequestBytesMax) {
    return Fail(fmt::format("the request's name has more than {} bytes", kRequestBytesMax));
  }
  if (request != "-") question.request = request;
  if (auto read = ReadWords(verb, words, question); !read) return tl::unexpected(read.error());
  if (question.request.empty() && verb != "take" && verb != "peek" &&
      (verb != "enter" || question.ttl == Duration(0))) {
    return Fail(fmt::format("{} needs the name of its request, not -", verb));
  }
  question.tags = std::span(tags_).first(named_);
  return question;
}

Result<void> QuestionReader::ReadWords(std::string_view verb, std::string_view words, LoggedQuestion& question) {
  if (verb == "commit") {
    question.does = Does::kCommit;
    return ReadActual(words);
  }
  if (verb == "release" || verb == "give") {
    question.does = verb == "give" ? Does::kGive : Does::kRelease;
    return NextWord(words).empty() ? Result<void>() : Fail(fmt::format("nothing may follow {}", verb));
  }
  if (verb == "refund") {
    question.does = Does::kRefund;
    return ReadTags(words);
  }
  if (verb == "take" || verb == "peek" || verb == "enter" || verb == "hold") return ReadAsked(verb, words, question);
  return Fail(fmt::format("\"{}\": must be {}, behind a request's name", Shown(verb), kVerbs));
}

Result<void> QuestionReader::ReadAsked(std::string_view verb, std::string_view words, LoggedQuestion& question) {
  if (verb == "hold") {
    PassOverTell(words);
    const auto ttl = Milliseconds("TTL ", NextWord(words));
    if (!ttl) return tl::unexpected(ttl.error());
    question.verb = Verb::kHold;
    question.ttl = *ttl;
    TakeWord(words, "here");
  } else if (verb == "enter") {
    question.verb = Verb::kEnter;
    if (const auto value = TakeNamed(words, kLasts)) {
      const auto lasts = ReadLasts(*value);
      if (!lasts) return tl::unexpected(lasts.error());
      question.ttl = *lasts;
    }
  } else {
    if (verb == "peek") question.does = Does::kPeek;
    if (const auto value = TakeNamed(words, kWait)) {
      const auto patience = Milliseconds(kWait, *value);
      if (!patience) return tl::unexpected(patience.error());
      question.patience = *patience;
      TakeWord(words, kKeep);
    }
  }
  if (verb != "hold") PassOverTell(words);
  return ReadTags(words);
}

Result<void> QuestionReader::ReadTags(std::string_view words) {
  std::size_t read = 0;
  for (std::string_view word; !(word = NextWord(words)).empty(); ++read) {
    if (read == Questions::kTagsMax) return Fail(fmt::format("a question has at most {} tags", Questions::kTagsMax));
    const auto cost = ReadTokens(word);
    if (!cost) return tl::unexpected(cost.error());
    const std::string_view tag = NextWord(words);
    if (tag.empty()) return Fail("no tag behind the last cost");
    names_[read] = lease::FromWord(tag);
    Add(read, *cost);
  }
  return read > 0 ? Result<void>() : Fail("COST TAG [COST TAG]... must follow");
}

Result<void> QuestionReader::ReadActual(std::string_view words) {
  for (std::string_view word; !(word = NextWord(words)).empty();) {
    if (named_ == Questions::kTagsMax) return Fail(fmt::format("a hold has at most {} tags", Questions::kTagsMax));
    const auto cost = ReadTokens(word);
    if (!cost) return tl::unexpected(cost.error());
    tags_[named_++] = {{}, *cost};
  }
  return named_ > 0 ? Result<void>() : Fail("ACTUAL must follow commit, once or for each tag");
}

// ---- Lists ----

void QuestionList::Add(const LoggedQuestion& question) {
  list_.push_back({question.does, question.verb, static_cast<std::uint8_t>(question.tags.size()),
                   static_cast<std::uint8_t>(question.request.size()), question.patience, question.ttl});
  names_ += question.request;
  for (const LoggedQuestion::Tag& tag : question.tags) {
    names_ += tag.name;
    tags_.push_back({static_cast<std::uint32_t>(tag.name.size()), tag.cost});
  }
}

void QuestionList::Clear() {
  names_.clear();
  list_.clear();
  tags_.clear();
}

}    // namespace dthrottle::lab
