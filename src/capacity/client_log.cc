#include "capacity/client_log.h"

#include <algorithm>

namespace dthrottle {

bool ClientLog::Take(const CapacityMessage& log, std::size_t records_max) {
  if (log.degree != degree_) return false;
  std::size_t fresh = 0;
  for (const CapacityItem& item : log.items) fresh += index_.Find(item.key) == KeyIndex::kNone;
  if (records_.size() + fresh > records_max) return false;
  auto lives = std::ranges::find(lives_, log.lives);
  if (lives == lives_.end()) lives = lives_.insert(lives_.end(), log.lives);
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
    record.lives = static_cast<std::uint32_t>(lives - lives_.begin());
    std::copy_n(log.edges.begin() + static_cast<std::ptrdiff_t>(i * degree_), degree_,
                edges_.begin() + static_cast<std::ptrdiff_t>(place * degree_));
  }
  return true;
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
