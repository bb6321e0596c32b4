#include "frontend/tls/front_end.h"

#include "admin/admin.h"

namespace dthrottle {

void TlsFrontEnd::Start() {
  const Settings& settings = host_.admin.settings();
  CheckStart(Check);
  lines_.emplace(host_.loop, lease_.leasing().server(), settings.lease.idle_timeout,
                 [this](BootInstant now) { lease_.leasing().Follow(now); });
  StartProgram({}, {{kLines, *lines_, true}});
}

void TlsFrontEnd::Reload(std::vector<std::string>&) {
  lines_->set_idle_timeout(host_.admin.settings().lease.idle_timeout);
}

void TlsFrontEnd::Count(ProcessCounts& counts) const {
  const Gateway::Counts tls = gateway_->counts();
  CountSockets(tls.accepted, counts.lease);
  counts.lease.lines += lines_->lines();
  counts.lease.tls_connections = gateway_->connections();
  counts.lease.tls_handshakes = lines_->counts().accepted.Read();
  counts.lease.tls_restarts = tls.restarts;
  counts.idle_closed += lines_->counts().idle_closed.Read();
  counts.stalled += lines_->counts().stalled.Read();
  counts.spoke_http += lines_->spoke_http();
}

}    // namespace dthrottle
