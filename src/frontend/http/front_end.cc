#include "frontend/http/front_end.h"

#include "base/check.h"
#include "io/clock.h"
#include "io/fresh.h"

namespace dthrottle {

namespace {

constexpr std::uint64_t kTickMs = 1000;

}    // namespace

// A web server on the Unix socket has more weight than anybody who reaches the port.
FrontEnd::Room HttpFrontEnd::room() const {
  const std::uint32_t want = host_.admin.settings().admin.http_connections;
  return {{want, 1}, {want, 2}};
}

void HttpFrontEnd::Start() {
  server_.emplace(host_.loop, host_.admin, FreshPrng(), host_.admin.settings().admin.http_timeout);
  DT_CHECK(uv_timer_init(host_.loop, &timer_) == 0);
  timer_.data = this;
  const auto on_timer = [](uv_timer_t* timer) { static_cast<HttpFrontEnd*>(timer->data)->server_->Tick(Now()); };
  DT_CHECK(uv_timer_start(&timer_, on_timer, 0, kTickMs) == 0);
}

void HttpFrontEnd::Close() {
  StreamFrontEnd::Close();
  uv_close(reinterpret_cast<uv_handle_t*>(&timer_), nullptr);
}

void HttpFrontEnd::Count(ProcessCounts& counts) const {
  counts.http = server_->Counts();
  CountSockets(server_->counts().accepted.Read(), counts.http);
  counts.over_long += counts.http.over_long;
}

}    // namespace dthrottle
