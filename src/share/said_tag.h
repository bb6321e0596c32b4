// Tags as hosts name them to each other: behind the digest of an over-long tag stands the name of its rule, which the
// digest alone does not tell.
#pragma once

#include <optional>
#include <string>

#include "base/tag.h"
#include "bucket/table.h"
#include "bus/entries.h"
#include "rule/rulebook.h"

namespace dthrottle {

// The tag in the form that tables have.
inline Tag TableTag(const Tag& said) {
  return said.is_digest ? Tag{said.bytes.substr(0, kDigestBytes), true} : said;
}

// The limit of the tag; `slot` is its slot, or null. None: it has no limit, or no rule here has that name, or the peer
// that says it has named too many limits of tags' own (rule/own_limits.h).
inline std::optional<LimitIndex> LimitOfSaid(const Rulebook& rules, const Slot* slot, const Tag& said,
                                             Source source = Source::kPeer) {
  if (slot != nullptr) return LimitIndex{slot->limit};
  return said.is_digest ? rules.Named(said.bytes.substr(kDigestBytes)) : rules.Find(said.bytes, source);
}

// Adds an entry of the tag, whose limit this is; false: there is no room. The digest of a tag that has no rule is left
// out, because nobody else would know it.
inline bool AddSaidTag(const Rulebook& rules, const Tag& tag, LimitIndex limit, std::uint64_t value,
                       const Besides& besides, Entries& out) {
  if (!tag.is_digest) return out.Add(tag, value, 0, besides);
  const std::size_t rule = rules.limit(limit).rule;
  if (rule >= rules.rules().size()) return true;
  std::string named(tag.bytes);
  named += rules.rules()[rule].name;
  return out.Add({named, true}, value, 0, besides);
}

}    // namespace dthrottle
