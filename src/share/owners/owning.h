// The limiter's half of a host that owns tags (bus/owners/owners.h). What hosts report of its tags has been charged to
// its ordinary buckets, so they are the state of the fleet. This remembers which hosts use which tag, and what is to be
// told to whom.
//
//  - Every report is answered, with the level of each tag in it that somebody else has changed, unless the bucket is
//    nearly full and the host believes so. A host that was told something, and nothing for three periods since, is told
//    again, because that may be lost.
//  - The users of a watched tag foretell it by the law of share/pace.h. Where the truth leaves what they were
//    told by a threshold, all of them are told at once. The threshold follows what has been sent.
//  - A tag that falls below half of its burst is told to everybody, because a client may move to any host.
//
// A user is a host that has named the tag in the last 10 s. What a host says and no bucket here takes is passed over.
// There are no more tags than cells in the table, and hosts share the room (tag_room.h).
// For one thread, as Sharing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/allowance.h"
#include "base/parted_map.h"
#include "bus/exchange.h"
#include "share/owners/member_telling.h"
#include "share/owners/owning_counts.h"
#include "share/owners/penalty_telling.h"
#include "share/owners/place_telling.h"
#include "share/owners/quota_telling.h"
#include "share/owners/tag_room.h"
#include "share/pace.h"
#include "share/report_budget.h"
#include "share/ways.h"

namespace dthrottle {

class Owning {
 public:
  static constexpr std::size_t kTagsMax = std::size_t{1} << 20;    // of each some 200 bytes, and 64 of each user

  // Both must outlive it.
  Owning(Ways& ways, ToPeersRing& to_peers)
      : ways_(ways),
        table_(*ways.core().table),
        to_peers_(to_peers),
        room_(std::min(kTagsMax, table_.cells())) {}

  // A report of that host on hits until `to` has been charged: its entries [first, first + n).
  void Named(const Entries& entries, std::size_t first, std::size_t n, std::uint32_t peer, Instant to, Instant now);
  // Other sites have stated these entries.
  void NamedAbroad(const Entries& entries, Instant now);
  // Every report of the host up to `counted` has been charged.
  void Counted(std::uint32_t peer, std::uint64_t counted, Instant now);
  // What that host has counted of the tag's quota has changed, or how many of its places it has; kNobody: this host.
  void QuotaCounted(std::uint64_t hash, std::uint32_t peer, Instant now);
  void PlacesChanged(std::uint64_t hash, std::uint32_t peer) { places_.Changed(hash, peer); }
  // This host has charged hits of its own, which stand in its report.
  void NamedHere(const Entries& entries, Instant now);

  PenaltyTelling& penalties() { return penalties_; }
  QuotaTelling& quotas() { return quotas_; }
  void PeriodEnds(Instant now) { places_.PeriodEnds(now); }

  // From now on only tags are kept that the host of that name owns. Each is looked at when it is next used; one
  // that is not used any more is forgotten.
  void KeepOwned(std::shared_ptr<const Owners> owners, std::string_view name);

  // When to call Tell, which hands over what is due; true if there is more.
  Instant next() const { return std::min({tell_at_, penalties_.next(), quotas_.next(), places_.next()}); }
  bool Tell(Instant now);

  OwningCounts counts() const;

 private:
  struct User {
    std::uint32_t peer;
    bool due;                  // is to be told
    bool again;                // also if nothing is new: it may have passed over what it was told
    bool lower;                // it was told last that the bucket is not nearly full
    std::uint64_t answered;    // changes of the tag when it was told last
    std::uint64_t own;         // of the changes since, made by itself
    Instant named, told;
  };
  struct Owned {
    std::string tag;
    bool is_digest = false, changed = false, told = false;
    bool nearly_full = false;    // and not watched, as of the last look
    std::uint32_t list = 0;      // of owners, by which this host owns it
    std::uint64_t changes = 0;
    std::vector<User> users;    // in the order of their numbers
    TagRoom::Place place;
    Instant beside_at{};        // named by this host or another site, which are no users
    // What users of a watched tag were told last, brought up to told_at.
    Tokens level = 0;
    double demand = 0;
    Instant told_at{};
    ReportBudget budget;
    // What everybody was told last.
    Tokens near_level = 0;
    Instant near_at{};

    Tag said() const { return {tag, is_digest}; }
  };
  struct Host {
    bool heard = false, answer = false;
    std::uint64_t counted = 0;
    Instant told_at{};
    std::vector<std::uint64_t> due;    // tags, by hash
  };

  std::size_t waiting() const { return near_.size() + quotas_.waiting() + places_.waiting(); }
  bool MayHaveMissed(const User& user, Instant to, Instant now) const;
  bool NamedBeside(const Entries& entries, const Entry& entry, std::uint64_t hash, std::uint32_t peer, Instant now);
  Owned* Find(std::uint64_t hash);
  Owned* OwnedOf(const Tag& tag, std::uint64_t hash, std::uint32_t peer, Instant now);
  void NamedBesideUsers(const Tag& tag, std::uint64_t hash, Instant now);
  Owned* Add(const Tag& tag, std::uint64_t hash, std::uint32_t peer);
  void Leave(const Owned& owned);
  void Forget(std::uint64_t hash);
  bool UsedBefore(const Owned& owned, std::uint64_t hash, std::uint64_t hits, Instant now);
  User& UserOf(Owned& owned, std::uint32_t peer);
  Host& HostOf(std::uint32_t peer);
  void Change(Owned& owned, std::uint64_t hash, Instant now);
  void TellAt(Instant at) { tell_at_ = std::min(tell_at_, at); }
  void Due(User& user, std::uint64_t hash);
  void Judge(std::uint64_t hash, Instant now);
  bool Strays(Owned& owned, const Pace& pace, Tokens level, double demand, Instant now);
  void TellPlaces(Instant now);
  void TellUsers(Owned& owned, std::uint64_t hash, Instant now);
  bool IsNear(Owned& owned, Tokens level, const Pace& pace, Instant now) const;
  bool TellHost(std::uint32_t peer, Host& host, Instant now);
  bool TellNear(Instant now);
  void AddNear(Instant now, Entries& out);
  void ForgetSome(Instant now);

  Ways& ways_;
  Table& table_;
  ToPeersRing& to_peers_;
  PartedMap<Owned> tags_;
  TagRoom room_;    // for them
  std::shared_ptr<const Owners> owners_;    // null: the first
  std::optional<std::size_t> ours_;         // of them
  std::uint32_t list_ = 0;                  // of owners
  std::vector<Host> hosts_;                 // by number
  std::size_t hosts_heard_ = 0;
  std::vector<std::uint64_t> changed_, near_;
  std::size_t forget_part_ = 0;    // the next to look through
  Allowance near_room_ = NearRoom(), near_frames_{4, 40};    // frames a second
  std::size_t turn_ = 0;    // of what is told to everybody: what the next frame has first
  Instant tell_at_ = Instant::max(), near_at_{}, forget_at_{};
  OwningCounts counts_;
  PenaltyTelling penalties_{ways_, to_peers_, counts_.near};
  QuotaTelling quotas_{ways_, to_peers_, counts_.near};
  PlaceTelling places_{ways_, counts_.near};
  MemberTelling members_{ways_};
};

}    // namespace dthrottle
