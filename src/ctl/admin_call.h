// One question to the daemon's admin socket, and its answer. For the programs that go there.
#pragma once

#include <chrono>
#include <string>

#include "base/result.h"

namespace dthrottle {

// Where the socket is unless somebody says otherwise.
std::string DefaultAdminSocket();

// The answer to a command, which ends with LF, without the empty line behind it; or why there is none in time.
Result<std::string> AskAdmin(const std::string& socket, const std::string& command, std::chrono::milliseconds patience);

}    // namespace dthrottle
