// Tags with a number each, in the amount that one frame carries: hits of a report, or bucket states of a snapshot. In a
// report some also say how fast the tag is asked for, which is what forecasts are made of, some what comes back of hits
// that were told before, some that the tag is penalized or how often it was refused, some how many of its places are
// taken, some what has been counted of its quota, and some what one of its members has had of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/member_word.h"
#include "base/on_demand.h"
#include "base/quota_word.h"
#include "base/tag.h"

namespace dthrottle {

struct Entry {
  std::uint64_t value;     // report: hits, 0 only beside another number; snapshot: microseconds until the bucket fills
  std::uint16_t tag_at;    // into the tags of its Entries
  std::uint8_t tag_bytes;
  bool is_digest;            // the tag is 16 bytes of digest and then the name of the rule that it is under
  std::uint8_t phase = 0;    // report: when the hits began, in 128ths of the frame's interval, rounded up
};

inline constexpr unsigned kPhases = 128;

// What a frame has room for, encoded without compression; with its header it stays below kFrameBytesMax.
inline constexpr std::size_t kEntriesMax = 4096;
inline constexpr std::size_t kEntriesBytesMax = 60 * 1024;
inline constexpr std::uint64_t kDemandMax = std::uint64_t{1} << 50;    // thousandths of a token a second
inline constexpr std::size_t kDemandBytesMax = 2 + 8;    // which entry, how many lie between; and its number
inline constexpr std::uint64_t kTokensBackMax = std::uint64_t{1} << 40;    // as hits
inline constexpr std::uint64_t kPlacesMax = 1'000'000;    // of a tag
inline constexpr std::uint64_t kQuotaTokensMax = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kQuotaCounterMax = (std::uint64_t{1} << 56) - 1;
inline constexpr std::uint64_t kPenaltyMsMax = std::uint64_t{7} * 24 * 3600 * 1000;
inline constexpr std::uint64_t kRefusalsMax = 1'000'000;    // of a tag
static_assert(kEntriesBytesMax <= std::numeric_limits<decltype(Entry::tag_at)>::max());

// A number that only some entries have.
struct Beside {
  std::uint16_t entry;    // which
  std::uint64_t number;
};

// What an entry of a report may say beside its hits.
struct Besides {
  std::optional<std::uint64_t> demand{};    // how fast the tag is asked for, in thousandths of a token a second
  std::uint64_t returnable = 0;             // of its hits so many may come back later
  std::uint64_t back = 0;                   // tokens that come back of hits that were returnable
  std::optional<std::uint64_t> penalty{};   // the tag is refused for so many milliseconds more; 0: no longer
  std::optional<std::uint64_t> places{};    // of the tag that are taken at the sender
  std::optional<QuotaWord> quota{};
  std::optional<MemberWord> member{};
  std::uint64_t refusals = 0;               // of the tag, which may come to a penalty
};

class Entries {
 public:
  // False, and unchanged, if there is no room for it. A number that peers would not take is said as the most that they
  // do. REQUIRES: tag.bytes.size() <= 255, at least 16 of a digest, phase < kPhases.
  bool Add(const Tag& tag, std::uint64_t value, std::uint8_t phase) { return AddBare(tag, value, phase, besides_); }
  bool Add(const Tag& tag, std::uint64_t value, std::uint8_t phase, const Besides& said) {
    const std::size_t besides = besides_ + said.demand.has_value() + (said.returnable != 0) + (said.back != 0) +
                                said.penalty.has_value() + said.places.has_value() + (said.refusals != 0) +
                                (said.quota ? 3 + said.quota->back.has_value() : 0) + (said.member ? 4 : 0);
    if (!AddBare(tag, value, phase, besides)) return false;
    besides_ = besides;
    const auto entry = static_cast<std::uint16_t>(list_.size() - 1);
    if (said.demand) demands_.push_back({entry, std::min(*said.demand, kDemandMax)});
    if (said.returnable != 0) rare_.Made().returnables.push_back({entry, std::min(said.returnable, kTokensBackMax)});
    if (said.back != 0) rare_.Made().backs.push_back({entry, std::min(said.back, kTokensBackMax)});
    if (said.penalty) rare_.Made().penalties.push_back({entry, std::min(*said.penalty, kPenaltyMsMax)});
    if (said.places) rare_.Made().places.push_back({entry, std::min(*said.places, kPlacesMax)});
    if (said.refusals != 0) rare_.Made().refusals.push_back({entry, std::min(said.refusals, kRefusalsMax)});
    if (said.quota) AddQuota(entry, *said.quota);
    if (said.member) AddMember(entry, *said.member);
    return true;
  }

  // REQUIRES: entry < size(), phase < kPhases.
  void SetPhase(std::size_t entry, std::int64_t phase) { list_[entry].phase = static_cast<std::uint8_t>(phase); }

  Tag tag(const Entry& e) const { return {{tags_.data() + e.tag_at, e.tag_bytes}, e.is_digest}; }

  const std::vector<Entry>& list() const { return list_; }

