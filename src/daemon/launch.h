// How this process was started, which an upgrade repeats.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/privileges.h"

namespace dthrottle {

// How this process was started, for it to become the same program again.
struct Launch {
  std::string program;              // OwnProgram
  std::vector<std::string> args;    // without argv[0]
  std::optional<User> become{};     // another user, before anything is read from the network
};

}    // namespace dthrottle
