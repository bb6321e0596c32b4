// What the members say that they may use of a tag, and the sum of it. No host needs it to divide anything: people want
// it, so members are asked while somebody looks, about few tags, and what they say is forgotten afterwards.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "capacity/capacity_exchange.h"

namespace dthrottle {

class ShareSums {
 public:
  // Somebody looks at the tag: it is asked for, for a while. Not if too many are.
  void Look(const CapacityKey& key, BootInstant now);
  // The tags to ask for. Tags at which nobody has looked for a while are forgotten.
  std::vector<CapacityKey> Wanted(BootInstant now);

  // The members are asked for the tag, by a frame with this number; `own` is what this host has at that moment, so that
  // all figures are of nearly the same.
  void Ask(const CapacityKey& key, std::uint64_t number, Parts own, BootInstant now);
  // An answer. One to another frame than the last is passed over.
  void Say(std::string_view member, const CapacityKey& key, std::uint64_t number, Parts parts);
  void Forget();    // what has been said

  // The sum of the last frame but one until the last one has as many answers; `own` if there are none, or they are old.
  CapacitySum Sum(const CapacityKey& key, Parts own, BootInstant now) const;

 private:
  struct Asked {
    std::uint64_t number = 0;
    BootInstant at = BootInstant::min();
    Parts sum = 0;
    std::set<std::string, std::less<>> members;    // that have answered
  };
  struct Tag {
    BootInstant looked;
    Asked before, last;
  };
  std::map<CapacityKey, Tag> tags_;
};

}    // namespace dthrottle
