// The live page, embedded at build time by scripts/embed_page.
#pragma once

#include <string_view>

namespace dthrottle {

extern const std::string_view kPage;    // src/frontend/http/page.html, whole
extern const std::string_view
    kPagePolicy;    // its Content-Security-Policy: what is in the file, and its own host's JSON

}    // namespace dthrottle
