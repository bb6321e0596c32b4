// How the list of owners changes while the fleet runs, without a hit lost or counted twice (protocol/owners.md).
//
//  1. An owner proposes a list, with a greater epoch, and tells it to everybody; an owner is believed, and so is a host
//     that the settings name. From then on a host that has the new list counts no report that was cut by another one.
//     Where a register decides (Exchange::Options::owners_registered), it is in force as soon as it stands there.
//  2. The limiter hears of it behind all debits by the old list, and says when everything that comes from it is to be
//     cut by the new one. Then the streams of reports change (bus/owners/streams.h).
//  3. A host that owned tags by the old list hands the buckets of those that have moved to their new owners, which hold
//     back all reports and their own hits until they have them. What it has served itself and told nobody is not in
//     these buckets, and is reported by the new list.
//
// One change ends, at all owners, before one of them proposes the next, and an owner that says that it is done promises
// not to propose one itself for a moment. Where two lists come from the same one all the same, because owners could not
// hear each other, the greater epoch counts. An owner that is silent is waited for only for a moment, and one that has
// gone on to another list not at all: the new owners take the lowest level that any host claims instead, as where an
// owner was killed.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bus/exchange_core.h"
#include "bus/joining.h"
#include "bus/membership.h"
#include "bus/owners/streams.h"

namespace dthrottle {

// Says the list in force on that link. `stream`: asks what is counted of the stream of that epoch; 0: of none.
void SayOwners(ExchangeCore& core, LinkId link, std::uint64_t stream, Instant now);
void SayOwners(ExchangeCore& core, const Route& route, Instant now);    // back by that route, of no stream

class Changing {
 public:
  Changing(ExchangeCore& core, Membership& members, Streams& streams, Joining& joining)
      : core_(core), members_(members), streams_(streams), joining_(joining) {
    if (core_.owners != nullptr) named_ = core_.owners->names();
  }

  // The settings of this host name other owners. It proposes them if it is an owner now; or if they name it and none of
  // the owners in force, once none of these is heard any more.
  void Want(std::vector<std::string> names);
  // Somebody who decides for all says that the list is in force.
  void Obey(std::shared_ptr<const Owners> list);

  // All owners are ready for this list, and a register has yet to decide; null: for none.
  const std::shared_ptr<const Owners>& proposed() const { return proposed_; }

  // The life before had not got the tags that became its own, and they will not come.
  void GoOnWithout();

  // The message that has come on the link of a peer. REQUIRES: it is kOwners, kClosed, kHandover or kTaken.
  void OnMessage(const Link& link, Instant now);

  // REQUIRES: item.kind is kOwners, kHandoverPart or kHandoverEnd.
  void FromLimiter(ToPeers& item, Instant now);

  // Asks for what is due, and goes on where it can. Returns when to look again.
  Instant Pass(Instant now);

  // Something is to be had from that host, or to be given to it.
  bool Needs(const std::string& host, Instant now) const;

  // ---- Looking ----

  std::size_t awaited() const { return taking_.size(); }
  std::size_t giving() const { return giving_.size(); }
  bool differs() const { return !core_.options.owners_registered && names_others(); }
  // Says in words what that host still hands over to this one, and this one to it.
  std::vector<std::string_view> MovesOf(const std::string& host) const;

 private:
  struct Taking {
    Instant since, ask_at;
    Instant moved_at;           // when a part came
    std::uint64_t parts = 0;    // that have come
  };
  struct Part {
    Instant to;
    Entries entries;
  };

  void OnOwners(const Link& link, Instant now);
  void OnClosed(const Peer& peer, Instant now);
  void OnHandover(Peer& peer, Instant now);
  void OnTaken(const Peer& peer, Instant now);

  bool names_others() const { return core_.owners != nullptr && core_.owners->names() != named_; }
  bool idle(Instant now) const;
  bool AllSettled(Instant now);
  bool Proposes(Instant now) const;
  bool succeeds() const;
  bool OwnersAreGone(Instant now) const;
  void Allow(const Link& link, Instant now);
  bool Patient(const std::string& owner, Instant since, Instant now);
  void Adopt(std::shared_ptr<const Owners> list, Instant now);
  void TakeFrom(const Owners& list, Instant now);
  void GiveTo(const Owners& before, const Owners& list);
  void Answer(const Link& link, Instant now);
  Instant AskForTags(Instant now);
  Instant AskToClose(Instant now);
  void Miss(const std::string& owner);
  void MissIfBeyond(const Peer& peer);
  void TakenAll();
  void SayTaken(const Peer& peer, std::uint64_t parts, Instant now);

  ExchangeCore& core_;
  Membership& members_;
  Streams& streams_;
  Joining& joining_;
  std::vector<std::string> named_;           // by the settings of this host, or last wanted, ascending
  bool wants_ = false;                       // to propose these
  std::optional<Instant> wanted_since_;      // none: from now on
  std::optional<Instant> asks_since_;        // the owners in force whether they are done
  std::shared_ptr<const Owners> proposed_;
  Instant promised_until_{};                 // not to propose any before
  std::shared_ptr<const Owners> next_;       // heard of, and not in force yet
  std::optional<Owners> before_;             // the list before the one in force, if it is known
  bool switching_ = false, walking_ = false;    // the limiter has yet to say so
  Instant adopted_at_{}, ask_settled_at_{};
  std::map<std::string, Taking> taking_;                // by owner of the list before
  std::map<std::string, std::vector<Part>> giving_;     // by owner of the list in force, until it has them
  bool goes_on_ = false;      // this life has known the list before
  bool missed_ = false;       // an owner of the list before did not hand its tags over
};

}    // namespace dthrottle
