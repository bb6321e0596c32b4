// Membership of a capacity exchange: the settings that this host wants and those in force, the members of either, what
// each of them said last, and which witness leads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/state.h"
#include "base/time.h"
#include "capacity/capacity_message.h"
#include "capacity/capacity_settings.h"
#include "capacity/leader_trust.h"

namespace dthrottle {

// REQUIRES: names ascend.
inline bool IsIn(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::binary_search(names, name);
}

// Another member, of the settings in force or of those to come.
struct CapacityPeer {
  explicit CapacityPeer(std::string_view its_name) : name(its_name) {}

  const std::string name;
  std::optional<BootInstant> heard;
  std::uint64_t digest = 0, generation = 0, epoch = 0;    // as it said last
  bool wishes = false;                                    // for a new generation
  MemberBits seats;
  BootInstant epoch_since = BootInstant::min();
  // What it has granted us as a witness.
  BootInstant granted_until = BootInstant::min();
  std::uint64_t granted_binding = 0;
  LeaderTrust trust;                 // as the witness that begins generations
  std::optional<BootInstant> refused;    // when its promise of a later number last ended an attempt
  int slot = -1;                     // of the edge, if it is a neighbour

  static void Fields(auto& state, auto& self) {
    state(self.heard, self.digest, self.generation, self.epoch, self.wishes, self.seats, self.granted_until,
          self.granted_binding);
  }
};

class CapacityMembers {
 public:
  using Peers = std::map<std::string, CapacityPeer, std::less<>>;

  CapacityMembers(std::string self, CapacitySettings wanted, BootInstant now);

  // Other settings. They are in force after Adopt().
  void Want(CapacitySettings settings);
  void Adopt();
  // Digests of members, neighbours, rules and reserve. The active one is 0 before Adopt().
  std::uint64_t wanted_digest() const { return wanted_digest_; }
  std::uint64_t active_digest() const { return active_digest_; }
  bool settled() const { return wanted_digest_ == active_digest_; }
  const CapacitySettings& wanted() const { return wanted_; }
  const CapacitySettings& active() const { return active_; }

  const std::string& self() const { return self_; }
  bool IsSelf(std::string_view name) const { return name == self_; }
  std::uint32_t SelfNumber() const { return NumberOf(self_); }
  // REQUIRES: a member of the settings in force.
  std::uint32_t NumberOf(std::string_view name) const;

  Peers& peers() { return peers_; }
  const Peers& peers() const { return peers_; }
  CapacityPeer& peer(std::string_view name) const { return *Find(name); }    // REQUIRES: there is one
  CapacityPeer* Find(std::string_view name) const;

  // The time after which a member that says nothing is silent.
  Duration patience() const { return patience_; }
  bool Up(const CapacityPeer& peer, BootInstant now) const { return peer.heard && now - *peer.heard <= patience_; }
  // How many of these members are there, this host included and `without` not.
  std::size_t CountUp(const std::vector<std::string>& names, BootInstant now,
                      const CapacityPeer* without = nullptr) const;
  // True while a member that was not heard yet may still be there.
  bool Fresh(BootInstant now, int times = 1) const { return now - since_ <= times * patience_; }
  // Nobody is silent because this host was away.
  void Resume(BootInstant now) { since_ = now; }

  // ---- Witnesses ----

  const std::vector<std::string>& wanted_witnesses() const { return wanted_witnesses_; }
  const std::vector<std::string>& witnesses() const { return witnesses_; }
  // The first witness that is there begins new generations.
  bool IsCoordinator(BootInstant now) const;
  // Whether `p` is the first of the other witnesses that may be there: only it is believed when it begins a generation
  // or tells of one.
  bool Leads(const CapacityPeer& p, BootInstant now) const;
  // The first of the other witnesses that is there and is not passed over.
  CapacityPeer* Leader(BootInstant now) const;
  bool StandsIn(BootInstant now) const;    // the leader stands in for a witness that is passed over

  static void Fields(auto& state, auto& self) {
    std::uint64_t left = self.peers_.size();
    state(left);
    if constexpr (!kIsReading<decltype(state)>) {
      for (const auto& [name, peer] : self.peers_) state(name, peer);
    } else {
      for (std::string name; left > 0 && state.ok(); --left) {
        state(name);
        CapacityPeer nobody(name);    // any more: members of settings that never came into force
        CapacityPeer* const peer = self.Find(name);
        state(peer != nullptr ? *peer : nobody);
      }
    }
  }

 private:
  void Use();

  const std::string self_;
  CapacitySettings wanted_, active_;
  std::uint64_t wanted_digest_ = 0, active_digest_ = 0;
  std::vector<std::string> wanted_witnesses_, witnesses_;
  Duration patience_{};
  Peers peers_;
  std::unordered_map<std::string_view, CapacityPeer*> by_name_;    // of the same, for every frame
  BootInstant since_;
};

}    // namespace dthrottle
