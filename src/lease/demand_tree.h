// What everybody wants and has of one resource, in a tree that answers any share in O(log n), exactly.
//
// Both fair_share and proportional_share ask: of those who want at most so much for their weight, what are the sums?
// So demands stand in a search tree by wants / weight, every node with the sums of its subtree, and the level or the
// equal share is found on one way down. A published server runs its algorithm over all clients for every request;
// caching a level would need a bound on how wrong it may be. Sums are added up anew on every way back to the root,
// never corrected by a difference, so rounding does not pile up however long a server runs.
//
// The tree is a treap: its shape is that of a random one whatever arrives in whatever order, as long as nobody knows
// the seed.
#pragma once

#include <cstdint>
#include <vector>

#include "base/prng.h"
#include "lease/share.h"

namespace dthrottle::lease {

class DemandTree {
 public:
  using Slot = std::uint32_t;    // the caller's number for a holder; small, as slots index an array

  struct Sums {
    double wants = 0, weight = 0, has = 0;
  };

  explicit DemandTree(std::uint64_t seed) : prng_(seed) {}

  // REQUIRES: `slot` is not in the tree.
  void Insert(Slot slot, const Demand& demand);
  // REQUIRES for all that follows: `slot` is in the tree.
  void Erase(Slot slot);
  void SetDemand(Slot slot, const Demand& demand);
  void SetHas(Slot slot, double has);

  bool empty() const { return root_ == kNone; }
  double has(Slot slot) const { return nodes_[slot].has; }
  const Demand& demand(Slot slot) const { return nodes_[slot].demand; }
  Sums sums() const { return root_ == kNone ? Sums() : nodes_[root_].sums; }

  // What Divide gives this demand among all of them.
  double Share(Algorithm algorithm, double capacity, Slot slot) const;

 private:
  static constexpr Slot kNone = ~Slot{0};

  struct Node {
    Demand demand;
    double ratio = 0;    // wants / weight
    double has = 0;
    Sums sums;                  // of the subtree
    std::uint64_t order = 0;    // above its children's
    Slot left = kNone, right = kNone;
  };

  bool Before(Slot a, Slot b) const {
    return nodes_[a].ratio != nodes_[b].ratio ? nodes_[a].ratio < nodes_[b].ratio : a < b;
  }
  void AddUp(Slot slot);
  void Split(Slot tree, Slot at, Slot& before, Slot& after);
  Slot Merge(Slot before, Slot after);
  Slot Without(Slot tree, Slot slot);
  void AddUpTo(Slot tree, Slot slot);

  // Sums of the demands whose ratio is at most that.
  Sums UpTo(double ratio) const;
  double FairLevel(double capacity) const;

  Prng prng_;
  std::vector<Node> nodes_;
  Slot root_ = kNone;
};

}    // namespace dthrottle::lease
