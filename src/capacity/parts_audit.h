// Finds the tags of which the members have more than the whole, which only a lie can bring about.
//
// A gift is as large as its giver says (protocol/capacity.md rule 3), so a neighbour that lies can make each honest
// host use up to a whole. Each host therefore asks all members, now and then, what they have of tags of which it has
// more than its equal share itself. Where the answers sum to more than the whole twice running the tag is overdrawn,
// and this host uses no more than its equal share of it. Honest hosts say what they have, and each of those that have
// more than an equal share asks; so they have no more than the whole together, or use their equal shares.
//
// Once is not enough: a gift under way is counted at both ends if one answer is much later than another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "capacity/capacity_exchange.h"

namespace dthrottle {

class PartsAudit {
 public:
  static constexpr std::size_t kTagsMax = 32;    // of one question
  // Rounds between questions, so that a host asks some eight members a round.
  static constexpr std::size_t RoundsBetween(std::size_t members) { return 4 + members / 8; }
  // What the answers may be above the whole: gifts under way, and rounding.
  static constexpr Parts Slack(Parts equal_share) { return equal_share / 4; }

  struct Tag {
    CapacityKey key;
    Parts own;    // of this host when it asks
  };

  // Asks about these tags in a frame with this number. Answers to the frame before do not count any more.
  void Ask(std::uint64_t number, const std::vector<Tag>& tags);
  bool IsAsked(std::uint64_t number) const { return number == number_; }
  // An answer.
  void Say(std::string_view member, const CapacityKey& key, Parts parts);

  // What was said of a tag.
  struct Answers {
    Parts sum = 0;    // this host's parts included
    std::size_t members = 0;
  };
  // Calls use(key, answers) for each tag that was asked about, and forgets it.
  template <class Use>
  void Judge(Use&& use) {
    for (const auto& [key, asked] : asked_) use(key, Answers{asked.sum, asked.members.size()});
    Forget();
  }
  void Forget();

 private:
  struct Asked {
    Parts sum = 0;
    std::set<std::string, std::less<>> members;    // that have answered
  };
  std::uint64_t number_ = 0;    // 0: nothing is asked
  std::map<CapacityKey, Asked> asked_;
};

// What audits have found out about one tag.
class Overdraft {
 public:
  bool found() const { return found_; }
  // Returns whether found() changed. What fewer members said than had shown an overdraft does not end it.
  bool Judge(const PartsAudit::Answers& answers, Parts most);

 private:
  bool suspected_ = false, found_ = false;
  std::size_t members_ = 0;    // that had shown it
};

}    // namespace dthrottle
