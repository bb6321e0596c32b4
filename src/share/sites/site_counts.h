// What an owner of tags has to do with other sites.
#pragma once

#include <cstdint>

namespace dthrottle {

struct SiteCounts {
  std::uint64_t tags = 0;          // that hosts here use, now
  std::uint64_t told = 0;          // entries to other sites
  std::uint64_t told_early = 0;    // of them, before a period was over
  std::uint64_t heard = 0;         // entries of other sites: of tags that this host owns, and of quotas
  std::uint64_t passed = 0;        // others, of other owners' tags
  std::uint64_t oversized = 0;    // reports of sites that said to have more hosts than is believed
  std::uint64_t assumed = 0;       // tokens that other sites were taken to have served while they were not heard
  std::uint64_t untold = 0;        // hits that the life before had told no other site when it was killed
  std::uint64_t crowded = 0;       // hits that no other site hears of, because there are too many tags
};

}    // namespace dthrottle
