#include "lease/demand_tree.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace dthrottle::lease {

namespace {

DemandTree::Sums operator+(const DemandTree::Sums& a, const DemandTree::Sums& b) {
  return {a.wants + b.wants, a.weight + b.weight, a.has + b.has};
}

}    // namespace

void DemandTree::AddUp(Slot slot) {
  Node& node = nodes_[slot];
  node.sums = {node.demand.wants, node.demand.weight, node.has};
  if (node.left != kNone) node.sums = nodes_[node.left].sums + node.sums;
  if (node.right != kNone) node.sums = node.sums + nodes_[node.right].sums;
}

void DemandTree::Split(Slot tree, Slot at, Slot& before, Slot& after) {
  if (tree == kNone) {
    before = after = kNone;
    return;
  }
  Node& node = nodes_[tree];
  if (Before(tree, at)) {
    Split(node.right, at, node.right, after);
    before = tree;
  } else {
    Split(node.left, at, before, node.left);
    after = tree;
  }
  AddUp(tree);
}

DemandTree::Slot DemandTree::Merge(Slot before, Slot after) {
  if (before == kNone || after == kNone) return before == kNone ? after : before;
  const bool before_is_above = nodes_[before].order > nodes_[after].order;
  const Slot top = before_is_above ? before : after;
  if (before_is_above) {
    nodes_[top].right = Merge(nodes_[top].right, after);
  } else {
    nodes_[top].left = Merge(before, nodes_[top].left);
  }
  AddUp(top);
  return top;
}

void DemandTree::Insert(Slot slot, const Demand& demand) {
  DT_CHECK(demand.wants >= 0 && demand.weight > 0);
  if (slot >= nodes_.size()) nodes_.resize(slot + 1);
  nodes_[slot] = {.demand = demand, .ratio = demand.wants / demand.weight, .sums = {}, .order = prng_.Next()};
  AddUp(slot);
  Slot before, after;
  Split(root_, slot, before, after);
  root_ = Merge(Merge(before, slot), after);
}

DemandTree::Slot DemandTree::Without(Slot tree, Slot slot) {
  DT_CHECK(tree != kNone);
  Node& node = nodes_[tree];
  if (tree == slot) return Merge(node.left, node.right);
  Slot& side = Before(slot, tree) ? node.left : node.right;
  side = Without(side, slot);
  AddUp(tree);
  return tree;
}

void DemandTree::Erase(Slot slot) {
  root_ = Without(root_, slot);
}

void DemandTree::SetDemand(Slot slot, const Demand& demand) {
  const Demand& old = nodes_[slot].demand;
  if (old.wants == demand.wants && old.weight == demand.weight) return;
  const double has = nodes_[slot].has;
  Erase(slot);
  Insert(slot, demand);
  SetHas(slot, has);
}

void DemandTree::AddUpTo(Slot tree, Slot slot) {
  DT_CHECK(tree != kNone);
  if (tree != slot) AddUpTo(Before(slot, tree) ? nodes_[tree].left : nodes_[tree].right, slot);
  AddUp(tree);
}

void DemandTree::SetHas(Slot slot, double has) {
  if (nodes_[slot].has == has) return;
  nodes_[slot].has = has;
  AddUpTo(root_, slot);
}

DemandTree::Sums DemandTree::UpTo(double ratio) const {
  Sums found;
  for (Slot at = root_; at != kNone;) {
    const Node& node = nodes_[at];
    if (node.ratio > ratio) {
      at = node.left;
      continue;
    }
    if (node.left != kNone) found = found + nodes_[node.left].sums;
    found = found + Sums{node.demand.wants, node.demand.weight, node.has};
    at = node.right;
  }
  return found;
}

double DemandTree::FairLevel(double capacity) const {
  const Sums all = sums();
  if (all.wants <= capacity) return std::numeric_limits<double>::infinity();
  Sums satisfied;
  for (Slot at = root_; at != kNone;) {
    const Node& node = nodes_[at];
    Sums with = satisfied + Sums{node.demand.wants, node.demand.weight, 0};
    if (node.left != kNone) with = with + nodes_[node.left].sums;
    const bool fits = with.wants + node.ratio * (all.weight - with.weight) <= capacity;
    if (fits) satisfied = with;
    at = fits ? node.right : node.left;
  }
  // Nobody is left only where rounding says that all fit though their sum does not.
  const double weight = all.weight - satisfied.weight;
  return weight > 0 ? std::max(0.0, capacity - satisfied.wants) / weight : std::numeric_limits<double>::infinity();
}

double DemandTree::Share(Algorithm algorithm, double capacity, Slot slot) const {
  const Demand& demand = nodes_[slot].demand;
  const Sums all = sums();
  switch (algorithm) {
    case Algorithm::kNone:
      return demand.wants;
    case Algorithm::kStatic:
      return std::min(demand.wants, capacity);
    case Algorithm::kProportionalScaling:
      return ProportionalScaling(demand.wants, capacity, all.wants);
    case Algorithm::kProportionalShare: {
      const double equal = capacity / all.weight;
      const Sums modest = UpTo(equal);
      const double unused = equal * modest.weight - modest.wants;
      const double needed = (all.wants - modest.wants) - equal * (all.weight - modest.weight);
      return ProportionalShare(demand, equal, unused, needed);
    }
    case Algorithm::kPriorityBand:    // Bands has it
    case Algorithm::kFairShare:
      break;
  }
  return std::min(demand.wants, FairLevel(capacity) * demand.weight);
}

}    // namespace dthrottle::lease
