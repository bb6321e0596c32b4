#include "share/sites/site_apart.h"

#include <algorithm>
#include <cmath>

#include "share/debit/ownership.h"
#include "share/owners/places_taken.h"
#include "share/said_tag.h"

namespace dthrottle {

void ChargeAbroad(Ways& ways, const Entries& said, const Speaker& site, Instant from, Instant to, Instant now) {
  ways.Get<Debits>().Debit(said, 0, said.size(), from, to, now, site);
  const Ownership* const ownership = ways.core().ownership;
  if (ownership != nullptr && ownership->owning() != nullptr) ownership->owning()->NamedAbroad(said, now);
}

SitesApart::SitesApart(Ways& ways, Duration period, std::size_t others, double part, SiteCounts& counts)
    : ways_(ways), period_(period), others_(static_cast<std::uint32_t>(others)), part_(part), counts_(counts) {}

bool SitesApart::Covers(const Tag& said, Instant to) const {
  const Duration reach = all_heard_ ? Duration::zero() : kReachPeriods * period_;
  if (to <= from_ || to > until_ + reach) return false;
  const Rulebook& rules = *ways_.core().rules;
  const auto index = LimitOfSaid(rules, nullptr, said);
  return index && rules.limit(*index).keeps_part;
}

// Once all are heard, they ask for nothing beside what they say.
void SitesApart::Assume(SiteSums::Sum& sum, std::uint64_t hits, std::optional<double> demand) {
  if (all_heard_ && !sum.assumed) return;
  const double others = all_heard_ ? 0 : (1 - part_) / part_;
  sum.assumed = !all_heard_ && demand;
  const double tokens = others * static_cast<double>(hits) + rest_;
  const double whole = std::floor(tokens);
  rest_ = tokens - whole;
  Besides said;
  if (demand) said.demand = Thousandths(others * *demand, kDemandMax);
  if (whole == 0 && !said.demand) return;
  assumed_.Add(sum.said(), static_cast<std::uint64_t>(whole), 0, said);
  counts_.assumed += static_cast<std::uint64_t>(whole);
}

// The others have what is neither this site's part, which is one place at least, nor known to be theirs.
void SitesApart::AssumePlaces(std::uint64_t hash, const SiteSums::Sum& sum, const Limit& limit, Instant now) {
  LimiterCore& core = ways_.core();
  const std::uint32_t before = core.gauges->OfPeer(hash, Gauges::Site(others_), now);
  if (all_heard_ && before == 0) return;
  const auto here = static_cast<std::uint32_t>(std::max(1.0, std::floor(part_ * limit.in_flight)));
  const std::uint32_t known = here + PlacesTakenOf(core, hash, now).abroad - before;
  const std::uint32_t places = all_heard_ ? 0 : limit.in_flight - std::min(known, limit.in_flight);
  assumed_.Add(sum.said(), 0, 0, {.places = places});
}

void SitesApart::Charge(Instant from, Instant now) {
  if (assumed_.empty()) return;
  if (!all_heard_) {
    if (now - until_ > kReachPeriods * period_) from_ = from;
    until_ = now;
  }
  const Speaker others = Speaker::Site(others_, ways_.core().abroad, period_);
  ChargeAbroad(ways_, assumed_, others, std::min(from, now), now, now);
  assumed_.Clear();
}

}    // namespace dthrottle
