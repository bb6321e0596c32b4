#include "frontend/resp/turn.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/number.h"
#include "base/prng.h"
#include "frontend/resp/writer.h"

namespace dthrottle {

namespace {

constexpr std::string_view kThrottleUsage = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
constexpr std::string_view kOutOfBounds =
    "max_burst has to be below 1000000000, the rate at most 1000000000 a second, and refilling may take 366 days";

// An error with the prefix that redis-cell gives each of its errors.
tl::unexpected<Error> CellError(std::string_view what) {
  return Fail(fmt::format("Cell error: Store error: {}", what));
}

Result<std::int64_t> ParseInteger(std::string_view text) {
  std::int64_t value = 0;
  const std::string_view digits = text.starts_with('+') && !text.starts_with("+-") ? text.substr(1) : text;
  if (ParseNumber(digits, value)) return value;
  return CellError(fmt::format("Couldn't parse as integer: {}", text.substr(0, kRespQuotedBytesMax)));
}

// No bucket holds more than kBurstMax, so anything beyond what a Cost can say is as good as its most.
Cost ToCost(std::int64_t quantity) {
  constexpr std::uint64_t kMost = std::numeric_limits<Cost>::max();
  const auto magnitude =
      quantity < 0 ? ~static_cast<std::uint64_t>(quantity) + 1 : static_cast<std::uint64_t>(quantity);
  return static_cast<Cost>(std::min(magnitude, kMost));
}

}    // namespace

Result<ThrottleRequest> ParseThrottle(RespArguments arguments) {
  if (arguments.size() != 5 && arguments.size() != 6) return CellError(kThrottleUsage);
  std::int64_t numbers[4] = {0, 0, 0, 1};
  for (std::size_t i = 2; i < arguments.size(); ++i) {
    const auto number = ParseInteger(arguments[i]);
    if (!number) return tl::unexpected(number.error());
    numbers[i - 2] = *number;
  }
  const auto [max_burst, count, period_s, quantity] = numbers;
  // redis-cell counts in nanoseconds: a rate at which a token takes less is zero too.
  const bool too_fast = count > 0 && period_s > 0 && period_s <= (count - 1) / 1'000'000'000;
  if (count == 0 || period_s == 0 || too_fast) return CellError("Zero rates are not supported");
  if (max_burst < 0 || count < 0 || period_s < 0) return CellError("Negative limits are not supported");
  if (max_burst == std::numeric_limits<std::int64_t>::max()) return CellError(kOutOfBounds);
  return ThrottleRequest{arguments[1], max_burst, count, period_s, quantity};
}

ThrottleReply MakeReply(const ThrottleRequest& request, bool served, const Standing& standing, Instant now) {
  if (!standing.limited()) {
    const std::int64_t limit = request.max_burst + 1;
    return {false, limit, limit, -1, 0};
  }
  const Shape& shape = standing.shape;
  const Bucket& bucket = standing.bucket;
  const std::int64_t limit = shape.depth / shape.interval;
  std::int64_t retry_after_s = -1;
  if (!served && request.quantity <= limit) {
    const Cost cost = ToCost(std::max<std::int64_t>(request.quantity, 0));
    const Duration wait = std::max(standing.Until(cost, now), standing.penalty);
    retry_after_s = std::max<std::int64_t>(WholeSeconds(wait), 1);
  }
  return {!served, limit, bucket.WholeTokens(shape, now), retry_after_s, WholeSeconds(standing.UntilFull(now))};
}

RespTurn::RespTurn(Limiter& limiter, BroughtLimits* brought, std::size_t lane, Prng prng, std::size_t tag_bytes_max,
                   std::function<RespStatus()> status)
    : limiter_(limiter),
      brought_(brought),
      lane_(lane),
      prng_(prng),
      status_(std::move(status)),
      asking_(limiter, {lane, "resp"}, prng, tag_bytes_max),
      named_tags_(tag_bytes_max) {}

// ---- Taking commands ----

void RespTurn::AddError(std::string_view text) {
  const std::size_t begin = texts_.size();
  AppendError(texts_, text);
  AddText(begin);
}

void RespTurn::Add(RespClient& client, RespArguments arguments) {
  ++counts_.commands;
  if (IsOfBrowser(arguments)) {
    client.leaving = true;
    return;
  }
  const std::size_t begin = texts_.size();
  if (client.transaction.open && QueueRespCommand(client, arguments, texts_)) return AddText(begin);
  if (SameWord(arguments[0], "exec")) return Execute(client, arguments);
  Run(client, arguments);
}

void RespTurn::AddProtocolError(RespClient& client, const Error& error) {
  ++counts_.protocol_errors;
  client.leaving = true;
  AddError("ERR " + error.message);
}

void RespTurn::Run(RespClient& client, RespArguments arguments) {
  if (SameWord(arguments[0], kRespThrottle)) return AddThrottle(arguments);
  if (SameWord(arguments[0], kRespTake)) return AddQuestion(client, Verb::kTake, arguments);
  if (SameWord(arguments[0], kRespPeek)) return AddQuestion(client, Verb::kPeek, arguments);
  const std::size_t begin = texts_.size();
  RunRespCommand(client, arguments, status_, texts_);
  AddText(begin);
}

// Runs what was queued, at the instant of this turn and in order. It has been checked when it was queued, so what fails
// here fails before anything is asked: a transaction that is not run spends nothing.
void RespTurn::Execute(RespClient& client, RespArguments arguments) {
  if (arguments.size() != 1) return AddError("ERR wrong number of arguments for 'exec' command");
  RespTransaction transaction = std::exchange(client.transaction, {});
  if (!transaction.open) return AddError("ERR EXEC without MULTI");
  if (transaction.broken) return AddError("EXECABORT Transaction discarded because of previous errors.");

  const std::size_t begin = texts_.size(), replies = replies_.size(), requests = requests_.size(),
                    questions = questions_.size();
  const RespClient before = client;
  texts_ += fmt::format("*{}\r\n", transaction.commands);
  AddText(begin);
  struct Sink {
    RespTurn& turn;
    RespClient& client;
    std::size_t texts_max;

    bool OnCommand(RespArguments queued) {
      turn.Run(client, queued);
      return turn.text_bytes() <= texts_max;
    }
  } sink{*this, client, begin + kReplyBytesMax};
  RespReader reader;
  const bool read = reader.Read(executed_.emplace_back(std::move(transaction.bytes)), sink).has_value();
  if (read && text_bytes() <= sink.texts_max) return;
  client = before;
  texts_.resize(begin);
  replies_.resize(replies);
  requests_.resize(requests);
  queries_.resize(requests);
  questions_.resize(questions);
  AddError(fmt::format("EXECABORT Transaction discarded because its replies exceed {} bytes.", kReplyBytesMax));
}

void RespTurn::AddThrottle(RespArguments arguments) {
  auto request = ParseThrottle(arguments);
  if (request && brought_ != nullptr && !request->limit().ToShape()) request = CellError(kOutOfBounds);
  if (!request) return AddError(request.error().message);
  replies_.push_back({Kind::kThrottle, requests_.size(), 0});
  requests_.push_back(*request);
  queries_.push_back(MakeQuery(*request));
}

// Arguments are the verb, and a key and its cost for each tag.
void RespTurn::AddQuestion(const RespClient& client, Verb verb, RespArguments arguments) {
  if (arguments.size() < 3 || arguments.size() % 2 == 0) {
    return AddError(
        fmt::format("ERR wrong number of arguments for '{}' command", verb == Verb::kTake ? kRespTake : kRespPeek));
  }
  if (arguments.size() / 2 > Questions::kTagsMax) {
    return AddError(fmt::format("ERR a question has at most {} keys", Questions::kTagsMax));
  }
  const std::size_t begin = keys_.size();
  for (std::size_t i = 1; i < arguments.size(); i += 2) {
    const std::optional<Cost> cost = ReadCost(arguments[i + 1]);
    if (!cost) {
      keys_.resize(begin);
      return AddError(
          fmt::format("ERR a cost must be a whole number: {}", arguments[i + 1].substr(0, kRespQuotedBytesMax)));
    }
    keys_.push_back({arguments[i], *cost});
  }
  replies_.push_back({Kind::kQuestion, questions_.size(), 0});
  questions_.push_back({verb, begin, keys_.size(), client.protocol});
}

Query RespTurn::MakeQuery(const ThrottleRequest& request) {
  const DigestKey& key = brought_ != nullptr ? brought_->digest_key() : limiter_.keys().digest;
  return named_tags_.Read(request.key, ToCost(request.quantity), key);
}

// ---- Answering ----

// What is given back divides the batch: it is no query, and those behind it see what it left.
void RespTurn::DecideByRules(std::size_t first, std::size_t n, Instant now) {
  for (std::size_t i = first; i < first + n; ++i) {
    const std::size_t begin = i;
    while (i < first + n && requests_[i].quantity >= 0) ++i;
    limiter_.Answer(std::span(queries_).subspan(begin, i - begin), std::span(verdicts_).subspan(begin, i - begin),
                    {lane_, "resp"}, prng_, now, std::span(standings_).subspan(begin, i - begin));
    if (i == first + n) return;
    verdicts_[i] = Verdict::kServe;
    standings_[i] = GiveBack(queries_[i], now);
  }
}

// Where the key stands then is also a matter of its quota and of the tags that are charged with it, which a peek knows.
Standing RespTurn::GiveBack(Query query, Instant now) {
  limiter_.GiveBack(query, lane_, now);
  query.cost = 0;
  peeked_.Clear();
  peeked_.Begin(Verb::kPeek);
  peeked_.Name(query);
  Outcome outcome;
  Standing standing;
  limiter_.Ask(peeked_, {&outcome, 1}, {&standing, 1}, {lane_, "resp"}, prng_, now);
  return standing;
}

void RespTurn::DecideAsBrought(std::size_t first, std::size_t n, Instant now) {
  for (std::size_t i = first; i < first + n; ++i) {
    const Shape shape = *requests_[i].limit().ToShape();
    if (requests_[i].quantity >= 0) {
      verdicts_[i] = brought_->Answer(queries_[i], shape, standings_[i], now);
    } else {
      verdicts_[i] = Verdict::kServe;
      standings_[i] = brought_->GiveBack(queries_[i], shape, now);
    }
  }
}

void RespTurn::DecideQuestions(std::size_t first, std::size_t n, Instant now) {
  asking_.Clear();
  for (const KeyedQuestion& question : std::span(questions_).subspan(first, n)) {
    asking_.Begin(question.verb);
    for (std::size_t i = question.begin; i < question.end; ++i) (void)asking_.Name(keys_[i].key, keys_[i].cost);
  }
  asking_.Answer(now);
}

// Decides what the reply waits for, and with it all of its kind up to the first of another kind: those behind see what
// these have spent. Returns how many there are.
std::size_t RespTurn::DecideRun(std::size_t reply, Instant now) {
  const auto [kind, first, end] = replies_[reply];
  std::size_t n = 0;
  for (; reply < replies_.size(); ++reply) {
    if (replies_[reply].kind == kind) {
      ++n;
    } else if (replies_[reply].kind != Kind::kText) {
      break;
    }
  }
  if (kind == Kind::kQuestion) {
    DecideQuestions(first, n, now);
  } else if (brought_ != nullptr) {
    DecideAsBrought(first, n, now);
  } else {
    DecideByRules(first, n, now);
  }
  return n;
}

void RespTurn::Answer(Instant now) {
  verdicts_.assign(requests_.size(), Verdict::kServe);
  standings_.assign(requests_.size(), Standing());
  std::size_t run = 0, decided = 0;    // replies of the run that was decided last, and how many of them are written
  for (std::size_t i = 0; i < replies_.size(); ++i) {
    const auto [kind, begin, end] = replies_[i];
    if (kind == Kind::kText) {
      answers_.text().append(texts_, begin, end - begin);
    } else {
      if (decided == run) run = DecideRun(i, now), decided = 0;
      if (kind == Kind::kQuestion) {
        AppendAnswer(decided, questions_[begin].protocol);
      } else {
        const bool served = verdicts_[begin] == Verdict::kServe;
        counts_.limited += !served;
        AppendReply(MakeReply(requests_[begin], served, standings_[begin], now));
      }
      ++decided;
    }
    answers_.End();
  }
}

// Serve or not, why, which key and rule, for how long, and what is left of each key.
void RespTurn::AppendAnswer(std::size_t asked, int protocol) {
  RespWriter reply(answers_.text(), protocol);
  reply.Array(6);
  const auto refusal = asking_.refusal(asked);
  reply.Integer(refusal.has_value());
  if (refusal.has_value()) {
    if (asking_.verb(asked) == Verb::kTake) ++counts_.limited;
    const Asking::Tag refused = asking_.tag(asked, refusal->tag);
    reply.Bulk(refusal->why);
    reply.Bulk(refused.written);
    reply.Bulk(refused.rule);
    reply.Integer(refusal->WaitMs(-1));
  } else {
    for (int i = 0; i < 3; ++i) reply.Null();
    reply.Integer(0);
  }
  reply.Array(asking_.tags(asked));
  for (std::size_t i = 0; i < asking_.tags(asked); ++i) {
    const auto left = asking_.tag(asked, i).left;
    left.has_value() ? reply.Integer(*left) : reply.Null();
  }
}

void RespTurn::AppendReply(const ThrottleReply& reply) {
  std::string& out = answers_.text();
  out += "*5\r\n";
  for (const std::int64_t value :
       {std::int64_t{reply.limited}, reply.limit, reply.remaining, reply.retry_after_s, reply.reset_after_s}) {
    const fmt::format_int digits(value);
    out += ':';
    out.append(digits.data(), digits.size());
    out += "\r\n";
  }
}

void RespTurn::Clear() {
  replies_.clear();
  requests_.clear();
  queries_.clear();
  questions_.clear();
  keys_.clear();
  asking_.Clear();
  named_tags_.Clear();
  executed_.clear();
  Answers::Empty(texts_);
  answers_.Clear();
}

}    // namespace dthrottle
