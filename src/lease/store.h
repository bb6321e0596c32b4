// The holders of one resource: how much each has, and until when.
//
// Holders are found by name, in the order in which their leases expire, and, through the DemandTree, by what they want.
// A lease client and a lease server of one name are two holders.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/siphash.h"
#include "lease/bands.h"
#include "lease/demand_tree.h"
#include "lease/lease.h"

namespace dthrottle::lease {

enum class HolderKind : std::uint8_t { kClient, kServer };

struct Holder {
  std::string id;
  HolderKind kind{};
  std::vector<Band> wants;    // one band for a client
  Lease has;                  // as promised; what of it counts stands in the tree
  double share = 0;           // of it, to divide
  BootInstant asked{};        // when it was last answered

  static void Fields(auto& state, auto& self) {
    state(self.id, self.kind, self.wants, self.has, self.share, self.asked);
  }
};

class Store {
 public:
  using Slot = DemandTree::Slot;

  explicit Store(std::uint64_t seed) : seed_(seed), tree_(seed), slots_{Index(0, Hash{seed}), Index(0, Hash{seed})} {}

  // nullopt: no such holder. A slot is its until it is erased or has expired.
  std::optional<Slot> Find(HolderKind kind, std::string_view id) const;

  // What it wants from now on; a new holder has nothing.
  Slot Put(HolderKind kind, std::string_view id, std::span<const Band> wants);
  void Grant(Slot slot, const Lease& lease, double share, BootInstant now);
  bool Erase(HolderKind kind, std::string_view id);
  // Drops leases that have expired by now, at most so many. Returns their number.
  std::size_t Expire(BootInstant now, std::size_t most);
  // Whether some of those are left.
  bool HasExpired(BootInstant now) const { return !by_expiry_.empty() && by_expiry_.begin()->first <= now; }

  const Holder& holder(Slot slot) const { return holders_[slot]; }
  // Whether kPriorityBand may be asked for; only then are holders kept by priority as well.
  void KeepBands(bool keep);
  // What the algorithm gives this one.
  double Share(Algorithm algorithm, double capacity, Slot slot) const {
    return algorithm == Algorithm::kPriorityBand ? bands_->Share(capacity, slot)
                                                 : tree_.Share(algorithm, capacity, slot);
  }
  double Wants(Slot slot) const { return tree_.demand(slot).wants; }
  double Has(Slot slot) const { return tree_.has(slot); }
  double HasBut(Slot slot) const { return std::max(0.0, tree_.sums().has - tree_.has(slot)); }

  double wants() const { return tree_.sums().wants; }
  double has() const { return tree_.sums().has; }
  std::uint64_t clients() const { return static_cast<std::uint64_t>(tree_.sums().weight); }
  std::size_t size() const { return by_expiry_.size(); }
  BootInstant last_expiry() const { return by_expiry_.empty() ? BootInstant() : by_expiry_.rbegin()->first; }

  // What all want together, by priority; the least important are one band where there are more than kBandsMax. A band
  // that comes to more than a parent takes says as much as it takes.
  static constexpr std::size_t kBandsMax = Bands::kBandsMax;
  std::vector<Band> Aggregate() const;

  // Calls `visit` with every holder, the one whose lease expires first at first, until it returns false.
  template <class Visit>
  void InOrder(Visit&& visit) const {
    for (const auto& [expiry, slot] : by_expiry_) {
      if (!visit(holders_[slot], tree_.demand(slot))) return;
    }
  }

 private:
  // Names are chosen by strangers.
  struct Hash {
    using is_transparent = void;
    std::uint64_t seed = 0;
    std::size_t operator()(std::string_view id) const { return SipHash<1, 3>(SipKey{seed, ~seed}, id); }
  };
  using Index = std::unordered_map<std::string, Slot, Hash, std::equal_to<>>;

  // The sum of wants with one priority. It counts in whole parts, so adding and taking away leave no rounding behind.
  struct Sum {
    __extension__ using Parts = unsigned __int128;

    std::uint64_t bands = 0, clients = 0;
    Parts wants = 0;
  };

  void Drop(Slot slot);
  void AddUp(std::span<const Band> wants);
  void TakeOff(std::span<const Band> wants);
  Index& index(HolderKind kind) { return slots_[static_cast<int>(kind)]; }
  const Index& index(HolderKind kind) const { return slots_[static_cast<int>(kind)]; }

  std::uint64_t seed_;
  std::vector<Holder> holders_;
  std::vector<Slot> free_;
  DemandTree tree_;
  std::optional<Bands> bands_;
  std::map<std::int64_t, Sum, std::greater<>> sums_;    // by priority, the highest first
  Sum all_;                                             // of them
  Index slots_[2];
  std::set<std::pair<BootInstant, Slot>> by_expiry_;
};

}    // namespace dthrottle::lease
