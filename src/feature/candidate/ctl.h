// `dthrottlectl candidate`: rules that are tried beside those in force.
#pragma once

#include <functional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace dthrottle {

// `words` begin with "candidate". `ask` sends a command line to the daemon, shows its answer and returns the exit code;
// `get` sends one and returns the answer as text, or shows why there is none and returns the exit code; `run` is for
// another command of dthrottlectl.
int RunCandidate(std::vector<std::string> words, const std::function<int(std::string line)>& ask,
                 const std::function<tl::expected<std::string, int>(std::string line)>& get,
                 const std::function<int(std::vector<std::string> words)>& run);

}    // namespace dthrottle
