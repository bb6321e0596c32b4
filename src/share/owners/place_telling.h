// What an owner of tags tells the other hosts of places that are taken (protocol/owners.md). A user of a tag is told how
// many all others have: in answer to what it says, and at once where little is left. Everybody else hears how many are
// taken at all, while that is half of them or more. For one thread, as Owning.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/allowance.h"
#include "share/owners/near.h"
#include "share/owners/owed_words.h"
#include "share/ways.h"

namespace dthrottle {

class PlaceTelling {
 public:
  // All must outlive it.
  PlaceTelling(Ways& ways, NearCounts& counts) : ways_(ways), counts_(counts) {}

  // A host has said how many places of the tag it has; kNobody: this one has another number of them.
  void Changed(std::uint64_t hash, std::uint32_t peer);
  // A period of reports ends: what everybody is to know is said again.
  void PeriodEnds(Instant now);

  // Judges what has changed. Returns the tags of which all users are to be told, by hash; they are owed it by Owe.
  Instant next() const { return changed_.empty() ? Instant::max() : judge_at_; }
  std::vector<std::uint64_t> Judge(Instant now);
  void Owe(std::uint32_t peer, std::uint64_t hash) { answers_.Owe(peer, hash); }

  // Whether the host is owed something. Adds that; false: there is no room for all of it.
  bool owes(std::uint32_t peer) const { return answers_.any(peer); }
  bool AddAnswers(std::uint32_t peer, Instant now, Entries& out);
  // Adds what everybody is to hear, as far as there is room. The rest waits.
  std::size_t waiting() const { return news_.size(); }
  void AddNews(Instant now, Entries& out);

 private:
  static constexpr Duration kJudgeEvery = std::chrono::milliseconds(20);

  template <class See>
  void LookAt(std::uint64_t hash, Instant now, See&& see);
  bool Add(std::uint64_t hash, std::uint32_t peer, Instant now, Entries& out);

  Ways& ways_;
  NearCounts& counts_;
  Allowance room_ = NearRoom();
  OwedWords<> answers_;
  std::vector<std::uint64_t> changed_;    // tags, by hash
  Instant judge_at_{};    // not before
  std::deque<std::uint64_t> news_;
};

}    // namespace dthrottle
