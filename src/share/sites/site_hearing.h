// What an owner makes of what other sites say (protocol/sites.md): every owner of this site hears of all tags, and
// takes those that it owns. For one thread, as SiteSharing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "bus/exchange.h"
#include "share/sites/site_apart.h"
#include "share/sites/site_counts.h"
#include "share/sites/site_penalties.h"
#include "share/ways.h"

namespace dthrottle {

class SiteHearing {
 public:
  // All must outlive it. There are so many other sites, which report every `period`.
  SiteHearing(Ways& ways, FromPeersRing& from_sites, const SitesApart& apart, SitePenalties& penalties, Duration period,
              std::size_t others, SiteCounts& counts);

  // Takes some; true: there is more.
  bool Merge(Instant now);

  // Hosts of that site, by what it says last. REQUIRES: there is such a site.
  std::uint64_t hosts_of(std::uint32_t site) const { return hosts_[site]; }

 private:
  static constexpr std::size_t kEntriesPerSlice = 256;
  static constexpr std::uint64_t kHostsMax = 1 << 16;    // of one site

  void MergeSome(Instant now);
  void Add(const Entry& entry, Entries& ours, Instant now);
  void CountHosts();

  Ways& ways_;
  FromPeersRing& from_sites_;
  const SitesApart& apart_;
  SitePenalties& penalties_;
  const Duration period_;
  SiteCounts& counts_;

  FromPeers incoming_;    // the first merged_ of its entries are done
  std::size_t merged_ = 0;
  std::vector<std::uint64_t> hosts_;    // by site
};

}    // namespace dthrottle
