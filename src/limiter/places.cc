#include "limiter/places.h"

#include "limiter/limiter.h"
#include "share/ways.h"

namespace dthrottle {

void GivePlaces(Limiter& limiter, std::uint64_t hash, std::uint32_t places) {
  LimiterCore& core = limiter.ways().core();
  const Table::Shard shard(*core.table, hash);
  if (core.in_flight == nullptr) return;
  core.in_flight->Give(hash, places);
  core.gauges->Changed(hash);
}

void RestorePlaces(Limiter& limiter, std::uint64_t hash, std::uint32_t places) {
  LimiterCore& core = limiter.ways().core();
  const Table::Shard shard(*core.table, hash);
  if (core.in_flight == nullptr) return;
  core.in_flight->Take(hash, places);
  core.gauges->Changed(hash);
}

}    // namespace dthrottle
