// Question lines of many connections, answered together at one instant (protocol/ask.md), and lines that settle what
// was held. Knows no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "admin/snapshot.h"
#include "base/prng.h"
#include "frontend/answers.h"
#include "frontend/ask/answer.h"
#include "frontend/ask/returns.h"
#include "frontend/ask/tags.h"
#include "hold/holder.h"
#include "hold/holds.h"
#include "limiter/asking.h"
#include "limiter/limiter.h"

namespace dthrottle {

class AskTurn {
 public:
  // Uses `lane` of the limiter, on its thread. Limiter and holds must outlive this object; null: nothing can be held.
  AskTurn(Limiter& limiter, Holds* holds, LaneUse lane, Prng prng, std::size_t tag_bytes_max,
          TakeReport take_report = nullptr);

  // Takes a line of the connection that is `holder`, without its LF. Its bytes must stay until Answer.
  void OnLine(std::string_view line, Holder& holder);
  // Takes the news of a line that was too long to be kept.
  void OnTooLong();
  // Takes a line that `answer` answers.
  void OnAnswered(std::string_view answer);

  // From now on a tag whose rule does not allow the limit that it names is asked for without it (rule/own_limit.h).
  void TakeOnlyAllowedLimits() { only_allowed_limits_ = true; }
  std::uint64_t limits_refused() const { return limits_refused_; }

  // What connections give back, and what they have.
  AskReturns& returns() { return returns_; }

  // Lines taken, and tags that they name.
  std::size_t size() const { return lines_.size(); }
  std::size_t tags() const { return named_; }

  // Decides everything at `now`. Then answers() has one for each line, until Clear().
  void Answer(Instant now);
  const Answers& answers() const { return answers_; }
  void Clear();

  // What questions count; connections are the server's.
  AskCounts counts() const;
  std::uint64_t over_long() const;

 private:
  // Questions that are decided together: those between two settlements, but a hold that has to look for room.
  struct Batch {
    Asking asking;
    bool asked = false;
  };
  enum class Kind : std::uint8_t { kAnswered, kQuestion, kHold, kReturn };
  struct Line {
    Kind kind;
    Holder* holder = nullptr;    // the connection's
    AskTell tells{};
    Duration patience{};                    // kQuestion: how long it would wait
    bool keep = false;                      // kQuestion: its wait outlasts its connection
    bool here = false;                      // kHold: it ends with its connection
    bool alone = false;                     // kHold: no other question is in its batch
    Duration ttl{};                         // kHold
    std::size_t batch = 0, question = 0;    // of kQuestion and kHold
    std::size_t begin = 0, end = 0;         // kAnswered: of texts_
    std::size_t returned = 0;               // kReturn: of returns_
  };

  Asking& OpenBatch();
  void OnReturn(std::string_view verb, std::string_view rest, Holder& holder);
  bool OnQuestion(Line& line, Verb verb, std::string_view rest);
  bool Read(Asking& asking, std::string_view line);
  std::string_view Allowed(std::string_view tag);
  bool Complain(std::string_view what);
  void AppendOutcome(const Line& line, Instant now);

  // hold.cc
  void OnHold(Line& line, std::string_view rest);
  bool FindsNoRoom(const Line& line);
  void AppendHeld(const Line& line, Instant now);
  void KeepPlaces(const Line& line, Instant now);
  void AppendWaiting(const Line& line, Instant now);

  Limiter& limiter_;
  Holds* const holds_;
  const LaneUse lane_;
  Prng prng_;
  const std::size_t tag_bytes_max_;
  AskTags tags_;
  AskReturns returns_;

  std::vector<Line> lines_;
  std::string texts_;
  std::deque<Batch> batches_;    // the first batches_used_ are this turn's
  std::size_t batches_used_ = 0;
  bool batch_open_ = false;    // the last of them takes more questions
  std::size_t named_ = 0;      // tags
  std::size_t holding_ = 0;    // lines that want to hold something
  Answers answers_;

  AskCounts counts_;
  bool only_allowed_limits_ = false;
  std::uint64_t limits_refused_ = 0;
};

}    // namespace dthrottle
