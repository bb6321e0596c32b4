// All features of the daemon beside front ends and ways of sharing.
#pragma once

#include <memory>
#include <vector>

#include "feature/feature.h"

namespace dthrottle {

// The host must outlive them.
std::vector<std::unique_ptr<Feature>> MakeFeatures(const FeatureHost& host);

}    // namespace dthrottle
