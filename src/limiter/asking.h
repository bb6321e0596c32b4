// Questions as front ends take them and tell what became of them: any protocol's words for a tag and a cost go in, and
// the words for a refusal come out. Questions of many connections are answered together, at one instant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "hold/payment.h"
#include "limiter/limiter.h"
#include "query/named_tag.h"
#include "query/question.h"

namespace dthrottle {

// Reads a whole number of tokens. None: it is not one, or more than a cost can be.
std::optional<Cost> ReadCost(std::string_view text);

class Asking {
 public:
  // Uses `lane` of the limiter, on its thread. The limiter must outlive this object.
  Asking(Limiter& limiter, LaneUse lane, Prng prng, std::size_t tag_bytes_max);

  // Begins another question, which may be made to wait for `patience`; the one before must name a tag.
  void Begin(Verb verb, Duration patience = {});

  // The question that was begun last names a tag, which answers will call `written`. Fails, with nothing named, if it
  // has named as many as there may be. The bytes of both must stay until Clear().
  Result<void> Name(std::string_view tag, Cost cost, std::string_view written);
  Result<void> Name(std::string_view tag, Cost cost) { return Name(tag, cost, tag); }

  // Forgets the question that was begun last.
  void Drop();

  std::size_t size() const { return questions_.size(); }              // questions
  std::size_t tags() const { return questions_.queries().size(); }    // that they name

  // Decides every question at `now`; then what follows says what became of it.
  void Answer(Instant now);
  void Clear();

  // Where a tag of a question stands, and what it is called. Tags that a question names twice are there once.
  struct Tag {
    std::string_view written;
    std::string_view rule;               // "-": no rule, or an override where none fits
    std::optional<std::int64_t> left;    // whole tokens, 0 in debt; none: nothing limits it
    const Standing& standing;

    // The time until it has one more whole token, zero if it has all. REQUIRES: something limits it.
    Duration UntilNext(Instant now) const;
  };

  struct Refusal {
    std::string_view why;            // "limit", "never" (it costs more than its bucket holds), "busy" (no place) or "shed"
    std::optional<Duration> wait;    // after which the same may pass; of "limit" only
    std::size_t tag;                 // the one that refused, by its place in the question

    // In milliseconds, rounded up, or `unknown`.
    std::int64_t WaitMs(std::int64_t unknown) const;
  };

  Verb verb(std::size_t question) const { return questions_[question].verb; }
  std::size_t tags(std::size_t question) const { return questions_[question].tags; }
  std::span<const Query> queries(std::size_t question) const {
    return questions_.queries().subspan(questions_[question].first, questions_[question].tags);
  }
  Tag tag(std::size_t question, std::size_t place) const;
  std::optional<Refusal> refusal(std::size_t question) const;    // none: it was served
  // What was served is to wait for so long before it goes on.
  Duration wait(std::size_t question) const { return outcomes_[question].wait; }

  // What its tags have paid. REQUIRES: it was served.
  std::vector<Payment> payments(std::size_t question) const;

  // The tag of the question that has least left, by its place; none: nothing limits any.
  std::optional<std::size_t> nearest(std::size_t question) const;
  // Tags that were longer than query.max_tag_bytes, ever.
  std::uint64_t over_long() const { return named_tags_.over_long(); }

 private:
  Limiter& limiter_;
  const LaneUse lane_;
  Prng prng_;

  Questions questions_;
  std::vector<std::string_view> written_;    // of each of questions_.queries()
  std::size_t named_ = 0;                    // by the question that was begun last, twice named ones too
  NamedTags named_tags_;
  std::vector<Outcome> outcomes_;
  std::vector<Standing> standings_;
  Instant now_{};
};

}    // namespace dthrottle
