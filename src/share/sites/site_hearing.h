// What an owner makes of what other sites say (protocol/sites.md): every owner of this site hears of all tags, and
// takes those that it owns. For one thread, as SiteSharing.
#pragma once

#include <chrono>
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
  static constexpr std::size_t kEntriesPerSlice = 256;

  // All must outlive it. There are so many other sites, which report every `period`.
  SiteHearing(Ways& ways, FromPeersRing& from_sites, const SitesApart& apart, SitePenalties& penalties, Duration period,
              std::size_t others, SiteCounts& counts);

  // Takes some; true: there is more.
  bool Merge(Instant now);

  // That site is not heard at all: what it said of its size counts no longer. REQUIRES: there is such a site.
  void Miss(std::uint32_t site);

  // Hosts of that site, as far as it is believed; at least one. REQUIRES: there is such a site.
  std::uint64_t hosts_of(std::uint32_t site) const { return sites_[site].hosts; }

 private:
  // The debt that a site can make grows with its hosts. So a site is believed to have kHostsAtOnce at once, twice as
  // many after each kHostsDouble, and never more than kHostsRatio times as many as this site.
  static constexpr std::uint64_t kHostsAtOnce = 64, kHostsRatio = 8;
  static constexpr Duration kHostsDouble = std::chrono::minutes(1);

  struct Site {
    std::uint64_t hosts = 1;    // that are believed
    Instant grew{};
  };

  void MergeSome(Instant now);
  void Add(const Entry& entry, Entries& ours, Instant now);
  std::uint64_t Believed(std::uint64_t said, Site& site, Instant now);
  void CountHosts();

  Ways& ways_;
  FromPeersRing& from_sites_;
  const SitesApart& apart_;
  SitePenalties& penalties_;
  const Duration period_;
  SiteCounts& counts_;

  FromPeers incoming_;    // the first merged_ of its entries are done
  std::size_t merged_ = 0;
  std::vector<Site> sites_;
};

}    // namespace dthrottle
