// What an owner tells other sites of its tags beside hits (protocol/sites.md): penalties that begin or are lifted, how
// often all hosts of its site have refused a tag, what they have counted of a quota, how many places they have, and
// what members of a divided tag had of it. For one thread, as SiteSharing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "share/debit/draft.h"
#include "share/sites/site_counts.h"
#include "share/sites/site_sums.h"
#include "share/ways.h"

namespace dthrottle {

class SiteWords {
 public:
  // All must outlive it. This site is called `site`, and there are so many others.
  SiteWords(Ways& ways, SiteSums& sums, std::string_view site, std::size_t others, SiteCounts& counts);

  // A period of reports to other sites begins. Another site may have lost what it was told, or have begun anew, so it is
  // told again of some quotas, in turn, and of all places that are taken.
  void PeriodBegins(Instant now);
  // Marks some of these places. True: there are more.
  bool RemindSome(Instant now);

  // ---- Of one tag, with its shard locked ----

  // Whether other sites are to be told early: what they do not know is a quarter of this site's part of what is left,
  // or half of its part of the refusals that come to a penalty.
  bool IsPressing(std::uint64_t hash, const SiteSums::Sum& sum, const Limit& limit, Instant now) const;
  // Adds what has changed; false: there is no room.
  bool Tell(std::uint64_t hash, SiteSums::Sum& sum, const Limit& limit, Draft& draft, Instant now);

  // ---- Of any tags, as many as there is room for. True: there are more ----

  bool TellPenalties(Draft& draft, Instant now);
  bool TellMembers(Draft& draft, Instant now);

 private:
  bool IsNews(std::uint64_t moved, std::uint64_t left) const { return moved != 0 && moved * 4 * (others_ + 1) >= left; }
  bool Add(const Tag& said, const Besides& besides, Draft& draft, Instant now);

  Ways& ways_;
  SiteSums& sums_;
  const std::uint64_t counter_;    // of quotas, of this site
  const std::size_t others_;
  SiteCounts& counts_;
  std::size_t quota_place_ = 0;             // of the quotas, where PeriodBegins goes on
  std::vector<std::uint64_t> reminded_;    // tags whose places are told again, and are not marked yet
};

}    // namespace dthrottle
