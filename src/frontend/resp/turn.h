// Commands of many connections, answered together at one instant: CL.THROTTLE asks the limiter in the words of
// redis-cell, DT.TAKE and DT.PEEK ask about several keys at once, the rest is small talk (frontend/resp/commands.h).
// Memory is waited for once a batch, as for queries.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "admin/snapshot.h"
#include "base/prng.h"
#include "base/result.h"
#include "frontend/answers.h"
#include "frontend/resp/commands.h"
#include "limiter/asking.h"
#include "limiter/brought.h"
#include "limiter/limiter.h"
#include "query/named_tag.h"

namespace dthrottle {

// CL.THROTTLE as it was asked.
struct ThrottleRequest {
  std::string_view key;
  std::int64_t max_burst = 0;    // beside the one that is always there
  std::int64_t count = 0;
  std::int64_t period_s = 0;
  std::int64_t quantity = 1;    // negative: give back

  BroughtLimit limit() const { return {max_burst + 1, count, period_s}; }
};

// Fails with the text of redis-cell's error. The numbers of the result are not negative but for the quantity, nothing
// of the rate is zero, and max_burst + 1 is a number.
Result<ThrottleRequest> ParseThrottle(RespArguments arguments);

// The five integers of redis-cell's reply.
struct ThrottleReply {
  bool limited;
  std::int64_t limit;            // the most tokens there can be
  std::int64_t remaining;        // whole tokens
  std::int64_t retry_after_s;    // -1: it was served, or never will be
  std::int64_t reset_after_s;    // until full

  friend bool operator==(const ThrottleReply&, const ThrottleReply&) = default;
};

// `standing` is what the decision left.
ThrottleReply MakeReply(const ThrottleRequest& request, bool served, const Standing& standing, Instant now);

class RespTurn {
 public:
  // Replies that the commands of one read may make, CL.THROTTLE's aside, which are small. Six bytes can ask for a
  // thousand; a client that asks for more than this is closed.
  static constexpr std::size_t kReplyBytesMax = 256 * 1024;

  // Uses `lane` of the limiter, on its thread. With `brought`, limits are those that queries bring. Both must outlive
  // this object; `status` tells what INFO wants to know.
  RespTurn(Limiter& limiter, BroughtLimits* brought, std::size_t lane, Prng prng, std::size_t tag_bytes_max,
           std::function<RespStatus()> status);

  // Takes a command. The bytes of its arguments must stay until Answer. What it changes in the client is changed at
  // once.
  void Add(RespClient& client, RespArguments arguments);

  // Takes the news that the client sent what is no command; it leaves.
  void AddProtocolError(RespClient& client, const Error& error);

  // Pieces of replies taken so far, and the bytes of those that are there already. A reply is one piece, and that of
  // EXEC one more for each command of the transaction.
  std::size_t size() const { return replies_.size(); }
  std::size_t text_bytes() const { return texts_.size(); }

  // Decides everything at `now`. Then answers() are the pieces, until Clear().
  void Answer(Instant now);
  const Answers& answers() const { return answers_; }
  void Clear();

  const RespCounts& counts() const { return counts_; }    // of commands; connections and the table are the server's
  std::uint64_t over_long() const { return named_tags_.over_long() + asking_.over_long(); }

 private:
  // A piece that is there, at [begin, end) of texts_, or one that has to be decided: requests_[begin] or
  // questions_[begin].
  enum class Kind { kText, kThrottle, kQuestion };
  struct Reply {
    Kind kind;
    std::size_t begin, end;
  };

  // DT.TAKE or DT.PEEK as it was asked: of keys_ those at [begin, end).
  struct KeyedQuestion {
    Verb verb;
    std::size_t begin, end;
    int protocol;    // of the reply
  };
  struct KeyAndCost {
    std::string_view key;
    Cost cost;
  };

  void AddText(std::size_t begin) { replies_.push_back({Kind::kText, begin, texts_.size()}); }
  void AddError(std::string_view text);
  void Run(RespClient& client, RespArguments arguments);
  void Execute(RespClient& client, RespArguments arguments);
  void AddThrottle(RespArguments arguments);
  void AddQuestion(const RespClient& client, Verb verb, RespArguments arguments);
  Query MakeQuery(const ThrottleRequest& request);
  std::size_t DecideRun(std::size_t reply, Instant now);
  void DecideByRules(std::size_t first, std::size_t n, Instant now);
  Standing GiveBack(Query query, Instant now);
  void DecideAsBrought(std::size_t first, std::size_t n, Instant now);
  void DecideQuestions(std::size_t first, std::size_t n, Instant now);
  void AppendReply(const ThrottleReply& reply);
  void AppendAnswer(std::size_t asked, int protocol);

  Limiter& limiter_;
  BroughtLimits* const brought_;
  const std::size_t lane_;
  Prng prng_;
  const std::function<RespStatus()> status_;

  std::vector<Reply> replies_;
  std::string texts_;
  std::vector<ThrottleRequest> requests_;    // and, for each of them:
  std::vector<Query> queries_;
  std::vector<Verdict> verdicts_;
  std::vector<Standing> standings_;
  Questions peeked_;    // about a key that was given something back
  std::vector<KeyedQuestion> questions_;
  std::vector<KeyAndCost> keys_;
  Asking asking_;    // the questions of one run
  NamedTags named_tags_;
  std::deque<std::string> executed_;    // transactions, whose bytes the requests point to
  Answers answers_;

  RespCounts counts_;
};

}    // namespace dthrottle
