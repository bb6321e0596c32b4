#include "frontend/resp/front_end.h"

#include "admin/admin.h"
#include "io/clock.h"
#include "io/fresh.h"
#include "io/mapped_faults.h"

namespace dthrottle {

FrontEnd::Room RespFrontEnd::room() const {
  return {{host_.admin.settings().resp.max_connections, 4}};
}

void RespFrontEnd::Start() {
  const Settings& settings = host_.admin.settings();
  if (settings.resp.enabled() && settings.resp.accept_limits) OpenBroughtLimits();
  server_.emplace(host_.loop, host_.admin.limiter(), brought_.get(), 0, FreshPrng(), settings.query.max_tag_bytes,
                  settings.resp.idle_timeout);
}

void RespFrontEnd::OpenBroughtLimits() {
  const Settings& settings = host_.admin.settings();
  const std::string file = settings.table.file.empty() ? "" : settings.table.file + ".resp";
  auto region = MappedRegion::Open(file, settings.resp.memory, Table::IsTable);
  if (!region) throw StartFailure{ExitCode(region.error().code), "resp.memory: " + region.error().message};
  region_.emplace(std::move(*region));
  WatchMappedFile(region_->bytes(), file);
  brought_ = std::make_unique<BroughtLimits>(region_->bytes(), ReadBootId(), FreshTableKeys(), Now());
}

void RespFrontEnd::Reload(std::vector<std::string>&) {
  server_->set_idle_timeout(host_.admin.settings().resp.idle_timeout);
}

void RespFrontEnd::Count(ProcessCounts& counts) const {
  counts.resp = server_->turn().counts();
  CountSockets(server_->counts().accepted.Read(), counts.resp);
  if (brought_ != nullptr) counts.resp.brought = brought_->table().counts();
  counts.idle_closed += server_->counts().idle_closed.Read();
  counts.stalled += server_->counts().stalled.Read();
}

}    // namespace dthrottle
