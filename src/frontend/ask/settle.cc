// Lines about what is taken for a while: holds and how they are settled, places and how they are given back.
#include <fmt/format.h>

#include <span>

#include "frontend/ask/turn.h"
#include "frontend/ask/words.h"

namespace dthrottle {

namespace {

constexpr std::string_view kHoldUsage = "TTL must follow, and COST TAG for each tag";
constexpr std::string_view kCommitUsage = "ID must follow, and ACTUAL once or for each tag";
constexpr std::string_view kHere = "here";    // the hold ends with its connection

}    // namespace

// ---- Taking lines ----

void AskTurn::OnHold(Line& held, std::string_view rest) {
  if (!CanHold()) return;
  const std::string_view word = NextWord(rest);
  std::uint32_t ttl_ms = 0;
  const auto most = std::chrono::floor<std::chrono::milliseconds>(holds_->ttl_max()).count();
  if (word.empty()) return void(Complain(kHoldUsage));
  if (!ParseNumber(word, ttl_ms) || ttl_ms == 0 || ttl_ms > most) {
    return void(Complain(fmt::format("TTL must be a whole number from 1 to {} (ms, hold.max_ttl): {}", most, Shown(word))));
  }
  held.kind = Kind::kHold;
  held.ttl = std::chrono::milliseconds(ttl_ms);
  held.here = TakeWord(rest, kHere);
  if (OnQuestion(held, Verb::kTake, rest)) ++holding_;
}

// Whether a record has room for the tags of the batch's last question.
bool AskTurn::FitsHold(const Batch& batch) {
  const auto tags = batch.questions.queries().subspan(batch.questions[batch.questions.size() - 1].first);
  std::size_t bytes = 0;
  for (const Query& query : tags) bytes += query.tag.bytes.size();
  return bytes <= kHoldTagBytesMax ||
         Complain(fmt::format("the tags of a hold have at most {} bytes together", kHoldTagBytesMax));
}

// Whether there is room for another hold beside those of this turn. False: the answer says so.
bool AskTurn::CanHold() {
  if (holds_ == nullptr) return Complain("holds are off: hold.max_holds is 0");
  if (holding_ < holds_->room()) return true;
  holds_->CountFull();
  return Complain(fmt::format("no room for another hold: hold.max_holds is {}", holds_->counts().max));
}

void AskTurn::OnSettlement(std::string_view verb, std::string_view line) {
  if (holds_ == nullptr) return void(CanHold());
  Settlement settlement{.commits = verb == "commit"};
  if (!ReadSettlement(line, settlement)) return;
  ++counts_.settlements;
  batch_open_ = false;
  settlements_.push_back(settlement);
  lines_.push_back({.kind = Kind::kSettlement, .begin = settlements_.size() - 1});
}

void AskTurn::OnGift(Holder& holder, std::string_view line) {
  const std::size_t before = gifts_.size();
  for (std::string_view word; !(word = NextWord(line)).empty();) {
    if (gifts_.size() - before == Questions::kTagsMax) {
      gifts_.resize(before);
      return void(Complain(fmt::format("a line gives back at most {} places", Questions::kTagsMax)));
    }
    gifts_.push_back(MakeQuery(word, 1));
  }
  if (gifts_.size() == before) return void(Complain("TAG must follow"));
  ++counts_.settlements;
  tags_ += gifts_.size() - before;
  batch_open_ = false;
  lines_.push_back({.kind = Kind::kGift, .holder = &holder, .begin = before, .end = gifts_.size()});
}

bool AskTurn::ReadSettlement(std::string_view line, Settlement& read) {
  const std::string_view id = NextWord(line);
  if (id.empty()) return Complain(read.commits ? kCommitUsage : "ID must follow");
  if (!ParseNumber(id, read.id, 16)) return Complain(fmt::format("ID must be as hold has answered it: {}", Shown(id)));
  for (std::string_view word; !(word = NextWord(line)).empty();) {
    if (!read.commits) return Complain("nothing may follow ID");
    if (read.costs == read.actual.size()) return Complain(fmt::format("a hold has at most {} tags", read.costs));
    if (!ParseNumber(word, read.actual[read.costs++])) {
      return Complain(fmt::format("ACTUAL must be a whole number: {}", Shown(word)));
    }
  }
  return !read.commits || read.costs > 0 || Complain(kCommitUsage);
}

// ---- Answering ----

void AskTurn::AppendHeld(const Line& line) {
  const Batch& batch = batches_[line.batch];
  const Questions::Question& question = batch.questions[line.question];
  const HoldId id = holds_->Keep(batch.questions.queries().subspan(question.first, question.tags),
                                 line.here ? line.holder : nullptr, now_ + line.ttl);
  fmt::format_to(std::back_inserter(out_), " {:x}", id);
}

void AskTurn::AppendSettled(const Settlement& settlement) {
  const std::size_t tags = holds_->TagsOf(settlement.id);
  if (settlement.commits && settlement.costs > 1 && tags != 0 && settlement.costs != tags) {
    fmt::format_to(std::back_inserter(out_), "ERR ACTUAL once or {} times, for the hold has as many tags", tags);
    return;
  }
  const HoldRecord* const record =
      settlement.commits ? holds_->Commit(settlement.id, std::span(settlement.actual).first(settlement.costs), now_)
                         : holds_->Release(settlement.id, now_);
  if (record == nullptr) {
    out_ += "NO unknown";
  } else if (record->state == HoldState::kCommitted) {
    out_ += "OK committed";
    for (std::size_t i = 0; i < record->tags; ++i) {
      out_ += ' ';
      AppendNumber(out_, record->actual[i]);
    }
  } else {
    out_ += record->state == HoldState::kReleased ? "OK released" : "OK expired";
  }
}

// ---- Places ----

// The connection has the places that a question has taken.
void AskTurn::Enter(const Line& line) {
  const Batch& batch = batches_[line.batch];
  const Questions::Question& question = batch.questions[line.question];
  for (std::size_t i = question.first; i < question.first + question.tags; ++i) {
    if (standings_[i].entered) ++line.holder->places[limiter_.table().Hash(batch.questions.queries()[i].tag)];
  }
}

void AskTurn::AppendGift(const Line& line) {
  std::int64_t given = 0;
  auto& places = line.holder->places;
  for (const Query& query : std::span(gifts_).subspan(line.begin, line.end - line.begin)) {
    const std::uint64_t hash = limiter_.table().Hash(query.tag);
    const auto its = places.find(hash);
    if (its == places.end()) continue;
    limiter_.GivePlaces(hash, 1);
    if (--its->second == 0) places.erase(its);
    ++given;
  }
  out_ += "OK ";
  AppendNumber(out_, given);
}

void AskTurn::Leave(Holder& holder, Instant now) {
  if (holds_ != nullptr) holds_->Leave(holder, now);
  for (const auto& [hash, places] : holder.places) limiter_.GivePlaces(hash, places);
  holder.places.clear();
}

void AskTurn::TakeUp(Holder& holder) {
  for (const auto& [hash, places] : holder.places) limiter_.RestorePlaces(hash, places);
}

}    // namespace dthrottle
