#include "admin/snapshot.h"

#include <algorithm>

#include "limiter/inspect.h"
#include "limiter/shedder.h"
#include "rule/rulebook.h"
#include "share/ways.h"
#include "tally/tally.h"

namespace dthrottle {

Snapshot TakeSnapshot(Limiter& limiter, const ProcessCounts& process) {
  Snapshot s;
  s.process = process;
  s.table = limiter.table().counts();
  s.table_bytes = limiter.table().region_bytes();
  s.table_cells = limiter.table().cells();
  s.rules = limiter.rules().rules().size();
  s.overrides = limiter.rules().overrides().size();
  s.reshaping = limiter.reshaping();
  s.all = limiter.tally().GrandTotals();
  s.debits = limiter.ways().Get<Debits>().grand_totals();
  s.merged = limiter.ways().Get<Debits>().peers().counts();
  s.watched = limiter.ways().Status().watched;
  const LimiterCounts counts = CountsOf(limiter);
  s.places = counts.in_flight;
  s.among = counts.among;
  s.own_limits = counts.own_limits, s.own_limits_crowded = counts.own_limits_crowded;
  s.penalties = counts.penalties;
  s.quotas = counts.quotas;
  const Certificate& certificate = limiter.ways().Get<Debits>().certificate();
  s.deviated = certificate.ever();
  s.accuracy_tags = certificate.tags();
  s.accuracy_crowded = certificate.crowded();
  s.accuracy_alerts = certificate.alerts();
  for (std::size_t p = 0; p < kShedPriorities; ++p) {
    s.shed_probability = std::max(s.shed_probability, limiter.shedder().probability(p));
  }
  s.unmatched = limiter.tally().Totals(Lane::kUnmatched).served;
  return s;
}

}    // namespace dthrottle
