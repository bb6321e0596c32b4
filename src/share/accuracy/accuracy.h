// How accurate shared limits are: shows the certificate what it asks for, once a period.
#pragma once

#include <cstdint>
#include <functional>

#include "share/accuracy/certificate.h"
#include "share/share.h"

namespace dthrottle {

// The certificate's view of a tag under `limit`, with tokens left as `level` says.
TagLook TagLookOf(const LimiterCore& core, const Limit& limit, Tokens level);

// Looks at the tags that peers' hits have drained, if that is due. `heard_of` says how many tokens all hosts served
// under the rule of a counter, as far as this one knows.
void Certify(LimiterCore& core, Certificate& certificate, const std::function<std::uint64_t(std::size_t)>& heard_of,
             Instant now);

}    // namespace dthrottle