  // In the order of their entries.
  const std::vector<Beside>& demands() const { return demands_; }
  const std::vector<Beside>& returnables() const { return rare_->returnables; }
  const std::vector<Beside>& backs() const { return rare_->backs; }
  const std::vector<Beside>& penalties() const { return rare_->penalties; }
  const std::vector<Beside>& places() const { return rare_->places; }
  const std::vector<Beside>& refusals() const { return rare_->refusals; }
  // The numbers of a QuotaWord: counter, period, taken, back; and of a MemberWord: member, asked, served, fair.
  using WordColumns = std::array<std::vector<Beside>, 4>;
  const WordColumns& quotas() const { return rare_->quotas; }
  const WordColumns& members() const { return rare_->members; }
  // Numbers that stand beside hits.
  std::size_t besides() const { return besides_; }
  // Whether some of them may be other than demands.
  bool any_rare() const { return rare_.any(); }

  // None: the entry says nothing of it.
  std::optional<std::uint64_t> demand(const Entry& e) const { return Find(demands_, e); }
  std::uint64_t returnable(const Entry& e) const { return Find(returnables(), e).value_or(0); }
  std::uint64_t back(const Entry& e) const { return Find(backs(), e).value_or(0); }
  std::optional<std::uint64_t> penalty(const Entry& e) const { return Find(penalties(), e); }
  std::optional<std::uint64_t> places(const Entry& e) const { return Find(places(), e); }
  std::uint64_t refusals(const Entry& e) const { return Find(refusals(), e).value_or(0); }
  std::optional<QuotaWord> quota(const Entry& e) const {
    if (!rare_.any()) return std::nullopt;
    const WordColumns& columns = quotas();
    const auto counter = Find(columns[0], e), period = Find(columns[1], e), taken = Find(columns[2], e);
    if (!counter || !period || !taken) return std::nullopt;
    return QuotaWord{*counter, *period, *taken, Find(columns[3], e)};
  }
  std::optional<MemberWord> member(const Entry& e) const {
    if (!rare_.any()) return std::nullopt;
    const WordColumns& columns = members();
    const auto member = Find(columns[0], e), asked = Find(columns[1], e), served = Find(columns[2], e);
    const auto fair = Find(columns[3], e);
    if (!member || !asked || !served || !fair) return std::nullopt;
    return MemberWord{*member, *asked, *served, *fair};
  }
  bool empty() const { return list_.empty(); }
  std::size_t size() const { return list_.size(); }
  std::size_t tag_bytes() const { return tags_.size(); }    // of all tags

  void Clear() {
    tags_.clear();
    list_.clear();
    demands_.clear();
    rare_.Clear();
    besides_ = encoded_bytes_ = 0;
  }

 private:
  friend class Codec;    // writes what it has decoded in place

  bool AddBare(const Tag& tag, std::uint64_t value, std::uint8_t phase, std::size_t besides) {
    const std::size_t encoded = tag.bytes.size() + Overhead(value);
    if (list_.size() >= kEntriesMax || encoded_bytes_ + encoded + besides * kDemandBytesMax > kEntriesBytesMax) {
      return false;
    }
    list_.push_back({value, static_cast<std::uint16_t>(tags_.size()), static_cast<std::uint8_t>(tag.bytes.size()),
                     tag.is_digest, phase});
    tags_.append(tag.bytes);
    encoded_bytes_ += encoded;
    return true;
  }

  void CountBesides() {
    besides_ = demands_.size();
    if (!rare_.any()) return;
    besides_ += returnables().size() + backs().size() + penalties().size() + places().size() +
                refusals().size();
    for (const WordColumns* const words : {&quotas(), &members()}) {
      for (const auto& column : *words) besides_ += column.size();
    }
  }

  std::optional<std::uint64_t> Find(const std::vector<Beside>& besides, const Entry& e) const {
    if (besides.empty()) return std::nullopt;
    const auto number = &e - list_.data();
    const auto it = std::lower_bound(besides.begin(), besides.end(), number,
                                     [](const Beside& b, std::ptrdiff_t n) { return b.entry < n; });
    return it != besides.end() && it->entry == number ? std::optional(it->number) : std::nullopt;
  }

  void AddQuota(std::uint16_t entry, const QuotaWord& word) {
    WordColumns& columns = rare_.Made().quotas;
    columns[0].push_back({entry, word.counter});
    columns[1].push_back({entry, word.period});
    columns[2].push_back({entry, std::min(word.taken, kQuotaTokensMax)});
    if (word.back) columns[3].push_back({entry, std::min(*word.back, kQuotaTokensMax)});
  }
  void AddMember(std::uint16_t entry, const MemberWord& word) {
    WordColumns& columns = rare_.Made().members;
    columns[0].push_back({entry, word.member});
    columns[1].push_back({entry, std::min(word.asked, MemberWord::kMost)});
    columns[2].push_back({entry, std::min(word.served, MemberWord::kMost)});
    columns[3].push_back({entry, std::min(word.fair, MemberWord::kMost)});
  }

  // One byte of length, one of phase and kind, and the value as a varint.
  static std::size_t Overhead(std::uint64_t value) {
    std::size_t bytes = 3;
    for (; value >= 0x80; value >>= 7) ++bytes;
    return bytes;
  }

  std::string tags_;    // one behind the other, in the order of the list
  std::vector<Entry> list_;
  std::vector<Beside> demands_;
  struct Rare {
    std::vector<Beside> returnables, backs, penalties, places, refusals;
    WordColumns quotas, members;
  };
  OnDemand<Rare> rare_;
  std::size_t besides_ = 0;
  std::size_t encoded_bytes_ = 0;    // without compression and what stands beside
};

}    // namespace dthrottle
