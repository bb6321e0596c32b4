// The lines of a turn that are no questions: what connections give back, holds that they settle, places and waits, and
// what applications report of themselves.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "frontend/ask/tags.h"
#include "hold/holder.h"
#include "hold/holds.h"
#include "hold/waits.h"
#include "limiter/limiter.h"
#include "query/named_tag.h"

namespace dthrottle {

// Takes how an application does with this host's part of a tag; the reason if that is not wanted.
using TakeReport = std::function<Result<void>(const Tag& tag, double value)>;

class AskReturns {
 public:
  // Both must outlive it; null: nothing can be held. Waits are numbered from `first_wait` on, which is random.
  AskReturns(Limiter& limiter, Holds* holds, std::uint64_t first_wait, std::size_t tag_bytes_max,
             TakeReport take_report)
      : limiter_(limiter),
        holds_(holds),
        next_wait_(first_wait),
        take_report_(std::move(take_report)),
        named_tags_(tag_bytes_max) {}

  // Whether a line that begins so is one of these.
  static bool IsVerb(std::string_view verb) { return KindOf(verb).has_value(); }

  // Reads what stands behind the verb of a connection's line. Returns what is wrong with it, or nothing: then it is
  // lines() - 1 of those that Answer knows.
  std::string Read(std::string_view verb, std::string_view line, Holder& holder, AskTags& tags);
  std::size_t lines() const { return lines_.size(); }

  // Does what a line says and appends the answer.
  void Answer(std::size_t line, std::string& out, Instant now);
  void Clear();

  // The question of a connection has paid, and waits so long before it goes on; `outlasts`: whatever becomes of the
  // connection. Nothing: there is no room to keep what it has paid, so it cannot be given back.
  std::optional<WaitId> KeepWait(Holder& holder, std::span<const Payment> paid, Duration wait, bool outlasts,
                                 Instant now);

  // Gives back all that a connection has, but waits that outlast it; of holds see Holds::Leave.
  void Leave(Holder& holder, Instant now);
  // A connection goes on with what it had in another process.
  void TakeUp(Holder& holder);
  // Whether it has a place or a hold, or waits for something.
  bool HasAny(const Holder& holder, Instant now) const;

  std::uint64_t given_up() const { return given_up_; }    // waits

  std::uint64_t over_long() const { return named_tags_.over_long(); }

 private:
  enum class Kind : std::uint8_t { kCommit, kRelease, kGive, kRefund, kRefundAll, kIndicate };
  struct Line {
    Kind kind;
    Holder* holder = nullptr;
    HoldId id = 0;
    std::size_t numbers = 0;    // of `actual`
    std::array<Cost, kHoldTagsMax> actual{};
    std::size_t begin = 0, end = 0;    // of named_, but for settlements
    double report = 0;                 // kIndicate
  };

  static std::optional<Kind> KindOf(std::string_view verb);
  std::string ReadSettlement(std::string_view line, Line& read);
  std::string ReadGift(std::string_view line, Line& read, AskTags& tags);
  std::string ReadRefund(std::string_view line, Line& read, AskTags& tags);
  std::string ReadReportLine(std::string_view line, Line& read, AskTags& tags);
  void Settle(const Line& line, std::string& out, Instant now);
  void Give(const Line& line, std::string& out);
  void Refund(const Line& line, std::string& out, Instant now);
  void RefundAll(const Line& line, std::string& out, Instant now);
  bool Leave(Holder& holder, const Query& query);
  void GivePlace(Holder& holder, std::uint64_t hash);
  bool GiveUp(WaitId id, Instant now);
  void LeaveWaits(Waits& waits, Instant now);
  void Indicate(const Line& line, std::string& out) const;

  Limiter& limiter_;
  Holds* const holds_;
  Waits left_{Waits::kLeftTagsMax};     // by connections that have ended
  std::map<WaitId, Waits*> waiting_;    // whose the waits are
  std::uint64_t next_wait_;
  const TakeReport take_report_;
  std::vector<Line> lines_;
  std::vector<Query> named_;    // tags of which a place or tokens are given back, or something is reported
  NamedTags named_tags_;        // what they point to
  std::uint64_t given_up_ = 0;
};

}    // namespace dthrottle
