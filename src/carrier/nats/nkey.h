// Names of NATS's own kind of keys (nkeys): Ed25519 in base32 with a checksum. A user's seed begins with "SU", the public
// key that servers know it by with "U".
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace dthrottle {

// The public key of a user's seed, or why the text is none. Does not repeat the text.
Result<std::string> NkeyOf(std::string_view seed);

}    // namespace dthrottle
