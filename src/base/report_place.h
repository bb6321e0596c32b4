// Where a frame of a report stands among those of its sender.
#pragma once

#include <cstdint>

namespace dthrottle {

struct ReportPlace {
  std::uint64_t stream = 0;      // one number for the frames of one life under one list of owners; 0: not known
  std::uint64_t sequence = 0;    // in it
  std::uint64_t missing = 0;     // the first frame before this one that has yet to come; 0: none

  bool before(const ReportPlace& other) const { return stream == other.stream && sequence < other.sequence; }
};

}    // namespace dthrottle
