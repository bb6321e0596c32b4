// An owner that does not know the levels of its tags asks every host for a snapshot: the lowest level of each tag
// counts (protocol/owners.md, "When an owner is away"). It was killed, or it takes tags over from a silent owner.
//
// Hosts are asked many at once, and no host holds up the others. Each has one of `kAtOnce` places until it has
// answered, and no longer than `kPlaceMax`: a host that is silent, slow or endless is listened to without a place. What
// comes is bounded by entries a second: the next host is asked only if there is room for it and for those before, as
// much as hosts had lately.
//
// A part is merged as it comes: the lowest level counts, so half of a snapshot does no harm, and neither does one that
// comes twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/allowance.h"
#include "bus/exchange_core.h"
#include "bus/heard.h"
#include "bus/membership.h"

namespace dthrottle {

// Follows the peer from the frame behind the last one that a life of this host before has counted, which the table
// contains; it is to give a snapshot for the sake of what it tells then beside it. False: nobody knows that frame.
// REQUIRES: the peer has been welcomed.
bool GoOnCounting(ExchangeCore& core, Peer& peer);

// Counts frames that the peer keeps for its owner, and that this host takes for heard.
void CountUncounted(ExchangeCore& core, const Peer& peer);

class Recovering {
 public:
  static constexpr std::size_t kAtOnce = 128;
  static constexpr Duration kPlaceMax = std::chrono::milliseconds(250);
  static constexpr double kEntriesASecond = 1'000'000;    // and as many at once
  static constexpr std::uint64_t kEntriesOfHost = 1 << 20;

  Recovering(ExchangeCore& core, Membership& members) : core_(core), members_(members) {}

  // What came in a message about a snapshot. False: it is of none that this asked for.
  bool OnPart(LinkId link, const Peer& donor, Instant now);
  bool OnEnd(LinkId link, Instant now);
  bool OnRefusal(const Link& link, Instant now);

  // Looks who is to be asked, and asks as many as may be. Returns when to look again. REQUIRES: this host has joined.
  Instant Pass(Instant now);
  // Goes on with those, as there is room again.
  void AskNext(Instant now);

  std::size_t under_way() const { return asked_.size(); }

 private:
  struct Asked {
    std::uint64_t id;
    Instant place_until, deadline, end;    // deadline: for the next sign of life
    bool has_place = true;
    Heard parts{1};
    std::optional<std::uint64_t> count{};    // of parts; known when its end has come
    std::uint64_t entries = 0;
  };
  using Its = std::map<LinkId, Asked>::iterator;

  Its Find(LinkId link);
  Instant DueOf(const Link& link, Instant now) const;
  int FailuresOf(LinkId link) const;
  void Ask(LinkId link, Instant now);
  void Release(Asked& asked);
  void Finish(Its its, Instant now);
  void Fail(Its its, Instant now);

  ExchangeCore& core_;
  Membership& members_;
  std::map<LinkId, Asked> asked_;
  std::size_t places_ = 0;                              // taken
  std::vector<LinkId> due_;                             // to be asked, from the last on
  Allowance room_{kEntriesASecond, kEntriesASecond};    // for entries
  double usual_ = kEntriesASecond / 32;                 // entries of a host, lately
};

}    // namespace dthrottle
