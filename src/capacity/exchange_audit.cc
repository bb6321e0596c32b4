#include "capacity/exchange_audit.h"

#include <algorithm>

namespace dthrottle {

void CapacityAudits::Begin() {
  audit_.Forget();
  overdrawn_ = 0;
}

CapacitySum CapacityAudits::Sum(const CapacityKey& key, BootInstant now) {
  share_sums_.Look(key, now);
  return share_sums_.Sum(key, books_.Held(key, now), now);
}

void CapacityAudits::AskShares(BootInstant now) {
  const std::vector<CapacityKey> keys = share_sums_.Wanted(now);
  if (keys.empty() || !core_.generation.joined()) return;
  AskMembers(keys);
  for (const CapacityKey& key : keys) share_sums_.Ask(key, core_.sequence, books_.Held(key, now), now);
}

void CapacityAudits::AskMembers(const std::vector<CapacityKey>& keys) {
  CapacityMessage& m = core_.Fresh(CapacityKind::kAsk);
  m.sequence = ++core_.sequence;
  for (const CapacityKey& key : keys) m.items.push_back({.key = key});
  core_.SendAll(members_.active().members);
}

void CapacityAudits::OnAsk(const CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  if (m.generation != core_.generation.number) return;
  CapacityMessage& reply = core_.Fresh(CapacityKind::kShare);
  reply.sequence = m.sequence;
  for (const CapacityItem& item : m.items) {
    reply.items.push_back({.key = item.key, .given = books_.Held(item.key, now)});
  }
  core_.Send(p.name);
}

void CapacityAudits::OnShare(const CapacityPeer& p, const CapacityMessage& m) {
  if (m.generation != core_.generation.number || !IsIn(members_.active().members, p.name)) return;
  for (const CapacityItem& item : m.items) {
    if (audit_.IsAsked(m.sequence)) {
      audit_.Say(p.name, item.key, item.given);
    } else {
      share_sums_.Say(p.name, item.key, m.sequence, std::min(item.given, kWhole));
    }
  }
}

void CapacityAudits::Audit(BootInstant now) {
  if (!core_.Leased(now)) return audit_.Forget();
  if (audit_in_ > 0 && --audit_in_ > 0) return;
  Judge(now);
  audit_in_ = PartsAudit::RoundsBetween(members_.active().members.size());
  const std::vector<PartsAudit::Tag> tags = TagsToAudit();
  if (tags.empty()) return;
  std::vector<CapacityKey> keys;
  for (const PartsAudit::Tag& tag : tags) keys.push_back(tag.key);
  AskMembers(keys);
  audit_.Ask(core_.sequence, tags);
}

void CapacityAudits::Judge(BootInstant now) {
  audit_.Judge([&](const CapacityKey& key, const PartsAudit::Answers& answers) {
    const std::uint32_t id = ledgers_.Find(key);
    if (id == KeyIndex::kNone) return;
    Overdraft& overdraft = ledgers_[id].overdraft;
    if (!overdraft.Judge(answers, kWhole + PartsAudit::Slack(core_.EqualShare()))) return;
    books_.QueueShare(id);
    if (!overdraft.found()) {
      --overdrawn_;
    } else if (++core_.counts.overdrawn, ++overdrawn_ == 1) {
      overdrawn_at_ = now;
    }
  });
}

std::vector<PartsAudit::Tag> CapacityAudits::TagsToAudit() {
  std::vector<PartsAudit::Tag> tags;
  const Parts own = core_.OwnShare() + PartsAudit::Slack(core_.EqualShare());
  for (std::uint32_t seen = 0; seen < ledgers_.size() && tags.size() < PartsAudit::kTagsMax; ++seen, ++audit_next_) {
    if (audit_next_ >= ledgers_.size()) audit_next_ = 0;
    const Ledger& ledger = ledgers_[audit_next_];
    if (books_.HeldOf(ledger) > own || ledger.overdraft.found()) tags.push_back({ledger.key, books_.HeldOf(ledger)});
  }
  return tags;
}

}    // namespace dthrottle
