// Calls of protocol/rate_limit.proto as questions of protocol/ask.md, and the answers back (protocol/envoy.md): no gRPC,
// no sockets, no clock.
//
// A descriptor names a tag: DOMAIN|KEY=VALUE|KEY=VALUE (gateway/tag.h).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/http_headers.h"
#include "rate_limit.pb.h"

namespace dthrottle {

using envoy::service::ratelimit::v3::RateLimitDescriptor;
using envoy::service::ratelimit::v3::RateLimitRequest;
using envoy::service::ratelimit::v3::RateLimitResponse;

// The tag of a descriptor, as a word of a line.
std::string TagOf(std::string_view domain, const RateLimitDescriptor& descriptor);

struct LimitQuestion {
  std::string line;                    // with its LF
  std::vector<std::string> tags;       // that it names, each once, in order
  std::vector<std::size_t> tag_of;     // each descriptor's, by its place in `tags`
};

// Fails where there is no domain or no descriptor, or there are more descriptors than a question has tags.
Result<LimitQuestion> ToQuestion(const RateLimitRequest& request);

// Fills in what the answer, without LF, says. Fails where it is none.
Result<void> FromAnswer(const LimitQuestion& question, std::string_view answer, HttpHeaders headers,
                        RateLimitResponse& response);

}    // namespace dthrottle
