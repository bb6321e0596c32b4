// What others have counted of tags with a quota (quotas.h): other hosts, other sites, and all hosts together by the word
// of a tag's owner. It stands in slots of the file, 20 counts in each, which are taken and freed here. Calls are for one
// tag, whose shard is locked; those for different tags may come from any threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/quota_word.h"
#include "quota/quota_file.h"

namespace dthrottle {

class QuotaOthers {
 public:
  struct Other {
    std::uint64_t counter;
    QuotaCount* count;     // in the file
    std::uint32_t peer;    // the one that says what came back
    std::uint64_t known = 0;    // tokens that others have told of, or the file: what that one cannot take back
    std::uint64_t said = 0;     // the most tokens that it has said to be used: others tell nothing new up to these
  };
  // One tag's counts.
  class OfTag {
   public:
    // From now on each counter counts for no more than this, because no host has served more.
    void SetQuota(std::uint64_t quota);

    // Tokens, by their counters or by the owner's word.
    std::uint64_t net() const;
    // The sum of all counters, and that of hosts alone, which are those of this site.
    const QuotaCount& sum() const { return sum_; }
    QuotaCount OfHosts() const;
    // By their counters, of which kAllHosts is the first.
    const std::vector<Other>& each() const { return each_; }
    // To be called when all slots of the tag are restored.
    void Sort();

   private:
    friend QuotaOthers;
    QuotaCount Bounded(QuotaCount count) const;

    std::uint64_t quota_ = QuotaFile::kCountMax;
    QuotaCount sum_{};
    std::vector<Other> each_;
    std::vector<std::uint32_t> slots_;
  };

  QuotaOthers(QuotaFile& file, std::size_t slots_max) : file_(file), slots_max_(slots_max) {}

  // Takes over a slot that the file has of the tag. False: there are too many.
  bool Restore(OfTag& of, std::uint32_t slot);

  // Takes a peer's word about one counter of the tag in slot `tag`. It is kept as it was said, since the quota of this
  // host may be raised later than that of the peer. False: there is no room.
  bool Hear(OfTag& of, std::uint32_t tag, const QuotaWord& word, std::uint32_t peer);
  // The same of the owner's word about all hosts but this one.
  bool HearOwner(OfTag& of, std::uint32_t tag, const QuotaCount& all);
  // What peers have said themselves of counters, which the file does not have, over a restart in which they keep their
  // numbers. REQUIRES of Resume: all slots of the tag are restored.
  struct Said {
    std::uint64_t counter = 0, known = 0, said = 0;    // as Other
    std::uint32_t peer = 0;

    static void Fields(auto& state, auto& self) { state(self.counter, self.known, self.said, self.peer); }
  };
  static std::vector<Said> Keep(const OfTag& of);
  static void Resume(OfTag& of, const std::vector<Said>& all);

  // Keeps, if there is room, what this host has counted under a number that it has no longer.
  void Inherit(OfTag& of, std::uint32_t tag, std::uint64_t counter, const QuotaSlot::OfTag& own);

  // Moves them to the period that begins then.
  void SetPeriod(const OfTag& of, std::uint64_t begin);
  void Free(OfTag& of);

  // Counters of which two hosts said what came back, so that none is believed.
  std::uint64_t disputed() const { return disputed_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kCountersMax = 16384;    // of a tag
  static constexpr std::uint32_t kNobody = UINT32_MAX, kDisputed = UINT32_MAX - 1;

  Other* Find(OfTag& of, std::uint32_t tag, std::uint64_t counter);
  bool AddSlot(OfTag& of, std::uint32_t tag);
  void HearBack(Other& other, std::uint64_t back, std::uint32_t peer);

  QuotaFile& file_;
  const std::size_t slots_max_;
  std::atomic<std::size_t> slots_used_{0};
  std::atomic<std::uint64_t> disputed_{0};
};

}    // namespace dthrottle
