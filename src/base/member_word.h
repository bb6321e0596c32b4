// Hosts and the owner of a divided tag tell each other of its members, the tags among which it is divided
// (protocol/owners.md).
#pragma once

#include <cstdint>

namespace dthrottle {

// A host states tokens since it last said so. The owner states thousandths of a token a second, of all hosts.
struct MemberWord {
  static constexpr std::uint64_t kNameMax = (std::uint64_t{1} << 56) - 1;
  static constexpr std::uint64_t kMost = std::uint64_t{1} << 50;    // of each number

  std::uint64_t member = 0;    // AmongTags::NameOf
  std::uint64_t asked = 0, served = 0;
  // A host says the member's weight, in thousandths. The owner says the most that a weight of 1 may have, in thousandths
  // of a token a second; kMost: nobody is cut.
  std::uint64_t fair = 0;

  friend bool operator==(const MemberWord&, const MemberWord&) = default;
};

}    // namespace dthrottle
