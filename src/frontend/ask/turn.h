// Question lines of many connections, answered together at one instant (protocol/ask.md), and lines that settle what was
// held. Knows no sockets.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "admin/snapshot.h"
#include "base/prng.h"
#include "hold/holder.h"
#include "hold/holds.h"
#include "limiter/limiter.h"
#include "query/named_tag.h"
#include "query/question.h"

namespace dthrottle {

class AskTurn {
 public:
  // Uses `lane` of the limiter, on its thread. Limiter and holds must outlive this object; null: nothing can be held.
  AskTurn(Limiter& limiter, Holds* holds, std::size_t lane, Prng prng, std::size_t tag_bytes_max);

  // Takes a line of the connection that is `holder`, without its LF. Its bytes must stay until Answer.
  void OnLine(std::string_view line, Holder& holder);
  // Takes the news of a line that was too long to be kept.
  void OnTooLong();

  // Gives back all that the connection has.
  void Leave(Holder& holder, Instant now);
  // The connection goes on with what it had in another process.
  void TakeUp(Holder& holder);

  // Lines taken, and tags that they name.
  std::size_t lines() const { return lines_.size(); }
  std::size_t tags() const { return tags_; }

  // Decides everything at `now`. Then Answers(first, n) are the answers to n lines, until Clear().
  void Answer(Instant now);
  std::string_view Answers(std::size_t first, std::size_t n) const;
  void Clear();

  // What questions count; connections are the server's.
  const AskCounts& counts() const { return counts_; }
  std::uint64_t over_long() const { return over_long_tags_; }

 private:
  // Questions that are decided together: those between two settlements.
  struct Batch {
    Questions questions;
    std::vector<std::string_view> words;    // how each of questions.queries() is written
    bool asked = false;
  };
  enum class Kind : std::uint8_t { kWrong, kQuestion, kHold, kSettlement, kGift };
  struct Line {
    Kind kind;
    Holder* holder = nullptr;    // the connection's
    bool tells_limit = false;
    bool here = false;                      // kHold: it ends with its connection
    Duration ttl{};                         // kHold
    std::size_t batch = 0, question = 0;    // of kQuestion and kHold
    std::size_t begin = 0, end = 0;         // kWrong: of complaints_; kSettlement: of settlements_; kGift: of gifts_
  };
  struct Settlement {
    HoldId id = 0;
    bool commits = false;    // else all comes back
    std::size_t costs = 0;
    std::array<Cost, kHoldTagsMax> actual{};
  };

  Batch& OpenBatch();
  bool OnQuestion(Line& line, Verb verb, std::string_view rest);
  bool Read(Batch& batch, std::string_view line);
  bool Complain(std::string_view what);
  Query MakeQuery(std::string_view word, Cost cost);
  void AppendOutcome(const Line& line);
  void AppendServed(const Line& line);
  void AppendRefused(const Line& line);
  std::optional<std::int64_t> LeftOf(const Standing& standing) const;
  void AppendLeft(const Standing& standing);
  void AppendRule(const Standing& standing);
  void AppendLimit(const Standing& standing);

  // settle.cc
  void OnHold(Line& line, std::string_view rest);
  void OnGift(Holder& holder, std::string_view rest);
  void AppendGift(const Line& line);
  void Enter(const Line& line);
  void OnSettlement(std::string_view verb, std::string_view rest);
  bool ReadSettlement(std::string_view line, Settlement& read);
  bool CanHold();
  bool FitsHold(const Batch& batch);
  void AppendHeld(const Line& line);
  void AppendSettled(const Settlement& settlement);

  Limiter& limiter_;
  Holds* const holds_;
  const std::size_t lane_;
  Prng prng_;
  const std::size_t tag_bytes_max_;

  std::vector<Line> lines_;
  std::string complaints_;
  std::vector<Batch> batches_;    // the first batches_used_ are this turn's
  std::size_t batches_used_ = 0;
  bool batch_open_ = false;    // the last of them takes more questions
  std::size_t tags_ = 0;
  std::size_t holding_ = 0;    // lines that want to hold something
  std::vector<Settlement> settlements_;
  std::vector<Query> gifts_;    // tags of which a place is given back
  std::deque<std::string> unescaped_;
  std::deque<NamedTag> over_long_;
  std::vector<Outcome> outcomes_;      // of the batch that was asked last
  std::vector<Standing> standings_;    // of its tags
  Instant now_{};
  std::string out_;
  std::vector<std::size_t> ends_;    // of each answer, in out_

  AskCounts counts_;
  std::uint64_t over_long_tags_ = 0;
};

}    // namespace dthrottle
