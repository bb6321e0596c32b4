#include "lease/resource.h"

#include <algorithm>

namespace dthrottle::lease {

Duration RefreshInterval(Duration at_root, std::uint32_t level) {
  return at_root / (std::int64_t{1} << std::min(level, kLevelMax));
}

Lease MakeLease(const ResourceTemplate& how, std::uint32_t level, double capacity,
                std::optional<BootInstant> own_expiry, BootInstant now) {
  constexpr Duration kBeforeExpiry = std::chrono::seconds(1);
  const BootInstant expiry = std::min(now + how.lease_length, own_expiry.value_or(BootInstant::max()));
  const Duration remaining = std::max(expiry - now, Duration::zero());
  Duration refresh = RefreshInterval(how.refresh_interval, level);
  if (refresh >= remaining) refresh = remaining > 2 * kBeforeExpiry ? remaining - kBeforeExpiry : remaining / 2;
  return {.capacity = capacity, .expiry = expiry, .refresh_interval = refresh};
}

Result<Templates> Templates::Make(std::vector<ResourceTemplate> list) {
  Templates made;
  made.list_ = std::move(list);
  for (std::size_t i = 0; i < made.list_.size(); ++i) {
    const std::string& pattern = made.list_[i].identifier_glob;
    auto glob = Glob::Compile(pattern);
    if (!glob) return Fail(std::string(glob.error().message));
    made.globs_.push_back(std::move(*glob));
    made.exact_.emplace(pattern, i);
  }
  return made;
}

const ResourceTemplate* Templates::Find(std::string_view resource) const {
  if (const auto exact = exact_.find(std::string(resource)); exact != exact_.end()) return &list_[exact->second];
  const auto glob = std::find_if(globs_.begin(), globs_.end(), [&](const Glob& g) { return g.Matches(resource); });
  return glob == globs_.end() ? nullptr : &list_[static_cast<std::size_t>(glob - globs_.begin())];
}

}    // namespace dthrottle::lease
