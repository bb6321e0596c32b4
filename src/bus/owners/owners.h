// Which host keeps the level of a tag for the whole fleet, where a few hosts own all tags (peers.spread = "owners",
// protocol/owners.md).
//
// The owner of a tag is the host of the list with the highest hash of the two (rendezvous hashing), so all hosts find
// the same one without asking, and a host that is added to the list takes over only an equal part of every other's tags.
// The list is static and has no order. Its epoch is a digest of it: hosts with different lists refuse each other, since
// they would count the same hits at different owners.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/tag.h"

namespace dthrottle {

class Owners {
 public:
  static constexpr std::size_t kMost = 64;

  // REQUIRES: 1 to kMost names of hosts, each once.
  explicit Owners(std::vector<std::string> names);

  std::size_t size() const { return owners_.size(); }
  const std::string& name(std::size_t owner) const { return owners_[owner].name; }
  // None: the host owns nothing.
  std::optional<std::size_t> Find(std::string_view name) const;

  // The owner of a tag, below size(). What follows the digest of an over-long tag does not count.
  std::size_t Of(const Tag& tag) const;

  // Equal for equal lists only; never 0.
  std::uint64_t epoch() const { return epoch_; }

 private:
  struct Owner {
    std::string name;
    std::uint64_t hash;
  };
  std::vector<Owner> owners_;    // in the order of their names
  std::uint64_t epoch_;
};

}    // namespace dthrottle
