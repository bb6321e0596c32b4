// The ledgers of one host and what its limiter wants of them: what it has of each tag, which tags the limiter and the
// best friend have yet to be told of.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/state.h"
#include "capacity/exchange_core.h"
#include "capacity/indicator.h"
#include "capacity/ledgers.h"

namespace dthrottle {

class CapacityBooks {
 public:
  explicit CapacityBooks(CapacityCore& core) : core_(core) {}

  // Forgets all ledgers, and begins anew with the tags that are asked for here.
  void Begin();
  void SetDemand(std::span<const TagDemand> demands);
  std::size_t asked() const { return demands_.size(); }    // tags with demand or a pin here

  Ledgers& ledgers() { return ledgers_; }
  const Ledgers& ledgers() const { return ledgers_; }
  // A ledger for a tag that has none. KeyIndex::kNone if there is no room.
  std::uint32_t Add(const CapacityKey& key);
  // The same if there is room or not.
  std::uint32_t Make(const CapacityKey& key);

  // What this host holds of the tag, and the part of that which it may use.
  Parts HeldOf(const Ledger& ledger) const {
    return std::min(core_.generation.reserve + static_cast<Parts>(ledger.available), kWhole);
  }
  Parts ShareOf(const Ledger& ledger) const {
    return ledger.overdraft.found() ? std::min(HeldOf(ledger), core_.OwnShare()) : HeldOf(ledger);
  }
  // By the ledger: an overdrawn tag stays one as long as members have more than the whole, whether they use it or not.
  Parts Held(const CapacityKey& key, BootInstant now) const;
  // The load of a tag whose capacity is 1.
  Load LoadOf(double demand, std::int64_t available) const;
  std::optional<double> IndicatorOf(const Load& load) const;
  std::optional<double> IndicatorOf(const Ledger& ledger) const {
    return IndicatorOf(LoadOf(ledger.demand, ledger.available));
  }

  // Parts that come from a host that is dead. The tag has an estate until the best friend has logged it.
  void TakeOver(std::uint32_t id, Parts parts);
  bool has_estates() const { return estates_ != 0; }
  // True if it was the last estate.
  bool EstateLogged(Ledger& ledger);

  void QueueShare(std::uint32_t id) {
    if (!std::exchange(ledgers_[id].share_queued, true)) share_waiting_.push_back(id);
  }
  void QueueLog(std::uint32_t id) {
    if (!std::exchange(ledgers_[id].log_queued, true)) log_waiting_.push_back(id);
  }
  void Changed(std::uint32_t id) {
    QueueLog(id);
    QueueShare(id);
  }
  // The same as CapacityExchange::TakeShares.
  bool TakeShares(std::vector<TagShare>& changed, std::size_t most);
  std::vector<std::uint32_t>& log_waiting() { return log_waiting_; }

  static void Fields(auto& state, auto& self) {
    state(self.demands_, self.ledgers_);
    if constexpr (kIsReading<decltype(state)>) {
      if (state.ok()) self.QueueAll();
    }
  }

 private:
  // The demand for a tag as the limiter states it, as a part of C.
  struct Asked {
    double demand = 0;
    Parts pinned = 0;
    std::uint32_t pin = 0;

    static void Fields(auto& state, auto& self) { state(self.demand, self.pinned, self.pin); }
  };

  // What the limiter wants of a tag. A pin is in force when its number goes back to it.
  void Want(std::uint32_t id, const Asked& asked);
  void QueueAll();

  CapacityCore& core_;
  std::map<CapacityKey, Asked> demands_;    // above 0, as part of C, or with something pinned
  Ledgers ledgers_;
  std::vector<std::uint32_t> log_waiting_, share_waiting_;
  std::size_t estates_ = 0;    // ledgers with something inherited that is not logged
};

}    // namespace dthrottle
