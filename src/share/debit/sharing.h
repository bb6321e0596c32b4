// The limiter's half of what hosts tell each other: collects hits that no report has carried, merges what peers
// served, walks the table for a snapshot. It works in slices of some 50 us, so that no query waits for a report of a
// million tags. The other half, which knows peers and frames, is bus/exchange.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "base/time.h"
#include "bus/exchange.h"
#include "share/debit/collecting.h"
#include "share/debit/outlet.h"
#include "share/debit/ownership.h"
#include "share/debit/table_walk.h"
#include "share/ways.h"

namespace dthrottle {

class Sharing {
 public:
  // All arguments must outlive it. Reports go out every `period`, the first after a random part of one, so that hosts
  // that start together do not report together. `peers` as in Debits::ShareWith.
  Sharing(Ways& ways, ToPeersRing& to_peers, FromPeersRing& from_peers, std::size_t peers, Duration period,
          Prng& prng, Instant now);
  ~Sharing();

  // Does one slice of whatever is due; returns whether there is more to do at once. To be called at next(), and when
  // the peers' side has pushed or popped something. For the limiter's owner thread.
  bool Work(Instant now);

  // Reports are empty until kJoined comes. What a host that comes up has served meanwhile must not have been reported
  // when it takes a snapshot: the host that gives it may not have heard of it, and of two debts only the larger is
  // kept.
  void HoldHits();

  // Makes the next report due now, with all hits. For a host that leaves.
  void ReportNow(Instant now);
  bool reporting(Instant now) const { return collecting_.running() || report_at_ <= now; }

  // Ends what is under way, for a host that leaves: hits that were collected are handed over, debits that have come are
  // merged, a snapshot that is given is broken off. True when nothing is left; to be called until then.
  bool Drain(Instant now);

  // What the next program or start goes on with.
  struct KeptTagOf {
    std::string tag;
    bool is_digest = false;

    static void Fields(auto& state, auto& self) { state(self.tag, self.is_digest); }
  };
  struct Kept {
    Instant from{};         // hits until then have been reported
    Instant report_at{};    // of the next report
    bool holding = false;
    std::vector<KeptTagOf> in_flight{};    // tags of which places are taken here
    std::vector<ReturnableHits::Pair> returnable{};
    std::vector<Quotas::KeptTag> quotas{};

    static void Fields(auto& state, auto& self) {
      state(self.from, self.report_at, self.holding, self.in_flight, self.returnable, self.quotas);
    }
  };
  static constexpr std::uint32_t kKeptVersion = 7;    // for ReadState
  Kept Keep() const;
  void Resume(const Kept& kept, Instant now);

  // When there is something to do even if nothing arrives.
  Instant next() const;

  // A few hosts own the tags, and this may be one of them. Other lists of owners come with kOwners.
  void OwnedBy(const std::shared_ptr<const Owners>& owners, std::string_view name);
  // Notes there how far debits of hosts have been merged.
  void NoteIn(std::shared_ptr<CountedStreams> counted) { counted_ = std::move(counted); }
  // How many hosts there are comes from owners.
  bool told_hosts() const { return ownership_.others_only(); }
  const Owning* owning() const { return ownership_.owning(); }    // null: it owns nothing

  // How many other hosts there are in this site.
  void SetPeers(std::size_t peers);

 private:
  void Hold(bool holding);
  void EndPeriod(Instant now);
  bool MergeSome(Instant now);
  bool Drop();
  void Merge(std::size_t n, Instant now);
  void EndMerge(Instant now);
  bool BeginSnapshot(Instant now);
  bool ChangeOwners(Instant now);

  Ways& ways_;
  Debits& debits_;
  FromPeersRing& from_peers_;
  std::size_t peers_;
  const Duration period_;
  Instant report_at_;
  bool holding_ = false, leaving_ = false;
  std::shared_ptr<CountedStreams> counted_;    // null: nobody wants to know

  Outlet outlet_;
  Ownership ownership_;
  Collecting collecting_;
  TableWalk walk_;    // for incoming_

  FromPeers incoming_;    // the first merged_ of its entries are done
  std::size_t merged_ = 0;
  std::vector<std::uint64_t> taken_;    // hashes of tags that this host has taken over lately
  Instant taken_at_{};
};

}    // namespace dthrottle
