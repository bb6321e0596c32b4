#include "feature/list.h"

#include "feature/candidate/feature.h"
#include "feature/set_limits/feature.h"
#include "feature/sites/feature.h"

namespace dthrottle {

std::vector<std::unique_ptr<Feature>> MakeFeatures([[maybe_unused]] const FeatureHost& host) {
  std::vector<std::unique_ptr<Feature>> all;
  all.push_back(std::make_unique<CandidateFeature>(host));    // limits that are set hold on top of its rules
  all.push_back(std::make_unique<SetLimitsFeature>(host));
  all.push_back(std::make_unique<SitesFeature>(host));
  return all;
}

void CheckFeatureFiles([[maybe_unused]] LoadedSettings& loaded, [[maybe_unused]] bool as_daemon) {
  SetLimitsFeature::CheckFile(loaded, as_daemon);
}

std::vector<std::string> CheckFeatures([[maybe_unused]] const Settings& settings) {
  std::vector<std::string> warnings;
  SetLimitsFeature::Check(settings, warnings);
  return warnings;
}

}    // namespace dthrottle
