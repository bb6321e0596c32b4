// The ledgers of one host: for each tag what it has, and for each edge what went and came in this life of both ends.
//
// Sums of an edge only grow, and each has one writer, so that a message may be lost, repeated or late: the larger sum
// is the newer one. The exchange says which host may see which sum: a gift is decided (`given`), written into a
// log frame (`noted`), known by the best friend (`logged`), and only then told to the neighbour, who acknowledges it
// (`arrived`).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/state.h"
#include "capacity/capacity_exchange.h"
#include "capacity/key_index.h"
#include "capacity/parts_audit.h"

namespace dthrottle {

struct LedgerEdge {
  Parts given = 0, noted = 0, logged = 0, arrived = 0;    // each at least the next
  Parts received = 0;
  float theirs = kUnsaid;    // indicator of the neighbour, as it said last
  float told = kUnsaid;      // ours, as it was told last
  bool queued = false;       // for the next gifts frame
  bool flying = false;       // in one that is not acknowledged

  static constexpr float kUnsaid = std::numeric_limits<float>::quiet_NaN();

  // What was on its way is queued again.
  static void Fields(auto& state, auto& self) {
    bool waits = self.queued || self.flying;
    state(self.given, self.noted, self.logged, self.arrived, self.received, self.theirs, self.told, waits);
    state.Check(self.given >= self.noted && self.noted >= self.logged && self.logged >= self.arrived);
    if constexpr (kIsReading<decltype(state)>) self.queued = waits;
  }
};

struct Ledger {
  CapacityKey key;
  double demand = 0;             // as part of C
  std::int64_t available = 0;    // what it began with, and received, less given; 0 to kWhole
  std::int64_t pinned = 0;       // of available, as wanted: not to be given; may be more than it
  std::int64_t blocked = 0;      // of available: what that kept from being given in the last round
  std::uint32_t pin = 0;         // number of the pin
  std::uint64_t bond = 0;        // number of the bond under which it was logged last
  bool log_queued = false, log_flying = false, share_queued = false;
  enum class Estate : std::uint8_t { kNone, kTaken, kNoted } estate{};    // inherited, and not known to be logged
  Overdraft overdraft;                                                    // found out anew after a restart

  // A log frame that was on its way is queued again.
  static void Fields(auto& state, auto& self) {
    bool waits = self.log_queued || self.log_flying, inherited = self.estate != Estate::kNone;
    state(self.key, self.demand, self.available, self.pinned, self.blocked, self.pin, self.bond, waits, inherited);
    constexpr auto kMost = static_cast<std::int64_t>(2 * kWhole);    // more than there can be
    const auto possible = [](std::int64_t parts) { return parts >= 0 && parts <= kMost; };
    state.Check(possible(self.available) && possible(self.pinned) && possible(self.blocked) && self.demand >= 0);
    if constexpr (kIsReading<decltype(state)>) {
      self.log_queued = waits;
      self.estate = inherited ? Estate::kTaken : Estate::kNone;
    }
  }
};

class Ledgers {
 public:
  // Forgets everything. `degree` edges each.
  void Clear(std::size_t degree);

  std::uint32_t size() const { return static_cast<std::uint32_t>(ledgers_.size()); }
  std::size_t degree() const { return edges_.size(); }
  Ledger& operator[](std::uint32_t id) { return ledgers_[id]; }
  const Ledger& operator[](std::uint32_t id) const { return ledgers_[id]; }
  LedgerEdge& edge(std::uint32_t id, std::size_t slot) { return edges_[slot][id]; }
  const LedgerEdge& edge(std::uint32_t id, std::size_t slot) const { return edges_[slot][id]; }

  // KeyIndex::kNone if there is none. Ledgers looked for in the order in which they were made are found at once.
  std::uint32_t Find(const CapacityKey& key) const;
  std::uint32_t Add(const CapacityKey& key, std::int64_t available);

  // What an edge's sums do not account for: what the ledger began with, and what came of edges that are over.
  std::int64_t Base(std::uint32_t id) const;

  void Give(std::uint32_t id, std::size_t slot, Parts parts);
  // False if it is nothing new.
  bool Receive(std::uint32_t id, std::size_t slot, Parts received);
  // Parts that the ledger has from now on. A ledger never has more than the whole: the rest can only come of a lie, and
  // is nothing. The sums of edges are kept in full, so what honest neighbours gave each other stays exact.
  void Credit(std::uint32_t id, Parts parts);

  // The neighbour's life is over: its edge begins anew, and what was never told to it comes back. Returns what was.
  LedgerEdge Renew(std::uint32_t id, std::size_t slot);

  // REQUIRES of what is read into: cleared, with the degree that was written.
  static void Fields(auto& state, auto& self) {
    const std::size_t degree = self.degree();
    state(self.ledgers_, self.edges_);
    if constexpr (kIsReading<decltype(state)>) state.Check(self.edges_.size() == degree && self.Index());
  }

 private:
  bool Index();    // false: what was read cannot be

  std::vector<Ledger> ledgers_;
  std::vector<std::vector<LedgerEdge>> edges_;    // by slot: a frame of gifts runs through one of them
  KeyIndex index_;
  mutable std::uint32_t next_ = 0;    // behind the one found last
};

}    // namespace dthrottle
