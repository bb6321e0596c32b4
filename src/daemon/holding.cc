#include "daemon/holding.h"

#include <algorithm>

#include "base/check.h"
#include "config/listeners.h"
#include "io/clock.h"
#include "io/fresh.h"
#include "io/mapped_faults.h"

namespace dthrottle {

bool Holding::IsWanted(const Settings& settings) {
  const auto at = EndpointsOf(settings, "ask");
  return settings.hold.max_holds > 0 && (!at.unix_path.empty() || at.tcp.enabled());
}

Holding::Holding(uv_loop_t* loop, Limiter& limiter, const Settings& settings, const HandedSection& left, bool took_over)
    : settings_(settings) {
  OpenRegion(left);
  holds_.emplace([&](const Payment& paid, Cost actual, Instant now) { limiter.Settle(paid, actual, now); },
                 region_->bytes(), settings.hold.max_holds, ReadBootId(), FreshNumber());
  holds_->SetTtlMax(settings.hold.max_ttl);
  if (!took_over) holds_->ReleaseBound(Now());
  DT_CHECK(uv_timer_init(loop, &timer_) == 0);
  timer_.data = this;
  holds_->OnEarlier([this] { SetTimer(); });
  SetTimer();
}

// Beside the table, or without a name as it.
void Holding::OpenRegion(const HandedSection& left) {
  const std::string path = settings_.table.file.empty() ? "" : settings_.table.file + ".holds";
  const std::size_t bytes = HoldTable::RegionBytes(settings_.hold.max_holds);
  const Fit fit = [](std::span<std::byte> held, std::size_t wanted) {
    return std::max(wanted, HoldTable::BytesInUse(held, ReadBootId()));
  };
  auto region = MappedRegion::OpenOrAdopt(path, bytes, HoldTable::IsHoldTable, left.fd, fit);
  if (!region) throw StartFailure{ExitCode(region.error().code), "holds beside table.file: " + region.error().message};
  region_.emplace(std::move(*region));
  WatchMappedFile(region_->bytes(), path);
}

void Holding::OnTimer() {
  holds_->Expire(Now());
  SetTimer();
}

void Holding::SetTimer() {
  if (holds_->next() == Instant::max()) return void(uv_timer_stop(&timer_));
  uv_update_time(timer_.loop);
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(std::max(holds_->next() - Now(), Duration()));
  const auto on_timer = [](uv_timer_t* timer) { static_cast<Holding*>(timer->data)->OnTimer(); };
  DT_CHECK(uv_timer_start(&timer_, on_timer, static_cast<std::uint64_t>(wait.count()), 0) == 0);
}

void Holding::Reload(std::vector<std::string>&) {
  holds_->SetTtlMax(settings_.hold.max_ttl);
}

void Holding::Keep(std::vector<HandedSection>& sections) const {
  if (region_->nameless_fd() >= 0) sections.push_back({kSection, region_->nameless_fd(), {}});
}

void Holding::Close() {
  uv_close(reinterpret_cast<uv_handle_t*>(&timer_), nullptr);
}

}    // namespace dthrottle
