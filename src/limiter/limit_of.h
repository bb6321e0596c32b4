#pragma once

#include <optional>

#include "rule/rulebook.h"

namespace dthrottle {

// The limit of a query whose tag has no slot.
inline std::optional<LimitIndex> LimitOf(const Rulebook& rules, const Query& query) {
  return query.over_long != nullptr ? rules.Find(*query.over_long) : rules.Find(query.tag.bytes);
}

}    // namespace dthrottle
