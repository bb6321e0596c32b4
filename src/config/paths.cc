#include "config/paths.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "config/findings.h"
#include "config/listeners.h"

namespace dthrottle {

namespace {

constexpr std::string_view kIncarnation = ".incarnation";
constexpr std::string_view kBesideTable[] = {kIncarnation, ".state",   ".holds", ".rules",
                                             ".counted",   ".owners",  ".sites", ".resp"};

}    // namespace

std::vector<OwnPath> OwnPaths(const Settings& s) {
  std::vector<OwnPath> all;
  const auto add = [&](std::string_view key, const std::string& stem, const std::string& ending = "") {
    if (stem.empty()) return;
    const std::string path = std::filesystem::path(stem + ending).lexically_normal().string();
    all.push_back({std::string(key), ending.empty() ? std::string(key) : fmt::format("{} with {} behind it", key, ending),
                   path});
  };
  add("table.file", s.table.file);
  for (const std::string_view ending : kBesideTable) add("table.file", s.table.file, std::string(ending));
  // A file that has a key of its own is beside the table without it.
  const auto or_beside = [&](std::string_view key, const std::string& path, const std::string& own,
                             const std::string& ending) {
    path.empty() ? add("table.file", s.table.file, own + ending) : add(key, path, ending);
  };
  or_beside("operator.limits_file", s.operators.limits_file, ".limits", "");
  or_beside("capacity.state_file", s.capacity.state_file, ".capacity", "");
  or_beside("capacity.state_file", s.capacity.state_file, ".capacity", std::string(kIncarnation));
  add("quota.file", s.quota.file);
  for (const ListenerKeys& its : AllListeners()) add(its.unix_key, its.at(s).unix_path);
  return all;
}

void CheckPaths(Findings& findings) {
  const std::vector<OwnPath> all = OwnPaths(findings.settings());
  for (auto b = all.begin(); b != all.end(); ++b) {
    for (auto a = all.begin(); a != b; ++a) {
      if (a->path != b->path) continue;
      findings.Error(b->key, fmt::format("{} and {} are both \"{}\": must differ", a->name, b->name, b->path));
    }
  }
}

}    // namespace dthrottle
