// Taking a snapshot: of a peer chosen by this host when it starts, so that its table is not behind, and again where
// frames were lost for good. Until the first one has come, or will not come, the host is joining: it holds back what it
// hears and serves.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bus/exchange_core.h"
#include "bus/membership.h"

namespace dthrottle {

class Joining {
 public:
  Joining(ExchangeCore& core, Membership& members, Instant now)
      : core_(core), members_(members), born_(now), joined_(between_sites()), told_(between_sites()) {}

  // The first link is a reason to join.
  void OnLink(Instant now);

  bool joining() const { return joining_; }
  bool merging() const { return (arrived_ || parts_overflow_) && !parts_.empty(); }

  // Ends the waiting with what there is. What was held back can be let go then.
  void Stop();

  // Decides from where on this peer's reports count, unless that is known.
  void Start(Peer& peer);

  // What came in a message about a snapshot.
  void OnPart(LinkId link, const Peer& donor, std::string_view frame, Instant now);
  void OnEnd(LinkId link, Instant now);
  void OnRefusal(Link& link, Instant now);

  // Whether the frame that has come by the link may be one of a snapshot that is under way there, which has no more
  // frames than its bound has parts.
  bool TakesFrame(LinkId link);

  // Passes parts on as far as the limiter has room; the next call goes on.
  void Merge(Instant now);

  // Asks for what is due. Returns when to look again.
  Instant Pass(Instant now);

  // Over a restart. A snapshot that is not complete is asked for again.
  static void Fields(auto& state, auto& self) {
    state(self.joining_, self.joined_, self.told_, self.began_, self.part_merged_, self.behind_);
  }

 private:
  struct Taking {
    LinkId donor;
    std::uint64_t id;
    Instant deadline;    // for the next sign of life
    Instant end;         // however many there are
    Heard parts{1};
    std::optional<std::uint64_t> count{};    // of parts; known when its end has come
    std::vector<Position> positions{};
    std::size_t frames = 0, bytes = 0;    // that came by the link; that its buckets take in a table
  };
  // Parts are kept until the snapshot is complete: those of one that fails would be charged again with the next one,
  // which has other positions.
  struct Part {
    std::string bytes;
    Instant at;    // by our clock
  };

  bool between_sites() const { return !core_.options.site.empty(); }    // there are no snapshots then
  // This host owned tags before, on this table, and knows what it had counted.
  bool knows_counted() const {
    const CountedStreams* const counted = core_.options.counted.get();
    return counted != nullptr && counted->any_before() && core_.OwnsTags() && !core_.options.fresh_table;
  }
  bool Taken(LinkId link) const { return taking_ && taking_->donor == link && taking_->id == core_.in.snapshot; }
  Duration JoinMax() const;
  std::size_t BytesMax() const;
  void TellJoined();
  void Ask(Link& donor, Instant now);
  Instant AskDonor(Instant end, Instant now);
  bool AnyBehind(Instant now) const;
  Instant AskForLost(Instant now);
  Instant Join(Instant now);
  void SpendFrames(Link& link, Instant now);
  void Fail(Instant next);
  void Finish();
  void ForgetParts();

  ExchangeCore& core_;
  Membership& members_;
  const Instant born_;
  bool joining_ = false;
  bool joined_, told_;
  Instant began_{}, next_donor_{};
  int failures_ = 0;
  bool part_merged_ = false;    // of a snapshot, complete or not
  bool behind_ = false;         // began without what a peer had published before, and no snapshot has made up for it
  std::optional<LinkId> failed_donor_;

  std::optional<Taking> taking_;
  std::deque<Part> parts_;
  std::size_t parts_bytes_ = 0;
  bool parts_overflow_ = false;                     // too many to keep: merged as they come
  std::optional<std::vector<Position>> arrived_;    // of a complete snapshot whose parts are being merged
};

}    // namespace dthrottle
