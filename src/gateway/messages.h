// Calls of protocol/doorman.proto as lines of protocol/lease.md, and the answers back: no gRPC, no sockets, no clock.
//
// Messages come from strangers. What cannot be is a sentence for them, and no line is sent.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "base/time.h"
#include "doorman.pb.h"
#include "gateway/call_lines.h"

namespace dthrottle {

// `asked` is when the call arrived, since 1970: that is how instants are told on this wire. Fails where there are more
// resources than `resources_max`, or something that cannot be.
Result<CallLines> ToLines(const doorman::DiscoveryRequest& request, std::size_t resources_max, Duration asked);
Result<CallLines> ToLines(const doorman::GetCapacityRequest& request, std::size_t resources_max, Duration asked);
Result<CallLines> ToLines(const doorman::GetServerCapacityRequest& request, std::size_t resources_max, Duration asked);
Result<CallLines> ToLines(const doorman::ReleaseCapacityRequest& request, std::size_t resources_max, Duration asked);

// Fills in what the answers to the lines say, in their order. REQUIRES: as many answers as lines, without LF.
void FromLines(const doorman::DiscoveryRequest& request, const LineAnswers& answers, Duration asked,
               doorman::DiscoveryResponse& response);
void FromLines(const doorman::GetCapacityRequest& request, const LineAnswers& answers, Duration asked,
               doorman::GetCapacityResponse& response);
void FromLines(const doorman::GetServerCapacityRequest& request, const LineAnswers& answers, Duration asked,
               doorman::GetServerCapacityResponse& response);
void FromLines(const doorman::ReleaseCapacityRequest& request, const LineAnswers& answers, Duration asked,
               doorman::ReleaseCapacityResponse& response);

}    // namespace dthrottle
