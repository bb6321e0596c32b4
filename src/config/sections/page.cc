// The section [page] of the settings.
#include "base/worker_page.h"
#include "config/kinds.h"
#include "config/sections.h"

namespace dthrottle {

Section PageSection() {
  using S = Settings;
  return {
      "page",
      "Verdicts in the memory of workers, so that they decide about the same tag again without asking; see "
      "dthrottle-protocol(7). Libdthrottle and the modules for nginx and Apache use them by themselves.",
      {
          Integer<S>("entries", "0", 0, DTHROTTLE_PAGE_ENTRIES_MAX, MEMBER(S, page.entries),
                     "The tags that a worker's page has room for, rounded up to a power of two; 2048 is a good number. "
                     "0: there are no pages. They are given out on sockets that have the paths of query.unix and "
                     "ask.unix and \".page\" behind, with the permissions of these. There are none beside a path of "
                     "more than 102 bytes. Each entry takes 32 bytes, and up to 500 more in the daemon while it is "
                     "used."),
          Reloads(Integer<S>("max_connections", "4096", 1, 1'000'000, MEMBER(S, page.max_connections),
                             "The most workers that have a page at once. One more is turned away, and counted; it "
                             "asks as ever.")),
      }};
}

}    // namespace dthrottle
