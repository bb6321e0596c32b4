// The list of front ends.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "config/settings.h"
#include "frontend/frontend.h"

namespace dthrottle {

// All front ends, in the order in which they start. `host` must outlive them.
std::vector<std::unique_ptr<FrontEnd>> MakeFrontEnds(FrontEndHost& host);

// Fails, with the reason, if the settings want what this installation does not have.
Result<void> CheckFrontEnds(const Settings& settings);

}    // namespace dthrottle
