#include "frontend/ask/returns.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "capacity/indicator.h"
#include "frontend/ask/words.h"

namespace dthrottle {

// ---- Taking lines ----

std::optional<AskReturns::Kind> AskReturns::KindOf(std::string_view verb) {
  if (verb == "commit") return Kind::kCommit;
  if (verb == "release") return Kind::kRelease;
  if (verb == "give") return Kind::kGive;
  if (verb == "indicate") return Kind::kIndicate;
  return std::nullopt;
}

std::string AskReturns::Read(std::string_view verb, std::string_view line, Holder& holder, AskTags& tags) {
  Line read{.kind = KindOf(verb).value(), .holder = &holder};
  std::string wrong = read.kind == Kind::kGive       ? ReadGift(line, read, tags)
                      : read.kind == Kind::kIndicate ? ReadReportLine(line, read, tags)
                                                     : ReadSettlement(line, read);
  if (wrong.empty()) lines_.push_back(read);
  return wrong;
}

std::string AskReturns::ReadSettlement(std::string_view line, Line& read) {
  const bool commits = read.kind == Kind::kCommit;
  const std::string usage = commits ? "ID must follow, and ACTUAL once or for each tag" : "ID must follow";
  const std::string_view id = NextWord(line);
  if (holds_ == nullptr) return "holds are off: hold.max_holds is 0";
  if (id.empty()) return usage;
  if (!ParseNumber(id, read.id, 16)) return fmt::format("ID must be as hold has answered it: {}", Shown(id));
  for (std::string_view word; !(word = NextWord(line)).empty();) {
    if (!commits) return "nothing may follow ID";
    if (read.numbers == read.actual.size()) return fmt::format("a hold has at most {} tags", read.numbers);
    if (!ParseNumber(word, read.actual[read.numbers++])) {
      return fmt::format("ACTUAL must be a whole number: {}", Shown(word));
    }
  }
  return commits && read.numbers == 0 ? usage : "";
}

std::string AskReturns::ReadGift(std::string_view line, Line& read, AskTags& tags) {
  read.begin = named_.size();
  for (std::string_view word; !(word = NextWord(line)).empty();) {
    if (named_.size() - read.begin == kHoldTagsMax) {
      named_.resize(read.begin);
      return fmt::format("a line gives back at most {} tags", kHoldTagsMax);
    }
    named_.push_back(named_tags_.Read(tags.Unescape(word), 1, limiter_.keys().digest));
  }
  read.end = named_.size();
  return read.begin == read.end ? "TAG must follow" : "";
}

std::string AskReturns::ReadReportLine(std::string_view line, Line& read, AskTags& tags) {
  const std::string_view value = NextWord(line), tag = NextWord(line);
  if (tag.empty() || !NextWord(line).empty()) return "VALUE TAG must follow";
  const std::optional<double> report = ReadReport(value);
  if (!report) return fmt::format("VALUE must be a number above 0: {}", Shown(value));
  read.report = *report;
  read.begin = named_.size();
  named_.push_back(named_tags_.Read(tags.Unescape(tag), 1, limiter_.keys().digest));
  return "";
}

// ---- Answering ----

void AskReturns::Answer(std::size_t line, std::string& out, Instant now) {
  const Line& its = lines_[line];
  if (its.kind == Kind::kIndicate) return Indicate(its, out);
  its.kind == Kind::kGive ? Give(its, out, now) : Settle(its, out, now);
}

void AskReturns::Settle(const Line& line, std::string& out, Instant now) {
  const std::size_t tags = holds_->TagsOf(line.id);
  if (line.numbers > 1 && tags != 0 && line.numbers != tags) {
    fmt::format_to(std::back_inserter(out), "ERR ACTUAL once or {} times, for the hold has as many tags", tags);
    return;
  }
  const HoldRecord* const record = line.kind == Kind::kCommit
                                       ? holds_->Commit(line.id, std::span(line.actual).first(line.numbers), now)
                                       : holds_->Release(line.id, now);
  if (record == nullptr) {
    out += "NO unknown";
  } else if (record->state != HoldState::kCommitted) {
    out += record->state == HoldState::kReleased ? "OK released" : "OK expired";
  } else {
    out += "OK committed";
    for (std::size_t i = 0; i < record->tags; ++i) {
      out += ' ';
      AppendNumber(out, record->actual[i]);
    }
  }
}

void AskReturns::Give(const Line& line, std::string& out, Instant now) {
  const auto named = std::span(named_).subspan(line.begin, line.end - line.begin);
  out += "OK ";
  const auto give = [&](const Query& query) { return GiveOne(*line.holder, query.tag, now); };
  AppendNumber(out, std::ranges::count_if(named, give));
}

// A place, or else what a question waits for. False: the connection has neither.
bool AskReturns::GiveOne(Holder& holder, const Tag& tag, Instant now) {
  const std::uint64_t hash = limiter_.table().Hash(tag);
  const auto its = holder.places.find(hash);
  if (its == holder.places.end()) return holder.waits.Give(hash, now, [&](const Query& paid) { GiveUp(paid, now); });
  limiter_.GivePlaces(hash, 1);
  if (--its->second == 0) holder.places.erase(its);
  return true;
}

void AskReturns::GiveUp(const Query& paid, Instant now) {
  limiter_.GiveBack(paid, now);
  ++given_up_;
}

void AskReturns::Indicate(const Line& line, std::string& out) const {
  const Result<void> taken =
      take_report_ != nullptr ? take_report_(named_[line.begin].tag, line.report) : Fail("this host divides nothing");
  taken ? out += "OK" : out += "ERR " + taken.error().message;
}

void AskReturns::Clear() {
  lines_.clear();
  named_.clear();
  named_tags_.Clear();
}

// ---- Connections ----

void AskReturns::Leave(Holder& holder, Instant now) {
  if (holds_ != nullptr) holds_->Leave(holder, now);
  for (const auto& [hash, places] : holder.places) limiter_.GivePlaces(hash, places);
  holder.places.clear();
  holder.waits.GiveAll(now, [&](const Query& paid) { GiveUp(paid, now); });
}

void AskReturns::TakeUp(Holder& holder) {
  for (const auto& [hash, places] : holder.places) limiter_.RestorePlaces(hash, places);
}

bool AskReturns::HasAny(const Holder& holder, Instant now) const {
  const auto is_open = [&](HoldId id) { return holds_ != nullptr && holds_->IsOpen(id); };
  return !holder.places.empty() || holder.waits.any(now) ||
         std::any_of(holder.holds.begin(), holder.holds.end(), is_open);
}

}    // namespace dthrottle
