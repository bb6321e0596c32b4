// Rounds of eq (7) of GDRL, and gifts to neighbours: what goes over each edge, and what became of it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/state.h"
#include "capacity/exchange_books.h"
#include "capacity/exchange_core.h"

namespace dthrottle {

// A frame under way, with what was said in it.
struct CapacityFlight {
  std::uint64_t sequence;
  BootInstant sent;
  std::vector<std::pair<std::uint32_t, Parts>> said;    // ledger, sum of gifts
};

// A frame that is not acknowledged after so many rounds is taken for lost.
inline constexpr int kFlightRounds = 2;

std::optional<CapacityFlight> TakeFlight(std::deque<CapacityFlight>& flights, std::uint64_t sequence);

// One edge of every ledger.
struct GiftEdge {
  // What was on the edge with a life that is over, until its log says what of it arrived.
  struct Left {
    EdgeSums sums;
    bool settled = false;

    static void Fields(auto& state, auto& self) { state(self.sums, self.settled); }
  };

  CapacityPeer* peer = nullptr;
  double weight = 1;
  std::uint64_t life = 0;      // of the neighbour, that the ledgers' edges are about; 0: not known
  std::uint64_t former = 0;    // the one before, which is over, and what was on its edges
  std::map<std::uint32_t, Left> left;
  BootInstant left_at{};
  std::uint64_t settled = 0;    // of the former lives, the last about which all is said
  // The life that a best friend wants to settle, and the witnesses that have said that it is over.
  std::uint64_t doubted = 0;
  std::set<std::string, std::less<>> over;
  std::vector<std::uint32_t> waiting;    // ledgers that have something to say
  std::deque<CapacityFlight> flights;

  static void Fields(auto& state, auto& self) {
    state(self.life, self.former, self.left, self.left_at, self.settled);
  }
};

class CapacityGifts {
 public:
  CapacityGifts(CapacityCore& core, CapacityBooks& books)
      : core_(core), members_(core.members), books_(books), ledgers_(books.ledgers()) {}

  // For the neighbours in the graph in force.
  void MakeEdges();
  // The ledgers have begun anew.
  void Begin();

  std::vector<GiftEdge>& edges() { return edges_; }
  const std::vector<GiftEdge>& edges() const { return edges_; }
  // The edge with this member; null if it is no neighbour.
  GiftEdge* EdgeOf(const CapacityPeer& p) {
    return p.slot < 0 ? nullptr : &edges_[static_cast<std::size_t>(p.slot)];
  }
  // Whether an edge still has gifts of a life that is over, and has had them for longer than `longer`.
  bool Unsettled() const;
  bool Unsettled(Duration longer, BootInstant now) const;

  // One round for all ledgers: decide gifts, and say what changed.
  void Round(BootInstant now);
  void Queue(std::uint32_t id, std::size_t slot);
  void Flush(BootInstant now);
  void SayAgain(BootInstant now);
  void OnGifts(CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  void OnHave(CapacityPeer& p, const CapacityMessage& m, BootInstant now);

  // A member in another life than the one that is known.
  void SeeLife(CapacityPeer& p, std::uint64_t life, BootInstant now);
  void EndLife(std::size_t slot, BootInstant now);

  // REQUIRES of what is read into: the edges were made, the books read.
  static void Fields(auto& state, auto& self) {
    for (auto& edge : self.edges_) {
      state(edge);
      for (const auto& [id, left] : edge.left) state.Check(id < self.ledgers_.size());
    }
    if constexpr (kIsReading<decltype(state)>) {
      if (state.ok()) self.QueueAll();
    }
  }

 private:
  // The least gift that is worth its frame.
  Parts GiftMin() const;
  // What to give for a difference of one: GDRL (15), taken at the largest indicator known, and half of it by default.
  double Gain(double demand, double worst) const;
  double Worst(std::uint32_t id, double own) const;
  std::vector<bool> Reachable(BootInstant now) const;    // by slot
  void RoundOf(std::uint32_t id, const std::vector<bool>& there, bool may_give);
  // True if something was given.
  bool Give(std::uint32_t id, double own, double gain, const std::vector<bool>& there);
  void Tell(std::uint32_t id, float indicator, double gain, const std::vector<bool>& there);
  void Flush(std::size_t slot, BootInstant now);
  bool FromNeighbour(CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  // A tag that nobody asks for here gets a ledger when a neighbour is to be given some of it. A gift without a ledger
  // here is a lie: only a host that was told of an indicator gives, and ledgers last as long as lives.
  std::uint32_t LedgerFor(const CapacityItem& item, const GiftEdge& edge);
  void QueueAll();

  CapacityCore& core_;
  CapacityMembers& members_;
  CapacityBooks& books_;
  Ledgers& ledgers_;
  std::vector<GiftEdge> edges_;
  double strength_ = 0;    // sum of the edges' weights
};

}    // namespace dthrottle
