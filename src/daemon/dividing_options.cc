#include "daemon/dividing_options.h"

#include <sysexits.h>

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
  std::ranges::sort(members);
  members.erase(std::unique(members.begin(), members.end()), members.end());
  return members;
}

}    // namespace

tl::expected<std::optional<CapacityOptions>, StartFailure> MakeCapacityOptions(const Settings& settings,
                                                                               const Rulebook& rules,
                                                                               const AuthorizedKeys& authorized,
                                                                               const std::string& name) {
  if (rules.divided_fingerprint() == 0) return std::nullopt;
  std::vector<std::string> members = Members(settings, authorized, name);
  auto graph = plan::DividedGraph(settings, members);
  if (!graph) return tl::unexpected(StartFailure{EX_CONFIG, graph.error().message});
  CapacityOptions options;
  const std::string& file = settings.capacity.state_file;
  options.state_file = file.empty() ? settings.table.file + ".capacity" : file;
  for (const auto& usable :
       {CheckStateFile(options.state_file, Witness::IsSaved), CheckIncarnation(options.state_file)}) {
    if (!usable) return tl::unexpected(StartFailure{EX_UNAVAILABLE, "capacity.state_file: " + usable.error().message});
  }
  options.settings = MakeCapacitySettings(settings, std::move(members), std::move(*graph), rules.divided_fingerprint());
  if (auto fits = CheckCapacitySettings(options.settings, name); !fits) {
    return tl::unexpected(StartFailure{EX_CONFIG, "capacity: " + fits.error().message});
  }
  return options;
}

Result<void> CheckDividing(const Settings& settings) {
  const auto& peers = settings.peers;
  const auto divides = [](const Rule& rule) { return rule.share == Share::kCapacity && rule.mode != Mode::kOff; };
  const bool by_keys = settings.capacity.members.empty() && !peers.authorized_keys.empty() && !peers.name.empty();
  const bool divided = peers.enabled() && std::ranges::any_of(settings.rules, divides);
  if (!divided || !by_keys) return plan::CheckGraphFile(settings);
  const auto authorized = ReadAuthorizedKeys(peers.authorized_keys);
  if (!authorized) return {};    // CheckKeys says so
  const auto graph = plan::DividedGraph(settings, Members(settings, *authorized, peers.name));
  if (!graph) return Fail(graph.error().message);
  return {};
}

}    // namespace dthrottle
