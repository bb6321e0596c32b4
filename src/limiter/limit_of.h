#pragma once

#include <optional>

#include "rule/rulebook.h"

namespace dthrottle {

// The limit of a query whose tag has no slot.
inline std::optional<LimitIndex> LimitOf(const Rulebook& rules, const Query& query) {
  return query.over_long != nullptr ? rules.Find(*query.over_long) : rules.Find(query.tag.bytes);
}

// The tag as rules read it.
inline TagText TextOf(const Query& query) {
  if (query.over_long == nullptr) return {query.tag.bytes};
  return {query.over_long->head, query.over_long->size <= query.over_long->head.size()};
}

}    // namespace dthrottle
