// Tags are strangers' bytes. Wherever a person or a program reads them, they are printable ASCII: every other byte,
// and the backslash itself, is written \xNN or \\. What is shown can be typed back.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace dthrottle {

std::string EscapeTag(std::string_view bytes);

// The same of a text that is escaped as far as it has to be: backslashes stay.
std::string EscapeRest(std::string_view text);

// The first bytes of a text, and "..." where it has more.
std::string Shortened(std::string_view text, std::size_t bytes_max);

// Fails on a backslash that begins neither \xNN nor \\. Bytes that would have been escaped may also stand raw.
Result<std::string> UnescapeTag(std::string_view text);

}    // namespace dthrottle
