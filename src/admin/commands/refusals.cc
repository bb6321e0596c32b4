// `refusals`: a sample of what was refused lately.
#include <fmt/format.h>

#include <algorithm>

#include "admin/commands/commands.h"
#include "base/number.h"
#include "tally/tally.h"

namespace dthrottle::commands {

Json RecentRefusals(const Context& c) {
  std::size_t n = 20;
  if (!c.argument.empty() && (!ParseNumber(c.argument, n) || n < 1 || n > Refusals::kKept)) {
    return ErrorAnswer(fmt::format("N must be a whole number from 1 to {}", Refusals::kKept));
  }
  std::vector<Refusal> all;
  const Tally& tally = c.limiter().tally();
  for (std::size_t i = 0; i < tally.lanes(); ++i) tally.lane(i).refusals().AppendTo(all);
  std::stable_sort(all.begin(), all.end(), [](const Refusal& a, const Refusal& b) { return a.at > b.at; });
  Json rows = Json::array();
  for (const Refusal& refusal : std::span(all).first(std::min(n, all.size()))) {
    rows.push_back({{"s_ago", Rounded(Seconds(std::max(c.now - refusal.at, Duration::zero())))},
                    {"rule", refusal.rule},
                    {"why", refusal.shed ? "shed" : "limit"},
                    {"front_end", refusal.front_end},
                    {"tag", ShowTag({refusal.tag, refusal.is_digest}) + (refusal.is_cut ? "..." : "")}});
  }
  return rows;
}

}    // namespace dthrottle::commands
