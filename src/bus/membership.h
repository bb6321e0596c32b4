// The members of the fleet: the links of this host, the hosts behind them, hello and welcome. Also counts frames of
// strangers, which takes patience: while a hello waits for its first answer, nobody knows what the host there is
// called.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/state.h"
#include "bus/exchange_core.h"
#include "bus/links.h"
#include "bus/peer.h"

namespace dthrottle {

// What people are told of a peer whose name another host has as well.
inline constexpr char kNamesake[] = "two hosts have its name";

class Membership {
 public:
  explicit Membership(ExchangeCore& core) : core_(core) {}

  // ---- Links ----

  Link& Add(LinkId id, std::string address, std::string proven);
  void Remove(LinkId id);
  Link* Find(LinkId id) const { return links_.Find(id); }    // null: none
  const Links& links() const { return links_; }
  bool alone() const;    // all links lead to this host itself
  void Refuse(Link& link, std::string why);

  // ---- Hosts ----

  // The host of that name if a link leads to it; null otherwise.
  Peer* Linked(std::string_view name);
  // A host that no link leads to may be forgotten to make room for it.
  Peer& FindOrAdd(const std::string& name);
  // The host of that number if a link leads to it; null otherwise.
  Peer* Numbered(std::uint32_t number) const {
    Peer* const peer = number < numbered_.size() ? numbered_[number] : nullptr;
    return peer != nullptr && peer->link != nullptr ? peer : nullptr;
  }
  template <class Do>
  void ForEach(Do&& each) const {
    for (const auto& [name, peer] : peers_) each(peer);
  }
  template <class Do>
  void ForEach(Do&& each) {
    for (auto& [name, peer] : peers_) each(peer);
  }

  // ---- Hello ----

  Instant HelloDue(const Link& link) const;
  // `published`: the last sequence of this host.
  void SayHello(Link& link, std::uint64_t published, Instant now);
  // The link's next hello goes out as soon as one may.
  void Hasten(Link& link);
  // True if the sender is welcome: another host, with a name of its own.
  bool OnHello(const Route& route, const Published& published, Instant now);
  // Whether the hello that has come is of another host with the name of a peer. A peer that was started anew says a life
  // that this host does not know yet, and so does another host: what the peer answers to a hello said after that tells.
  bool IsNamesake(Instant now);
  bool FitsOurs(std::uint64_t epoch) const;
  std::optional<std::uint32_t> SiteOf(std::string_view site) const;
  // Returns the host if the link leads to one, null otherwise.
  Peer* OnWelcome(Link& link, Instant now);

  // ---- Over a restart: the hosts, without links ----

  static void Fields(auto& state, auto& self) {
    std::uint64_t left = self.peers_.size();
    state(left);
    if constexpr (!kIsReading<decltype(state)>) {
      for (const auto& [name, peer] : self.peers_) state(peer);
    } else {
      state.Check(left <= kPeersReadMax);
      for (; left > 0 && state.ok(); --left) {
        Peer peer;
        state(peer);
        self.Number(self.peers_.insert_or_assign(peer.name, peer).first->second);
      }
      self.unlinked_ = self.peers_.size();
    }
  }

  // ---- Strangers ----

  // The message that has come is from nobody we know.
  void CountUnknown(Instant now);
  // Counts those that have had time enough as strangers. Returns when to look again.
  Instant CountStrangers(Instant now);

 private:
  static constexpr std::size_t kPeersReadMax = 65536;

  struct NameHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };
  // A sender that may turn out to be a peer when a hello is answered.
  struct Unknown {
    Instant since;
    std::uint64_t frames = 0;
  };
  // A life that hellos in a peer's name have said.
  struct Life {
    std::uint64_t number;
    Instant said;           // when the latest did
    bool judged = false;    // it is not the peer's: that has answered since
    bool refused = false;   // and it has said hello again
  };

  void Number(Peer& peer) {
    if (peer.number >= kPeersReadMax) return;
    if (numbered_.size() <= peer.number) numbered_.resize(peer.number + 1);
    numbered_[peer.number] = &peer;
  }
  void Bind(Link& link, Peer& peer, Instant now);
  void Unbind(Link& link);
  bool JudgeLives(const std::string& name, std::uint64_t life, Instant now);
  void HastenConnecting();
  const char* ComplaintAboutSite() const;
  // Sets the state of a link that has answered.
  void Answered(Link& link, PeerState state);

  ExchangeCore& core_;
  Links links_;
  std::size_t connecting_ = 0;    // of the links
  bool all_hastened_ = false;     // of the links that are connecting
  std::unordered_map<std::string, Peer, NameHash, std::equal_to<>> peers_;
  std::vector<Peer*> numbered_;                 // the peers, by number; null: nobody has it
  std::size_t unlinked_ = 0;                    // of the peers
  std::optional<std::uint32_t> free_number_;    // of one that was forgotten, for the next
  std::map<std::string, Unknown, std::less<>> unknown_;
  std::map<std::string, std::vector<Life>, std::less<>> lives_;    // by the peer's name, where there are such
};

}    // namespace dthrottle
