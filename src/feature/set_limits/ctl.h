// `dthrottlectl limit`: limits that operators set while daemons run. Signs them, and makes the keys to sign with.
#pragma once

#include <functional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace dthrottle {

// `words` begin with "limit". `ask` sends a command line to the daemon, shows its answer and returns the exit code;
// `get` sends one and returns the answer as text, or shows why there is none and returns the exit code.
int RunLimit(std::vector<std::string> words, const std::function<int(std::string line)>& ask,
             const std::function<tl::expected<std::string, int>(std::string line)>& get);

}    // namespace dthrottle
