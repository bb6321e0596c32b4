// What an owner of tags tells other hosts of one that is divided (protocol/owners.md): what each member that a host has
// named gets on all hosts together, and the level (share/among/among_tags.h). In answer to what the host says. For one
// thread, as Owning.
#pragma once

#include <cstdint>

#include "share/owners/owed_words.h"
#include "share/ways.h"

namespace dthrottle {

class MemberTelling {
 public:
  // Must outlive it.
  explicit MemberTelling(Ways& ways) : ways_(ways) {}

  // The host has named a member of the tag of that hash.
  void Named(std::uint64_t divided, std::uint64_t member, std::uint32_t peer) { answers_.Owe(peer, {divided, member}); }
  // Adds what is to be answered to the host; false: there is no room for all of it.
  bool AddAnswers(std::uint32_t peer, Instant now, Entries& out);

 private:
  struct Member {
    std::uint64_t divided, name;    // hash of the tag that it is of, AmongTags::NameOf
  };

  bool Add(const Member& member, Instant now, Entries& out);

  Ways& ways_;
  OwedWords<Member> answers_;
};

}    // namespace dthrottle
