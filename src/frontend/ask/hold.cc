// Questions that take something for a while: tokens of a hold, places of a connection, tokens that it waits for.
#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <utility>

#include "base/number.h"
#include "base/words.h"
#include "frontend/ask/turn.h"
#include "limiter/inspect.h"
#include "share/derived_tag.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

constexpr std::string_view kHoldUsage = "TTL must follow, and COST TAG for each tag";
constexpr std::string_view kHere = "here";    // the hold ends with its connection

}    // namespace

// ---- Taking lines ----

// A hold that has room whatever comes before it in the turn is decided together with questions beside it. Any other is
// decided alone, once what is before it is answered: that may be refused, or make room.
void AskTurn::OnHold(Line& held, std::string_view rest) {
  if (holds_ == nullptr) return void(Complain("holds are off: hold.max_holds is 0"));
  const std::string_view word = NextWord(rest);
  std::uint32_t ttl_ms = 0;
  const auto most = std::chrono::floor<std::chrono::milliseconds>(holds_->ttl_max()).count();
  if (word.empty()) return void(Complain(kHoldUsage));
  if (!ParseNumber(word, ttl_ms) || ttl_ms == 0 || ttl_ms > most) {
    Complain(fmt::format("TTL must be a whole number from 1 to {} (ms, hold.max_ttl): {}", most, Shown(word)));
    return;
  }
  held.kind = Kind::kHold;
  held.ttl = std::chrono::milliseconds(ttl_ms);
  held.here = TakeWord(rest, kHere);
  held.alone = holding_ >= holds_->room();
  if (held.alone) batch_open_ = false;
  if (OnQuestion(held, Verb::kHold, rest)) ++holding_;
  if (held.alone) batch_open_ = false;
}

// ---- Answering ----

// Whether there is no room for the hold of a line. True: the answer says so, and the line takes nothing.
bool AskTurn::FindsNoRoom(const Line& line) {
  if (!line.alone || holds_->room() > 0) return false;
  holds_->CountFull();
  ++counts_.errors;
  answers_.text() += fmt::format("ERR no room for another hold: hold.max_holds is {}", holds_->counts().max);
  return true;
}

void AskTurn::AppendHeld(const Line& line, Instant now) {
  const std::vector<Payment> paid = batches_[line.batch].asking.payments(line.question);
  Holder* const holder = line.here ? line.holder : nullptr;
  const HoldId id = holds_->Keep(paid, holder, now + line.ttl);
  fmt::format_to(std::back_inserter(answers_.text()), " {:x}", id);
}

// The connection has the places that a question has taken.
void AskTurn::KeepPlaces(const Line& line, Instant now) {
  const Asking& asking = batches_[line.batch].asking;
  if (asking.verb(line.question) != Verb::kEnter) return;
  const auto queries = asking.queries(line.question);
  Holder& holder = *line.holder;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const std::uint64_t hash = limiter_.table().Hash(queries[i].tag);
    Entered entered{hash, {}};
    if (asking.tag(line.question, i).standing.entered) entered.places.push_back(hash);
    for (const std::string& with : PlacesWith(limiter_, queries[i], now)) {
      entered.places.push_back(limiter_.table().Hash(DerivedTag(with, limiter_.ways().core()).tag()));
    }
    if (entered.places.empty()) continue;
    for (const std::uint64_t place : entered.places) ++holder.places[place];
    ++holder.entered[std::move(entered)];
  }
}

// It can give back what a question waits for.
void AskTurn::AppendWaiting(const Line& line, Instant now) {
  const Asking& asking = batches_[line.batch].asking;
  std::optional<WaitId> id;
  if (asking.verb(line.question) == Verb::kTake) {
    ++counts_.waits;
    const Duration wait = asking.wait(line.question);
    id = returns_.KeepWait(*line.holder, asking.payments(line.question), wait, line.keep, now);
  }
  auto out = std::back_inserter(answers_.text());
  id.has_value() ? fmt::format_to(out, " {:x}", *id) : fmt::format_to(out, " -");
}

}    // namespace dthrottle
