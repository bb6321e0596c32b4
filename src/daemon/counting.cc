#include "daemon/counting.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/check.h"
#include "config/calendar.h"
#include "config/values.h"
#include "io/clock.h"
#include "io/fresh.h"
#include "io/mapped_faults.h"
#include "rule/rulebook.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

// A clock that is set, or steered, is followed within this time; when a period ends, the limiter knows in advance.
constexpr std::uint64_t kLookMs = 1000;
// More of counts is not kept beside the table at an orderly end.
constexpr std::size_t kKeptBytesMax = std::size_t{1} << 28;

// Both clocks are read as one: what lies between only makes a period end late.
QuotaPeriods PeriodsNow(const QuotaCalendar& calendar) {
  const Duration date = WallClock();
  const Instant now = Now();
  QuotaPeriods periods = PeriodsAt(calendar, std::chrono::floor<std::chrono::seconds>(date).count());
  periods.ends = now + (std::chrono::seconds(static_cast<std::int64_t>(periods.next)) - date);
  return periods;
}

}    // namespace

Counting::Counting(uv_loop_t* loop, Limiter& limiter, const Settings& settings, Log& log, const HandedSection& left)
    : settings_(settings), limiter_(limiter), log_(log) {
  if (limiter_.rules().any_quota()) {
    if (const auto begun = Begin(left); !begun) {
      throw StartFailure{ExitCode(begun.error().code), "quota.file: " + begun.error().message};
    }
  } else if (left.fd >= 0) {
    ::close(left.fd);
  }
  DT_CHECK(uv_timer_init(loop, &timer_) == 0);
  timer_.data = this;
  const auto on_timer = [](uv_timer_t* timer) {
    static_cast<Counting*>(timer->data)->limiter_.ways().FollowCalendar();
  };
  DT_CHECK(uv_timer_start(&timer_, on_timer, kLookMs, kLookMs) == 0);
}

FileResult<void> Counting::Begin(const HandedSection& left) {
  std::size_t left_out = 0;
  const Fit fit = [&](std::span<std::byte> held, std::size_t bytes) {
    left_out = QuotaFile::MoveInto(held, bytes);
    return bytes;
  };
  auto region =
      MappedRegion::OpenOrAdopt(settings_.quota.file, settings_.quota.memory, QuotaFile::IsQuotaFile, left.fd, fit);
  if (!region) return tl::unexpected(region.error());
  if (auto claimed = region->ClaimRest([](Duration) { return true; }); !claimed) return claimed;
  region_.emplace(std::move(*region));
  if (region_->nameless_fd() >= 0 && !left.bytes.empty()) QuotaFile::Unpack(left.bytes, region_->bytes());
  WatchMappedFile(region_->bytes(), settings_.quota.file);
  limiter_.ways().KeepQuotas(region_->bytes(), ReadBootId(), FreshNumber(), PeriodsNow);
  SayResized(left_out);
  return {};
}

// `left_out` tags had no room in the file, and more may have none in the table of tags, which is half of that.
void Counting::SayResized(std::size_t left_out) const {
  const std::size_t before = region_->bytes_before();
  const Quotas* const quotas = limiter_.ways().quotas();
  if (before == 0 || before == region_->bytes().size() || quotas == nullptr) return;
  const QuotaCounts counts = quotas->counts();
  left_out += counts.forgotten;
  log_.Say(left_out == 0 ? LogLevel::kNotice : LogLevel::kWarning,
           fmt::format("quotas: {} in the place of {}: {} tags kept, {} had no room and begin anew",
                       FormatBytes(settings_.quota.memory), FormatBytes(before), counts.tags, left_out));
}

void Counting::Reload(std::vector<std::string>& problems) {
  if (region_.has_value() || !limiter_.rules().any_quota()) return;
  if (const auto begun = Begin({}); !begun) {
    problems.push_back(fmt::format("quota.file: {}; quotas of rules are not counted", begun.error().message));
  }
}

void Counting::Keep(std::vector<HandedSection>& sections) const {
  if (!region_ || region_->nameless_fd() < 0) return;
  HandedSection& left = sections.emplace_back(HandedSection{kSection, region_->nameless_fd(), {}});
  if (!closed_) return;
  left.bytes = QuotaFile::Pack(region_->bytes());
  if (left.bytes.size() > kKeptBytesMax) left.bytes.clear();
}

void Counting::Close() {
  closed_ = true;
  uv_close(reinterpret_cast<uv_handle_t*>(&timer_), nullptr);
}

}    // namespace dthrottle
