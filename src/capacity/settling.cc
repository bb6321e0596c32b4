#include "capacity/settling.h"

#include <algorithm>
#include <utility>

namespace dthrottle {

Settling::Settling(const ClientLog& log, std::size_t slot, std::string its_to, std::uint64_t sequence)
    : dead(log.host), life(log.life), to(std::move(its_to)), sequence_(sequence) {
  for (std::size_t i = 0; i < log.records().size(); ++i) {
    const EdgeSums& sums = log.edges(i)[slot];
    if (sums.given == 0 && sums.received == 0) continue;
    CapacityItem& item = items_.emplace_back();
    item.key = log.records()[i].key;
    item.neighbour = log.LifeOf(i, slot);
    sums_.push_back(sums);
  }
  Count();
  for (std::size_t i = 0; i < frames_; ++i) open_.insert(i);
}

bool Settling::Count() {
  const std::size_t most = ItemsMax(CapacityKind::kSettle, 1);
  frames_ = (items_.size() + most - 1) / most + 1;
  return sums_.size() == items_.size() && (open_.empty() || *open_.rbegin() < frames_);
}

std::vector<std::size_t> Settling::Due() const {
  std::vector<std::size_t> due(open_.begin(), open_.end());
  if (due.size() > 1 && due.back() + 1 == frames_) due.pop_back();
  return due;
}

void Settling::Write(std::size_t frame, CapacityMessage& m) const {
  const std::size_t most = ItemsMax(CapacityKind::kSettle, 1);
  m.member = dead;
  m.life = life;
  m.sequence = sequence_ + frame;
  m.degree = 1;
  m.last = frame + 1 == frames_;
  for (std::size_t k = frame * most; k < std::min((frame + 1) * most, items_.size()); ++k) {
    m.items.push_back(items_[k]);
    m.edges.push_back(sums_[k]);
  }
}

bool Settling::Acknowledge(std::uint64_t sequence) {
  if (sequence < sequence_ || sequence >= sequence_ + frames_) return false;
  open_.erase(static_cast<std::size_t>(sequence - sequence_));
  return true;
}

}    // namespace dthrottle
