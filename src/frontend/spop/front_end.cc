#include "frontend/spop/front_end.h"

#include "admin/admin.h"
#include "io/fresh.h"

namespace dthrottle {

FrontEnd::Room SpopFrontEnd::room() const {
  return {{host_.admin.settings().spop.max_connections, 4}};
}

void SpopFrontEnd::Start() {
  const Settings& settings = host_.admin.settings();
  server_.emplace(host_.loop, host_.admin.limiter(), 0, FreshPrng(), settings.query.max_tag_bytes,
                  settings.spop.idle_timeout);
}

void SpopFrontEnd::Reload(std::vector<std::string>&) {
  server_->set_idle_timeout(host_.admin.settings().spop.idle_timeout);
}

void SpopFrontEnd::Count(ProcessCounts& counts) const {
  counts.spop = server_->turn().counts();
  CountSockets(server_->counts().accepted.Read(), counts.spop);
  counts.idle_closed += server_->counts().idle_closed.Read();
  counts.stalled += server_->counts().stalled.Read();
  counts.over_long += server_->turn().over_long();
}

}    // namespace dthrottle
