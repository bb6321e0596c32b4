#include "daemon/penalizing.h"

#include "io/clock.h"
#include "limiter/kept_penalties.h"

namespace dthrottle {

Penalizing::Penalizing(Limiter& limiter, std::string_view left) : limiter_(limiter) {
  RestorePenalties(limiter_, left, Now());
}

void Penalizing::Keep(std::vector<HandedSection>& sections) const {
  std::string kept = KeepPenalties(limiter_, Now());
  if (!kept.empty()) sections.push_back({kSection, -1, std::move(kept)});
}

}    // namespace dthrottle
