#include "config/retired.h"

#include <algorithm>
#include <iterator>

namespace dthrottle {

namespace {

struct Retired {
  std::string_view section, key;
  std::string_view value;    // empty: any
  std::string_view replacement;
};

constexpr Retired kRetired[] = {
    {"peers", "eager", "", "rules with share = \"forecast\" report early, and hold the limit better"},
    {"capacity", "on_isolation", "", "a host that is cut off keeps capacity.reserve; a larger reserve keeps more"},
    {"capacity", "graph", "\"ring\"", "graph = \"regular\" with degree = 2 is the same ring"},
    {"capacity", "graph", "\"complete\"", "graph = \"regular\" with degree = 64 links all members"},
};

}    // namespace

std::string_view ReplacementOf(std::string_view section, std::string_view key, std::string_view value) {
  const auto* const found = std::ranges::find_if(kRetired, [&](const Retired& r) {
    return r.section == section && r.key == key && (r.value.empty() || r.value == value);
  });
  return found != std::end(kRetired) ? found->replacement : std::string_view();
}

}    // namespace dthrottle
