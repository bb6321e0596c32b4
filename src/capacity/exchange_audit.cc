// What members have of a tag: asked for people who look at it, and to find out who has what nobody gave.
#include <algorithm>

#include "capacity/exchange_state.h"

namespace dthrottle {

void ExchangeState::AskShares(Instant now) {
  const std::vector<CapacityKey> keys = share_sums.Wanted(now);
  if (keys.empty() || !joined()) return;
  AskMembers(keys);
  for (const CapacityKey& key : keys) share_sums.Ask(key, sequence, Held(key, now), now);
}

// The number of the frame is `sequence` afterwards.
void ExchangeState::AskMembers(const std::vector<CapacityKey>& keys) {
  CapacityMessage& m = Fresh(CapacityKind::kAsk);
  m.sequence = ++sequence;
  for (const CapacityKey& key : keys) m.items.push_back({.key = key});
  EncodeCapacity(m, frame);
  for (const std::string& name : active.members) {
    if (!IsSelf(name)) Send(name, frame);
  }
}

// By the ledger: an overdrawn tag stays one as long as members have more than the whole, whether they use it or not.
Parts ExchangeState::Held(const CapacityKey& key, Instant now) const {
  if (now >= standing.valid_until) return standing.reserve;
  const std::uint32_t id = ledgers.Find(key);
  return id == KeyIndex::kNone ? standing.other : HeldOf(ledgers[id]);
}

void ExchangeState::OnAsk(Peer& p, const CapacityMessage& m, Instant now) {
  if (m.generation != generation) return;
  CapacityMessage& reply = Fresh(CapacityKind::kShare);
  reply.sequence = m.sequence;
  for (const CapacityItem& item : m.items) reply.items.push_back({.key = item.key, .given = Held(item.key, now)});
  Send(p.name);
}

void ExchangeState::OnShare(Peer& p, const CapacityMessage& m) {
  if (m.generation != generation || !IsIn(active.members, p.name)) return;
  for (const CapacityItem& item : m.items) {
    if (audit.IsAsked(m.sequence)) {
      audit.Say(p.name, item.key, item.given);
    } else {
      share_sums.Say(p.name, item.key, m.sequence, std::min(item.given, kWhole));
    }
  }
}

void ExchangeState::Audit(Instant now) {
  if (!Leased(now)) return audit.Forget();
  if (audit_in > 0 && --audit_in > 0) return;
  JudgeAudit(now);
  audit_in = PartsAudit::RoundsBetween(active.members.size());
  const std::vector<PartsAudit::Tag> tags = TagsToAudit();
  if (tags.empty()) return;
  std::vector<CapacityKey> keys;
  for (const PartsAudit::Tag& tag : tags) keys.push_back(tag.key);
  AskMembers(keys);
  audit.Ask(sequence, tags);
}

void ExchangeState::JudgeAudit(Instant now) {
  audit.Judge([&](const CapacityKey& key, const PartsAudit::Answers& answers) {
    const std::uint32_t id = ledgers.Find(key);
    if (id == KeyIndex::kNone) return;
    Overdraft& overdraft = ledgers[id].overdraft;
    if (!overdraft.Judge(answers, kWhole + PartsAudit::Slack(EqualShare()))) return;
    QueueShare(id);
    if (!overdraft.found()) {
      --overdrawn;
    } else if (++counts.overdrawn, ++overdrawn == 1) {
      overdrawn_at = now;
    }
  });
}

// The tags of which this host has more than its equal share, one after another.
std::vector<PartsAudit::Tag> ExchangeState::TagsToAudit() {
  std::vector<PartsAudit::Tag> tags;
  const Parts own = OwnShare() + PartsAudit::Slack(EqualShare());
  for (std::uint32_t seen = 0; seen < ledgers.size() && tags.size() < PartsAudit::kTagsMax; ++seen, ++audit_next) {
    if (audit_next >= ledgers.size()) audit_next = 0;
    const Ledger& ledger = ledgers[audit_next];
    if (HeldOf(ledger) > own || ledger.overdraft.found()) tags.push_back({ledger.key, HeldOf(ledger)});
  }
  return tags;
}

}    // namespace dthrottle
