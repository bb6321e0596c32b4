// Whose limits count here, as settings and the files that they name say: the keys of operators, and what HTTP needs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/settings.h"
#include "feature/set_limits/set_limit.h"
#include "io/keys.h"

namespace dthrottle {

struct Operators {
  OperatorKeys keys;
  std::optional<OperatorSecret> own_key;    // signs what HTTP brings
  std::string token;                        // who shows it may set limits over HTTP; empty: nobody
};

// What is bad is told, a line of warning each, and then nobody has it. Files may belong to `of`.
Operators ReadOperators(const Settings& settings, SecretOwner of, std::vector<std::string>& problems);

}    // namespace dthrottle
