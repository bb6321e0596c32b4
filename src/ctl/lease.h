// dthrottlectl lease: takes a lease, and passes lines to a command at its rate.
#pragma once

#include <string>
#include <vector>

namespace dthrottle {

// `words` begin with "lease". `socket` is where the admin socket is: the lease socket is looked for beside it. Returns
// an exit code.
int RunLease(std::vector<std::string> words, const std::string& socket);

}    // namespace dthrottle
