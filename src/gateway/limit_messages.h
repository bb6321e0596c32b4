// Calls of protocol/rate_limit.proto as questions of protocol/ask.md, and the answers back (protocol/envoy.md): no gRPC,
// no sockets, no clock.
//
// A descriptor names a tag: DOMAIN|KEY=VALUE|KEY=VALUE (gateway/tag.h). A limit that it brings along is part of the tag,
// behind one more | (rule/own_limit.h): no entry is taken for it, because each has a =.
#pragma once

#include <cstddef>
#include <cstdint>
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

// The tag of a descriptor, as a word of a line. `limits`: with the limit that it brings along.
std::string TagOf(std::string_view domain, const RateLimitDescriptor& descriptor, bool limits = false);

struct LimitQuestion {
  std::string line;                    // with its LF
  // A limit that a descriptor brings along; 0: none.
  struct Limit {
    std::uint32_t requests = 0;
    std::uint32_t unit = 0;    // as protocol/rate_limit.proto numbers them
  };
  std::vector<std::string> tags;       // that it names, each once, in order
  std::vector<Limit> limits;           // that these name
  std::vector<std::size_t> tag_of;     // each descriptor's, by its place in `tags`
};

// Fails where there is no domain or no descriptor, or there are more descriptors than a question has tags.
// `limits`: those that descriptors bring along count.
Result<LimitQuestion> ToQuestion(const RateLimitRequest& request, bool limits = false);

// Fills in what the answer, without LF, says. Fails where it is none.
Result<void> FromAnswer(const LimitQuestion& question, std::string_view answer, HttpHeaders headers,
                        RateLimitResponse& response);

}    // namespace dthrottle
