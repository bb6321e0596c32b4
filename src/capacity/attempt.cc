#include "capacity/attempt.h"

#include <algorithm>

namespace dthrottle {

// Whether a majority of this panel says that nobody who has not promised holds a lease.
bool Attempt::NobodyElse(const std::vector<std::string>& members, const std::vector<std::string>& panel, bool of_former,
                         bool lenient) const {
  const auto count = [&](const auto& says) {
    std::size_t n = 0;
    for (const std::string& name : panel) {
      const auto at = promised.find(name);
      n += at != promised.end() && says(at->second);
    }
    return n >= Majority(panel.size());
  };
  if (!count([](const Promised&) { return true; })) return false;
  if (lenient) return true;
  if (of_former && !count([](const Promised& p) { return p.others_lapsed; })) return false;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (promised.contains(members[i])) continue;
    if (!count([i](const Promised& p) { return p.lapsed.Has(i); })) return false;
  }
  return true;
}

void Attempt::ForgetUnconfirmed(const std::vector<std::string>& members, std::string_view self) {
  if (promised.size() < 3) return;
  std::erase_if(promised, [&](const auto& one) {
    const std::vector<std::string>& panel = one.second.former_witnesses;
    if (one.first == self || panel.empty()) return false;
    const auto same = [&](const auto& other) { return other.second.former_witnesses == panel; };
    return std::ranges::count_if(promised, same) == 1 && !NobodyElse(members, panel, true, false);
  });
}

bool Attempt::Suffices(const std::vector<std::string>& members, const std::vector<std::string>& witnesses,
                       bool lenient) const {
  if (!NobodyElse(members, witnesses, false, lenient)) return false;
  for (const auto& [name, promise] : promised) {
    if (!promise.former_witnesses.empty() && !NobodyElse(members, promise.former_witnesses, true, lenient))
      return false;
  }
  return true;
}

}    // namespace dthrottle
