#include "capacity/parts_audit.h"

#include <algorithm>

namespace dthrottle {

void PartsAudit::Ask(std::uint64_t number, const std::vector<Tag>& tags) {
  Forget();
  number_ = number;
  for (const Tag& tag : tags) asked_[tag.key].sum = tag.own;
}

void PartsAudit::Say(std::string_view member, const CapacityKey& key, Parts parts) {
  const auto at = asked_.find(key);
  if (at == asked_.end() || !at->second.members.emplace(member).second) return;
  at->second.sum += std::min(parts, kWhole);
}

void PartsAudit::Forget() {
  number_ = 0;
  asked_.clear();
}

bool Overdraft::Judge(const PartsAudit::Answers& answers, Parts most) {
  const bool over = answers.sum > most, before = found_;
  if (over) {
    found_ = suspected_;
    members_ = answers.members;
    suspected_ = true;
  } else if (answers.members >= members_) {
    *this = Overdraft();
  }
  return found_ != before;
}

}    // namespace dthrottle
