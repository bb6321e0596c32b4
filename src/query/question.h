// A question about several tags at once, each with a cost. It is decided all or nothing on this host: either every tag
// has what it costs and pays it, or no tag pays. Front ends spell it in their protocols; the limiter decides it
// (Limiter::Ask).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/tag.h"
#include "base/time.h"
#include "query/verdict.h"

namespace dthrottle {

enum class Verb : std::uint8_t {
  kTake,    // spend the costs if all tags have them
  kPeek,    // say what a take would be told; spend, count and record nothing
  kHold,     // take what may come back (hold/holds.h)
  kEnter,    // take, and take a place of every tag that has a number of them (hold/in_flight.h)
};

// Questions that are decided together, in order. The bytes of their tags must outlive the answer.
class Questions {
 public:
  static constexpr std::size_t kTagsMax = 16;    // of one question

  struct Question {
    Verb verb;
    std::size_t first, tags;    // of queries()
    Duration patience{};        // how long it may be made to wait for its tokens, where rules have a delay
  };

  // Begins another question. REQUIRES: the one before names a tag.
  void Begin(Verb verb, Duration patience = {}) { questions_.push_back({verb, queries_.size(), 0, patience}); }

  // The question that was begun last names a tag. A tag that it names already pays the sum of both costs; then nothing
  // is added to queries(), and false returned. REQUIRES: it names fewer than kTagsMax tags, or this one already.
  bool Name(const Query& query) {
    Question& question = questions_.back();
    const auto named = std::span(queries_).subspan(question.first);
    const auto same = std::find_if(named.begin(), named.end(), [&](const Query& q) { return q.tag == query.tag; });
    if (same != named.end()) {
      same->cost = Sum(same->cost, query.cost);
      return false;
    }
    DT_CHECK(question.tags < kTagsMax);
    queries_.push_back(query);
    ++question.tags;
    return true;
  }

  // What a tag pays that is charged twice. The most that a cost can be is more than any bucket holds, as the sum is.
  static Cost Sum(Cost a, Cost b) {
    return static_cast<Cost>(std::min<std::uint64_t>(std::uint64_t{a} + b, std::numeric_limits<Cost>::max()));
  }

  // Forgets the question that was begun last.
  void Drop() {
    queries_.resize(questions_.back().first);
    questions_.pop_back();
  }

  void Clear() { questions_.clear(), queries_.clear(); }

  std::size_t size() const { return questions_.size(); }
  const Question& operator[](std::size_t i) const { return questions_[i]; }
  std::span<const Query> queries() const { return queries_; }    // of all questions, in order

 private:
  std::vector<Question> questions_;
  std::vector<Query> queries_;
};

// What became of a question.
struct Outcome {
  static constexpr Duration kNever = Duration::max();

  Verdict verdict = Verdict::kServe;
  // If it was refused: the tag that refused it, by its place in the question. Where several refuse, it is the one with
  // the longest wait, so after `wait` all of them would say yes, if nobody else asks.
  std::size_t tag = 0;
  bool busy = false;     // all places of that tag are taken; nobody knows for how long
  bool spent = false;    // the quota of that tag has less left than the cost, for longer than its bucket
  // kServe: how long the application is to wait before it goes on; it has its tokens already. kThrottle: see above;
  // kNever: the cost is more than the tag's bucket holds.
  Duration wait{};
};

}    // namespace dthrottle
