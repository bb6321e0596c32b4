#include "frontend/ask/front_end.h"

#include "io/fresh.h"
#include "share/ways.h"

namespace dthrottle {

void AskFrontEnd::Start() {
  server_.emplace(host_.loop, host_.admin.limiter(), host_.admin.holds(), LaneUse{0, key()}, FreshPrng(),
                  settings().query.max_tag_bytes, section().idle_timeout, nullptr,
                  [this](const Tag& tag, double value) { return host_.admin.Indicate(tag, value); });
  host_.admin.limiter().ways().Get<Division>().OnOver(
      [this](std::uint64_t hash, std::uint32_t places) { server_->TakeBack(hash, places); });
}

void AskFrontEnd::Count(ProcessCounts& counts) const {
  TurnFrontEnd::Count(counts);
  counts.spoke_http += server_->spoke_http();
}

}    // namespace dthrottle
