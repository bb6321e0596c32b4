// The form in which header fields of HTTP state a limit.
#pragma once

#include "base/names.h"

namespace dthrottle {

enum class HttpHeaders { kDraft10, kDraft03, kBoth, kOff };
DT_NAMES(HttpHeaders, "draft-10", "draft-03", "both", "off")

}    // namespace dthrottle
