#include "frontend/resp/front_end.h"

#include "io/clock.h"
#include "io/fresh.h"
#include "io/mapped_faults.h"

namespace dthrottle {

void RespFrontEnd::Start() {
  if (section().enabled() && section().accept_limits) OpenBroughtLimits();
  server_.emplace(host_.loop, host_.admin.limiter(), brought_.get(), 0, FreshPrng(), settings().query.max_tag_bytes,
                  section().idle_timeout);
}

void RespFrontEnd::OpenBroughtLimits() {
  const std::string& table = settings().table.file;
  const std::string file = table.empty() ? "" : table + ".resp";
  auto region = MappedRegion::Open(file, section().memory, Table::IsTable);
  if (!region) throw StartFailure{ExitCode(region.error().code), "resp.memory: " + region.error().message};
  region_.emplace(std::move(*region));
  WatchMappedFile(region_->bytes(), file);
  claiming_.Begin([this](const IdleWork::Pause& pause) {
    const auto claimed = region_->ClaimRest(pause);
    if (!claimed) host_.log.Error("resp.memory: {}", claimed.error().message);
  });
  brought_ = std::make_unique<BroughtLimits>(region_->bytes(), ReadBootId(), FreshTableKeys(), Now());
  if (!brought_->table().reshaping()) return;
  constexpr std::size_t kGroupsAtOnce = 32;    // of what is beyond the first 64 MiB
  const auto some = [this] { return brought_->table().ReshapeSome(kGroupsAtOnce, Now()); };
  walking_.emplace(host_.loop, some, [] {});
  walking_->Start();
}

void RespFrontEnd::Close() {
  TurnFrontEnd::Close();
  walking_.reset();
}

void RespFrontEnd::Count(ProcessCounts& counts) const {
  TurnFrontEnd::Count(counts);
  if (brought_ != nullptr) counts.resp.brought = brought_->table().counts();
}

}    // namespace dthrottle
