// What an owner assumes of other sites while one of them is not heard, under limits that keep a part f then
// (Limit::keeps_part, protocol/sites.md): of all that is served this site serves f, and of all places it has f. What is
// assumed is charged like what is heard. For one thread, as SiteSharing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/time.h"
#include "bus/entries.h"
#include "share/debit/word.h"
#include "share/sites/site_counts.h"
#include "share/sites/site_sums.h"
#include "share/ways.h"

namespace dthrottle {

// Charges what another site says, or is taken to have served, and lets hosts of this site hear of it.
void ChargeAbroad(Ways& ways, const Entries& said, const Speaker& site, Instant from, Instant to, Instant now);

class SitesApart {
 public:
  // All must outlive it. There are so many others, which report every `period`; `part` is f.
  SitesApart(Ways& ways, Duration period, std::size_t others, double part, SiteCounts& counts);

  // Whether all owners of all other sites are heard.
  void SetHeard(bool all) { all_heard_ = all; }
  bool Keeps(const Limit& limit) const { return limit.keeps_part && !all_heard_; }
  // Whether hits that a site says of a time until `to` have been assumed already, as well as can be told: what it says
  // late, and what it says while one of its owners, or another site, is not heard.
  bool Covers(const Tag& said, Instant to) const;

  // ---- Of a tag whose limit keeps a part, with its shard locked ----

  // This site has served so many hits, and asks for so much; none: the tag is not watched.
  void Assume(SiteSums::Sum& sum, std::uint64_t hits, std::optional<double> demand);
  // The number of its places has changed.
  void AssumePlaces(std::uint64_t hash, const SiteSums::Sum& sum, const Limit& limit, Instant now);

  // So much has been assumed that it is to be charged now.
  bool full() const { return assumed_.size() >= kEntriesMost; }
  // Charges what was assumed since the call before, as served in (from, now].
  void Charge(Instant from, Instant now);

 private:
  static constexpr std::size_t kEntriesMost = 256;

  Ways& ways_;
  const Duration period_;
  const std::uint32_t others_;
  const double part_;
  SiteCounts& counts_;

  bool all_heard_ = true;
  Entries assumed_;
  double rest_ = 0;             // of a token
  Instant from_{}, until_{};    // the latest time in which something was assumed
};

}    // namespace dthrottle
