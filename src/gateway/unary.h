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

// Finishes the call with fill(answers), a grpc::Status, on any thread, perhaps before this returns. What is wrong with a
// call that has no lines is its status. Request and response live until then, also if the client gives up.
template <class Fill>
grpc::ServerUnaryReactor* Pass(Channel& channel, grpc::CallbackServerContext* context, Result<CallLines> lines,
                               Fill fill) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  grpc::Status status;
  if (!lines) status = {grpc::StatusCode::INVALID_ARGUMENT, lines.error().message};
  auto done = [reactor, status, fill = std::move(fill)](const LineAnswers* answers) {
    if (answers == nullptr) return reactor->Finish(Leaving());
    reactor->Finish(status.ok() ? fill(*answers) : status);
  };
  const Channel::Taken taken = channel.Send(lines ? std::move(*lines) : CallLines(), std::move(done));
  if (taken == Channel::Taken::kGone) reactor->Finish(Leaving());
  if (taken == Channel::Taken::kTooMany) {
    reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls wait"});
  }
  return reactor;
}

}    // namespace dthrottle
