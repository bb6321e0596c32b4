// Question lines of many connections, answered together at one instant (protocol/ask.md). Knows no sockets.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "admin/snapshot.h"
#include "base/prng.h"
#include "limiter/limiter.h"
#include "query/named_tag.h"
#include "query/question.h"

namespace dthrottle {

class AskTurn {
 public:
  // Uses `lane` of the limiter, on its thread. The limiter must outlive this object.
  AskTurn(Limiter& limiter, std::size_t lane, Prng prng, std::size_t tag_bytes_max);

  // Takes a line, without its LF. Its bytes must stay until Answer.
  void OnLine(std::string_view line);
  // Takes the news of a line that was too long to be kept.
  void OnTooLong();

  // Lines taken, and tags that they name.
  std::size_t lines() const { return lines_.size(); }
  std::size_t tags() const { return words_.size(); }

  // Decides everything at `now`. Then Answers(first, n) are the answers to n lines, until Clear().
  void Answer(Instant now);
  std::string_view Answers(std::size_t first, std::size_t n) const;
  void Clear();

  // What questions count; connections are the server's.
  const AskCounts& counts() const { return counts_; }
  std::uint64_t over_long() const { return over_long_tags_; }

 private:
  static constexpr std::size_t kWrong = SIZE_MAX;

  // A question, or a line that is none.
  struct Line {
    std::size_t question;    // kWrong: its answer is complaints_[begin, end)
    std::size_t begin = 0, end = 0;
    bool tells_limit = false;
  };

  bool Read(std::string_view words);
  bool Complain(std::string_view what);
  Query MakeQuery(std::string_view word, Cost cost);
  void AppendServed(const Questions::Question& question, bool tells_limit);
  void AppendRefused(const Questions::Question& question, const Outcome& outcome, bool tells_limit);
  void AppendLeft(const Standing& standing);
  void AppendRule(const Standing& standing);
  void AppendLimit(const Standing& standing);

  Limiter& limiter_;
  const std::size_t lane_;
  Prng prng_;
  const std::size_t tag_bytes_max_;

  std::vector<Line> lines_;
  std::string complaints_;
  Questions questions_;
  std::vector<std::string_view> words_;    // how each of questions_.queries() is written
  std::deque<std::string> unescaped_;
  std::deque<NamedTag> over_long_;
  std::vector<Outcome> outcomes_;
  std::vector<Standing> standings_;
  Instant now_{};
  std::string out_;
  std::vector<std::size_t> ends_;    // of each answer, in out_

  AskCounts counts_;
  std::uint64_t over_long_tags_ = 0;
};

}    // namespace dthrottle
