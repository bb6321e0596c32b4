// What hosts tell each other of a tag beside hits: that it is penalized, how often it was refused, how many of its
// places are taken, what was counted of its quota, and what its members had of it.
//
// A tag that nothing is known of here is news of a new tag, of which a peer may tell so many a second.
#pragma once

#include <functional>

#include "share/debit/draft.h"
#include "share/debit/peer_entries.h"
#include "share/share.h"

namespace dthrottle {

class BesideHits {
 public:
  // Penalties that begin here are told at once (penalty/penalties.h). Every kEvery come places that are taken and given
  // back (hold/gauges.h), and refusals that may come to a penalty (penalty/strikes.h).
  static constexpr Duration kEvery = std::chrono::milliseconds(50);

  BesideHits(LimiterCore& core, Ways& ways, PeerEntries& peers) : core_(core), ways_(ways), peers_(peers) {}

  // ---- Telling: what functions of Way with the same names do; the owner's thread ----

  void WatchTags(const std::function<void()>& wake);
  void Adopted();
  Instant urgent_at() const;
  bool ReportUrgent(Instant now, Draft& out);
  // Tells of refusals that peers have not heard, and once more of which tags places are taken. Owners are to be told of
  // members.
  void PeriodEnds();
  void Joined() { TellPlacesAgain(); }
  // Tells all penalties once more, for a host that takes a snapshot.
  void TellPenaltiesAgain(Instant now) { core_.penalties.TellAgain(core_.ShardLock(), now); }

  // Says something of a tag without hits; false: there is no room. A limit of this host alone is nobody else's.
  bool Add(const Tag& tag, const Besides& said, Table::Shard& shard, Instant now, Draft& out) const;

  // ---- Hearing ----

  // Takes what the entry of a report says, as of `to`. False: it says something of hits.
  bool Hear(const Entries& entries, const ToldEntry& told, HeardPeer& peer, const Speaker& speaker, Instant to,
            Instant now);

  // Takes what the peer, which owns the tag, says of all hosts: what they have counted of its quota, or how many of its
  // places they have; as of `to`, to this host or to everybody. False: it says something of a bucket.
  bool HearOwner(const Entries& entries, const ToldEntry& told, HeardPeer& peer, bool everybody, Instant to,
                 Instant now);

  // The peer is not heard any more: it has no places.
  void Bar(std::uint32_t peer, Instant now);

  // The peer says that the tag is penalized until then.
  void HearPenalty(const ToldEntry& told, HeardPeer& peer, std::uint32_t from_whom, Instant until, Instant now);

 private:
  bool TellPenalties(Instant now, Draft& out);
  bool TellRefusals(Instant now, Draft& out);
  bool TellPlaces(Instant now, Draft& out);
  bool TellMembers(Instant now, Draft& out);
  void TellPlacesAgain();
  bool MayPenalize(const ToldEntry& told, HeardPeer& peer, Instant now);
  void HearRefusals(const ToldEntry& told, HeardPeer& peer, std::uint32_t from_whom, std::uint64_t refusals,
                    Instant now);
  Duration PeriodOf(const HeardPeer& peer) const;
  void HearPlaces(const ToldEntry& told, HeardPeer& peer, std::uint32_t of, std::uint64_t places, Instant until,
                  const ReportPlace& in, Instant now);
  void HearQuota(const ToldEntry& told, HeardPeer& peer, const QuotaWord& word, const Speaker& speaker, Instant now);
  void HearMember(const ToldEntry& told, const MemberWord& word, const Speaker& speaker, Instant now);
  Quotas* QuotasFor(const ToldEntry& told, HeardPeer& peer, Instant now);

  LimiterCore& core_;
  Ways& ways_;
  PeerEntries& peers_;
  std::function<void()> wake_;
  Instant places_at_{}, refusals_at_{};    // not before, peers are told of them
  bool members_untold_ = false;            // owners are to be told of them
};

}    // namespace dthrottle
