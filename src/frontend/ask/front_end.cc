#include "frontend/ask/front_end.h"

#include "admin/admin.h"
#include "io/fresh.h"

namespace dthrottle {

FrontEnd::Room AskFrontEnd::room() const {
  return {{host_.admin.settings().ask.max_connections, 4}};
}

void AskFrontEnd::Start() {
  const Settings& settings = host_.admin.settings();
  server_.emplace(host_.loop, host_.admin.limiter(), host_.admin.holds(), LaneUse{0, key()}, FreshPrng(),
                  settings.query.max_tag_bytes, settings.ask.idle_timeout, nullptr,
                  [this](const Tag& tag, double value) { return host_.admin.Indicate(tag, value); });
}

void AskFrontEnd::Reload(std::vector<std::string>&) {
  server_->set_idle_timeout(host_.admin.settings().ask.idle_timeout);
}

void AskFrontEnd::Count(ProcessCounts& counts) const {
  counts.ask = server_->turn().counts();
  CountSockets(server_->counts().accepted.Read(), counts.ask);
  counts.idle_closed += server_->counts().idle_closed.Read();
  counts.stalled += server_->counts().stalled.Read();
  counts.spoke_http += server_->spoke_http();
  counts.over_long += server_->turn().over_long();
}

}    // namespace dthrottle
