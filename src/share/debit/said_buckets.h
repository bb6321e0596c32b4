// Buckets as hosts state them to each other: in snapshots, in what owners of tags say, and where a tag's owner changes.
#pragma once

#include <vector>

#include "share/debit/beside_hits.h"
#include "share/debit/peer_entries.h"
#include "share/share.h"

namespace dthrottle {

class SaidBuckets {
 public:
  SaidBuckets(LimiterCore& core, Ways& ways, PeerEntries& peers, BesideHits& beside)
      : core_(core), ways_(ways), peers_(peers), beside_(beside) {}

  // ---- Hearing: the owner's thread ----

  // Takes over entries [first, first + n) of a peer's buckets, as of `at`, where they are emptier than ours.
  void Merge(const Entries& entries, std::size_t first, std::size_t n, Instant at, Instant now);

  // Takes over entries [first, first + n) of what the owner of the tags has as of `at`, with everything that this host
  // had reported until `counted`. All hits but those of watched tags were reported until `reported`.
  void Adopt(const Entries& entries, std::size_t first, std::size_t n, Instant at, Instant counted, Instant reported,
             Instant now, const Speaker& owner);
  // Likewise where tags are near their limit, which is for hosts that have not named them lately.
  // It hears of penalties too, of which everybody is told. Both hear of quotas and places.
  void HearNear(const Entries& entries, std::size_t first, std::size_t n, Instant at, Instant now,
                const Speaker& owner);
  // This host owns the tags from now on: takes over entries [first, first + n) of what their owner had as of `at`,
  // whatever is known here but hits that no report has carried yet. Adds the hashes of the tags to `taken`.
  void TakeOver(const Entries& entries, std::size_t first, std::size_t n, Instant at, std::vector<std::uint64_t>& taken,
                Instant now);
  // And its own hits of (from, to] that the owner has not counted. Hits of a tag that is not among `taken`, which is
  // sorted, are in the bucket already: its owner had nothing to say of it.
  void DebitOwn(const Entries& entries, std::size_t first, std::size_t n, Instant from, Instant to,
                const std::vector<std::uint64_t>& taken, Instant now);

  // ---- Telling: with the shard of the tag locked ----

  // Hands the bucket of a slot over as an entry of a snapshot; false if there is no room. A limit that is not shared
  // counts as handed over.
  bool AddBucket(const Tag& tag, const Slot& slot, Instant now, Entries& out) const;
  // Likewise for the host that owns the tag from now on.
  bool AddOwned(const Tag& tag, const Slot& slot, Instant now, Entries& out) const;

 private:
  void MergeOne(const ToldEntry& told, Instant at, Instant now);
  Bucket BucketOf(const ToldEntry& told, Instant at, std::uint64_t hits, Instant now) const;
  std::uint64_t UntoldOf(const ToldEntry& told) const;
  Bucket KnownToPeers(const Tag& tag, const Slot& slot, Instant now) const;
  void AdoptOne(const ToldEntry& told, double demand, Tokens foretold, Instant at, Instant now);

  LimiterCore& core_;
  Ways& ways_;
  PeerEntries& peers_;
  BesideHits& beside_;
};

}    // namespace dthrottle
