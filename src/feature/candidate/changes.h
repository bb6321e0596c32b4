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
  bool more = false;    // it changes something that no limit says
};

Changes ChangesTo(const Rulebook& candidate, const Rulebook& in_force);

}    // namespace dthrottle
