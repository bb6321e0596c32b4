#include "frontend/ask/front_end.h"

#include "admin/escape.h"
#include "io/fresh.h"
#include "share/ways.h"

namespace dthrottle {

void AskFrontEnd::Start() {
  server_.emplace(host_.loop, host_.admin.limiter(), host_.admin.holds(), LaneUse{0, key()}, FreshPrng(),
                  settings().query.max_tag_bytes, section().idle_timeout, nullptr,
                  [this](const Tag& tag, double value) { return host_.admin.Indicate(tag, value); });
  Division& division = host_.admin.limiter().ways().Get<Division>();
  division.OnOver([this, &division](const Tag& tag, std::uint64_t hash, std::uint32_t places) {
    const std::uint32_t back = server_->TakeBack(hash, places);
    if (back == 0) return;
    division.core().in_flight->CountTakenBack(back);
    host_.log.Warning("{} places of the tag {} are taken back and their connections closed: {} too many for this host's "
                      "part",
                      back, tag.is_digest ? "of a digest" : EscapeTag(tag.bytes), places);
  });
}

void AskFrontEnd::Count(ProcessCounts& counts) const {
  TurnFrontEnd::Count(counts);
  counts.spoke_http += server_->spoke_http();
}

}    // namespace dthrottle
