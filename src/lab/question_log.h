// Questions as logs have them, in lines of two kinds.
//
// A line of a web server's access log (access_log.h) is a question about the tags that templates make of it. A line of
// another application has a date as in an access log, a word that names the request or "-", and a line of
// protocol/ask.md. `commit` and `release` have no ID and `give` has no tags: they are about all that the request has.
// The reader passes over `tell=`, `here` and `keep`.
//
//     [10/Oct/2000:13:55:36 -0700] 17 take wait=500 1 user:alice 3 tenant:acme
//     [10/Oct/2000:13:55:36 -0700] 18 hold 60000 500 tenant:acme
//     [10/Oct/2000:13:55:39 -0700] 18 commit 371
//
// A server that logs a request when it ends writes `enter lasts=350ms 1 calls:acme`, and nothing gives that place back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "base/tokens.h"
#include "lab/access_log.h"
#include "query/question.h"

namespace dthrottle::lab {

struct LoggedQuestion {
  enum class Does : std::uint8_t { kAsk, kPeek, kCommit, kRelease, kGive, kRefund };
  struct Tag {
    std::string_view name;
    Cost cost = 1;
  };

  std::int64_t time_s = 0;    // since 1970 UTC
  Does does = Does::kAsk;
  Verb verb = Verb::kTake;
  Duration patience{};           // it rather waits so long than being refused
  Duration ttl{};                // kHold: the longest; kEnter: for how long, zero: until the request gives it back
  std::string_view request{};    // empty: it can have nothing for a while
  // No tag is there twice. kCommit: what each tag has cost, or all of them; they have no names. kRelease, kGive: none.
  std::span<const Tag> tags{};
};

// What the lines of an access log ask.
struct QuestionTemplate {
  std::vector<TagTemplate> tags;     // 1 to Questions::kTagsMax
  std::vector<TagTemplate> costs;    // of each tag, or of all of them; none: 1
  Duration patience{};
};

class QuestionReader {
 public:
  static constexpr std::size_t kRequestBytesMax = 255;

  explicit QuestionReader(QuestionTemplate of_access_log) : template_(std::move(of_access_log)) {}

  // A line without LF. Fails with a reason. The views are valid until the next call, and as long as the line.
  Result<LoggedQuestion> Read(std::string_view line);

 private:
  Result<LoggedQuestion> ReadAccess(std::string_view line);
  Result<LoggedQuestion> ReadQuestion(std::string_view line);
  Result<void> ReadWords(std::string_view verb, std::string_view words, LoggedQuestion& question);
  Result<void> ReadAsked(std::string_view verb, std::string_view words, LoggedQuestion& question);
  Result<void> ReadTags(std::string_view words);
  Result<void> ReadActual(std::string_view words);
  void Add(std::size_t name, Cost cost);

  const QuestionTemplate template_;
  LogDates dates_;
  std::array<std::string, Questions::kTagsMax> names_;
  std::array<LoggedQuestion::Tag, Questions::kTagsMax> tags_;
  std::size_t named_ = 0;    // of tags_
  std::string cost_;
};

// Questions one behind the other, in about as much memory as their names need.
class QuestionList {
 public:
  // Copies it, but for its time.
  void Add(const LoggedQuestion& question);
  void Clear();

  std::size_t size() const { return list_.size(); }
  std::size_t bytes() const { return names_.size() + list_.size() * sizeof(Kept) + tags_.size() * sizeof(KeptTag); }

  // Calls use(question) for each, in order. Views are valid until use returns.
  template <class Use>
  void ForEach(Use&& use) const {
    std::string_view names = names_;
    const auto next = [&names](std::size_t size) {
      const std::string_view name = names.substr(0, size);
      names.remove_prefix(size);
      return name;
    };
    const KeptTag* tag = tags_.data();
    std::array<LoggedQuestion::Tag, Questions::kTagsMax> its;
    for (const Kept& kept : list_) {
      LoggedQuestion question{.does = kept.does, .verb = kept.verb, .patience = kept.patience, .ttl = kept.ttl};
      question.request = next(kept.request_bytes);
      for (std::size_t i = 0; i < kept.tags; ++i, ++tag) its[i] = {next(tag->bytes), tag->cost};
      question.tags = std::span(its).first(kept.tags);
      use(question);
    }
  }

 private:
  struct Kept {
    LoggedQuestion::Does does;
    Verb verb;
    std::uint8_t tags, request_bytes;
    Duration patience, ttl;
  };
  struct KeptTag {
    std::uint32_t bytes;
    Cost cost;
  };
  std::string names_;
  std::vector<Kept> list_;
  std::vector<KeptTag> tags_;
};

}    // namespace dthrottle::lab
