// The limiter's half of what sites tell each other (protocol/sites.md). Within a site a few hosts own the tags, and the
// owner's bucket is the level of its tag. An owner tells the other sites each period what all hosts of its site have
// served of its tags, and how much they ask for; to the owner of the tag there this site is one more host, which it
// debits and foretells. So the levels of all sites follow each other, and hosts know of other sites by their owners.
//
// A tag that is watched is told early where other sites foretell it wrongly, as hosts do (share/owners/owning.h).
//
// This half collects and tells hits; site_words.h what is told beside them, and site_hearing.h hears the others.
//
// While another site is not heard, limits go on as before, each site with the whole limit; or, where their rule says
// so, this site assumes that the others use as much as goes with its own part (site_apart.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/time.h"
#include "bus/exchange.h"
#include "share/debit/draft.h"
#include "share/debit/outlet.h"
#include "share/debit/ownership.h"
#include "share/look.h"
#include "share/sites/site_apart.h"
#include "share/sites/site_counts.h"
#include "share/sites/site_hearing.h"
#include "share/sites/site_sums.h"
#include "share/sites/site_words.h"
#include "share/ways.h"

namespace dthrottle {

class SiteSharing {
 public:
  struct Options {
    std::string name{};        // of this site
    Duration period{};         // of reports to other sites
    std::size_t others = 1;    // sites
    double part = 1;           // of limits, while another site is not heard
  };

  // All but the options must outlive it.
  SiteSharing(Ways& ways, ToPeersRing& to_sites, FromPeersRing& from_sites, const Options& options, Prng& prng,
              Instant now);
  ~SiteSharing();

  // The same as in Sharing.
  bool Work(Instant now);
  Instant next() const;
  void ReportNow(Instant now) { report_at_ = now; }
  bool reporting(Instant now) const { return collecting_ || report_at_ <= now; }

  // A site is missed when its hosts have not been heard for so many of its periods, and one more.
  static constexpr int kMissedPeriods = 4;
  // How late the other sites are, and whether all owners of all of them are heard (site_presence.h).
  void SetHeard(std::vector<PeerAge> sites, bool all) {
    ways_.core().sites = std::move(sites);
    apart_.SetHeard(all);
  }
  // What the next program or start goes on with.
  struct Kept {
    Instant from{};
    std::vector<SiteSums::Sum> sums{};

    static void Fields(auto& state, auto& self) { state(self.from, self.sums); }
  };
  static constexpr std::uint32_t kKeptVersion = 3;    // for ReadState
  Kept Keep() const;
  void Resume(const Kept& kept, Instant now);

  SiteCounts counts() const;
  // The same as in SiteHearing. REQUIRES: below Options::others.
  void Miss(std::uint32_t site) { hearing_.Miss(site); }
  std::uint64_t hosts_of(std::uint32_t site) const { return hearing_.hosts_of(site); }

 private:
  void Begin(Instant now);
  bool CollectSome(Instant now);
  bool Judge(Instant now);
  bool IsNews(std::uint64_t hash, SiteSums::Sum& sum, Instant now);
  bool Strays(SiteSums::Sum& sum, const Look& look, Instant now);
  bool Tell(std::uint64_t hash, SiteSums::Sum& sum, Draft& draft, Instant now);
  ToPeers Message(ToPeers::Kind kind, Instant to) const;
  bool Push(Draft& draft, ToPeers::Kind kind, Instant to, Instant now);

  Ways& ways_;
  Table& table_;
  const Duration period_;
  SiteSums sums_;
  SiteCounts counts_;
  SiteWords words_;
  SitesApart apart_;
  SiteHearing hearing_;
  Outlet outlet_;

  Instant from_, to_, report_at_;    // hits of (from_, to_] are collected
  bool collecting_ = false;
  std::vector<std::uint64_t> round_;    // tags that have yet to be told in this period
  Draft draft_, urgent_;
  Instant judge_at_{};    // not before
};

}    // namespace dthrottle
