#include "share/sites/site_hearing.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "share/debit/ownership.h"
#include "share/said_tag.h"

namespace dthrottle {

SiteHearing::SiteHearing(Ways& ways, FromPeersRing& from_sites, const SitesApart& apart, SitePenalties& penalties,
                         Duration period, std::size_t others, SiteCounts& counts)
    : ways_(ways),
      from_sites_(from_sites),
      apart_(apart),
      penalties_(penalties),
      period_(period),
      counts_(counts),
      sites_(others) {
  CountHosts();
}

void SiteHearing::CountHosts() {
  std::size_t& abroad = ways_.core().abroad;
  abroad = 0;
  for (const Site& site : sites_) abroad += site.hosts;
}

void SiteHearing::Miss(std::uint32_t site) {
  if (std::exchange(sites_[site].hosts, 1) != 1) CountHosts();
}

std::uint64_t SiteHearing::Believed(std::uint64_t said, Site& site, Instant now) {
  const std::uint64_t grown = now - site.grew < kHostsDouble ? site.hosts : 2 * site.hosts;
  const std::uint64_t most = std::max(kHostsAtOnce, std::min(grown, kHostsRatio * ways_.core().here));
  const std::uint64_t hosts = std::clamp<std::uint64_t>(said, 1, most);
  if (hosts > site.hosts) site.grew = now;
  counts_.oversized += hosts < said;
  return hosts;
}

bool SiteHearing::Merge(Instant now) {
  if (ways_.core().ownership == nullptr) return false;    // it is not known yet who owns what
  if (incoming_.kind == FromPeers::Kind::kNone) {
    if (!from_sites_.TryPop(incoming_)) return false;
    merged_ = 0;
  }
  if (incoming_.kind == FromPeers::Kind::kDebits && incoming_.peer < sites_.size()) MergeSome(now);
  if (merged_ == incoming_.entries.size() || incoming_.kind != FromPeers::Kind::kDebits) incoming_ = FromPeers();
  return incoming_.kind != FromPeers::Kind::kNone || !from_sites_.empty();
}

void SiteHearing::MergeSome(Instant now) {
  Entries ours;
  const std::size_t end = std::min(incoming_.entries.size(), merged_ + kEntriesPerSlice);
  for (; merged_ < end; ++merged_) Add(incoming_.entries.list()[merged_], ours, now);
  counts_.heard += ours.size();
  Site& said = sites_[incoming_.peer];
  const std::uint64_t hosts = Believed(incoming_.hosts, said, now);
  if (std::exchange(said.hosts, hosts) != hosts) CountHosts();
  if (ours.empty()) return;
  Speaker site = Speaker::Site(incoming_.peer, hosts, period_);
  site.place = incoming_.place;
  ChargeAbroad(ways_, ours, site, incoming_.from, incoming_.to, now);
  if (const auto observer = ways_.core().observed.observer()) {
    observer->Heard(ours, 0, ours.size(), incoming_.from, incoming_.to, site, now);
  }
}

// A quota is taken also where this host may come to own the tag.
void SiteHearing::Add(const Entry& entry, Entries& ours, Instant now) {
  const Entries& all = incoming_.entries;
  const Tag tag = all.tag(entry);
  if (const auto quota = all.quota(entry)) {
    if (quota->counter < kHostCounters) ours.Add(tag, 0, 0, {.quota = quota});
  } else if (!OwnsHere(ways_.core(), tag)) {
    ++counts_.passed;
  } else if (const auto places = all.places(entry)) {
    ours.Add(tag, 0, 0, {.places = places});
  } else if (const auto member = all.member(entry)) {
    ours.Add(tag, 0, 0, {.member = member});
  } else if (const auto left = all.penalty(entry)) {
    ours.Add(tag, 0, 0, {.penalty = left});
    const Instant until = incoming_.to + std::chrono::milliseconds(*left);
    penalties_.Heard(ways_.core().table->Hash(TableTag(tag)), until, now);
  } else if (const std::uint64_t refusals = all.refusals(entry); refusals != 0) {
    ours.Add(tag, 0, 0, {.refusals = refusals});
  } else if (!apart_.Covers(tag, incoming_.to)) {
    ours.Add(tag, entry.value, entry.phase, {.demand = all.demand(entry)});
  }
}

}    // namespace dthrottle
