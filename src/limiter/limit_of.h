#pragma once

#include <optional>

#include "bucket/table.h"
#include "rule/rulebook.h"

namespace dthrottle {

// The limit of a query whose tag has no slot.
inline std::optional<LimitIndex> LimitOf(const Rulebook& rules, const Query& query) {
  return query.over_long != nullptr ? rules.Find(*query.over_long) : rules.Find(query.tag.bytes);
}

// The limit of a query, by the slot of its tag if there is one.
inline std::optional<LimitIndex> LimitOf(const Rulebook& rules, const Query& query, const Slot* slot) {
  return slot != nullptr ? std::optional(LimitIndex{slot->limit}) : LimitOf(rules, query);
}

// The tag as rules read it.
inline TagText TextOf(const Query& query) {
  if (query.over_long == nullptr) return {query.tag.bytes};
  return {query.over_long->head, query.over_long->size <= query.over_long->head.size()};
}

}    // namespace dthrottle
