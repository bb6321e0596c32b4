// What an owner of tags tells the other hosts of quotas (protocol/owners.md): what all hosts together have counted. A
// host that says what it has counted of a tag is answered so, with the levels that it is told. Everybody hears of a tag
// of which half is used, and again each time that what is left has changed by a quarter, until more than half is left;
// and a host that comes hears of all tags of which half is used. For one thread, as Owning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "base/allowance.h"
#include "bus/exchange.h"
#include "share/owners/near.h"
#include "share/owners/owed_words.h"
#include "share/ways.h"

namespace dthrottle {

class QuotaTelling {
 public:
  // All must outlive it.
  QuotaTelling(Ways& ways, ToPeersRing& to_peers, NearCounts& counts)
      : ways_(ways), to_peers_(to_peers), counts_(counts) {}

  // What the host has counted of the tag has been heard; kNobody: this one has counted more.
  void Counted(std::uint64_t hash, std::uint32_t peer, Instant now);
  // A host has come, which is to hear of tags of this host.
  void TellTo(std::uint32_t peer) { came_.push_back(peer); }

  // Adds what is to be answered to the host; false: there is no room for all of it.
  bool AddAnswers(std::uint32_t peer, Instant now, Entries& out);
  // Adds what everybody is to hear, as far as there is room. The rest waits.
  std::size_t waiting() const { return news_.size(); }
  void AddNews(Instant now, Entries& out);

  // When to call Tell, which hands over some of what is due to hosts that have come; false: there was no room for it.
  Instant next() const { return came_.empty() ? Instant::max() : due_at_; }
  bool Tell(Instant now);

 private:
  static constexpr std::size_t kPlacesPerSlice = 512;
  enum class Which { kUsed, kHalfUsed };

  template <class See>
  void LookAt(std::uint64_t hash, Instant now, See&& see);
  bool Add(std::uint64_t hash, Which which, Instant now, Entries& out);

  Ways& ways_;
  ToPeersRing& to_peers_;
  NearCounts& counts_;
  Allowance room_ = NearRoom();
  OwedWords<> answers_;
  std::deque<std::uint64_t> news_;
  std::deque<std::uint32_t> came_;    // the first is being told
  std::size_t place_ = 0;             // of the quotas, where that goes on
  Instant due_at_{};
};

}    // namespace dthrottle
