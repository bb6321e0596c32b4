#include "lease/resource.h"

#include <algorithm>
#include <cmath>

namespace dthrottle::lease {

Duration RefreshInterval(const ResourceTemplate& how, std::uint32_t level) {
  const double part = std::pow(how.decay_factor, std::min(level, kLevelMax));
  return Duration(static_cast<Duration::rep>(static_cast<double>(how.refresh_interval.count()) * part));
}

Lease MakeLease(const ResourceTemplate& how, std::uint32_t level, double capacity,
                std::optional<BootInstant> own_expiry, BootInstant now) {
  constexpr Duration kBeforeExpiry = std::chrono::seconds(1);
  const BootInstant expiry = std::min(now + how.lease_length, own_expiry.value_or(BootInstant::max()));
  const Duration remaining = std::max(expiry - now, Duration::zero());
  Duration refresh = RefreshInterval(how, level);
  if (refresh >= remaining) refresh = remaining > 2 * kBeforeExpiry ? remaining - kBeforeExpiry : remaining / 2;
  return {.capacity = capacity, .expiry = expiry, .refresh_interval = refresh};
}

ResourceTemplate SafeOf(ResourceTemplate how) {
  if (!how.safe_capacity) return how;
  how.algorithm = *how.safe_capacity == kUnlimited ? Algorithm::kNone : Algorithm::kStatic;
  how.capacity = *how.safe_capacity == kUnlimited ? how.capacity : *how.safe_capacity;
  return how;
}

Result<Templates> Templates::Make(std::vector<ResourceTemplate> list, Unknown unknown) {
  Templates made;
  if (unknown == Unknown::kHonour) {
    made.unknown_ = ResourceTemplate{.identifier_glob = "*",
                                     .algorithm = Algorithm::kNone,
                                     .learning_mode_duration = Duration::zero(),
                                     .safe_capacity = kUnlimited,
                                     .description = "unknown"};
  }
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
  if (glob != globs_.end()) return &list_[static_cast<std::size_t>(glob - globs_.begin())];
  return unknown_ ? &*unknown_ : nullptr;
}

}    // namespace dthrottle::lease
