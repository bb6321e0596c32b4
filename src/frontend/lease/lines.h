// The lease protocol of protocol/lease.md without sockets: a line in, a line out.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/time.h"
#include "frontend/gateway_calls.h"
#include "lease/server.h"

namespace dthrottle {

// The longest line, without LF.
inline constexpr std::size_t kLeaseLineBytesMax = 8192;

// What has been read of a connection, behind the rest of what was read before.
struct LeaseLines {
  std::string_view whole;    // lines, each with its LF
  std::string_view rest;     // of a line that is not whole yet
  bool too_long = false;     // no rest, but a line too long to be one: nobody knows where the next one begins
};
LeaseLines SplitLeaseLines(std::string_view bytes);

// Appends the answers to all lines. Returns how many there were. `gateway`: the connection is the gateway's, which is
// told exact numbers and the master's gRPC address, and may count.
std::size_t AnswerLeaseLines(const LeaseLines& lines, lease::LeaseServer& server, BootInstant now,
                             std::string& answers, GatewayCalls* gateway = nullptr);

// What the server `node` asks its parent, a line with its LF, and what the answer to it says.
std::string ParentLine(std::string_view node, const lease::ParentRequest& request, BootInstant now);
// A lease is counted from when it was asked for. Fails with what is wrong, also where the parent says so.
Result<lease::Grant> ReadParentAnswer(std::string_view answer, BootInstant asked);

}    // namespace dthrottle
