// What putting a candidate in force would change, as limits that can be set while daemons run, where it is no more than
// that.
#pragma once

#include <string>
#include <vector>

#include "rule/rulebook.h"

namespace dthrottle {

struct Changes {
  struct OfLimit {
    bool of_rule;
    std::string name;    // of the rule, or the tag
    Tokens burst;
    double rate;    // tokens/s
  };
  std::vector<OfLimit> limits;
  std::vector<std::string> others;    // what no limit says, a sentence each, the first kOthersMax of them
  static constexpr std::size_t kOthersMax = 20;
};

Changes ChangesTo(const Rulebook& candidate, const Rulebook& in_force);

}    // namespace dthrottle
