#include "frontend/ask/returns.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "base/append.h"
#include "base/number.h"
#include "base/words.h"
#include "capacity/indicator.h"
#include "limiter/asking.h"
#include "limiter/places.h"

namespace dthrottle {

namespace {

bool IsWait(HoldId id) {
  return (id & kWaitBit) != 0;
}

// Tokens that the bucket has less than it holds, rounded up: so many were spent since it was full.
Cost LackOf(const Standing& standing, Instant now) {
  if (!standing.limited()) return 0;
  const auto& [interval, depth] = standing.shape;
  const Ticks debt = (standing.bucket.Debt(standing.shape, now) + interval - 1) / interval;
  const Ticks lack = depth / interval - standing.bucket.WholeTokens(standing.shape, now) + debt;
  return static_cast<Cost>(std::min<Ticks>(lack, std::numeric_limits<Cost>::max()));
}

}    // namespace

// ---- Taking lines ----

std::optional<AskReturns::Kind> AskReturns::KindOf(std::string_view verb) {
  if (verb == "commit") return Kind::kCommit;
  if (verb == "release") return Kind::kRelease;
  if (verb == "give") return Kind::kGive;
  if (verb == "refund") return Kind::kRefund;
  if (verb == "indicate") return Kind::kIndicate;
  return std::nullopt;
}

std::string AskReturns::Read(std::string_view verb, std::string_view line, Holder& holder, AskTags& tags) {
  Line read{.kind = KindOf(verb).value(), .holder = &holder};
  std::string wrong = read.kind == Kind::kGive       ? ReadGift(line, read, tags)
                      : read.kind == Kind::kRefund   ? ReadRefund(line, read, tags)
                      : read.kind == Kind::kIndicate ? ReadReportLine(line, read, tags)
                                                     : ReadSettlement(line, read);
  if (wrong.empty()) lines_.push_back(read);
  return wrong;
}

std::string AskReturns::ReadSettlement(std::string_view line, Line& read) {
  const bool commits = read.kind == Kind::kCommit;
  const std::string usage = commits ? "ID must follow, and ACTUAL once or for each tag" : "ID must follow";
  const std::string_view id = NextWord(line);
  if (id.empty()) return usage;
  if (!ParseNumber(id, read.id, 16)) return fmt::format("ID must be as the answer had it: {}", Shown(id));
  if (holds_ == nullptr && !IsWait(read.id)) return "holds are off: hold.max_holds is 0";
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

std::string AskReturns::ReadRefund(std::string_view line, Line& read, AskTags& tags) {
  if (TakeWord(line, "all")) {
    read.kind = Kind::kRefundAll;
    return ReadGift(line, read, tags);
  }
  read.begin = named_.size();
  const auto wrong = [&](std::string what) {
    named_.resize(read.begin);
    return what;
  };
  for (std::string_view word; !(word = NextWord(line)).empty();) {
    const auto cost = ReadCost(word);
    if (!cost.has_value()) return wrong(fmt::format("COST must be a whole number: {}", Shown(word)));
    const std::string_view tag = NextWord(line);
    if (tag.empty()) return wrong(fmt::format("a TAG is missing behind {}", Shown(word)));
    if (named_.size() - read.begin == kHoldTagsMax) {
      return wrong(fmt::format("a line gives back at most {} tags", kHoldTagsMax));
    }
    named_.push_back(named_tags_.Read(tags.Unescape(tag), *cost, limiter_.keys().digest));
  }
  read.end = named_.size();
  return read.begin == read.end ? "COST TAG must follow, once for each tag" : "";
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
  if (its.kind == Kind::kRefund) return Refund(its, out, now);
  if (its.kind == Kind::kRefundAll) return RefundAll(its, out, now);
  its.kind == Kind::kGive ? Give(its, out) : Settle(its, out, now);
}

void AskReturns::Settle(const Line& line, std::string& out, Instant now) {
  if (IsWait(line.id)) {
    out += line.kind == Kind::kRelease && GiveUp(line.id, now) ? "OK released" : "NO unknown";
    return;
  }
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
    for (std::size_t i = 0; i < record->tags; ++i) Append(out, " ", record->actual[i]);
  }
}

void AskReturns::Give(const Line& line, std::string& out) {
  const auto named = std::span(named_).subspan(line.begin, line.end - line.begin);
  Append(out, "OK ", std::ranges::count_if(named, [&](const Query& query) { return Leave(*line.holder, query); }));
}

void AskReturns::Refund(const Line& line, std::string& out, Instant now) {
  for (std::size_t i = line.begin; i < line.end; ++i) limiter_.GiveBack(named_[i], 0, now);
  out += "OK";
}

void AskReturns::RefundAll(const Line& line, std::string& out, Instant now) {
  for (std::size_t i = line.begin; i < line.end; ++i) {
    Query& query = named_[i];
    query.cost = 0;    // giving back nothing says where the tag stands
    query.cost = LackOf(limiter_.GiveBack(query, 0, now), now);
    if (query.cost > 0) limiter_.GiveBack(query, 0, now);
  }
  out += "OK";
}

// The connection gives back what it has by one question about the tag. False: it has nothing.
bool AskReturns::Leave(Holder& holder, const Query& query) {
  const std::uint64_t hash = limiter_.table().Hash(query.tag);
  const auto entered = holder.entered.lower_bound({hash, {}});
  if (entered == holder.entered.end() || entered->first.tag != hash) return false;
  for (const std::uint64_t place : entered->first.places) GivePlace(holder, place);
  if (--entered->second == 0) holder.entered.erase(entered);
  return true;
}

void AskReturns::GivePlace(Holder& holder, std::uint64_t hash) {
  const auto its = holder.places.find(hash);
  if (its == holder.places.end()) return;
  GivePlaces(limiter_, hash, 1);
  if (--its->second == 0) holder.places.erase(its);
}

std::optional<WaitId> AskReturns::KeepWait(Holder& holder, std::span<const Payment> paid, Duration wait,
                                           bool outlasts, Instant now) {
  holder.waits.DropOver(now, paid.size(), [&](WaitId id) { waiting_.erase(id); });
  const WaitId id = kWaitBit | next_wait_++;
  if (!holder.waits.Add(id, paid, now + wait, outlasts)) return std::nullopt;
  waiting_.emplace(id, &holder.waits);
  return id;
}

// False: the wait is over or forgotten, or has never been.
bool AskReturns::GiveUp(WaitId id, Instant now) {
  const auto its = waiting_.find(id);
  if (its == waiting_.end()) return false;
  Waits& waits = *its->second;
  waiting_.erase(its);
  const bool given = waits.Give(id, now, [&](const Payment& paid) { limiter_.GiveUp(paid, now); });
  given_up_ += given;
  return given;
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
  if (holds_ != nullptr) holds_->Leave(holder);
  for (const auto& [hash, places] : holder.places) GivePlaces(limiter_, hash, places);
  holder.places.clear();
  holder.entered.clear();
  LeaveWaits(holder.waits, now);
}

void AskReturns::LeaveWaits(Waits& waits, Instant now) {
  left_.DropOver(now, waits.tags(), [&](WaitId id) { waiting_.erase(id); });
  for (const WaitId id : waits.ids()) {
    if (!waits.IsKept(id)) {
      GiveUp(id, now);
    } else if (waits.Leave(id, left_, now)) {
      waiting_[id] = &left_;
    } else {
      waiting_.erase(id);
    }
  }
}

void AskReturns::TakeUp(Holder& holder) {
  for (const auto& [hash, places] : holder.places) RestorePlaces(limiter_, hash, places);
  for (const WaitId id : holder.waits.ids()) waiting_.emplace(id, &holder.waits);
}

bool AskReturns::HasAny(const Holder& holder, Instant now) const {
  const auto is_open = [&](HoldId id) { return holds_ != nullptr && holds_->IsOpen(id); };
  return !holder.places.empty() || holder.waits.any(now) || std::ranges::any_of(holder.holds, is_open);
}

}    // namespace dthrottle
