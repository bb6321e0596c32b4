// Which host keeps the level of a tag for the whole fleet, where a few hosts own all tags (peers.spread = "owners",
// protocol/owners.md).
//
// The owner of a tag is the host of the list with the highest hash of the two (rendezvous hashing), so all hosts find
// the same one without asking, and a host that is added to the list takes over only an equal part of every other's
// tags. The list has no order. It changes while the fleet runs (bus/owners/changing.h): each list has a number, greater
// than that of the list before, and its epoch is the number and a digest of the names. The list with the greater epoch
// is the one that counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/tag.h"
#include "bus/entries.h"

namespace dthrottle {

class Owners {
 public:
  static constexpr std::size_t kMost = 64;

  static constexpr std::uint64_t kFirst = 1;                            // number of the list that settings begin with
  static constexpr std::uint64_t kNumberMost = (std::uint64_t{1} << 40) - 1;

  // REQUIRES: 1 to kMost names of hosts, each once; 1 <= number <= kNumberMost. `before`: the names of the list that
  // this one takes the place of; none: it is the first, or nobody knows.
  explicit Owners(std::vector<std::string> names, std::uint64_t number = kFirst, std::vector<std::string> before = {});

  std::size_t size() const { return owners_.size(); }
  const std::string& name(std::size_t owner) const { return owners_[owner].name; }
  // None: the host owns nothing.
  std::optional<std::size_t> Find(std::string_view name) const;

  // The owner of a tag, below size(). What follows the digest of an over-long tag does not count.
  std::size_t Of(const Tag& tag) const;
  // The bucket states of one owner's tags.
  Entries PartOf(std::size_t owner, const Entries& all) const;

  std::uint64_t epoch() const { return epoch_; }    // equal for equal numbers and lists only; never 0
  std::uint64_t number() const { return NumberOf(epoch_); }
  static std::uint64_t NumberOf(std::uint64_t epoch) { return epoch >> kDigestBits; }

  std::vector<std::string> names() const;    // ascending
  const std::vector<std::string>& before() const { return before_; }    // ascending

 private:
  static constexpr int kDigestBits = 24;

  struct Owner {
    std::string name;
    std::uint64_t hash;
  };
  std::vector<Owner> owners_;    // in the order of their names
  std::vector<std::string> before_;
  std::uint64_t epoch_;
};

}    // namespace dthrottle
