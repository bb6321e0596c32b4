// A call that has one answer: its lines go to the daemon, and what comes back finishes it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <utility>

#include "base/result.h"
#include "gateway/channel.h"

namespace dthrottle {

inline grpc::Status Leaving() {
  return {grpc::StatusCode::UNAVAILABLE, "the server is leaving"};
}

// Sends the call, and finishes it with status_of(answers).
template <class StatusOf>
void Ask(Channel& channel, grpc::ServerUnaryReactor* reactor, CallLines lines, StatusOf status_of) {
  const Channel::Taken taken =
      channel.Send(std::move(lines), [reactor, status_of = std::move(status_of)](const LineAnswers* answers) {
        reactor->Finish(answers == nullptr ? Leaving() : status_of(*answers));
      });
  if (taken == Channel::Taken::kGone) reactor->Finish(Leaving());
  if (taken == Channel::Taken::kTooMany) {
    reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls wait"});
  }
}

// Finishes the call with fill(answers), a grpc::Status, on any thread, perhaps before this returns. What is wrong with a
// call that has no lines is its status. Request and response live until then, also if the client gives up.
template <class Fill>
grpc::ServerUnaryReactor* Pass(Channel& channel, grpc::CallbackServerContext* context, Result<CallLines> lines,
                               Fill fill) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  if (lines) {
    Ask(channel, reactor, std::move(*lines), std::move(fill));
  } else {
    const grpc::Status invalid(grpc::StatusCode::INVALID_ARGUMENT, lines.error().message);
    Ask(channel, reactor, {}, [invalid](const LineAnswers&) { return invalid; });
  }
  return reactor;
}

}    // namespace dthrottle
