// Settings that an earlier file may still have, and what replaces each.
#pragma once

#include <string_view>

namespace dthrottle {

// What to write instead of a key of a section, or of one value of it; empty: the key was never there. `value` is as
// TOML writes it.
std::string_view ReplacementOf(std::string_view section, std::string_view key, std::string_view value);

}    // namespace dthrottle
