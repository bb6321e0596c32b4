// Tags as hosts name them to each other: behind the digest of an over-long tag stands the name of its rule, which the
// digest alone does not tell.
#pragma once

#include <optional>

#include "base/tag.h"
#include "bucket/table.h"
#include "rule/rulebook.h"

namespace dthrottle {

// As tables have it.
inline Tag TableTag(const Tag& said) {
  return said.is_digest ? Tag{said.bytes.substr(0, kDigestBytes), true} : said;
}

// The limit of the tag; `slot` is its slot, or null. None: it has no limit, or no rule here has that name.
inline std::optional<LimitIndex> LimitOfSaid(const Rulebook& rules, const Slot* slot, const Tag& said) {
  if (slot != nullptr) return LimitIndex{slot->limit};
  return said.is_digest ? rules.Named(said.bytes.substr(kDigestBytes)) : rules.Find(said.bytes);
}

}    // namespace dthrottle
