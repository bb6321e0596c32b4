// What members have of a tag: asked for people who look at it, and to find out which member has what nobody gave.
#pragma once

#include <cstdint>
#include <vector>

#include "capacity/exchange_books.h"
#include "capacity/exchange_core.h"
#include "capacity/parts_audit.h"
#include "capacity/share_sums.h"

namespace dthrottle {

class CapacityAudits {
 public:
  CapacityAudits(CapacityCore& core, CapacityBooks& books)
      : core_(core), members_(core.members), books_(books), ledgers_(books.ledgers()) {}

  // A new generation: no answer counts any more.
  void Forget() { share_sums_.Forget(); }
  // The ledgers have begun anew.
  void Begin();

  // The same as CapacityExchange::Sum. Members are asked in the rounds after this.
  CapacitySum Sum(const CapacityKey& key, BootInstant now);
  void AskShares(BootInstant now);
  // Judges what was answered, and asks about further tags.
  void Audit(BootInstant now);
  void OnAsk(const CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  void OnShare(const CapacityPeer& p, const CapacityMessage& m);

  // Members have had more than the whole of a tag for longer than this.
  bool Overdrawn(Duration longer, BootInstant now) const { return overdrawn_ > 0 && now - overdrawn_at_ > longer; }

 private:
  // The number of the frame is the core's `sequence` afterwards.
  void AskMembers(const std::vector<CapacityKey>& keys);
  void Judge(BootInstant now);
  // The tags of which this host has more than its equal share, one after another.
  std::vector<PartsAudit::Tag> TagsToAudit();

  CapacityCore& core_;
  CapacityMembers& members_;
  CapacityBooks& books_;
  Ledgers& ledgers_;
  ShareSums share_sums_;
  PartsAudit audit_;
  std::size_t audit_in_ = 0;        // rounds
  std::uint32_t audit_next_ = 0;    // ledger
  std::size_t overdrawn_ = 0;       // ledgers
  BootInstant overdrawn_at_{};      // the first of them
};

}    // namespace dthrottle
