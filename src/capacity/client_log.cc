#include "capacity/client_log.h"

#include <algorithm>

namespace dthrottle {
namespace {

constexpr std::size_t kLivesBeforeSweep = 64;    // a fleet in peace has one list or two

}    // namespace

bool ClientLog::Take(const CapacityMessage& log, std::size_t records_max) {
  if (log.degree != degree_) return false;
  std::size_t fresh = 0;
  for (const CapacityItem& item : log.items) fresh += index_.Find(item.key) == KeyIndex::kNone;
  if (records_.size() + fresh > records_max) return false;
  const std::uint32_t lives = PlaceOf(log.lives);
  if (log.sequence > sequence_) {
    sequence_ = log.sequence;
    seats_ = log.members;
    unsettled_ = log.last;
  }
  for (std::size_t i = 0; i < log.items.size(); ++i) {
    std::uint32_t place = index_.Find(log.items[i].key);
    if (place == KeyIndex::kNone) {
      place = static_cast<std::uint32_t>(records_.size());
      index_.Add(log.items[i].key, place);
      records_.push_back({log.items[i].key});
      edges_.resize(edges_.size() + degree_);
    }
    Record& record = records_[place];
    if (log.sequence <= record.sequence) continue;
    record.base = log.items[i].base;
    record.sequence = log.sequence;
    record.lives = lives;
    std::copy_n(log.edges.begin() + static_cast<std::ptrdiff_t>(i * degree_), degree_,
                edges_.begin() + static_cast<std::ptrdiff_t>(place * degree_));
  }
  return true;
}

std::uint32_t ClientLog::PlaceOf(const std::vector<std::uint64_t>& list) {
  if (const auto at = std::ranges::find(lives_, list); at != lives_.end()) {
    return static_cast<std::uint32_t>(at - lives_.begin());
  }
  if (lives_.size() >= kLivesBeforeSweep && lives_.size() > records_.size()) {
    std::vector<std::vector<std::uint64_t>> used;
    std::map<std::uint32_t, std::uint32_t> moved;    // from the old place to the new one
    for (Record& record : records_) {
      const auto [at, fresh] = moved.try_emplace(record.lives, static_cast<std::uint32_t>(used.size()));
      if (fresh) used.push_back(std::move(lives_[record.lives]));
      record.lives = at->second;
    }
    lives_ = std::move(used);
  }
  lives_.push_back(list);
  return static_cast<std::uint32_t>(lives_.size() - 1);
}

bool ClientLog::Index() {
  for (const Record& record : records_) {
    if (index_.Find(record.key) != KeyIndex::kNone || record.lives >= lives_.size()) return false;
    index_.Add(record.key, static_cast<std::uint32_t>(&record - records_.data()));
  }
  return degree_ <= kDegreeMax && edges_.size() == records_.size() * degree_ &&
         std::ranges::all_of(lives_, [this](const auto& list) { return list.size() == degree_; });
}

std::int64_t ClientLog::Available(std::size_t record) const {
  auto sum = static_cast<std::uint64_t>(records_[record].base);
  for (const EdgeSums& edge : edges(record)) sum += edge.received - edge.given;
  return sum > kWhole ? 0 : static_cast<std::int64_t>(sum);    // negative, or more than everything: nonsense
}

std::optional<std::int64_t> ClientLog::Available(const CapacityKey& key) const {
  const std::uint32_t place = index_.Find(key);
  if (place == KeyIndex::kNone) return std::nullopt;
  return Available(place);
}

}    // namespace dthrottle
