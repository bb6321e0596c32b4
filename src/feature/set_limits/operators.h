// The keys of the operators whose limits count here, and what HTTP needs to set limits, from the settings and the files
// that they name.
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
  std::string token;                        // a client that shows it may set limits over HTTP; empty: none may
};

// Reads the files, which may belong to `of`. What is bad is left out, and `problems` gets a line of warning for it.
Operators ReadOperators(const Settings& settings, SecretOwner of, std::vector<std::string>& problems);

}    // namespace dthrottle
