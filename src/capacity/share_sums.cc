#include "capacity/share_sums.h"

#include <utility>

#include "capacity/capacity_message.h"

namespace dthrottle {
namespace {

constexpr Duration kLookLasts = std::chrono::seconds(30);    // a person types slowly
constexpr Duration kSaidLasts = std::chrono::seconds(10);

}    // namespace

void ShareSums::Look(const CapacityKey& key, BootInstant now) {
  if (tags_.size() >= kAskedMax && !tags_.contains(key)) return;
  tags_[key].looked = now;
}

std::vector<CapacityKey> ShareSums::Wanted(BootInstant now) {
  std::erase_if(tags_, [now](const auto& tag) { return now - tag.second.looked > kLookLasts; });
  std::vector<CapacityKey> keys;
  for (const auto& [key, tag] : tags_) keys.push_back(key);
  return keys;
}

void ShareSums::Ask(const CapacityKey& key, std::uint64_t number, Parts own, BootInstant now) {
  Tag& tag = tags_.at(key);
  tag.before = std::exchange(tag.last, {number, now, own, {}});
}

void ShareSums::Say(std::string_view member, const CapacityKey& key, std::uint64_t number, Parts parts) {
  const auto at = tags_.find(key);
  if (at == tags_.end() || at->second.last.number != number) return;
  if (at->second.last.members.emplace(member).second) at->second.last.sum += parts;
}

void ShareSums::Forget() {
  for (auto& [key, tag] : tags_) tag.before = tag.last = {};
}

CapacitySum ShareSums::Sum(const CapacityKey& key, Parts own, BootInstant now) const {
  if (const auto at = tags_.find(key); at != tags_.end()) {
    const auto& [looked, before, last] = at->second;
    const Asked& asked = last.members.size() >= before.members.size() ? last : before;
    if (!asked.members.empty() && now <= asked.at + kSaidLasts) {
      return {asked.sum, asked.members.size() + 1, now - asked.at};
    }
  }
  return {own, 1, Duration()};
}

}    // namespace dthrottle
