// The section [table] of the settings.
#include "bucket/table.h"
#include "config/kinds.h"
#include "config/sections.h"

namespace dthrottle {

Section TableSection() {
  using S = Settings;
  using namespace std::chrono_literals;
  return {
      "table",
      "The memory of the limiter. It takes what is given here and never more; when it is full, rules share it fairly, "
      "and what never had to be refused is forgotten first.",
      {
          BytesKey<S>(
              "memory", "\"64MiB\"", Table::kRegionBytesMin, kMemoryBytesMax, MEMBER(S, table.memory),
              "The size of the table, all of it taken at start: about 44 bytes for a tag of up to 16 bytes, 32 more "
              "for each further 32. A rule remembers its tags for its part of these over the fresh tags that are asked "
              "under it each second; a client that returns after that has a fresh burst, which matters if burst / rate "
              "is longer. With 64MiB and one rule that is some 1.5 million tags: an hour under 400 fresh tags/s."),
          Text<S>("file", "\"/run/dthrottle/table\"", "an absolute path, or \"\" for none", MEMBER(S, table.file),
                  "The file that holds the table, best on a tmpfs. A daemon that is killed and starts again finds "
                  "every bucket as it left it. From 16 MiB on it is put into huge pages, where the kernel can. With "
                  "\"\" buckets live and die with the process.",
                  IsPath),
      }};
}

}    // namespace dthrottle
