#include "daemon/holding.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "config/listeners.h"
#include "io/clock.h"
#include "io/fresh.h"
#include "io/mapped_faults.h"

namespace dthrottle {

namespace {

constexpr std::size_t kEndedPerLook = 16;    // at the clock

Holds::Settle SettleBy(Limiter& limiter) {
  return [&](const Payment& paid, Cost actual, Instant now) { limiter.Settle(paid, actual, now); };
}

}    // namespace

std::string Holding::PathOf(const Settings& settings) {
  return settings.table.file.empty() ? "" : settings.table.file + ".holds";
}

bool Holding::IsWanted(const Settings& settings) {
  const auto at = EndpointsOf(settings, "ask");
  return settings.hold.max_holds > 0 && (!at.unix_path.empty() || at.tcp.enabled());
}

Holding::Holding(uv_loop_t* loop, Limiter& limiter, const Settings& settings, const HandedSection& left, bool took_over)
    : settings_(settings) {
  OpenRegion(left);
  holds_ = std::make_unique<Holds>(SettleBy(limiter), region_->bytes(), settings.hold.max_holds, ReadBootId(),
                                   FreshNumber());
  holds_->SetTtlMax(settings.hold.max_ttl);
  if (!took_over) holds_->ReleaseBound(Now());
  slices_.emplace(loop, Slices::Work{[this](Instant end) { return EndSome(end); }, [this] { return holds_->next(); }});
  holds_->OnEarlier([this] { slices_->Wake(); });
  slices_->Start();
}

void Holding::Dismiss(Limiter& limiter, const Settings& settings, const HandedSection& left) {
  const std::string path = PathOf(settings);
  const bool any = path.empty() ? left.fd >= 0 : ::access(path.c_str(), F_OK) == 0;    // of this table
  if (!any) {
    if (left.fd >= 0) ::close(left.fd);
    return;
  }
  const Fit as_it_is = [](std::span<std::byte> held, std::size_t wanted) { return std::max(wanted, held.size()); };
  const auto region =
      MappedRegion::OpenOrAdopt(path, HoldTable::RegionBytes(1), HoldTable::IsHoldTable, left.fd, as_it_is);
  if (!region) return;
  Holds holds(SettleBy(limiter), region->bytes(), 1, ReadBootId(), FreshNumber());
  path.empty() ? holds.ReleaseAll(Now()) : holds.ReleaseBound(Now());
}

void Holding::OpenRegion(const HandedSection& left) {
  const std::string path = PathOf(settings_);
  const std::size_t bytes = HoldTable::RegionBytes(settings_.hold.max_holds);
  const Fit fit = [](std::span<std::byte> held, std::size_t wanted) {
    return std::max(wanted, HoldTable::BytesInUse(held, ReadBootId()));
  };
  auto region = MappedRegion::OpenOrAdopt(path, bytes, HoldTable::IsHoldTable, left.fd, fit);
  if (!region) throw StartFailure{ExitCode(region.error().code), "holds beside table.file: " + region.error().message};
  region_.emplace(std::move(*region));
  WatchMappedFile(region_->bytes(), path);
}

// Works until `end`. True: there is more to do at once.
bool Holding::EndSome(Instant end) {
  bool more = true;
  while (more && Now() < end) more = holds_->EndSome(Now(), kEndedPerLook);
  return more;
}

void Holding::Reload(std::vector<std::string>&) {
  holds_->SetTtlMax(settings_.hold.max_ttl);
}

// The next program does not know whose connections have ended.
void Holding::Keep(std::vector<HandedSection>& sections) const {
  while (holds_->EndSome(Now(), kEndedPerLook)) continue;
  if (region_->nameless_fd() >= 0) sections.push_back({kSection, region_->nameless_fd(), {}});
}

void Holding::Close() {
  slices_->Close();
}

}    // namespace dthrottle
