#include "frontend/http/front_end.h"

#include "io/clock.h"
#include "io/fresh.h"

namespace dthrottle {

// A web server on the Unix socket has more weight than anybody who reaches the port.
FrontEnd::Room HttpFrontEnd::room() const {
  const std::uint32_t want = host_.admin.settings().admin.http_connections;
  return {{want, 1}, {want, 2}};
}

void HttpFrontEnd::Start() {
  server_.emplace(host_.loop, host_.admin, FreshPrng(), host_.admin.settings().admin.http_timeout);
  timer_.emplace(host_.loop, [this] { server_->Tick(Now()); });
  timer_->StartNowAndEvery(std::chrono::seconds(1));
}

void HttpFrontEnd::Close() {
  StreamFrontEnd::Close();
  timer_.reset();
}

void HttpFrontEnd::Count(ProcessCounts& counts) const {
  counts.http = server_->Counts();
  CountSockets(server_->counts().accepted.Read(), counts.http);
  counts.over_long += counts.http.over_long;
}

}    // namespace dthrottle
