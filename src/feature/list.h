// All features of the daemon beside front ends and ways of sharing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/settings.h"
#include "feature/feature.h"

namespace dthrottle {

// The host must outlive them.
std::vector<std::unique_ptr<Feature>> MakeFeatures(const FeatureHost& host);

// Adds what would stop a start in the files of features, for --check. `as_daemon`: the user who checks is the daemon's.
void CheckFeatureFiles(LoadedSettings& loaded, bool as_daemon);

// What a start would warn of in the files that the settings of features name, a line each, for --check.
std::vector<std::string> CheckFeatures(const Settings& settings);

}    // namespace dthrottle
