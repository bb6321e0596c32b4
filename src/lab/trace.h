// Queries as a file has them: a line "SECONDS,HOST,COST,TAG" each, in the order of time. A tag is all that follows the
// third comma. An empty line and one that begins with # are no queries.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "base/tokens.h"

namespace dthrottle::lab {

inline constexpr std::size_t kTraceLinesMax = 10'000'000;

struct Trace {
  struct Line {
    Duration at{};    // from the trace's beginning
    std::uint32_t host = 0, tag = 0;    // tag: of `tags`
    Cost cost = 1;
  };
  std::vector<Line> lines;
  std::vector<std::string> tags;    // each once
};

// For a fleet of so many hosts. Fails with the first bad line, "file:line: error: ...".
Result<Trace> ParseTrace(std::string_view text, std::string_view file, std::uint32_t hosts);

}    // namespace dthrottle::lab
