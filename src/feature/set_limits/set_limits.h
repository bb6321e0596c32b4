// All limits that operators have set and this host knows. It has the newest of each tag and rule, also one that has
// ended or was cleared: otherwise a host that was away would bring back what that had replaced.
//
// `wall` is the time since 1970 everywhere.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/names.h"
#include "base/time.h"
#include "feature/set_limits/set_limit.h"
#include "rule/rule.h"

namespace dthrottle {

// Whether it holds now, by the wall clock.
inline bool IsInForce(const SetLimit& limit, Duration wall) {
  return !limit.clears && (limit.until == Duration() || limit.until > wall);
}

// Why nobody signs a limit that would be ahead of the clock (SetLimits::IsAhead).
inline constexpr const char* kReplacesAhead =
    "the date of what it would replace lies more than 5 minutes ahead of this host's clock";

class SetLimits {
 public:
  static constexpr std::size_t kMost = 1000;
  // How long one that has ended is remembered. A host that was away for longer begins with its local ones only.
  static constexpr Duration kRemembered = std::chrono::hours(24 * 30);
  // How far the clock of another host may be ahead, where a limit was set.
  static constexpr Duration kAheadMax = std::chrono::minutes(5);
  static bool IsAhead(const SetLimit& limit, Duration wall) { return limit.stamp > wall + kAheadMax; }

  enum class Outcome : std::uint8_t {
    kTaken,
    kKnown,     // this one is here already
    kOlder,     // a newer one is
    kOver,      // it has ended so long ago that it is forgotten
    kCrowded,   // there are kMost others, none of which has ended
  };

  using Name = std::pair<LimitOf, std::string>;    // rules have no name, because there are no others
  using Entries = std::map<Name, SignedLimit>;
  using Stamps = std::map<Name, Duration>;

  static Name NameOf(const SetLimit& limit) {
    return {limit.of, limit.of == LimitOf::kRules ? std::string() : limit.name};
  }

  // What Put would say, without the signature being looked at. A stamp may lie in the future: this host's own file has
  // such limits where its clock went back, and who takes those of others asks IsAhead.
  Outcome Judge(const SignedLimit& limit, Duration wall) const;
  // REQUIRES: the limit is genuine, or local.
  Outcome Put(SignedLimit limit, Duration wall);

  // Forgets what has ended long ago.
  void Forget(Duration wall);

  const Entries& entries() const { return entries_; }
  // Null: none is known.
  const SignedLimit* Find(const Name& name) const;

  // The stamp of a limit that is set here at `wall`: newer than all that it replaces, also where the clock is behind.
  Duration StampFor(LimitOf of, std::string_view name, Duration wall) const;

  // The limits that hold now, local ones included.
  std::vector<SetLimit> InForce(Duration wall) const;
  // The first instant after `wall` at which a limit ends; max: none does.
  Duration NextEnd(Duration wall) const;

  // The signed ones, as hosts compare them: how many, and the sum of their hashes.
  struct Digest {
    std::uint64_t count = 0, sum = 0;
    friend bool operator==(const Digest&, const Digest&) = default;
  };
  Digest digest() const { return digest_; }

  // A file of limits: lines of text, the first of which says when it was written, never earlier than the file that was
  // taken.
  static constexpr std::string_view kFileBegin = "dthrottle-limits 1 ";
  static constexpr std::string_view kAsideBegin = "aside ";    // of a line that is set aside, and then since when
  static constexpr std::size_t kAsideBytesMax = kAsideBegin.size() + 17;
  static constexpr std::size_t kFileBytesMax =
      kLimitLineBytesMax + 2 * (kMost * (kAsideBytesMax + kLimitLineBytesMax + 1) + kRulesLineBytesMax);
  static bool IsFile(std::string_view head) { return head.starts_with(kFileBegin); }
  // When a file was written, as its first line says; 0: it says nothing.
  static Duration WrittenAt(std::string_view head);
  std::string File(Duration wall) const;
  // When what a file says was set, but for what is set aside. It may be anybody's word.
  static Stamps StampsIn(std::string_view text);

  // Takes what a file says and `keys` allow; without keys, what was set without one. The rest is set aside. Leaves out
  // what is signed if the file was written more than kRemembered ago. Returns what was left out and why, a line each.
  std::vector<std::string> TakeFile(std::string_view text, const OperatorKeys& keys, Duration wall);

  // Sets aside what these keys do not allow, and takes what is there and they do. False: nothing has changed.
  bool Keep(const OperatorKeys& keys, Duration wall);

  // How many limits are set aside: in the file, but out of force and told to nobody, because their key is not there.
  // They are forgotten when a newer limit takes their place, and kRemembered later: by then hosts with that key may
  // have forgotten that one was cleared.
  std::size_t aside() const { return aside_.size(); }

 private:
  void Count(const SignedLimit& limit, bool comes);
  void Drop(Entries::iterator at);
  void SetAside(SignedLimit limit, Duration since);
  bool MakeRoom(Duration wall);

  struct Aside {
    SignedLimit limit;
    Duration since{};
  };

  Entries entries_;
  std::map<Name, Aside> aside_;
  Digest digest_;
  Duration written_{};    // what was taken, by its first line
};

// A number for a limit that hosts agree on.
std::uint64_t HashOf(const SignedLimit& limit);

// Puts limits of tags and of single rules into `rules` and `overrides`, which hold since `since`, or always if that is 0.
// Older limits change nothing, nor do a rule that there is not and a tag longer than `tag_bytes_max`.
void Amend(const std::vector<SetLimit>& set, Duration since, std::size_t tag_bytes_max, std::vector<Rule>& rules,
           std::vector<Override>& overrides);

}    // namespace dthrottle
