#include "daemon/dividing_options.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "capacity/witness.h"
#include "io/files.h"
#include "limiter/dividing_settings.h"
#include "plan/divided_graph.h"

namespace dthrottle {

namespace {

std::vector<std::string> Members(const Settings& settings, const AuthorizedKeys& authorized, const std::string& name) {
  std::vector<std::string> members = settings.capacity.members;
  if (members.empty()) {
    for (const auto& [other, key] : authorized.by_name) members.push_back(other);
    members.push_back(name);
  }
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());
  return members;
}

}    // namespace

Result<std::optional<CapacityOptions>> MakeCapacityOptions(const Settings& settings, const Rulebook& rules,
                                                           const AuthorizedKeys& authorized, const std::string& name) {
  if (rules.divided_fingerprint() == 0) return std::nullopt;
  std::vector<std::string> members = Members(settings, authorized, name);
  auto graph = plan::DividedGraph(settings, members);
  if (!graph) return Fail(graph.error().message);
  CapacityOptions options;
  const std::string& file = settings.capacity.state_file;
  options.state_file = file.empty() ? settings.table.file + ".capacity" : file;
  for (const auto& usable :
       {CheckStateFile(options.state_file, Witness::IsSaved), CheckIncarnation(options.state_file)}) {
    if (!usable) return Fail("capacity.state_file: " + usable.error().message);
  }
  options.settings = MakeCapacitySettings(settings, std::move(members), std::move(*graph), rules.divided_fingerprint());
  if (auto fits = CheckCapacitySettings(options.settings, name); !fits)
    return Fail("capacity: " + fits.error().message);
  return options;
}

}    // namespace dthrottle
