// The line `absent TAG...`: what a client is to do about these tags when the daemon does not answer, by their rules.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "frontend/ask/tags.h"
#include "limiter/limiter.h"

namespace dthrottle {

// The answer, without its LF; `rest` is the line behind the verb. Nothing is decided or counted.
std::string AnswerAbsent(const Limiter& limiter, std::size_t tag_bytes_max, AskTags& tags, std::string_view rest);

}    // namespace dthrottle
