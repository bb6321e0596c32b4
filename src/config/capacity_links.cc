#include "config/capacity_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "capacity/capacity_settings.h"
#include "config/values.h"

namespace dthrottle {

Result<Graph> GraphOfMembers(std::vector<WeightedLink> links, const std::vector<std::string>& members) {
  auto graph = Graph::Make(static_cast<std::uint32_t>(members.size()), std::move(links));
  if (!graph) return graph;
  for (std::uint32_t i = 0; i < graph->size() && graph->size() > 1; ++i) {
    const std::uint32_t degree = graph->Degree(i);
    if (degree == 0) return Fail(fmt::format("{} has no link", members[i]));
    if (degree > kDegreeMax) {
      return Fail(fmt::format("{} has {} links; at most {} are allowed", members[i], degree, kDegreeMax));
    }
  }
  if (!graph->Connected()) return Fail("some members have no way to each other");
  return graph;
}

Result<Graph> GraphOfLinks(const std::vector<std::string>& links, const std::vector<std::string>& members) {
  const auto place = [&](const std::string& name) {
    const auto at = std::lower_bound(members.begin(), members.end(), name);
    return at != members.end() && *at == name ? std::optional(static_cast<std::uint32_t>(at - members.begin()))
                                              : std::nullopt;
  };
  std::vector<WeightedLink> found;
  std::set<std::pair<std::uint32_t, std::uint32_t>> linked;
  for (const std::string& text : links) {
    const CapacityLink link = ParseCapacityLink(text).value();
    const auto a = place(link.a), b = place(link.b);
    if (!a || !b) return Fail(fmt::format("\"{}\": {} is no member", text, a ? link.b : link.a));
    if (!linked.insert(std::minmax(*a, *b)).second) {
      return Fail(fmt::format("\"{}\": {} and {} are linked already", text, link.a, link.b));
    }
    found.push_back({*a, *b, link.weight});
  }
  return GraphOfMembers(std::move(found), members);
}

}    // namespace dthrottle
